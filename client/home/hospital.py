"""One hospital as the ClientApp sees it: where its records, policy, ledger and random streams come from.

A real hospital is described by the ``hospital.toml`` that its SuperNode's node-config names. Whatever a message says,
its records, policy and ledger are its own and its noise comes from the operating system. A simulated hospital is one
partition of a dataset; its ledger lies in the run's folder and its streams follow the run's seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log

from polyclinic.client.home.own_files import LEDGER, make_private, own_file
from polyclinic.client.home.policy import HospitalFile, Policy
from polyclinic.client.home.records import check_files, own_records
from polyclinic.config import RunConfig
from polyclinic.digests import digest
from polyclinic.ehr.imputation import Imputer, with_indicators
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Checked, Rows, Shard, check_chunks, shard_of
from polyclinic.ehr.sources import Chunk
from polyclinic.ehr.split import OWN_SPLIT, Split
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.privacy.ledger import MONTH_DAYS, Ledger, Limit, Terms
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream
from polyclinic.runs.simulation import (
    SimulatedDataset,
    SimulatedRecords,
    read_imputer,
    simulated_delta,
    simulated_sites,
)
from polyclinic.training.preparation import check_imputation, impute
from polyclinic.wire.messages import AskRequest, Request, site_home

_shard_of = lru_cache(maxsize=2)(shard_of)
_typed_here = ContextVar("_typed_here", default=False)


@contextmanager
def typed_here() -> Iterator[None]:
    """What is asked within it was typed at the hospital, whose installed code answers in this process: no bundle runs.

    No message can say so: it is neither in a message nor in a node's configuration.
    """
    before = _typed_here.set(True)
    try:
        yield
    finally:
        _typed_here.reset(before)


@dataclass(frozen=True)
class OwnRecords:
    """A real hospital's records: ``described`` is its file's content as JSON, ``folder`` where the file lies."""

    described: str
    folder: Path
    indicators: bool
    split: Split = OWN_SPLIT

    @property
    def words(self) -> str:
        return ""

    @property
    def own(self) -> OwnRecords:
        """The same under the hospital's own split, which holds for life."""
        return replace(self, split=OWN_SPLIT)

    def shard(self, site: str) -> Shard:
        """Place and kind of a bad cell are the hospital's own business, so its log alone has them."""
        with own_file("records"):
            return _shard_of(*self.own.read(), self.split)

    @lru_cache(maxsize=1)  # noqa: B019 - a value, of which one is kept
    def read(self) -> tuple[Checked, Schema, str, str]:
        """The checked records, their schema, the hospital's name, and where the records lie."""
        described = HospitalFile.model_validate_json(self.described)
        schema = _real_schema(self.folder / described.schema_, self.indicators)
        chunks = _log_cohort(own_records(described, self.folder, schema), described.site)
        return check_chunks(chunks, schema, described.data), schema, described.site, described.data


@dataclass(frozen=True)
class Hospital:
    """``seed`` is None at a real hospital, whose streams cannot be reproduced."""

    site: str
    schema: Schema
    policy: Policy
    home: Path
    ledger_path: Path
    seed: int | None
    records: SimulatedRecords | OwnRecords
    imputer_file: str = ""

    @property
    def simulated(self) -> bool:
        return self.seed is not None

    @property
    def waits_for_people(self) -> bool:
        """Whether a person must approve each run here."""
        return self.policy.require_approval and self.under_control

    @property
    def under_control(self) -> bool:
        """Whether people here may hold a run up: not in a simulation, nor a question that was typed at the hospital."""
        return not self.simulated and not _typed_here.get()

    @property
    def holds_to_terms(self) -> bool:
        """Whether a run may cost what its configuration says and no more, since a person approved or signed that."""
        return self.under_control and (self.policy.require_approval or bool(self.policy.submitters))

    @property
    def moves_patients(self) -> bool:
        """Whether a run chose who is held out, so that each ledger's patients may be on either side."""
        return not self.simulated and self.records.split != OWN_SPLIT

    def metrics_epsilon(self, config: RunConfig) -> float | None:
        """The most that a run's private metrics may cost held-out patients, 0 for none; None where exact ones leave."""
        # Exact metrics of sides that a run chose would tell of the few patients in whom two of them differ.
        if config.evaluation.metrics == "exact" and self.policy.release_metrics and not self.moves_patients:
            return None
        return 0.0 if config.evaluation.metrics == "none" else self.policy.metrics_epsilon

    def approved_epsilon(self, config: RunConfig) -> float:
        """What a run that a person approved or signed may cost a ledger that trains; infinite without privacy or where nobody
        has to."""
        metrics = self.metrics_epsilon(config) or 0.0 if self.moves_patients else 0.0  # both ledgers pay for all
        return config.privacy.epsilon + metrics if self.holds_to_terms and config.privacy.dp else float("inf")

    def limits(self, approved: float, submitter: str) -> tuple[Limit, ...]:
        """What a run may cost beside others.

        Args:
            approved: What a person has approved or signed for the run.
            submitter: Who signed the run; the policy may limit all runs of that person.

        Returns:
            The limits below the budget: of this run, of all runs of a month, and of the submitter's of a month.
        """
        policy, budget = self.policy, self.policy.budget or math.inf
        own = policy.submitters.get(submitter)
        given = [
            Limit(min(approved, policy.most_epsilon_per_run, own.most_epsilon_per_run if own else math.inf)),
            Limit(policy.most_epsilon_per_month, "All runs of thirty days", days=MONTH_DAYS),
        ]
        if own and own.most_epsilon_per_month < math.inf:
            from polyclinic.client.home.submissions import submitted_runs  # what most hospitals do without

            runs = submitted_runs(self.home, submitter)
            given.append(
                Limit(own.most_epsilon_per_month, f"All runs of {submitter!r} in thirty days", runs, MONTH_DAYS)
            )
        return tuple(limit for limit in given if limit.epsilon < budget)

    def stream(self, purpose: str, round: int) -> Stream:
        """The stream of one purpose in one round; keyed by (seed, purpose, round, site) in a simulation."""
        return system_stream() if self.seed is None else keyed_stream(self.seed, purpose, round, self.site)

    @cached_property
    def terms(self) -> Terms:
        """How the hospital's ledger measures its spending."""
        policy, words = self.policy, self.records.words
        return Terms(
            self.site, policy.delta, policy.relation, self.schema.unit, policy.budget, policy.accountant, words
        )

    @property
    def held_out_terms(self) -> Terms:
        """How the held-out patients' own ledger measures: under the same budget, which a simulation does not limit."""
        return replace(self.terms, budget=None) if self.simulated else self.terms

    @property
    def held_out_path(self) -> Path:
        """The held-out patients' own ledger, which lies beside the other."""
        return self.ledger_path.with_name("held-out.sqlite")

    def shard(self) -> Shard:
        """The hospital's records, encoded once per process.

        The policy's limits are asked of the hospital's own split: otherwise the splits that a run may have would tell
        how many patients there are.

        Raises:
            PolyclinicError: The records do not fit the schema.
            ConfigError: They do not fit the policy.
        """
        return self._shard

    @cached_property
    def _own(self) -> Shard:
        """Under the hospital's own split."""
        return self.records.own.shard(self.site)

    @cached_property
    def _shard(self) -> Shard:
        patients = self._own.trained_on
        if patients < self.policy.smallest_shard:
            raise ConfigError(
                f"{self.site}: the shard has fewer training patients than the policy's smallest-shard "
                f"({self.policy.smallest_shard})."
            )
        if self.policy.budget is not None and self.policy.delta >= 1 / patients:
            raise ConfigError(
                f"{self.site}: delta {self.policy.delta:g} is not below 1/patients of this shard; "
                "choose a smaller delta (at most a tenth of 1/patients is recommended)."
            )
        return self.records.shard(self.site)

    def began(self, in_order: bool) -> str:
        """Identifies the records with which a run or a release begins here. Raises as ``shard``.

        A split that a run chose counts by its public rule alone, not by whom it holds out. Otherwise who changed the
        split a little would hear, without any charge, whether there is a patient in between. A refusal would tell it,
        or a reply that is sent again.

        Args:
            in_order: Whether the order of the records matters.
        """
        self.shard()
        identity = self._own.digest if in_order else self._own.contents
        return digest(identity, repr(self.records.split)) if self.moves_patients else identity


def own_imputer(hospital: Hospital, imputation: str) -> Imputer | None:
    """The imputer that the imputation needs, None where it needs none; looks at no record.

    Raises:
        BudgetRefused: The imputation is fitted to the hospital's own records, and the policy does not allow work
            without privacy.
        ConfigError, DataError: Schema or imputer have not what the imputation needs.
    """
    if imputation == "mice" and not hospital.policy.allow_without_privacy:
        raise BudgetRefused(
            f"{hospital.site}: imputation 'mice' makes one patient's row depend on others', so that no epsilon holds; the policy "
            "does not allow work without privacy."
        )
    imputer = read_imputer(hospital.imputer_file) if imputation == "chained" and hospital.imputer_file else None
    check_imputation(imputation, hospital.schema, imputer)
    return imputer


def filled_by(hospital: Hospital, imputation: str) -> str:
    """What tells apart the fillings of the same records: the digest of the imputer, or of the schema with its fills."""
    imputer = own_imputer(hospital, imputation)
    return imputer.digest if imputer else hospital.schema.digest() if imputation == "constant" else ""


def filled_rows(hospital: Hospital, imputation: str, held_out: bool = False) -> Rows:
    """The hospital's training or held-out rows with missing cells filled, once per process.

    Args:
        hospital: The hospital.
        imputation: How missing cells are filled, as ``data.imputation``; "mean" and "indicator" leave them missing
            here.
        held_out: Return the held-out rows; the training rows by default.

    Raises:
        BudgetRefused, ConfigError, DataError: As ``own_imputer`` and ``Hospital.shard``.
    """
    imputer, shard = own_imputer(hospital, imputation), hospital.shard()
    if imputation in ("mean", "indicator"):  # what is missing stays so, and the other side need not be copied
        return shard.test if held_out else shard.train
    return _filled_rows(shard, imputation, imputer, hospital.seed or 0)[held_out]


@lru_cache(maxsize=256)
def _filled_rows(shard: Shard, imputation: str, imputer: Imputer | None, seed: int) -> tuple[Rows, Rows]:
    return impute(shard, imputation, imputer, seed)


def is_real(context: Context) -> bool:
    """Whether the node is a hospital's own, with records, a policy and a ledger that no message decides about."""
    return "hospital" in context.node_config


def open_hospital(context: Context, request: Request, config: RunConfig) -> Hospital:
    """The hospital behind this node: real when node-config names a ``hospital`` file, else a partition of the dataset.

    Args:
        context: Flower's context of the node, with its node-config.
        request: The message; in a simulation it has the partition's number and the folder of simulated hospitals.
        config: The run's configuration.

    Raises:
        ConfigError: node-config names neither a hospital nor a partition.
    """
    if is_real(context):
        indicators = config.data.imputation == "indicator"
        return _real_hospital(Path(str(context.node_config["hospital"])), indicators, config.split.rule)
    if "partition-id" not in context.node_config:
        raise ConfigError("node-config has neither 'hospital' (a hospital.toml) nor 'partition-id' (a simulation).")
    hospital = _simulated_hospital(config, SimulatedDataset.of(config), request.site, request.home)
    if not isinstance(request, AskRequest):
        return hospital
    changes = {"allowed_tasks": ("query", "survey"), "budget": request.budget, "relation": request.relation,
               "allow_without_privacy": True}  # fmt: skip
    ledger = Path(request.ledger or hospital.ledger_path)
    return replace(hospital, policy=hospital.policy.model_copy(update=changes), ledger_path=ledger)


# A simulation opens each of its hospitals for every message.
@lru_cache(maxsize=4096)
def _simulated_hospital(config: RunConfig, dataset: SimulatedDataset, place: int, home: str) -> Hospital:
    names, schema, policy, records = _simulation(config, dataset)
    if place >= len(names):
        raise ConfigError(f"Message field 'site' is {place}; this run has sites 0 to {len(names) - 1}.")
    if not home:
        raise ConfigError("Message field 'home' is empty; a simulated hospital needs a folder for its ledger.")
    site, ledger = names[place], Path(home) / "ledger.sqlite"
    return Hospital(
        site, schema, policy, site_home(home, site), ledger, config.seed, records, config.data.imputer_file
    )  # fmt: skip


def forget_hospitals() -> None:
    """Open a simulation's hospitals anew when they are next asked: their dataset's name may stand for another by then."""
    _simulated_hospital.cache_clear()
    _simulation.cache_clear()


def open_ledgers(hospitals: Sequence[Hospital]) -> list[Ledger]:
    """The ledgers of hospitals that share a file: a simulation's, or one real hospital's own.

    Raises PolyclinicError, without a path, for a real hospital's file that is no ledger; the hospital's log has the rest.
    """
    return _open(hospitals, hospitals[0].ledger_path, [hospital.terms for hospital in hospitals])


def open_held_out(hospitals: Sequence[Hospital]) -> list[Ledger]:
    """As ``open_ledgers``, the ledgers of their held-out patients."""
    return _open(hospitals, hospitals[0].held_out_path, [hospital.held_out_terms for hospital in hospitals])


def _open(hospitals: Sequence[Hospital], path: Path, terms: list[Terms]) -> list[Ledger]:
    if hospitals[0].simulated:
        return Ledger.open_all(path, terms)
    with own_file("ledger"):
        return [Ledger.open(path, terms[0])]


@lru_cache(maxsize=8)
def _simulation(config: RunConfig, dataset: SimulatedDataset) -> tuple[list[str], Schema, Policy, SimulatedRecords]:
    """The names of a run's simulated hospitals, and what they share."""
    return simulated_sites(config), dataset.load().schema, simulation_policy(config), SimulatedRecords.of(config)


@lru_cache(maxsize=64)
def simulation_policy(config: RunConfig) -> Policy:
    """A simulated hospital spends what the run asks and shows the metrics that it asks for: its records are the researcher's."""
    return Policy(
        allowed_tasks=(config.task, "statistics"), allowed_models=(config.model,), allowed_objectives=(config.objective,),
        allowed_strategies=(config.strategy,),
        budget=config.privacy.epsilon if config.privacy.dp else None, delta=simulated_delta(config),
        allow_without_privacy=not config.privacy.dp,
        patients_elsewhere=config.privacy.overlap - 1, smallest_shard=1, smallest_noise_multiplier=0, most_local_steps=None,
        most_parameters=None, release_metrics=config.evaluation.metrics == "exact",
        release_predictions=config.evaluation.metrics == "exact",
        metrics_epsilon=config.evaluation.epsilon,
        release_groups=(config.evaluation.groups,) if config.evaluation.groups else (),
        allow_shared_noise=True,
    )  # fmt: skip


def own_policy(context: Context) -> tuple[str, Policy]:
    """A real hospital's name and policy. Raises PolyclinicError, without a path, where its file cannot be used."""
    described, policy = _read_settings(Path(str(context.node_config["hospital"])))
    return described.site, policy


def _read_settings(path: Path) -> tuple[HospitalFile, Policy]:
    with own_file("settings file"):
        described = HospitalFile.read(path)
        return described, Policy.build(described.policy, str(path))


def _real_hospital(path: Path, indicators: bool = False, split: Split = OWN_SPLIT) -> Hospital:
    described, policy = _read_settings(path)
    folder = path.resolve().parent
    with own_file("schema"):
        schema = _real_schema(folder / described.schema_, indicators)
    own = _typed_here.get() and "installed" in policy.allowed_runs
    if policy.allowed_runs and not own and "POLYCLINIC_HOSPITAL" not in os.environ:
        raise ConfigError(
            "the policy names allowed-runs, which only a node started by `polyclinic hospital start` checks; nothing runs "
            "(a command typed at the hospital needs 'installed' among them)"
        )
    with own_file("mapping or cohort"):
        check_files(described, folder, schema)
    if split != OWN_SPLIT and not policy.allow_splits:
        raise BudgetRefused(
            f"{described.site}: the policy does not let a run choose who is held out, nor that nobody is; set split.fraction to "
            f"{OWN_SPLIT.fraction:g} and leave the other keys of [split] out, or allow-splits at true would."
        )
    records = OwnRecords(described.model_dump_json(by_alias=True), folder, indicators, split)
    imputer = str(folder / described.imputer) if described.imputer else ""
    home = folder / described.home
    make_private(home)
    return Hospital(described.site, schema, policy, home, home / LEDGER, None, records, imputer)


def own_hospital(path: Path, config: RunConfig) -> Hospital:
    """The real hospital of a ``hospital.toml``, as it takes part in the run of ``config``, for a command that was typed there.

    Raises PolyclinicError for a bad file, and for a run that chooses who is held out where the policy does not let it.
    """
    with typed_here():
        return _real_hospital(path, config.data.imputation == "indicator", config.split.rule)


def _real_schema(path: Path, indicators: bool) -> Schema:
    schema = Schema.from_toml(path)
    return with_indicators(schema) if indicators else schema


def _log_cohort(chunks: Iterable[Chunk], site: str) -> Iterator[Chunk]:
    """The chunks; how their cohort was chosen goes to the hospital's own log, and nowhere else."""
    for chunk in chunks:
        for stage in chunk.flow.stages if chunk.flow else ():
            log(INFO, "%s: cohort: %s: %d rows of %d patients", site, stage.name, stage.rows, stage.patients)
        yield chunk
