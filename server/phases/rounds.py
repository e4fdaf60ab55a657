"""The loop over rounds: any Flower Strategy's four methods, with what Flower's own ``start`` lacks.

Hospitals are sampled from the run's seed, replies are ordered by site, and a site that refuses or fails drops out of
the round with its reason. Every site's metrics are kept, and a checkpoint follows each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from polyclinic.errors import BudgetRefused
from polyclinic.server.calibration import declared_plan, round_costs
from polyclinic.server.exchange.cohort import sample_cohort
from polyclinic.server.exchange.merging import metrics_of
from polyclinic.server.exchange.replies import EXAMPLES, TooFew, accept, averaging_problem, too_few
from polyclinic.server.exchange.sites import Exchange, Site, SiteGrid
from polyclinic.server.exchange.updates import Replies, Updates, never_skips, updates_of
from polyclinic.server.phases.evaluation import evaluate, evaluate_again, evaluate_here, run_judge
from polyclinic.server.phases.joining import with_newcomers, without_silent
from polyclinic.server.phases.model import check_understood
from polyclinic.server.state import Run, RunState
from polyclinic.strategies.base.wrapping import messages_of
from polyclinic.training.local import BESIDE
from polyclinic.types import Arrays
from polyclinic.wire.arrays import contents_of, from_record, to_record
from polyclinic.wire.messages import TrainRequest, is_model

SITE_FIGURES = ("train_loss", "bytes_down", "bytes_up", "simulated_seconds")
SiteFigures = dict[str, dict[str, Any]]


def run_rounds(
    run: Run, state: RunState, after_round: Callable[[RunState], None] = lambda state: None,
    keep: Callable[[RunState], None] = lambda state: None,
) -> Run:  # fmt: skip
    """Runs the rounds after ``state.round`` up to ``run.config.rounds``.

    Stops early, and says so in ``state.stopped``, when budgets leave fewer than ``min_sites`` sites for a later round.
    A round with too few valid replies for another reason changes no model where simulated conditions lose replies, and
    ``state.unchanged`` says why.

    Args:
        run: The run before its next round.
        state: The run's state, which is changed.
        after_round: Called with the state after each round.
        keep: Called with the state when hospitals have joined the run.

    Returns:
        The run with the hospitals that joined it.

    Raises:
        TooFew: A round has too few valid replies, and simulated conditions lose none.
        BudgetRefused: Budgets leave too few sites for the first round.
    """
    config, unknown = run.config, dict.fromkeys(run_judge(run).by_round)
    for number in range(state.round + 1, config.rounds + 1):
        started = time.perf_counter()
        run = with_newcomers(run, state, number, keep)
        state.miss(number, (site.name for site in run.sites))
        try:
            figures = _train(run, state, number)
        except BudgetRefused as refusal:
            # The hospitals paid for the rounds that are done, so their result must not be lost with the rest.
            if state.round == 0:
                raise
            state.stopped = str(refusal)
            break
        except TooFew as shortfall:
            if not config.simulation.loses_replies:
                raise
            state.leave(number, str(shortfall))
            figures = {}
        run = without_silent(run, state, number)
        # Generators that hospitals choose among are judged again after the choice, which is when private metrics are asked for.
        private = config.evaluation.plans_private(number, config.rounds) and not (
            run.program.choice and number == config.rounds
        )
        if number % config.evaluation.every == 0 or number == config.rounds or private:
            rows = evaluate(run, state, number, private)
            run = without_silent(run, state, number)
        else:
            rows = []
        rows = rows or [
            {"round": number, "site": name} | unknown for name in figures
        ]  # also where none could be evaluated
        state.note_metrics(number, "server", evaluate_here(config, number, state.model))
        state.round = number
        elapsed = time.perf_counter() - started
        state.seconds += elapsed
        state.rows += [
            row | dict.fromkeys(SITE_FIGURES) | figures.get(row["site"], {})
            | {"epsilon": state.epsilon.get(row["site"]), "seconds": elapsed}
            for row in rows
        ]  # fmt: skip
        after_round(state)
    if state.stopped and not run.program.choice:
        evaluate_again(run, state)
    elif state.predictions is None and state.round:  # resumed after its last round
        evaluate(run, state, state.round, private=not run.program.choice)
    return run


def _train(run: Run, state: RunState, number: int) -> SiteFigures:
    """One round of training; changes ``state`` and returns figures of each site that took part (``SITE_FIGURES``).

    A round that nobody is sampled for changes no model. But where central privacy counts on nobody knowing who was
    sampled, or on every round's noise, it gets its noise like any other. So does one that simulated conditions leave
    with few replies. Raises TooFew, or BudgetRefused where budgets are the cause.
    """
    config = run.config
    cohort = sample_cohort(run.sites, config, number, state.sampled)
    state.sampled |= {site.name: number for site in cohort}
    if not cohort and config.participation.sampling == "poisson" and not never_skips(run):
        state.leave(number, f"Round {number}: no hospital was sampled.")
        return {}
    updates = updates_of(run, state, cohort, number)
    exchange, replies = _collect(run, state, updates, number)
    given, figures = state.model, _site_figures(run, exchange, replies)
    arrays, metrics = updates.aggregate(replies)
    state.note_metrics(number, "train", metrics)
    state.joined |= {name: state.joined.get(name, 0) + 1 for name in figures}
    state.trained |= dict.fromkeys(figures, number)
    if arrays is None:  # so a Flower strategy says that it keeps the model
        state.leave(number, f"Round {number}: the strategy {config.strategy} kept the model as it was.")
    else:
        state.arrays = state.arrays | _as_before(from_record(arrays), given)
    return figures


def _collect(run: Run, state: RunState, updates: Updates, number: int) -> tuple[Exchange, Replies]:
    """Ask the parties to train; returns the replies that count. Raises TooFew or BudgetRefused."""
    config, parties, plan = run.config, updates.parties, declared_plan(run.privacy)

    def request(site: Site) -> TrainRequest:
        return TrainRequest(
            run=run.name, site=site.index, home=run.home, round=number, noise_multiplier=state.noise_multiplier,
            public_patients=state.public_patients.get(site.name), learning_rate=state.learning_rate, plan=plan,
            local_half=run.program.has_local_half,
            **updates.request_fields(site),
        )  # fmt: skip

    # Flower's strategies wait for a node to appear, so that an empty cohort is configured for all, and none is asked.
    view = SiteGrid(run.grid, parties or run.sites, request, state.beside())
    configuration = ConfigRecord(state.strategy_config)
    messages = messages_of(run.strategy, number, to_record(state.model), configuration, view)
    check_understood(messages, run.program, config.strategy)
    state.strategy_config = {
        key: value for key, value in configuration.items() if isinstance(value, bool | int | float | str)
    }
    exchange = view.exchange(messages if parties else [], config.timeout)
    request_name = f"train {number}"
    if run.privacy:
        state.ask(exchange, request_name, *round_costs(config, state.noise_multiplier))
    # In a secure sum the weights are in the sum already.
    counted = {} if config.secure.aggregation else state.public_patients
    named = {name for content in contents_of(messages) for name in content.array_records}
    beside = {BESIDE + name for name in run.program.local_half.sends}
    asked = {name for name in named if is_model(name)} | beside
    weight = str(getattr(run.strategy, "weighted_by_key", EXAMPLES))
    replies = accept(
        exchange,
        state,
        number,
        lambda reply: updates.problem(reply) or averaging_problem(reply, asked, weight),
        counted,
        request_name,
    )
    if parties and len(replies) < max(min(config.participation.min_sites, len(parties)), updates.fewest):
        shortfall = too_few(exchange, f"Round {number}", len(replies), config, updates.fewest)
        if isinstance(shortfall, BudgetRefused) or not (never_skips(run) and config.simulation.loses_replies):
            raise shortfall
    return exchange, replies


def _site_figures(run: Run, exchange: Exchange, replies: Replies) -> SiteFigures:
    figures: SiteFigures = {}
    for site, reply in replies:
        metrics = metrics_of(reply)
        down, up = exchange.sizes[site.index]
        figures[site.name] = {
            "train_loss": None if run.config.central.on else metrics.get("train_loss"), "bytes_down": down, "bytes_up": up,
            "simulated_seconds": metrics.get("simulated-seconds"),
        }  # fmt: skip
    return figures


def _as_before(arrays: Arrays, before: Arrays) -> Arrays:
    """The model in the types that it had: means are in float64, and those of whole numbers are rounded."""
    return {
        name: np.asarray(value if before[name].dtype.kind == "f" else np.rint(value), before[name].dtype)
        for name, value in arrays.items()
    }
