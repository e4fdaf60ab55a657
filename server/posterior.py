"""A run of task posterior at the server: whether its budget may do, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import posterior_method
from polyclinic.server.cohort import cohort_size
from polyclinic.server.state import RunState
from polyclinic.server.synthesis import noise_of_mean
from polyclinic.strategies.fedsums import FedSums
from polyclinic.training.posterior import PosteriorSums


def check_budget(config: RunConfig, schema: Schema, noise_multiplier: float, patients: Sequence[float]) -> None:
    """Raises ConfigError where the noise would hide the information of hospitals with so many ``patients``, or where a secure
    sum would cut their sums short."""
    method = posterior_method(config, schema)
    cohort = cohort_size(config, len(patients))
    asked = sorted(patients)[-cohort:] if cohort else list(patients)
    method.method.check_noise(noise_of_mean(config, noise_multiplier, asked, cohort))
    longest = 1.0 + 2.0 * noise_multiplier * math.sqrt(method.method.width) / min(patients)
    if config.secure_aggregation and not config.shared_noise and config.secure_clip_norm < longest:
        raise ConfigError(
            f"Configuration key 'secure-clip-norm' has the value {config.secure_clip_norm:g}, but a hospital's sum by its number "
            f"of patients may be as long as {longest:.3g}; a shorter one would be cut and the posterior false: set it to that."
        )


def posterior_statement(config: RunConfig, strategy: Strategy | None, state: RunState) -> dict[str, Any]:
    """What the summary says of the posterior: its numbers, or in ``refused`` why there are none."""
    assert isinstance(strategy, FedSums) and isinstance(strategy.method, PosteriorSums)
    method, refused, found = strategy.method, None, {}
    if state.stopped:
        refused = state.stopped
    else:
        try:
            found = method.result(strategy.state)
        except DataError as error:
            refused = f"No posterior: {error}"
    likelihood = method.method.likelihood
    return {
        "method": method.name, "model": config.model, "options": config.method_options, "names": list(likelihood.names),
        "finished": not refused, "refused": refused, "patients": strategy.patients, "rows": "mean of a patient's",
        "missing": config.imputation, "prior": method.prior(), "columns": method.scales(), **found,
    }  # fmt: skip
