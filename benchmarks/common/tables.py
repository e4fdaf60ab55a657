"""The numbers that every engine gets, and the model's shape; needs NumPy alone, so that a peer pays for nothing else."""

from __future__ import annotations

import numpy as np

FEATURES, HIDDEN, CLASSES = 30, (64, 32), 2
PARAMETERS = sum((a + 1) * b for a, b in zip((FEATURES, *HIDDEN), (*HIDDEN, CLASSES), strict=True))
PATIENTS, BATCH, STEPS, RATE = 500, 50, 10, 0.1
LEARNING_RATE, CLIP, NOISE, DELTA = 0.3, 1.0, 1.0, 1e-3


def tables(sites: int, patients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x (sites, patients, 30) float32 and y (sites, patients) int64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sites, patients, FEATURES)).astype(np.float32).clip(-6, 6)
    w = rng.normal(size=FEATURES) / np.sqrt(FEATURES)
    return x, (x @ w + 0.5 * rng.normal(size=(sites, patients)) > 0).astype(np.int64)
