"""Synthetic patients out of one noisy sum: a Gaussian with differentially private mean and covariance."""

from __future__ import annotations

import math

import numpy as np
import torch

from polyclinic.errors import ConfigError
from polyclinic.privacy.clipping import clipped_sum, privatise
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.types import Floats

_LEAST_VARIANCE = 1e-3  # of the public half range


def synthetic_patients(records: Floats, low: Floats, high: Floats, noise_multiplier: float, seed: int) -> Floats:
    """As many synthetic (n, k) records as there are.

    Each patient's record, in units of the public range ``low`` to ``high`` (k,), gives itself and its products; the vector is
    clipped to L2 norm 1, summed, and noise is added: one Gaussian event of ``noise_multiplier``, for one patient added or
    removed; n is taken as public. ``low`` and ``high`` must not come from the records.
    Raises ConfigError if a range is empty.
    """
    if not bool((low < high).all()):
        raise ConfigError("Public ranges need low < high for every column.")
    n, k = records.shape
    upper = np.triu_indices(k)
    # A record half of the half range off in every column has squared norm k / 4, and its products (k / 4)^2: not clipped.
    unit = 1 / math.sqrt(k / 4 + (k / 4) ** 2)
    scaled = (2 * records - low - high) / (high - low)
    twice = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    vectors = unit * np.concatenate(
        [scaled, twice * (scaled[:, :, None] * scaled[:, None, :])[:, upper[0], upper[1]]], 1
    )
    total = clipped_sum(torch.from_numpy(vectors), 1.0)
    draws = keyed_stream(seed, "synthetic patients").normal(vectors.shape[1])
    released = privatise(total, noise_multiplier, draws).numpy() / (n * unit)
    mean, second = released[:k], np.zeros((k, k))
    second[upper] = released[k:] / twice
    covariance = second + np.triu(second, 1).T - np.outer(mean, mean)
    values, vectors_of = np.linalg.eigh(covariance)
    root = vectors_of * np.sqrt(np.maximum(values, _LEAST_VARIANCE))
    fresh = mean + generator(seed, "synthetic patients' rows").standard_normal((n, k)) @ root.T
    return np.asarray((low + high + fresh * (high - low)) / 2)
