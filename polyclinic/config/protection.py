"""The sections of what protects patients and hospitals: the privacy budget, secure aggregation, a trusted server's noise."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from polyclinic.config.keys import Keys, Positive, Written, noise_known
from polyclinic.config.reading import parse_assignments
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import LEAST_DELTA


class Privacy(Keys):
    """What each patient's records may cost."""

    dp: bool = Field(True, description="Train with differential privacy.")
    epsilon: Positive = Field(3.0, description="Privacy budget of each hospital for the whole run.")
    delta: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Target delta; must be below 1/patients at every hospital. 0 chooses it before anything is charged: a tenth "
        "of one over all patients of a simulation (of privacy.patients-per-site where given), rounded down to one digit; at "
        "real hospitals the delta that their policies state.",
    )
    overlap: int = Field(
        1,
        ge=1,
        description="The most hospitals that may hold one patient's records; above 1, the run's epsilon is composed over "
        "so many, while each hospital keeps to its own. Real hospitals declare it in their policies.",
    )
    max_grad_norm: float = Field(
        2.0,
        ge=1e-6,
        le=1e6,
        description="Each patient's gradient is clipped to this L2 norm, the same in all steps and rounds.",
    )
    statistics_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of epsilon paid for what is asked before training: the number of patients, and with data.standardise "
        "measured where the patients' values lie.",
    )
    patients_per_site: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="A public number of patients of each hospital, which divides batch sums; 0 has it paid for.",
    )

    @field_validator("delta")
    @classmethod
    def _check_delta(cls, value: float) -> float:
        if 0 < value < LEAST_DELTA:
            raise ValueError(f"must be 0, which chooses it, or at least {LEAST_DELTA:g}")
        return value


class Secure(Keys):
    """What the server sees of hospitals' updates."""

    aggregation: bool = Field(
        False, description="The server learns the sum of the hospitals' updates, and no single one."
    )
    clip_norm: float = Field(10.0, ge=1e-6, le=1e6, description="Each hospital's update is clipped to this L2 norm.")
    bits: int = Field(24, ge=8, le=28, description="Updates are rounded to steps of clip-norm / 2^bits.")
    dropouts: int = Field(
        0,
        ge=0,
        description="Hospitals of a round that may drop out, fewer than a third of them; with more the sum "
        "is not opened.",
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Noise multiplier of the opened sum, relative to what one hospital can change; each "
        "adds a share. 0 adds none.",
    )
    shared_noise: bool = Field(
        False,
        description="Instead of each adding the whole noise that protects patients, hospitals add shares of "
        "it to the sum of their clipped gradients, in one step over all patients a round.",
    )

    @model_validator(mode="after")
    def _in_sums(self) -> Self:
        if self.noise and not self.aggregation:
            raise ValueError(
                "secure.noise is above 0 but secure.aggregation is false: a hospital's share of noise protects only in a sum; "
                "set secure.aggregation to true"
            )
        return self


class Central(Keys):
    """What a whole hospital's part in the model may cost."""

    epsilon: float = Field(
        0.0,
        ge=0,
        description="Privacy budget of a whole hospital, for noise that a trusted server adds to the sum of updates; 0 is off.",
    )
    delta: float = Field(
        1e-3, ge=LEAST_DELTA, lt=1, description="Target delta of that epsilon; must be below 1/hospitals."
    )
    clip_norm: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        description="Each hospital's whole update is clipped to this L2 norm; with adaptive clipping in the first round.",
    )
    clipping: Literal["fixed", "adaptive"] = Field(
        "fixed", description="adaptive: the clip norm follows the quantile of the updates' norms."
    )
    quantile: float = Field(
        0.5, gt=0, lt=1, description="Share of the updates that adaptive clipping leaves as they are."
    )
    noise: str = Field(
        "independent",
        description="Central noise of the rounds: independent, or a process over time (tree, sqrt-toeplitz, banded, blt, "
        "dense), which gains where participation.min-separation is large.",
    )
    weights: Written = Field(
        "uniform", description="Hospitals' weights in the sum: uniform, or public ones as `NAME=2, OTHER=1`."
    )

    @field_validator("noise")
    @classmethod
    def _noise_over_rounds(cls, value: str) -> str:
        return noise_known(value)

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: str) -> str:
        try:
            weights = [1.0] if value == "uniform" else list(parse_assignments(value).values())
        except ConfigError:
            weights = []
        if not weights or not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in weights):
            raise ValueError("must be uniform, or a positive weight for each hospital as in 'NAME=2, OTHER=1'")
        return value

    @model_validator(mode="after")
    def _over_time(self) -> Self:
        if self.noise != "independent" and self.clipping != "fixed":
            raise ValueError(
                f"central.noise is {self.noise!r} but central.clipping is not 'fixed': noise over time knows one clip norm; set "
                "central.clipping to 'fixed' or central.noise to 'independent'"
            )
        return self

    @property
    def on(self) -> bool:
        """Whether a trusted server adds noise that protects whole hospitals."""
        return self.epsilon > 0

    @property
    def by_name(self) -> dict[str, float]:
        """The public weights of hospitals by name; empty when all weigh the same."""
        given = {} if self.weights == "uniform" else parse_assignments(self.weights)
        return {name: float(weight) for name, weight in given.items()}


class Evaluation(Keys):
    """How a run is judged on held-out patients, and what that may cost them."""

    every: int = Field(1, ge=1, description="Evaluate after every so many rounds, and after the last.")
    groups: str = Field(
        "",
        description="Feature column, as sex, by whose groups of held-out patients the result is judged too; empty: none.",
    )
    metrics: Literal["exact", "private", "none"] = Field(
        "exact",
        description="Metrics of held-out patients: exact (private where a policy releases no exact ones), private (with noise "
        "everywhere), or none.",
    )
    function: str = Field(
        "",
        description="Function of (round, arrays) to metrics that the coordinator calls with the model before round 1 and after "
        "each round, as Flower's `evaluate_fn`: `package.module:Name`.",
    )
    epsilon: Positive = Field(
        1.0,
        description="Epsilon of a simulated hospital's private metrics, for its held-out patients, over the run; a real "
        "hospital's policy has its own.",
    )
    releases: int = Field(
        1,
        ge=1,
        description="Rounds after which private metrics are released, evenly spaced up to the last; they share the epsilon.",
    )

    def plans_private(self, number: int, rounds: int) -> bool:
        """Whether private metrics are released after round ``number`` of ``rounds``."""
        releases = min(self.releases, rounds)
        return self.metrics != "none" and number * releases // rounds > (number - 1) * releases // rounds
