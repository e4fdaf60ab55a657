"""The sections of how a run goes on: what fails in a simulation, checkpoints, trackers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polyclinic.config.keys import Keys


class Simulation(Keys):
    """What goes wrong at simulated hospitals."""

    dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="Probability that a sampled hospital cannot be reached in a round."
    )
    availability: str = Field("", description="CSV of hospitals that cannot be reached, with columns round and site.")
    seconds_per_step: float = Field(
        0.0, ge=0, description="What a training step takes at a hospital, in simulated seconds."
    )
    straggling: float = Field(
        0.0, ge=0, le=10, description="Spread of hospitals' speeds (standard deviation of the logarithm)."
    )
    bandwidth: float = Field(
        0.0, ge=0, description="A hospital's bytes per simulated second, each way; 0 is without limit."
    )
    round_deadline: float = Field(
        0.0, ge=0, description="Simulated seconds after which a round does not wait; 0 waits for all."
    )

    @property
    def loses_replies(self) -> bool:
        """Whether simulated conditions may leave a round without enough replies."""
        return bool(self.dropout_rate or self.availability or self.round_deadline)


class Checkpoints(Keys):
    """By which a run that was interrupted goes on."""

    every: int = Field(
        0,
        ge=0,
        description="Write a checkpoint after every so many rounds, and after the last. 0: after each round; a simulation that "
        "can repeat rounds at no cost writes at most one a second. It can if the strategy is a built-in one, hospitals keep "
        "nothing from round to round, `checkpoints.keep` is 1, and central.epsilon and secure.aggregation are off.",
    )
    keep: int = Field(1, ge=1, description="How many of the newest checkpoints are kept.")

    @property
    def rounds_lost(self) -> int:
        """How many rounds of real hospitals, or of any that keep something, may come after the newest checkpoint."""
        return max(self.every, 1)

    @property
    def rounds_kept(self) -> int:
        """How many rounds back the oldest checkpoint that is kept may lie, so that nothing it needs is forgotten."""
        return self.rounds_lost * self.keep


class Tracking(Keys):
    """Where the rounds' metrics, epsilons and the configuration are shown beside the run's folder."""

    tool: Literal["", "tensorboard", "mlflow"] = Field("", description="tensorboard or mlflow; empty: neither.")
    place: str = Field(
        "",
        description="TensorBoard's folder, in which each run has its own (empty: in the run's folder), or MLflow's tracking URI "
        "(empty: `MLFLOW_TRACKING_URI`, else `mlflow.db` in `out`).",
    )
