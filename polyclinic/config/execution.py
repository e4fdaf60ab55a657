"""The keys of how a run goes on: a simulation's hospitals and their failures, workers, checkpoints, folders."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from polyclinic.config.keys import Keys, Positive


class Conditions(Keys):
    """What goes wrong at simulated hospitals."""

    dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="Simulation: probability that a sampled hospital cannot be reached in a round."
    )
    availability: str = Field(
        "", description="Simulation: CSV of hospitals that cannot be reached, with columns round and site."
    )
    seconds_per_step: float = Field(
        0.0, ge=0, description="Simulation: what a training step takes at a hospital, in simulated seconds."
    )
    straggling: float = Field(
        0.0, ge=0, le=10, description="Simulation: spread of hospitals' speeds (standard deviation of the logarithm)."
    )
    bandwidth: float = Field(
        0.0, ge=0, description="Simulation: a hospital's bytes per simulated second, each way; 0 is without limit."
    )
    round_deadline: float = Field(
        0.0, ge=0, description="Simulation: simulated seconds after which a round does not wait; 0 waits for all."
    )

    @property
    def loses_replies(self) -> bool:
        """Whether simulated conditions may leave a round without enough replies."""
        return bool(self.dropout_rate or self.availability or self.round_deadline)


class Execution(Keys):
    """Where and how the run is computed and kept."""

    seed: int = Field(
        0, ge=0, description="Seed of a simulation. Hospitals with real records draw noise from the system."
    )
    workers: int = Field(
        1, ge=1, description="Processes that train hospitals side by side; results do not depend on it."
    )
    ray_address: str = Field(
        "",
        description="Workers are Ray actors: local begins Ray here, auto or HOST:PORT joins a cluster; empty: processes.",
    )
    gpus: float = Field(
        0.0,
        ge=0,
        description="GPUs that the workers of a simulation share, each at most one; 0 trains on the processor.",
    )
    timeout: Positive = Field(3600.0, description="Seconds to wait for the hospitals' replies in one exchange.")
    checkpoint_every: int = Field(
        1, ge=1, description="Write a checkpoint after every so many rounds, and after the last."
    )
    checkpoints_kept: int = Field(1, ge=1, description="How many of the newest checkpoints are kept.")
    out: str = Field("runs", description="Folder in which the run's folder is made.")
    resume: str = Field(
        "",
        description="Under `flwr run`: name of the run's folder in `out` that goes on from its checkpoint; what decides its "
        "result must be as it was.",
    )
    tracker: Literal["", "tensorboard", "mlflow"] = Field(
        "",
        description="Show the rounds' metrics, epsilons and the configuration in tensorboard or mlflow too; empty: in neither.",
    )
    tracker_place: str = Field(
        "",
        description="Where the tracker is: TensorBoard's folder, in which each run has its own (empty: in the run's folder), or "
        "MLflow's tracking URI (empty: `MLFLOW_TRACKING_URI`, else `mlflow.db` in `out`).",
    )
    meant: str = Field(
        "",
        description="Under `flwr run`: keys, separated by commas, that are meant to have the default of this table where task, "
        "strategy or model would take another.",
    )

    @field_validator("ray_address")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value not in ("", "local", "auto") and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("must be local, auto, or HOST:PORT of a Ray cluster, or empty for processes")
        return value

    @property
    def rounds_kept(self) -> int:
        """How many rounds back the oldest checkpoint that is kept may lie, so that nothing it needs is forgotten."""
        return self.checkpoint_every * self.checkpoints_kept
