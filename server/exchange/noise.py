"""How noisy a round's mean over hospitals is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.programs import Program
from polyclinic.server.exchange.cohort import cohort_size, secure_threshold
from polyclinic.server.exchange.learning import Learning
from polyclinic.server.exchange.sites import Site
from polyclinic.server.state import RunState

# Hospitals beside the one that may look on share the noise (``config.derived.secure_terms``).
_ONLOOKERS = 1


def tell_noise(
    learning: Learning | None, config: RunConfig, state: RunState, sites: Sequence[Site], threshold: int = 0
) -> None:
    """Tells the program's half how noisy the mean over ``sites`` is, and over how many patients.

    Args:
        learning: The program's half at the server, which is changed; None where it has none.
        config: The run's configuration.
        state: The run's state, with the noise multiplier and the public counts of patients.
        sites: The hospitals whose mean it is.
        threshold: Of a secure sum, as agreed; 0 for none.
    """
    if learning is None or not learning.half.wants_noise or not state.public_patients:
        return
    noise, patients = state.noise_multiplier or 0.0, [state.public_patients[site.name] for site in sites]
    learning.noise, learning.patients = noise_of_mean(config, noise, patients, threshold), sum(patients)
    learning.noises = {str(site.id): noise / count for site, count in zip(sites, patients, strict=True)}


def noise_of_mean(config: RunConfig, noise_multiplier: float, patients: Sequence[float], threshold: int) -> float:
    """Standard deviation in each entry of the mean over hospitals of so many ``patients``.

    With what a secure sum rounds off: a hospital's entries go to the grid at random, or its sum's to the nearest point.

    Args:
        config: The run's configuration, with the keys ``secure``.
        noise_multiplier: Standard deviation of a hospital's noise over the clip norm.
        patients: The number of patients of each hospital.
        threshold: How many hospitals open the secure sum, which says how large each one's share of a common noise is.
    """
    total, shares = sum(patients), float(len(patients))
    if config.secure.shared_noise:
        shares /= threshold - _ONLOOKERS
    noise = noise_multiplier * math.sqrt(shares) / total
    if not config.secure.aggregation:
        return noise
    largest = config.privacy.max_grad_norm if config.secure.shared_noise else config.secure.clip_norm * max(patients)
    rounding = largest / 2 ** (config.secure.bits + 1) * math.sqrt(len(patients)) / total
    return math.hypot(noise, rounding)


def check_noise(program: Program, schema: Schema, noise_multiplier: float, patients: Sequence[float]) -> None:
    """Checks that the noise leaves something to learn of hospitals with so many ``patients``.

    Args:
        program: The run's program, which knows how much noise is too much.
        schema: The public schema.
        noise_multiplier: Standard deviation of a hospital's noise over the clip norm.
        patients: The number of patients of each hospital.

    Raises:
        ConfigError: The noise would leave nothing to learn.
    """
    if program.limits_noise:
        cohort = cohort_size(program.config, len(patients))
        asked = sorted(patients)[-cohort:] if cohort else list(patients)
        threshold = secure_threshold(program.config, cohort) if program.config.secure.aggregation else 0
        noise = noise_of_mean(program.config, noise_multiplier, asked, threshold)
        program.check_noise(schema, noise_multiplier, noise, min(patients))
