"""The common work as Polyclinic's configuration keys."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from benchmarks.common.tables import CLIP, DELTA, HIDDEN, LEARNING_RATE, NOISE, RATE, STEPS
from polyclinic.privacy.accounting import dpsgd_event, epsilon


@lru_cache
def epsilon_for(rounds: int) -> float:
    """The epsilon that ``rounds`` rounds cost with noise multiplier 1: a run with this budget calibrates its noise to 1."""
    return epsilon(dpsgd_event(RATE, NOISE, STEPS * rounds), DELTA)


def options(sites: int, rounds: int, dp: bool, patients: int, budget: float) -> dict[str, Any]:
    """Keys of a run: no evaluation but the one after the last round, nothing private spent but on training."""
    return {
        "sites": sites, "rounds": rounds, "model": "mlp", "hidden": ",".join(map(str, HIDDEN)), "privacy.dp": dp,
        "privacy.epsilon": budget, "privacy.delta": DELTA, "training.sample-rate": RATE,
        "training.local-steps": STEPS, "privacy.max-grad-norm": CLIP,
        "training.learning-rate": LEARNING_RATE, "training.momentum": 0.0, "data.standardise": "none",
        "privacy.patients-per-site": patients,
        "evaluation.every": rounds + 1,
    }  # fmt: skip
