"""A whole run, as phases: enrol, calibrate the noise, standardise, train round by round, and hand over the outcome.

The noise is calibrated before the first hospital is asked for anything private, so that the statistics and all rounds
together spend at most epsilon at every hospital.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.scaling import public_standardiser
from polyclinic.errors import ConfigError, several, without_name
from polyclinic.plugins import model_named, strategy_named, task_named
from polyclinic.privacy.accounting import PrivacyPlan, gaussian_event
from polyclinic.privacy.events import PAID_BEFORE
from polyclinic.privacy.ledger import Ledger
from polyclinic.server.calibration import calibrate, declared_plan, round_costs
from polyclinic.server.central import FEDERATION, central_plan, central_statement, central_strategy
from polyclinic.server.checkpoint import history_of, load_checkpoint, save_checkpoint
from polyclinic.server.cohort import check_cohorts, cohort_size
from polyclinic.server.distributed import secure_ledger, secure_statement
from polyclinic.server.enrolment import enrol, enrol_request
from polyclinic.server.history import History
from polyclinic.server.joining import unlike
from polyclinic.server.model import check_model, engine_of, first_arrays, local_arrays
from polyclinic.server.posterior import check_budget
from polyclinic.server.progress import Progress, Silent
from polyclinic.server.resuming import check_ledgers, check_states
from polyclinic.server.rounds import run_rounds
from polyclinic.server.selection import select
from polyclinic.server.sites import Site
from polyclinic.server.state import Run, RunState
from polyclinic.server.statistics import ask_statistics
from polyclinic.server.synthesis import synthesis_strategy, synthesizer_of
from polyclinic.server.tracks import check_tracker
from polyclinic.strategies.central import CentralDP, check_base
from polyclinic.strategies.fedgan import FedGAN
from polyclinic.strategies.registry import make_strategy, merge_by
from polyclinic.strategies.state import restore_strategy
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training.learning_rate import usual_rate
from polyclinic.training.stacked.engines import Engine
from polyclinic.types import Arrays


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
    """Raises ConfigError when a dataset, model, strategy, option, task or tracker does not exist; touches no hospital."""
    check_tracker(config)
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
    begun: tuple[RunState, History, Arrays] | None = None
    if resume:
        if checkpoint is None:
            raise ValueError("resume needs a checkpoint.")
        begun = load_checkpoint(checkpoint)
    # Of a run of real hospitals that goes on, its own are asked first; who else is there may join between rounds.
    own = {int(said["node"]): name for name, said in begun[0].hospitals.items()} if begun else {}
    wanted = config.min_sites if own else max(config.sites, config.min_sites)
    simulates = not own and getattr(grid, "simulates", True)
    privacy = calibrate(config) if config.dp else None
    request = enrol_request(run, str(home), privacy)
    enrolled, absent = enrol(grid, request, wanted, config.timeout, own or None, simulates)
    unfit = {site.name: why for site in enrolled if (why := unlike(site, config)) is not None}
    absent += unfit.items()
    sites = [site for site in enrolled if choose(site) and site.name not in unfit]
    if len(sites) < config.min_sites:
        reasons = several((f" {name}: {without_name(name, why)}" for name, why in absent), between="")
        raise ConfigError(
            f"Configuration key 'min-sites' has the value {config.min_sites}, but {len(sites)} hospitals enrolled.{reasons}"
        )
    check_cohorts(config, len(sites))
    strategy = _strategy(config, len(sites))
    if config.central:
        central_plan(config, [site.name for site in sites])
    engine = engine_of(config, sites)
    watcher.started(config, sites, privacy, engine)
    history: History | None = None
    kept: Arrays | None = None
    noted = 0  # dropouts that the watcher knows
    if begun:
        state, history, kept = begun
        noted = len(state.dropouts)
        simulated = [site.name for site in sites if site.simulated]
        unbounded = {} if config.dp else dict.fromkeys(state.trained, math.inf)
        spent = unbounded | state.epsilon
        check_ledgers(home / "ledger.sqlite", {name: spent[name] for name in simulated if name in spent})
        if privacy:
            noise = privacy.statistics_noise_multiplier
            counting = gaussian_event(noise) if noise else PAID_BEFORE
            state.ask_lost(config, counting, *round_costs(config, state.noise_multiplier))
        if config.keeps_state:
            check_states(home, simulated, run, state)
        here = _returned(sites, state, dict(absent))
    else:
        here = sites
        check_model(config, sites[0].schema)
        state = _first_state(grid, sites, config, run, home, privacy)
        state.dropouts[:0] = [{"round": 0, "site": name, "reason": why} for name, why in absent]
        if checkpoint is not None:
            history = History.begin(history_of(checkpoint))
        state.hospitals = {site.name: site.told() for site in sites if not site.simulated}
    taking_part = [site for site in here if site.name not in _gone(state)]
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

    def tell_dropouts() -> None:
        nonlocal noted
        if len(state.dropouts) > noted:
            watcher.dropped(state.dropouts[noted:])
            noted = len(state.dropouts)

    def after_round(now: RunState) -> None:
        tell_dropouts()
        due = now.round % config.checkpoint_every == 0 or now.round == config.rounds or watcher.stopping()
        if due:
            save(now)
        try:
            watcher.round_done(config, now)
        except KeyboardInterrupt:  # it was asked for after the question above
            if watcher.stopping() and not due:
                save(now)
            raise

    if not resume:
        save(state)
    tell_dropouts()
    left_out = {site.name for site in sites} - {site.name for site in here}
    asked = frozenset(site.node for site in enrolled if site.name not in left_out)
    whole = Run(grid, taking_part, strategy, config, run, str(home), sums, privacy, asked)
    whole = run_rounds(whole, state, after_round, save)
    # Also who is away, or was lost before it joined: what it was charged belongs to the run's privacy.
    everyone = [Site.away(told, enrolled[0].schema) for told in state.hospitals.values()]
    sites = _all_of(whole.sites, [*everyone, *here])
    if config.candidates and isinstance(strategy, FedGAN):
        watcher.doing("choosing among the generators")
        select(whole, state, strategy)
    central = central_statement(strategy, state.model) if isinstance(strategy, CentralDP) else None
    if sums is not None:
        central = secure_statement(config, sums, cohort_size(config, len(sites)), state.model)
    return Outcome(config, run, tuple(sites), privacy, engine, state, central, synthesizer_of(strategy), strategy)


def _first_state(
    grid: Grid, sites: Sequence[Site], config: RunConfig, run: str, home: Path, privacy: PrivacyPlan | None
) -> RunState:
    arrays: Arrays = {} if config.sums else first_arrays(config, sites[0].schema)
    noise = privacy.noise_multiplier if privacy else None
    state = RunState(
        arrays, noise_multiplier=noise, local=local_arrays(config, sites[0].schema), run=run, plan=declared_plan(privacy)
    )  # fmt: skip
    if config.standardise == "public":
        state.standardiser = public_standardiser(sites[0].schema)
    if config.asks_statistics:
        ask_statistics(grid, sites, state, config, run, home, privacy)
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
    if not (config.one_release or config.synthesis or config.shared_noise):
        state.told = {"lr": state.learning_rate}  # by which name Flower's documentation has strategies change it
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


def _returned(sites: Sequence[Site], state: RunState, absent: Mapping[str, str]) -> list[Site]:
    """Of a run that goes on: its hospitals that enrolled again, at their places.

    A real hospital that was not in it before waits for the next round like any that comes late, as does one that was lost
    before it told how many patients it has. ``absent``: why others did not enrol, by name.
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
    known = {*state.public_patients, *_gone(state)} if state.public_patients else {*state.hospitals}
    return _all_of([site for site in again if site.name in known])


def _all_of(sites: Sequence[Site], others: Sequence[Site] = ()) -> list[Site]:
    """Every hospital once, in order of place, as the first of the two lists has it where both do."""
    found = {site.name: site for site in (*others, *sites)}
    return sorted(found.values(), key=lambda site: site.index)


def _gone(state: RunState) -> set[str]:
    """Sites that dropped out before the first round, for good."""
    return {str(drop["site"]) for drop in state.dropouts if drop["round"] == 0}
