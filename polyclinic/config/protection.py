"""The keys of what protects patients and hospitals: secure aggregation, the privacy budget, a trusted server's noise."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from polyclinic.config.keys import Keys, Positive, noise_known
from polyclinic.config.reading import parse_assignments
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import LEAST_DELTA


class SecureSum(Keys):
    """What the server sees of hospitals' updates."""

    secure_aggregation: bool = Field(
        False,
        description="The server learns the sum of the hospitals' updates, and no single one.",
    )
    secure_clip_norm: float = Field(
        10.0, ge=1e-6, le=1e6, description="Secure aggregation: each hospital's update is clipped to this L2 norm."
    )
    secure_bits: int = Field(
        24,
        ge=8,
        le=28,
        description="Secure aggregation: updates are rounded to steps of secure-clip-norm / 2^secure-bits.",
    )
    secure_dropouts: int = Field(
        0,
        ge=0,
        description="Secure aggregation: hospitals of a round that may drop out, fewer than a third of them; with more the sum "
        "is not opened.",
    )
    secure_noise: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Secure aggregation: noise multiplier of the opened sum, relative to what one hospital can change; each "
        "adds a share. 0 adds none.",
    )
    shared_noise: bool = Field(
        False,
        description="Secure aggregation: instead of each adding the whole noise that protects patients, hospitals add shares of "
        "it to the sum of their clipped gradients, in one step over all patients a round.",
    )


class Privacy(Keys):
    """What each patient's records may cost."""

    dp: bool = Field(True, description="Train with differential privacy.")
    epsilon: Positive = Field(3.0, description="Privacy budget of each hospital for the whole run.")
    delta: float = Field(
        1e-3, ge=LEAST_DELTA, lt=1, description="Target delta; must be below 1/patients at every hospital."
    )
    overlap: int = Field(
        1,
        ge=1,
        description="The most hospitals that may hold one patient's records; above 1, the run's epsilon is composed over "
        "so many, while each hospital keeps to its own. Real hospitals declare it in their policies.",
    )
    max_grad_norm: float = Field(
        2.0, ge=1e-6, le=1e6, description="Each patient's gradient is clipped to this L2 norm."
    )
    perturbation: Literal["gaussian", "gamma"] = Field(
        "gaussian",
        description="Noise of output-perturbation and objective-perturbation; gamma has a pure epsilon.",
    )
    standardise: Literal["public", "measured", "none"] = Field(
        "public",
        description="Scale of numeric features: public, from the schema alone (its centres and spreads, or its bounds), at no "
        "cost; measured, their mean and deviation over all hospitals, which are paid for; none, as encoded.",
    )
    statistics_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of epsilon paid for what is asked before training: the number of patients, and with standardise "
        "measured the features' means and deviations.",
    )
    patients_per_site: int = Field(
        0,
        ge=0,
        description="A public number of patients of each hospital, which divides batch sums; 0 has it paid for.",
    )


class HeldOut(Keys):
    """What is learned of held-out patients, and what that may cost them."""

    metrics: Literal["exact", "private", "none"] = Field(
        "exact",
        description="Metrics of held-out patients: exact (private where a policy releases no exact ones), private (with noise "
        "everywhere), or none.",
    )
    metrics_epsilon: Positive = Field(
        1.0,
        description="Epsilon of a simulated hospital's private metrics, for its held-out patients, over the run; a real "
        "hospital's policy has its own.",
    )
    private_evaluations: int = Field(
        1,
        ge=1,
        description="Rounds after which private metrics are released, evenly spaced up to the last; they share the epsilon.",
    )

    def plans_private(self, number: int, rounds: int) -> bool:
        """Whether private metrics are released after round ``number`` of ``rounds``."""
        releases = min(self.private_evaluations, rounds)
        return self.metrics != "none" and number * releases // rounds > (number - 1) * releases // rounds


class Central(Keys):
    """What a whole hospital's part in the model may cost."""

    central_epsilon: float = Field(
        0.0,
        ge=0,
        description="Privacy budget of a whole hospital, for noise that a trusted server adds to the sum of updates; 0 is off.",
    )
    central_delta: float = Field(
        1e-3, ge=LEAST_DELTA, lt=1, description="Target delta of central-epsilon; must be below 1/hospitals."
    )
    central_clip_norm: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        description="Each hospital's whole update is clipped to this L2 norm; with adaptive clipping in the first round.",
    )
    central_clipping: Literal["fixed", "adaptive"] = Field(
        "fixed", description="adaptive: the clip norm follows central-quantile of the updates' norms."
    )
    central_quantile: float = Field(
        0.5, gt=0, lt=1, description="Share of the updates that adaptive clipping leaves as they are."
    )
    central_noise: str = Field(
        "independent",
        description="Central noise of the rounds: independent, or a process over time (tree, sqrt-toeplitz, banded, blt, "
        "dense), which gains where min-separation is large.",
    )
    central_weights: str = Field(
        "uniform", description="Hospitals' weights in the sum: uniform, or public ones as `NAME=2, OTHER=1`."
    )

    @field_validator("central_noise")
    @classmethod
    def _noise_over_rounds(cls, value: str) -> str:
        return noise_known(value)

    @field_validator("central_weights")
    @classmethod
    def _weights(cls, value: str) -> str:
        try:
            weights = [1.0] if value == "uniform" else list(parse_assignments(value).values())
        except ConfigError:
            weights = []
        if not weights or not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in weights):
            raise ValueError("must be uniform, or a positive weight for each hospital as in 'NAME=2, OTHER=1'")
        return value

    @property
    def central(self) -> bool:
        """Whether a trusted server adds noise that protects whole hospitals."""
        return self.central_epsilon > 0

    @property
    def weights(self) -> dict[str, float]:
        """The public weights of hospitals by name; empty when all weigh the same."""
        given = {} if self.central_weights == "uniform" else parse_assignments(self.central_weights)
        return {name: float(weight) for name, weight in given.items()}
