"""The section of task posterior: its public normal prior, and which numbers of a record its likelihood is of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from polyclinic.config.keys import Keys, Written
from polyclinic.config.programs.kinds import Kind
from polyclinic.config.programs.synthesis import check_one_sum, check_private_sums
from polyclinic.config.reading import parse_assignments
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig

#: What task posterior takes where nothing is given: each round is one sum over all patients.
DEFAULTS: dict[str, Any] = {
    "rounds": 8, "data.standardise": "none", "training.momentum": 0.0, "training.local-steps": 1, "training.sample-rate": 1.0,
    "training.learning-rate": 1.0, "privacy.max-grad-norm": 1.0,
}  # fmt: skip

# Columns are scaled to about 1; squares of what lies far beyond overflow in the middle of a run that is paid for.
_LARGEST = 1e6


def posterior_kind(given: Mapping[str, Any]) -> Kind:
    """The kind of task posterior, by its method; ``given`` are flat keys."""
    rounds = {"rounds": 100} if by_flow(str(given.get("posterior.options", ""))) else {}
    return Kind(
        "posterior", frozenset({"posterior"}), DEFAULTS | rounds, check_posterior, steps=False, counts_exactly=True,
        shares_noise=True, server_steps=False,
    )  # fmt: skip


def by_flow(method_options: str) -> bool:
    """Whether task posterior takes Algorithm 2, whose rounds are steps of a flow."""
    try:
        return bool(parse_assignments(method_options).get("method") == "flow")
    except ConfigError:
        return False


class Posterior(Keys):
    """Task posterior: of which parameters, and from which prior."""

    options: Written = Field(
        "", description="Options of the likelihood and of its method: `method=flow` (docs/flows/inference.md)."
    )
    columns: Written = Field(
        "",
        description="Features, then the outcome, separated by commas (`age, sex, died`); empty takes all "
        "features and the label (docs/flows/inference.md).",
    )
    prior_mean: Written = Field(
        "0", description="Mean of the normal prior, public: one number, or one for each parameter."
    )
    prior_sd: Written = Field(
        "2.5",
        description="Standard deviation of that prior, by feature as scaled: one number, or one for each parameter.",
    )

    @field_validator("prior_mean")
    @classmethod
    def _means(cls, value: str) -> str:
        if not all(abs(number) <= _LARGEST for number in _numbers(value) or [math.inf]):
            raise ValueError(
                f"must be numbers separated by commas, as in '0' or '0, 0.5', from {-_LARGEST:g} to {_LARGEST:g}"
            )
        return value

    @field_validator("prior_sd")
    @classmethod
    def _deviations(cls, value: str) -> str:
        if not all(1 / _LARGEST <= number <= _LARGEST for number in _numbers(value) or [0.0]):
            raise ValueError(
                f"must be positive numbers separated by commas, as in '2.5' or '5, 1', from {1 / _LARGEST:g} to {_LARGEST:g}"
            )
        return value

    @property
    def prior(self) -> tuple[list[float], list[float]]:
        """Means and standard deviations, of all parameters or of each."""
        return _numbers(self.prior_mean) or [], _numbers(self.prior_sd) or []


def _numbers(text: str) -> list[float] | None:
    """The finite numbers of a text, None where it holds anything else or none."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def check_posterior(config: RunConfig) -> None:
    """Raises ValueError for keys that task posterior cannot be run with."""
    check_private_sums(config)
    check_one_sum(config)
    if config.rounds < 2:
        raise ValueError(
            f"rounds is {config.rounds} but task is 'posterior', whose last half is averaged; set rounds to 8"
        )
    if config.data.imputation == "indicator":
        raise ValueError(
            "data.imputation is 'indicator' but task is 'posterior': there a column says by its name whether to count "
            "where it is missing; leave data.imputation at 'mean' and name 'FEATURE missing' in posterior.columns"
        )
    if config.secure.noise:
        raise ValueError(
            f"secure.noise is {config.secure.noise:g} but task is 'posterior', whose intervals would leave that noise out; set "
            "secure.noise to 0.0"
        )
