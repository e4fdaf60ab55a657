"""What summary.json says of a run, typed (its keys: docs/reference/json.md).

Every key may be missing: a run that was summarised by an earlier Polyclinic is read as far as it goes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = int | float | None
Record = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class Metrics(_Part):
    """Metrics on held-out patients after the last round. ``released``: whether policies let them leave.

    Examples:
        >>> metrics = Metrics(auroc=0.91)
        >>> metrics.auroc, metrics.loss
        (0.91, None)
    """

    auroc: Number = None
    auprc: Number = None
    accuracy: Number = None
    loss: Number = None
    brier: Number = None
    released: bool | None = None


class SiteMetrics(Metrics):
    """One hospital's metrics, and what it spent.

    Examples:
        >>> SiteMetrics(auroc=0.91, patients=120, epsilon=2.4).epsilon
        2.4
    """

    patients: Number = None
    epsilon: Number = None
    delta: Number = None
    risk: Record | None = None
    budget: Number = None
    rounds_joined: int = 0


class AllMetrics(_Part):
    """Over all held-out patients together, as the mean over hospitals, and of each hospital by its name.

    Examples:
        >>> metrics = AllMetrics.model_validate({"pooled": {"auroc": 0.91}, "sites": {"north": {"patients": 120}}})
        >>> metrics.pooled.auroc, metrics.sites["north"].patients, metrics.macro.auroc
        (0.91, 120, None)
    """

    pooled: Metrics = Metrics()
    macro: Metrics = Metrics()
    sites: dict[str, SiteMetrics] = Field(default_factory=dict)


class Privacy(_Part):
    """The guarantee to a patient. ``central``: the guarantee to whole hospitals, None without.

    Examples:
        >>> Privacy(epsilon=2.4, delta=1e-5, private=True).unit
        'patient'
    """

    epsilon: Number = None
    private: bool = False
    risk: Record | None = None
    delta: Number = None
    overlap: int = 1
    composition: str = ""
    unit: str = "patient"
    relation: str = ""
    accountant: str = ""
    budget: Number = None
    noise_multiplier: Number = None
    sample_rate: Number = None
    steps: int | None = None
    central: Record | None = None


class Summary(_Part):
    """A finished run. ``version``: of the format; a file without one is of version 1.

    Examples:
        >>> Summary.model_validate({"rounds": 3, "privacy": {"epsilon": 1.5}}).privacy.epsilon
        1.5
    """

    version: Literal[1] = 1
    run: str = ""
    rounds: int = 0
    seed: int | None = None
    strategy: str | None = None
    engine: str | None = None
    learning_rate: Number = None
    dataset: str | None = None
    model: str | None = None
    flow: list[Record] | None = None
    metrics: AllMetrics = AllMetrics()
    objective: Record | None = None
    evaluation: Record | None = None
    private_metrics: Record | None = None
    privacy: Privacy = Privacy()
    synthesis: Record | None = None
    analysis: Record | None = None
    model_sha256: str | None = None
    seconds: Number = None
    rounds_per_second: Number = None
    strategy_metrics: list[Record] = Field(default_factory=list)
    floor: Record | None = None
    comparison: Record | None = None
    dropouts: list[Record] = Field(default_factory=list)
    unchanged: list[Record] = Field(default_factory=list)
    stopped: str | None = None
    simulation: bool = True
    shared_noise: bool = False
    statement: Record = Field(default_factory=dict)
    cautions: int = 0
    notes: list[str] = Field(default_factory=list)
