"""A hospital's own rules. The policy decides what may be spent and what may leave; the server can only ask."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from polyclinic.config import SUBMITTER_NAME
from polyclinic.errors import ConfigError
from polyclinic.plugins import BUILT_IN as NAMES
from polyclinic.plugins import MODS
from polyclinic.privacy.streams import LEAST_DELTA
from polyclinic.strategies import BUILT_IN
from polyclinic.toml import build_model, read_model
from polyclinic.wire.messages import SiteName


class Submitter(BaseModel):
    """A person whose signed runs the hospital takes.

    ``key``: the Ed25519 public key, in hexadecimal.
    ``most_epsilon_per_run``, ``most_epsilon_per_month``: as the policy's own, of this person's runs.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda n: n.replace("_", "-"), populate_by_name=True
    )

    key: str = Field(pattern="^[0-9a-f]{64}$")
    most_epsilon_per_run: float = Field(inf, gt=0)
    most_epsilon_per_month: float = Field(inf, gt=0)


class Policy(BaseModel):
    """Defaults are the strict ones of a real hospital; a simulation states its own.

    ``budget``: lifetime epsilon of the shard; None means unlimited and is for simulations without privacy.
    ``allowed_tasks``, ``allowed_models``, ``allowed_objectives``: names that a run's configuration may use here.
        Without them a server could name any function of any module.
    ``allowed_strategies``: whose halves at hospitals may be loaded and run here; a strategy without one needs no
        permission.
    ``allowed_mods``: which mods may stand between the hospital's answers and the coordinator.
    ``most_local_steps``, ``most_parameters``: bounds of the work that a run may ask of the hospital's machine.
    ``patients_elsewhere``: in how many other hospitals of a federation one patient may also be, at most. A run's
        epsilon is then composed over so many.
    ``release_metrics``: unperturbed metrics of held-out patients and their exact number may leave, once for each
        training charge of a round. They leave ``most_evaluations_per_run`` times a run and ``most_evaluations`` times
        over the life of the ledger.
    ``metrics_epsilon``: epsilon of one run's private metrics, which leave where unperturbed ones do not. It is charged
        to the held-out patients' own ledger under ``budget``; 0 lets none leave.
    ``only_secure_aggregation``: no update may leave but under a secure sum's masks.
    ``known_hospitals``: public keys, in hexadecimal, of the hospitals with which it sums; others' are refused. Empty
        takes whatever keys the server passes on.
    ``allow_splits``: a run may choose who is held out (its keys ``split``). What it asks is then charged to the ledgers
        of both training and held-out patients, and no exact metrics leave.
    ``allow_shared_noise``: updates may leave with a share of the noise alone, in a secure sum. Its epsilon needs the
        other hospitals' shares and, without ``known_hospitals``, a server that keeps to the protocol.
    ``release_predictions``: scores and labels of held-out patients may leave, row by row, for intervals and pooled
        curves.
    ``release_groups``: feature columns whose group (a category, or a quarter of the bounds) may leave beside each
        score.
    ``allowed_runs``: bundles (FAB) that the node runs, by SHA-256 in hexadecimal, or ``installed`` for any that brings
        no code; empty runs all. The node judges them (``polyclinic hospital start``), before their code could.
    ``most_epsilon_per_run``: epsilon that one run may cost, of each ledger; inf leaves the budget alone to decide.
    ``most_epsilon_per_month``: the same of all runs together that were charged within thirty days.
    ``submitters``: people by name, whose runs alone are taken, with their limits; each run is signed with the person's
        key. Empty takes the runs of anybody who may submit.
    ``require_approval``: runs and questions wait until somebody here approves them, which needs ``allowed_runs``.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda n: n.replace("_", "-"), populate_by_name=True
    )

    budget: float | None = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(ge=LEAST_DELTA, lt=1)
    accountant: Literal["pld", "rdp"] = "pld"
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    allowed_tasks: tuple[str, ...] = ("classification", "statistics")
    allowed_models: tuple[str, ...] = tuple(NAMES["models"])
    allowed_objectives: tuple[str, ...] = tuple(NAMES["objectives"])
    allowed_strategies: tuple[str, ...] = tuple(BUILT_IN)
    allowed_mods: tuple[str, ...] = tuple(MODS)
    allowed_runs: tuple[Annotated[str, Field(pattern="^(installed|[0-9a-f]{64})$")], ...] = ()
    patients_elsewhere: int = Field(0, ge=0)
    smallest_shard: int = Field(20, ge=1)
    smallest_noise_multiplier: float = Field(0.3, ge=0)
    most_local_steps: int | None = Field(10_000, ge=1)
    most_parameters: int | None = Field(50_000_000, ge=1)
    allow_without_privacy: bool = False
    only_secure_aggregation: bool = False
    known_hospitals: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    allow_shared_noise: bool = False
    allow_splits: bool = False
    release_metrics: bool = False
    most_evaluations_per_run: int = Field(50, ge=0)
    most_evaluations: int = Field(500, ge=0)
    metrics_epsilon: float = Field(1.0, ge=0, allow_inf_nan=False)
    release_predictions: bool = False
    release_groups: tuple[str, ...] = ()
    most_epsilon_per_run: float = Field(inf, gt=0)
    most_epsilon_per_month: float = Field(inf, gt=0)
    submitters: dict[Annotated[str, Field(min_length=1, max_length=100, pattern=SUBMITTER_NAME)], Submitter] = Field(
        default_factory=dict
    )
    require_approval: bool = False
    approval_days: float = Field(30.0, gt=0, le=3650)

    @classmethod
    def build(cls, values: dict[str, object], source: str) -> Policy:
        """Raises ConfigError naming the key of ``source`` that is missing, unknown or impossible."""
        policy = build_model(cls, values, source, within=("policy",))
        if policy.require_approval and not policy.allowed_runs:
            raise ConfigError(
                f"{source}: require-approval needs allowed-runs: code of a bundle could pass an approval by."
            )
        return policy


class HospitalFile(BaseModel):
    """``hospital.toml`` of a real hospital; paths are relative to the file.

    ``data``: CSV or Parquet file, folder or glob, a database's URL, or ``SOURCE:PLACE``
    ``source``: the source's options, texts
    ``schema``: the public schema in TOML
    ``cohort``: the steps by which own rows are chosen, in TOML
    ``mapping``: how the own columns become the schema's, in TOML
    ``imputer``: what imputation chained fills missing cells by
    ``home``: folder of the ledger and of what must outlive a message
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: SiteName
    data: str
    source: dict[str, str] = Field(default_factory=dict)
    schema_: str = Field(alias="schema")
    cohort: str = ""
    mapping: str = ""
    imputer: str = ""
    home: str
    policy: dict[str, object]

    @classmethod
    def read(cls, path: Path) -> HospitalFile:
        """Raises ConfigError when the file is missing, is not TOML, or lacks a key."""
        return read_model(cls, path, "hospital file", secret=True)
