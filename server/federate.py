"""A whole run, as phases: enrol, calibrate the noise, standardise, train round by round, and hand over the outcome.

The noise is calibrated before the first hospital is asked for anything private, so that the statistics and all rounds
together spend at most epsilon at every hospital.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.encoding import public_standardiser
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, count_text, several, without_name
from polyclinic.plugins import evaluator_named, mod_named, strategy_named, strategy_options
from polyclinic.privacy.accounting import PrivacyPlan, gaussian_event
from polyclinic.privacy.events import PAID_BEFORE
from polyclinic.privacy.ledger import on_disk
from polyclinic.programs import Program, program_of
from polyclinic.runs.history import History
from polyclinic.server.accounts import LOST
from polyclinic.server.calibration import calibrate, declared_plan, round_costs
from polyclinic.server.checkpoint import check_ledgers, check_states, history_of, load_checkpoint, save_checkpoint
from polyclinic.server.exchange.central import (
    FEDERATION,
    central_plan,
    central_statement,
    central_strategy,
    secure_ledger,
    secure_statement,
)
from polyclinic.server.exchange.cohort import check_cohorts, cohort_size
from polyclinic.server.exchange.learning import Learning
from polyclinic.server.exchange.noise import check_noise
from polyclinic.server.exchange.sites import Site
from polyclinic.server.exchange.updates import origin_of
from polyclinic.server.phases.enrolment import ApprovalWait, enrol, enrol_request, settle
from polyclinic.server.phases.evaluation import METRICS, ask_private, count_lost_metrics, evaluate_here
from polyclinic.server.phases.joining import unlike
from polyclinic.server.phases.model import check_messages, check_model, engine_of
from polyclinic.server.phases.rounds import run_rounds
from polyclinic.server.phases.selection import select
from polyclinic.server.phases.statistics import ask_statistics
from polyclinic.server.progress import Progress
from polyclinic.server.state import Run, RunState
from polyclinic.server.tracking import check_tracker
from polyclinic.strategies import BUILT_IN
from polyclinic.strategies.base.state import restore_strategy
from polyclinic.strategies.central import check_base
from polyclinic.strategies.registry import make_strategy, merge_by
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training.learning_rate import usual_rate
from polyclinic.training.stacked.engines import Engine

# Between two checkpoints of rounds that could be made again.
_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: its final state, the sites that took part, and the privacy plan (None without privacy).

    ``engine``: how the hospitals of a simulation trained. None where they are real and chose for themselves, or where
        the task has no steps.
    ``central``: the guarantee to whole hospitals (``central_statement``), None without
    ``learning``: what the program's half at the server has learned, where it has one
    ``synthesizer``: what draws synthetic patients; None where the run stopped before it could, and of a run that has
        none
    """

    program: Program
    run: str
    sites: tuple[Site, ...]
    privacy: PrivacyPlan | None
    engine: Engine | None
    state: RunState
    central: dict[str, Any] | None = None
    learning: Learning | None = None
    synthesizer: Synthesizer | None = None

    @property
    def config(self) -> RunConfig:
        return self.program.config


def check_names(config: RunConfig) -> None:
    """Raises ConfigError when a dataset, model, strategy, option, task or tracker does not exist; touches no hospital."""
    check_tracker(config)
    program_of(config).check_names()
    if config.evaluation.function:
        evaluator_named(config.evaluation.function)
    for name in config.mod_names:
        mod_named(name)
    strategy = _strategy(config)
    if config.central.on:
        check_base(strategy)
    _check_summable(config, strategy)


def _check_summable(config: RunConfig, strategy: Strategy) -> None:
    """Raises ConfigError when the strategy needs more than the mean that a secure sum gives."""
    if config.secure.aggregation and merge_by(strategy) != "num-examples":
        raise ConfigError(
            f"Configuration key 'strategy' has the value {config.strategy!r}, which does not begin with the mean of models "
            "weighted by num-examples; secure.aggregation gives it nothing else."
        )


def _strategy(config: RunConfig, hospitals: int = 1) -> Strategy:
    """The run's strategy, told those of the run's settings that it takes."""
    settings = {
        "client_learning_rate": config.training.learning_rate or usual_rate(train_settings(config, None)),
        "hospitals": hospitals,
    }  # fmt: skip
    return make_strategy(strategy_named(config.strategy), strategy_options(config), settings)


@dataclass(frozen=True)
class Places:
    """Where a run keeps what it keeps.

    home: Folder where simulated hospitals keep their ledgers.
    checkpoint: File that is written after each round, its history beside it; None where the run cannot go on.
    server_ledger: File that is charged for what is released of whole hospitals; None where nothing is.
    waiting: File that names the hospitals where somebody must approve the run, while it waits for them; None writes none.
    """

    home: Path
    checkpoint: Path | None = None
    server_ledger: Path | None = None
    waiting: Path | None = None


def federate(
    grid: Grid, config: RunConfig, run: str, places: Places, *, resume: bool = False, progress: Progress | None = None,
    choose: Callable[[Site], bool] = lambda site: True,
) -> Outcome:  # fmt: skip
    """Runs ``config`` over the hospitals behind ``grid``.

    Args:
        grid: Flower's grid.
        config: The run's configuration.
        run: The run's name.
        places: The folder of simulated hospitals, the checkpoint's file and the server's ledger.
        resume: Go on from the checkpoint.
        progress: Who watches the run; nobody by default.
        choose: Whether a hospital may take part; all by default.

    Raises:
        PolyclinicError: The run cannot begin or go on; the message is one sentence.
        ValueError: ``places`` lacks the checkpoint or the server's ledger that the run needs.
    """
    home, checkpoint, server_ledger = places.home, places.checkpoint, places.server_ledger
    if (resume and checkpoint is None) or ((config.central.on or config.secure.noise) and server_ledger is None):
        raise ValueError("resume needs a checkpoint, and privacy of whole hospitals a server_ledger.")
    watcher = progress or Progress()
    check_names(config)
    config = settle(grid, config)
    program = program_of(config)
    before = load_checkpoint(checkpoint) if resume and checkpoint else None
    privacy = calibrate(config) if config.privacy.dp else None
    enrolled = _enrol(grid, config, run, places, privacy, before[0] if before else None, choose)
    base = _strategy(config, len(enrolled.sites))
    if config.central.on:
        central_plan(config, [site.name for site in enrolled.sites])
    engine = engine_of(program, enrolled.sites)
    watcher.on_start(config, enrolled.sites, privacy, engine)
    plain = Run(grid, enrolled.sites, base, program, run, str(home), privacy=privacy)
    if before:
        state, history = before[:2]
        shown = len(state.dropouts)
        here = _go_on(state, enrolled, config, run, home, privacy)
    else:
        if enrolled.dropouts:
            watcher.on_dropouts(enrolled.dropouts)
        check_model(program, enrolled.sites[0].schema)
        check_messages(base, program, grid, enrolled.sites)
        # Before anything is spent, so that a function that fails costs nothing.
        metrics = evaluate_here(config, 0, program.first(enrolled.sites[0].schema))
        state, history, shown, here = _first_state(plain, enrolled), None, len(enrolled.dropouts), enrolled.sites
        state.note_metrics(0, "server", metrics)
        if checkpoint is not None:
            history = History.begin(history_of(checkpoint))
    taking_part = [site for site in here if site.name not in _gone(state)]
    plain = replace(plain, sites=taking_part, answered=enrolled.nodes(here))
    begun = _begin(plain, enrolled.sites[0].schema, state, server_ledger)
    if before:
        restore_strategy(begun.strategy, before[2])
        if begun.learning:
            begun.learning.check()
    records = _Records(begun, state, watcher, checkpoint, history)
    if not before:
        records.save()
    if state.dropouts[shown:]:
        watcher.on_dropouts(state.dropouts[shown:])
    done = run_rounds(begun, state, records.after_round, records.save)
    if state.saved < state.round:  # budgets stopped it
        records.save()
    # Also who is away, or was lost before it joined: what it was charged belongs to the run's privacy.
    away = [Site.away(hospital, enrolled.sites[0].schema) for hospital in state.hospitals.values()]
    everyone = _all_of(done.sites, [*away, *here])
    if program.choice and done.learning:
        watcher.on_step("choosing among the generators")
        select(done, state, done.learning, program.choice)
    count_lost_metrics(config, state, everyone)
    synthesizer = done.learning.synthesizer() if done.learning else None
    return Outcome(
        program, run, tuple(everyone), privacy, engine, state, _whole_hospitals(done, state, everyone), done.learning,
        synthesizer,
    )  # fmt: skip


@dataclass(frozen=True)
class _Enrolled:
    """Who answered.

    ``sites``: the hospitals that can take part, in order
    ``unused``: those that answered and cannot, or were not chosen
    ``absent``: who did not answer or cannot take part, and why
    """

    sites: list[Site]
    unused: list[Site]
    absent: list[tuple[str, str]]

    @property
    def dropouts(self) -> list[dict[str, Any]]:
        return [{"round": 0, "site": name, "reason": why} for name, why in self.absent]

    def nodes(self, here: Sequence[Site]) -> frozenset[int]:
        """The nodes that need not be asked again who they are: all but those of hospitals that wait to join."""
        return frozenset(site.node for site in (*self.unused, *here))


def _enrol(
    grid: Grid, config: RunConfig, run: str, places: Places, privacy: PrivacyPlan | None, state: RunState | None,
    choose: Callable[[Site], bool],
) -> _Enrolled:  # fmt: skip
    """Ask who is there. ``state``: of a run that goes on. Raises ConfigError where too few can take part."""
    # Of a run of real hospitals that goes on, its own are asked first; who else is there may join between rounds.
    own = {int(hospital["node"]): name for name, hospital in state.hospitals.items()} if state else {}
    wanted = config.participation.min_sites if own else max(config.sites, config.participation.min_sites)
    simulates = not own and getattr(grid, "simulates", True)
    request = enrol_request(run, str(places.home), privacy, local_half=program_of(config).has_local_half)
    wait = ApprovalWait(config.participation.approval_wait, places.waiting)
    answered, absent = enrol(grid, request, wanted, config.timeout, own or None, simulates, wait)
    unfit = {site.name: why for site in answered if (why := unlike(site, config)) is not None}
    sites = [site for site in answered if choose(site) and site.name not in unfit]
    absent = [*absent, *unfit.items()]
    if len(sites) < config.participation.min_sites:
        reasons = several((f" {name}: {without_name(name, why)}" for name, why in absent), between="")
        raise ConfigError(
            f"Configuration key 'participation.min-sites' has the value {config.participation.min_sites}, but "
            f"{count_text(len(sites), 'hospital')} enrolled.{reasons}"
        )
    check_cohorts(config, len(sites))
    used = {site.name for site in sites}
    return _Enrolled(sites, [site for site in answered if site.name not in used], absent)


def _go_on(
    state: RunState, enrolled: _Enrolled, config: RunConfig, run: str, home: Path, privacy: PrivacyPlan | None
) -> list[Site]:
    """Check what hospitals kept against ``state``; returns those of the run that enrolled again."""
    simulated = [site.name for site in enrolled.sites if site.simulated]
    unbounded = {} if config.privacy.dp else dict.fromkeys(state.trained, math.inf)
    spent = unbounded | state.epsilon
    check_ledgers(home / "ledger.sqlite", {name: spent[name] for name in simulated if name in spent})
    if privacy:
        noise = privacy.statistics_noise_multiplier
        counting = gaussian_event(noise) if noise else PAID_BEFORE
        state.ask_lost(config, counting, *round_costs(config, state.noise_multiplier))
    for number in range(state.round + 1, min(state.round + config.checkpoints.rounds_lost, config.rounds) + 1):
        if config.evaluation.plans_private(number, config.rounds):
            for hospital in state.hospitals.values():
                away = Site.away(hospital, enrolled.sites[0].schema)
                ask_private(state, program_of(config), away, f"{METRICS} {number} {LOST}")
    if program_of(config).keeps_state:
        check_states(home, simulated, run, state)
    return _returning_sites(enrolled.sites, state, dict(enrolled.absent))


def _begin(run: Run, schema: Schema, state: RunState, server_ledger: Path | None) -> Run:
    """The run with what is around its strategy: the program's half, and what protects whole hospitals."""
    config = run.config
    if half := run.program.half(schema, state.classes, state.learning_rate or 0.0):
        learning = Learning(run.strategy, half)
        run = replace(run, strategy=learning, learning=learning)
    if server_ledger is None or not (config.central.on or config.secure.noise):
        return run
    if state.hospital_epsilon is not None:
        check_ledgers(server_ledger, {FEDERATION: state.hospital_epsilon})
    if not config.central.on:
        return replace(run, ledger=secure_ledger(config, server_ledger))
    central = central_strategy(run.strategy, config, run.sites, server_ledger, run.name)
    return replace(run, strategy=central, central=central)


def _whole_hospitals(run: Run, state: RunState, sites: Sequence[Site]) -> dict[str, Any] | None:
    """The guarantee to whole hospitals; None without."""
    if run.ledger is not None:
        origin = origin_of(run, state, min(state.round + 1, run.config.rounds), sites[0].schema)
        return secure_statement(run.config, run.ledger, cohort_size(run.config, len(sites)), origin)
    return central_statement(run.central, state.model) if run.central else None


@dataclass
class _Records:
    """What is written and said after each round."""

    run: Run
    state: RunState
    watcher: Progress
    checkpoint: Path | None
    history: History | None
    saved_at: float = 0.0

    @cached_property
    def patient(self) -> bool:
        """Whether rounds that are lost with the process are made again at no cost, so that most need no checkpoint."""
        run, checkpoints = self.run, self.run.config.checkpoints
        paid = run.central is not None or not all(site.simulated for site in run.sites)
        keeps = run.program.keeps_state or run.config.secure.aggregation
        draws = run.config.strategy not in BUILT_IN  # it may ask another question, and so for another release
        return not (checkpoints.every or checkpoints.keep > 1 or paid or keeps or draws)

    def save(self, state: RunState | None = None) -> None:
        ledger = Path(self.run.home) / "ledger.sqlite"
        if ledger.exists():  # of simulated hospitals, before a checkpoint counts on it
            on_disk(ledger)
        if self.checkpoint is not None and self.history is not None:
            newest = state or self.state
            save_checkpoint(self.checkpoint, newest, self.run.strategy, self.history, self.run.config.checkpoints.keep)
            newest.saved = newest.round
        self.saved_at = monotonic()

    def after_round(self, state: RunState) -> None:
        config = self.run.config
        wait = monotonic() - self.saved_at < _SECONDS if self.patient else state.round % config.checkpoints.rounds_lost
        due = not wait or state.round == config.rounds or self.watcher.is_stopping()
        if due:
            self.save(state)
        try:
            self.watcher.on_round(config, state)
        except BaseException:
            if not due and (self.patient or self.watcher.is_stopping()):  # it was asked for after the question above
                self.save(state)
            raise


def _first_state(run: Run, enrolled: _Enrolled) -> RunState:
    """What round 1 starts from, after statistics that were paid for."""
    config, program, privacy, sites = run.config, run.program, run.privacy, enrolled.sites
    schema = sites[0].schema
    noise = privacy.noise_multiplier if privacy else None
    state = RunState(
        {}, noise_multiplier=noise, local=program.local(schema), run=run.name, plan=declared_plan(privacy)
    )  # fmt: skip
    if config.data.standardise == "public":
        state.standardiser = public_standardiser(schema)
    if config.asks_statistics:
        ask_statistics(run, state)
    elif privacy:
        state.public_patients = {site.name: float(config.privacy.patients_per_site) for site in sites}
    if noise:
        try:
            check_noise(program, schema, noise, list(state.public_patients.values()))
        except ConfigError as error:
            spent = "the numbers of patients were" if config.asks_statistics else "nothing was"
            raise ConfigError(f"{error} Of the hospitals' budgets {spent} spent.") from None
    state.arrays = program.first(schema, state.classes)
    state.learning_rate = config.training.learning_rate or _learning_rate(program, state, schema)
    if program.stepwise and program.tells_rate and not config.secure.shared_noise:
        state.strategy_config = {"lr": state.learning_rate}  # the name by which Flower has strategies change it
    state.dropouts[:0] = enrolled.dropouts
    state.hospitals = {site.name: site.as_dict() for site in sites if not site.simulated}
    return state


def _learning_rate(program: Program, state: RunState, schema: Schema) -> float:
    """The largest that the noise and the objective allow a mean round's hospitals."""
    config, longest = program.config, program.objective(schema).longest_step if program.judged else math.inf
    sites = len(state.public_patients)
    cohort = cohort_size(config, sites)
    patients = sum(state.public_patients.values()) * cohort / max(sites, 1)
    steps, settings = config.rounds * config.training.local_steps, program.settings(state.noise_multiplier, schema)
    if config.secure.shared_noise:  # all hospitals have one noise, and the server the momentum
        return usual_rate(
            replace(settings, momentum=config.options.get("server_momentum", 0.0)), steps, patients, longest=longest
        )
    return usual_rate(settings, steps, patients, cohort, longest)


def _returning_sites(sites: Sequence[Site], state: RunState, absent: Mapping[str, str]) -> list[Site]:
    """Of a run that goes on: its hospitals that enrolled again, at their places.

    A real hospital that was not in it before waits for the next round like any that comes late. So does one that was
    lost before it told how many patients it has. ``absent``: why others did not enrol, by name.
    """
    if not state.hospitals:
        if not all(site.simulated for site in sites):
            raise ConfigError("The run was begun with simulated hospitals and cannot go on with real ones.")
        return list(sites)
    again = [state.welcome(site) for site in sites if site.name in state.hospitals and not state.impostor(site)]
    if not again:
        raise ConfigError(f"Of the run's hospitals ({several(state.hospitals)}) none enrolled again.")
    missing = [name for name in state.hospitals if name not in {site.name for site in again}]
    reasons = {name: absent.get(name, "it did not enrol when the run went on") for name in missing}
    state.dropouts += [{"round": state.round + 1, "site": name, "reason": why} for name, why in reasons.items()]
    counted = {*state.public_patients, *_gone(state)} if state.public_patients else {*state.hospitals}
    return _all_of([site for site in again if site.name in counted])


def _all_of(sites: Sequence[Site], others: Sequence[Site] = ()) -> list[Site]:
    """Every hospital once, in order of place, as the first of the two lists has it where both do."""
    sites_by_name = {site.name: site for site in (*others, *sites)}
    return sorted(sites_by_name.values(), key=lambda site: site.index)


def _gone(state: RunState) -> set[str]:
    """Sites that dropped out before the first round, for good."""
    return {str(drop["site"]) for drop in state.dropouts if drop["round"] == 0}
