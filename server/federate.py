"""A whole run, as phases: enrol, calibrate the noise, standardise, train round by round, and hand over the outcome.

The noise is calibrated before the first hospital is asked for anything private, so that the statistics and all rounds
together spend at most epsilon at every hospital.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.arrays import Arrays, from_record
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.scaling import public_standardiser
from polyclinic.errors import ConfigError, several
from polyclinic.messages import STATISTICS, StatisticsRequest
from polyclinic.plugins import model_named, strategy_named, task_named
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.privacy.ledger import Ledger
from polyclinic.server.calibration import calibrate
from polyclinic.server.central import FEDERATION, central_plan, central_statement, central_strategy
from polyclinic.server.checkpoint import history_of, load_checkpoint, save_checkpoint
from polyclinic.server.cohort import check_cohorts, cohort_size
from polyclinic.server.distributed import secure_ledger, secure_statement
from polyclinic.server.history import History
from polyclinic.server.model import check_model, engine_of, first_arrays, local_arrays
from polyclinic.server.posterior import check_budget
from polyclinic.server.progress import Progress, Silent
from polyclinic.server.replies import accept, problem, too_few
from polyclinic.server.resuming import check_ledgers, check_states
from polyclinic.server.rounds import run_rounds
from polyclinic.server.selection import select
from polyclinic.server.sites import Site, SiteGrid, enrol
from polyclinic.server.state import Run, RunState
from polyclinic.server.synthesis import class_counts, synthesis_strategy, synthesizer_of
from polyclinic.strategies.central import CentralDP, check_base
from polyclinic.strategies.fedgan import FedGAN
from polyclinic.strategies.registry import make_strategy, merge_by
from polyclinic.strategies.state import restore_strategy
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training.learning_rate import usual_rate
from polyclinic.training.preparation import contribution_size, measured_standardiser, patient_counts
from polyclinic.training.stacked.engines import Engine

# A noisy count can fall near zero; a divisor below this would blow the step up.
_FEWEST_PATIENTS = 10.0


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: its final state, the sites that took part, and the privacy plan (None without privacy).

    ``engine``: how the hospitals of a simulation trained; None where they are real and chose for themselves, or where the
    task has no steps. ``central``: the guarantee to whole hospitals (``central_statement``), None without. ``synthesizer``:
    what task synthesis came to; None where it stopped before it could draw. ``strategy``: as it is after the last round.
    """

    config: RunConfig
    run: str
    sites: tuple[Site, ...]
    privacy: PrivacyPlan | None
    engine: Engine | None
    state: RunState
    central: dict[str, Any] | None = None
    synthesizer: Synthesizer | None = None
    strategy: Strategy | None = None


def check_names(config: RunConfig) -> None:
    """Raises ConfigError when a dataset, model, strategy, option or task does not exist; touches no hospital."""
    if not (config.synthesis or config.posterior):
        model_named(config.model)
    task_named(config.task)
    strategy = _strategy(config)
    if config.central:
        check_base(strategy)
    _check_summable(config, strategy)


def _check_summable(config: RunConfig, strategy: Strategy) -> None:
    """Raises ConfigError when the strategy needs more than the mean that a secure sum gives."""
    if config.secure_aggregation and merge_by(strategy) != "num-examples":
        raise ConfigError(
            f"Configuration key 'strategy' has the value {config.strategy!r}, which does not begin with the mean of models "
            "weighted by num-examples; secure-aggregation gives it nothing else."
        )


def _strategy(config: RunConfig, hospitals: int = 1) -> Strategy:
    """The run's strategy, told those of the run's settings that it takes."""
    told = {
        "proximal_mu": config.proximal_mu, "train_loss_key": "train-loss",
        "client_learning_rate": config.learning_rate or usual_rate(train_settings(config, None)),
        "hospitals": hospitals,
    }  # fmt: skip
    return make_strategy(strategy_named(config.strategy), config.options, told)


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
    engine = engine_of(config, sites)
    watcher.started(config, sites, privacy, engine)
    history: History | None = None
    kept: Arrays | None = None
    if resume:
        if checkpoint is None:
            raise ValueError("resume needs a checkpoint.")
        state, history, kept = load_checkpoint(checkpoint)
        simulated = [site.name for site in sites if site.simulated]
        told = {name: state.epsilon[name] for name in simulated if name in state.epsilon}
        check_ledgers(home / "ledger.sqlite", told)
        if config.keeps_state:
            check_states(home, simulated, run, state)
    else:
        check_model(config, sites[0].schema)
        state = _first_state(grid, sites, config, run, home, privacy)
        state.dropouts[:0] = [{"round": 0, "site": name, "reason": why} for name, why in absent]
        if checkpoint is not None:
            history = History.begin(history_of(checkpoint))
    taking_part = [site for site in sites if site.name not in _gone(state)]
    if config.synthesis or config.posterior:
        strategy = synthesis_strategy(strategy, config, sites[0].schema, state)
    sums: Ledger | None = None
    if config.central or config.secure_noise:
        if server_ledger is None:
            raise ValueError("privacy of whole hospitals needs a server_ledger.")
        if state.hospital_epsilon is not None:
            check_ledgers(server_ledger, {FEDERATION: state.hospital_epsilon})
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
    whole = Run(grid, taking_part, strategy, config, run, str(home), sums)
    run_rounds(whole, state, after_round)
    if config.candidates and isinstance(strategy, FedGAN):
        watcher.doing("choosing among the generators")
        select(whole, state, strategy)
    central = central_statement(strategy, state.model) if isinstance(strategy, CentralDP) else None
    if sums is not None:
        central = secure_statement(config, sums, cohort_size(config, len(sites)), state.model)
    return Outcome(config, run, tuple(sites), privacy, engine, state, central, synthesizer_of(strategy), strategy)


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


def _first_state(
    grid: Grid, sites: Sequence[Site], config: RunConfig, run: str, home: Path, privacy: PrivacyPlan | None
) -> RunState:
    arrays: Arrays = {} if config.sums else first_arrays(config, sites[0].schema)
    noise = privacy.noise_multiplier if privacy else None
    state = RunState(arrays, noise_multiplier=noise, local=local_arrays(config, sites[0].schema))
    if config.standardise == "public":
        state.standardiser = public_standardiser(sites[0].schema)
    if config.asks_statistics:
        _ask_statistics(grid, sites, state, config, run, home, privacy)
    elif privacy:
        state.public_patients = {site.name: float(config.patients_per_site) for site in sites}
    if config.posterior and noise:
        try:
            check_budget(config, sites[0].schema, noise, list(state.public_patients.values()))
        except ConfigError as error:
            spent = "the numbers of patients were" if config.asks_statistics else "nothing was"
            raise ConfigError(f"{error} Of the hospitals' budgets {spent} spent.") from None
    if config.sums:  # how many numbers the first sum has may depend on how common classes are
        state.arrays = first_arrays(config, sites[0].schema, state.classes)
    state.learning_rate = config.learning_rate or _learning_rate(config, state)
    return state


def _learning_rate(config: RunConfig, state: RunState) -> float:
    """The largest that the noise allows a mean round's hospitals."""
    sites = len(state.public_patients)
    cohort = cohort_size(config, sites)
    patients = sum(state.public_patients.values()) * cohort / max(sites, 1)
    steps, settings = config.rounds * config.local_steps, train_settings(config, state.noise_multiplier)
    if config.shared_noise:  # all hospitals have one noise, and the server the momentum
        return usual_rate(replace(settings, momentum=config.options.get("server_momentum", 0.0)), steps, patients)
    return usual_rate(settings, steps, patients, cohort)


def _ask_statistics(
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
    schema, measured = sites[0].schema, config.standardise == "measured"
    like = {"sums": np.zeros(schema.num_classes if config.synthesis else contribution_size(schema, measured))}
    replies = accept(exchange, state, 0, lambda reply: problem(reply, like))
    if len(replies) < config.min_sites:
        raise too_few(exchange, "Statistics", len(replies), config)
    totals = [from_record(reply.content.array_records["arrays"])["sums"] for _, reply in replies]
    if measured:
        state.standardiser = measured_standardiser(totals, schema, noise)
    if config.synthesis:
        state.classes = class_counts(config, [site for site, _ in replies], totals)
        counts = [float(total.sum()) for total in totals]
    else:
        counts = patient_counts(totals, schema, measured)
    for (site, _), count in zip(replies, counts, strict=True):
        state.public_patients[site.name] = max(count, _FEWEST_PATIENTS) if privacy else count


def _gone(state: RunState) -> set[str]:
    """Sites that dropped out before the first round, for good."""
    return {str(drop["site"]) for drop in state.dropouts if drop["round"] == 0}
