"""A whole run, as phases: enrol, calibrate the noise, standardise, train round by round, and hand over the outcome.

The noise is calibrated before the first hospital is asked for anything private, so that the statistics and all rounds
together spend at most epsilon at every hospital.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors import SafetensorError, safe_open

from polyclinic.arrays import Arrays, from_record
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.messages import RECORD, STATISTICS, StatisticsRequest, site_home, state_file
from polyclinic.models.tabular import initialise
from polyclinic.plugins import build_model, model_named, strategy_named, task_named, task_of
from polyclinic.privacy.accounting import PrivacyPlan, plan
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.statements import statements
from polyclinic.privacy.streams import torch_seed
from polyclinic.server.central import FEDERATION, central_plan, central_statement, central_strategy
from polyclinic.server.checkpoint import history_of, load_checkpoint, save_checkpoint
from polyclinic.server.cohort import check_cohorts, cohort_size
from polyclinic.server.history import History
from polyclinic.server.rounds import RunState, run_rounds, too_few
from polyclinic.server.secure import check_summable, secure_ledger, secure_statement
from polyclinic.server.sites import Site, SiteGrid, enrol
from polyclinic.strategies.central import CentralDP, check_base
from polyclinic.strategies.registry import make_strategy
from polyclinic.strategies.state import restore_strategy
from polyclinic.training.modules import load, normalisation_arrays
from polyclinic.training.preparation import combine
from polyclinic.training.stacked.engines import Engine, choose

# A noisy count can fall near zero; a divisor below this would blow the step up.
_FEWEST_PATIENTS = 10.0


class Progress(Protocol):
    """Who watches a run; every method may do nothing."""

    def opened(self, folder: Path) -> None: ...

    def doing(self, what: str) -> None: ...

    def stopping(self) -> bool:
        """Whether the run is to stop after this round, whose checkpoint is then written; ``round_done`` stops it."""

    def started(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        """``engine``: how the hospitals of a simulation train; None where they are real and choose for themselves."""

    def round_done(self, config: RunConfig, state: RunState) -> None: ...


class Silent:
    """Nobody watches."""

    def opened(self, folder: Path) -> None:
        pass

    def doing(self, what: str) -> None:
        pass

    def stopping(self) -> bool:
        return False

    def started(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        pass

    def round_done(self, config: RunConfig, state: RunState) -> None:
        pass


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: its final state, the sites that took part, and the privacy plan (None without privacy).

    ``engine``: how the hospitals of a simulation trained; None where they are real and chose for themselves, or where the
    task has no steps. ``central``: the guarantee to whole hospitals (``central_statement``), None without.
    """

    config: RunConfig
    run: str
    sites: tuple[Site, ...]
    privacy: PrivacyPlan | None
    engine: Engine | None
    state: RunState
    central: dict[str, Any] | None = None


def check_names(config: RunConfig) -> None:
    """Raises ConfigError when a dataset, model, strategy, option or task does not exist; touches no hospital."""
    model_named(config.model)
    task_named(config.task)
    strategy = _strategy(config)
    if config.central:
        check_base(strategy)
    check_summable(config, strategy)


def _strategy(config: RunConfig, hospitals: int = 1) -> Strategy:
    """The run's strategy, told those of the run's settings that it takes."""
    told = {
        "proximal_mu": config.proximal_mu, "client_learning_rate": config.learning_rate, "train_loss_key": "train-loss",
        "hospitals": hospitals,
    }  # fmt: skip
    return make_strategy(strategy_named(config.strategy), config.options, told)


def check_model(config: RunConfig, schema: Schema) -> None:
    """Raises ConfigError for a model that hospitals would refuse to train; touches no record and costs no privacy."""
    arrays = _first_arrays(config, schema)
    features = len(feature_names(schema))
    task_of(config).check(build_model(config, schema), arrays, features, config.engine)
    _local(config, schema)


def federate(
    grid: Grid, config: RunConfig, run: str, home: Path, *, checkpoint: Path | None = None, resume: bool = False,
    server_ledger: Path | None = None, progress: Progress | None = None,
    choose: Callable[[Site], bool] = lambda site: True,
) -> Outcome:  # fmt: skip
    """Run ``config`` over the hospitals behind ``grid``.

    ``home``: folder where simulated hospitals keep their ledgers; ``checkpoint``: file written after each round (its
    history beside it), from which ``resume`` continues; ``server_ledger``: file charged for what is told of whole
    hospitals; ``choose`` leaves hospitals out. Raises PolyclinicError in one sentence.
    """
    watcher = progress or Silent()
    check_names(config)
    enrolled, absent = enrol(grid, run, str(home), max(config.sites, config.min_sites), config.timeout)
    unfit = {site.name: why for site in enrolled if (why := _unlike(site, config)) is not None}
    absent += unfit.items()
    sites = [site for site in enrolled if choose(site) and site.name not in unfit]
    if len(sites) < config.min_sites:
        reasons = several((f" {name}: {why}" for name, why in absent), between="")
        raise ConfigError(
            f"Configuration key 'min-sites' has the value {config.min_sites}, but {len(sites)} hospitals enrolled.{reasons}"
        )
    check_cohorts(config, len(sites))
    strategy = _strategy(config, len(sites))
    privacy = calibrate(config) if config.dp else None
    if config.central:
        central_plan(config, [site.name for site in sites])
    engine = _engine(config, sites)
    watcher.started(config, sites, privacy, engine)
    history: History | None = None
    kept: Arrays | None = None
    if resume:
        if checkpoint is None:
            raise ValueError("resume needs a checkpoint.")
        state, history, kept = load_checkpoint(checkpoint)
        simulated = [site.name for site in sites if site.simulated]
        told = {name: state.epsilon[name] for name in simulated if name in state.epsilon}
        _check_ledgers(home / "ledger.sqlite", told)
        if config.keeps_state:
            _check_states(home, simulated, run, state)
    else:
        check_model(config, sites[0].schema)
        state = _first_state(grid, sites, config, run, home, privacy)
        state.dropouts[:0] = [{"round": 0, "site": name, "reason": why} for name, why in absent]
        if checkpoint is not None:
            history = History.begin(history_of(checkpoint))
    taking_part = [site for site in sites if site.name not in _gone(state)]
    sums: Ledger | None = None
    if config.central or config.secure_noise:
        if server_ledger is None:
            raise ValueError("privacy of whole hospitals needs a server_ledger.")
        if state.hospital_epsilon is not None:
            _check_ledgers(server_ledger, {FEDERATION: state.hospital_epsilon})
        if config.central:
            strategy = central_strategy(strategy, config, taking_part, server_ledger, run)
        else:
            sums = secure_ledger(config, server_ledger)
    if kept is not None:
        restore_strategy(strategy, kept)

    def save(now: RunState) -> None:
        if checkpoint is not None and history is not None:
            save_checkpoint(checkpoint, now, strategy, history, config.checkpoints_kept)

    def after_round(now: RunState) -> None:
        if now.round % config.checkpoint_every == 0 or now.round == config.rounds or watcher.stopping():
            save(now)
        watcher.round_done(config, now)

    if not resume:
        save(state)
    run_rounds(grid, taking_part, strategy, state, config, run, str(home), after_round, sums)
    central = central_statement(strategy, state.model) if isinstance(strategy, CentralDP) else None
    if sums is not None:
        central = secure_statement(config, sums, cohort_size(config, len(sites)), state.model)
    return Outcome(config, run, tuple(sites), privacy, engine, state, central)


def _check_ledgers(path: Path, told_of: Mapping[str, float]) -> None:
    """Raises DataError when a site's ledger is missing, altered, or shows less than the checkpoint was told."""
    ledgers = Ledger.read_all(path) if told_of else {}
    for statement in statements([ledgers.get(site) or Ledger.read(path, site) for site in told_of]) if told_of else ():
        site, events = statement["site"], statement["events"]
        # A site tells the quick bound after a charge and the exact one after evaluating; the ledger holds the first.
        shown = [statement["epsilon"], events[-1]["epsilon_after"]] if events else [0.0]
        most = math.inf if None in shown else max(shown)
        if not statement["intact"] or most < told_of[site] * (1 - 1e-9):
            raise DataError(
                f"The ledger {path} shows less for {site!r} than the checkpoint, or was altered; restore it before "
                "the run goes on."
            )


def _check_states(home: Path, sites: Sequence[str], run: str, state: RunState) -> None:
    """Raises DataError when a simulated site has lost what it kept after its last round: it would begin anew, silently."""
    for site in sites:
        if site in state.trained:
            path = state_file(site_home(home, site), run, state.trained[site])
            try:
                with safe_open(path, framework="numpy"):
                    pass
            except (OSError, SafetensorError):
                raise DataError(
                    f"{path}, what {site!r} kept after round {state.trained[site]}, is missing or damaged; restore it "
                    "before the run goes on."
                ) from None


def _unlike(site: Site, config: RunConfig) -> str | None:
    """Why a hospital's policy does not go with the run's terms: it would refuse halfway, or epsilons would not compare."""
    if not config.dp:
        return None
    terms = {
        "delta": (site.delta, config.delta),
        "relation": (site.relation, "add-remove"),
        "accountant": (site.accountant, "pld"),
    }
    for name, (theirs, ours) in terms.items():
        if theirs != ours:
            return f"its policy has {name} {theirs}, the run has {ours}; agree on one before the run"
    if site.budget is not None and site.budget < config.epsilon:
        return (
            f"its policy's budget is {site.budget:g}, the run's epsilon is {config.epsilon:g}; lower the run's epsilon"
        )
    return None


@lru_cache(maxsize=8)
def calibrate(config: RunConfig) -> PrivacyPlan:
    """The noise that spends ``config.epsilon`` over the statistics and all rounds, composed by PLD.

    Raises ConfigError naming the key when no noise does, or when there is no such training.
    """
    _training(config, 1.0)  # what is wrong with the steps themselves is not the fault of epsilon
    try:
        return _plan(config)
    except ConfigError as error:
        raise ConfigError(f"Configuration key 'epsilon' has the value {config.epsilon:g}: {error}") from None


def _plan(config: RunConfig) -> PrivacyPlan:
    return plan(
        epsilon=config.epsilon, delta=config.delta, training=lambda noise: _training(config, noise),
        statistics_share=config.statistics_share if config.standardise else 0.0,
    )  # fmt: skip


def _training(config: RunConfig, noise_multiplier: float) -> DpEvent:
    """What all rounds together spend at a hospital that takes part in each of them."""
    task, settings = task_of(config), train_settings(config, noise_multiplier)
    first, later = (task.event(settings, begun) for begun in (False, True))
    return ComposedDpEvent([first, SelfComposedDpEvent(later, config.rounds - 1)])


def _first_arrays(config: RunConfig, schema: Schema) -> Arrays:
    build = build_model(config, schema)
    return {name: value.numpy() for name, value in initialise(build, torch_seed(config.seed, "model")).items()}


def _local(config: RunConfig, schema: Schema) -> list[str]:
    """The model's arrays that stay at hospitals. Raises ConfigError where there are none to stay, or none to share."""
    module = load(build_model(config, schema), _first_arrays(config, schema))
    names = list(module.state_dict())
    local = set(normalisation_arrays(module)) if config.strategy == "fedbn" else set()
    if config.strategy == "fedbn" and not local:
        raise ConfigError(
            f"Configuration key 'strategy' has the value 'fedbn', but the model {config.model!r} has no normalisation layers "
            "to keep at hospitals; take strategy 'fedavg', with local-layers if you like."
        )
    for pattern in config.local_patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise ConfigError(
                f"Configuration key 'local-layers' names {pattern!r}, which no array of the model matches; they are "
                f"{', '.join(names)}."
            )
        local.update(found)
    if local >= set(names):
        raise ConfigError("Configuration key 'local-layers' leaves no array of the model to share.")
    return [name for name in names if name in local]


def _engine(config: RunConfig, sites: Sequence[Site]) -> Engine | None:
    if config.one_release or not all(site.simulated for site in sites):
        return None
    schema = sites[0].schema
    module = load(build_model(config, schema), _first_arrays(config, schema))
    return choose(module, len(feature_names(schema)), config.engine)


def _first_state(
    grid: Grid, sites: Sequence[Site], config: RunConfig, run: str, home: Path, privacy: PrivacyPlan | None
) -> RunState:
    arrays = _first_arrays(config, sites[0].schema)
    noise = privacy.noise_multiplier if privacy else None
    state = RunState(arrays, noise_multiplier=noise, local=_local(config, sites[0].schema))
    if config.standardise:
        _standardise(grid, sites, state, config, run, home, privacy)
    elif privacy:
        state.public_patients = {site.name: float(config.patients_per_site) for site in sites}
    return state


def _standardise(
    grid: Grid,
    sites: Sequence[Site],
    state: RunState,
    config: RunConfig,
    run: str,
    home: Path,
    privacy: PrivacyPlan | None,
) -> None:
    """Ask every site for its sums; a site that refuses takes no part in the run."""
    noise = privacy.statistics_noise_multiplier if privacy else None

    def request(site: Site) -> StatisticsRequest:
        return StatisticsRequest(run=run, site=site.index, home=str(home), noise_multiplier=noise)

    view = SiteGrid(grid, sites, request, {})
    exchange = view.exchange([Message(RecordDict(), site.id, STATISTICS) for site in sites], config.timeout)
    state.dropouts += [{"round": 0, "site": site.name, "reason": reason} for site, reason in exchange.dropped]
    if len(exchange.replies) < config.min_sites:
        raise too_few(exchange, "Statistics", len(exchange.replies), config)
    totals = [from_record(reply.content.array_records["arrays"])["sums"] for _, reply in exchange.replies]
    state.standardiser, counts = combine(totals, sites[0].schema, noise)
    for (site, reply), count in zip(exchange.replies, counts, strict=True):
        state.hear(site.name, reply.content.config_records[RECORD])
        state.public_patients[site.name] = max(count, _FEWEST_PATIENTS) if privacy else count


def _gone(state: RunState) -> set[str]:
    """Sites that dropped out before the first round, for good."""
    return {str(drop["site"]) for drop in state.dropouts if drop["round"] == 0}


def sha256_of(arrays: dict[str, np.ndarray]) -> str:
    """Digest of a model: its arrays' names, types, shapes and bytes, in order of name."""
    digest = sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|{value.dtype}|{value.shape}|".encode() + value.tobytes())
    return digest.hexdigest()
