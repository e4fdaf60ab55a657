"""A model's metrics on held-out patients, as far as hospitals' policies let them leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from polyclinic.config import RunConfig
from polyclinic.ehr.split import OWN_SPLIT
from polyclinic.errors import ConfigError, PolyclinicError, failing
from polyclinic.evaluation.assessment import Predictions, pool
from polyclinic.evaluation.judges import CLASSES, Judge, judge_of
from polyclinic.evaluation.metrics import Metrics
from polyclinic.objectives.objective import Objective, made_up_labels
from polyclinic.plugins import evaluator_named
from polyclinic.privacy.ledger.terms import check_told, from_text, plan_text, run_digest
from polyclinic.programs import Program
from polyclinic.releases.errors import affordable_question, question_of
from polyclinic.releases.measured import Noised
from polyclinic.releases.question import Pricing
from polyclinic.server.accounts import ROUNDING, Account, bound
from polyclinic.server.exchange.merging import metrics_of
from polyclinic.server.exchange.replies import EXAMPLES, accept, alike, averaging_problem, problem
from polyclinic.server.exchange.sites import Exchange, Site, SiteGrid
from polyclinic.server.state import Run, RunState
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import COUNTS, RECORD, EvaluateRequest

METRICS = "metrics"
_LONGEST = 300


def evaluate(run: Run, state: RunState, number: int, private: bool) -> list[dict[str, Any]]:
    """A row of metrics for each site, for all patients pooled, and for the mean over sites (macro).

    Predictions that came are in ``state.predictions``, noised counts in ``state.score_counts``.

    Args:
        run: The run.
        state: The run's state, which is changed.
        number: The round.
        private: Ask hospitals that release no exact metrics for private ones, which costs held-out patients of their
            epsilon.
    """
    releases = min(run.config.evaluation.releases, run.config.rounds) if private else None

    def request(site: Site) -> EvaluateRequest:
        return EvaluateRequest(
            run=run.name, site=site.index, home=run.home, round=number, private_evaluations=releases,
            own=run.program.evaluates_own,
        )  # fmt: skip

    by = run_judge(run)
    view = SiteGrid(run.grid, run.sites, request, state.beside())
    model = run.program.arrays_to_score(state.model, run.learning.synthesizer() if run.learning else None)
    state.predictions, state.score_counts, state.withheld = {}, {}, {}
    if model is None:
        return [{"round": number, "site": site.name} | dict.fromkeys(by.by_round) for site in run.sites]
    messages = run.strategy.configure_evaluate(number, to_record(model), ConfigRecord(), view)
    exchange = view.exchange(messages, run.config.timeout)
    name = f"{METRICS} {number}"
    if private:
        _note_costs(run, state, exchange, name)
    replies = accept(exchange, state, number, problem, request=name)
    rows: list[dict[str, Any]] = []
    for site, reply in replies:
        metrics: Mapping[str, Any] = metrics_of(reply)
        if "patients" in metrics:
            state.patients[site.name] = max(int(metrics["patients"]), 0)
        if COUNTS in reply.content or "withheld" in reply.content.get(RECORD, {}):
            try:
                metrics = _private(state, site, run.program.objective(site.schema), reply, name)
            except PolyclinicError as error:
                state.drop(number, [(site, str(error))])
        state.released[site.name] = "held-out-patients" in metrics or site.name in state.score_counts
        rows.append({"round": number, "site": site.name} | {name: metrics.get(name) for name in by.by_round})
        if "predictions" in reply.content:
            record = reply.content.pop("predictions")
            try:
                state.predictions[site.name] = _predictions(record, run.program.objective(site.schema), by)
            except PolyclinicError as error:
                state.drop(number, [(site, str(error))])
    weight = str(getattr(run.strategy, "weighted_by_key", EXAMPLES))
    weighed = [reply for _, reply in replies if averaging_problem(reply, (), weight) is None]
    if weighed:
        state.note_metrics(number, "evaluate", run.strategy.aggregate_evaluate(number, alike(weighed)))
    if any(len(part.labels) for part in state.predictions.values()):
        together = pool(state.predictions)
        pooled = by.exact(together.labels, together.scores)
        rows.append({"round": number, "site": "pooled"} | {name: pooled[name] for name in by.by_round})
    elif state.score_counts:
        pooled = Noised.pool(state.score_counts.values()).values()
        rows.append({"round": number, "site": "pooled"} | {name: pooled.get(name) for name in by.by_round})
    if rows:
        rows.append({"round": number, "site": "macro"} | {name: _mean(rows, name) for name in by.by_round})
    return rows


def run_judge(run: Run) -> Judge:
    """The judge of what the run's model predicts; of a run whose result is not judged, that of classes."""
    return judge_of(run.program.objective(run.sites[0].schema)) if run.program.judged else CLASSES


def evaluate_again(run: Run, state: RunState) -> None:
    """Evaluate the round that turned out to be the last, or whose result has changed since, with private metrics."""
    before = {row["site"]: row for row in state.newest_rows()}
    earlier = [row for row in state.rows if row["round"] != state.round]
    rows = evaluate(run, state, state.round, private=True)
    state.rows = earlier + [before.get(row["site"], {}) | row for row in rows]


def evaluate_here(config: RunConfig, number: int, model: Arrays) -> dict[str, Any]:
    """What the run's ``evaluation.function`` finds of the model; nothing without one.

    It sees what left the hospitals, so that it costs nothing.

    Args:
        config: The run's configuration, which names the function.
        number: The round after which the model is, 0 before the first.
        model: The model's arrays.

    Raises:
        ConfigError: The function fails, or gives no metrics.
    """
    if not config.evaluation.function:
        return {}
    what = f"Configuration key 'evaluation.function' has the value {config.evaluation.function!r}"
    with failing(f"{what}, which failed in round {number}"):
        given = evaluator_named(config.evaluation.function)(number, to_record(model))
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"it gives {type(given).__name__}, not a MetricRecord, a mapping of names to numbers, or None"
            )
        numbers = {
            name: value.item() if isinstance(value, np.generic) else value for name, value in (given or {}).items()
        }
        return dict(MetricRecord(numbers))


def _note_costs(run: Run, state: RunState, exchange: Exchange, request: str) -> None:
    """Note what private metrics cost each real hospital, unless it refused or withheld them."""
    refused = {site.index for site, reply in exchange.replies if COUNTS not in reply.content}
    refused |= {site.index for site in exchange.refusals}
    for site in [site for site, _ in (*exchange.replies, *exchange.dropped)]:
        if site.index in refused:
            for accounts in (state.held_out_accounts, state.accounts):
                if site.name in accounts:
                    accounts[site.name].refuse(request)
        else:
            ask_private(state, run.program, site, request)


def ask_private(state: RunState, program: Program, site: Site, request: str) -> None:
    """Notes that a real hospital may have been charged for the private metrics of a ``request``.

    Where the run chose who is held out, training patients paid for them too.

    Args:
        state: The run's state, which is changed.
        program: The run's program.
        site: The hospital.
        request: By which name the state knows what was asked.
    """
    config, pricing = program.config, Pricing(site.delta, site.accountant, site.relation)
    objective, releases = program.objective(site.schema), min(config.evaluation.releases, config.rounds)
    if site.simulated or not site.metrics_epsilon:
        return
    try:
        question = affordable_question(objective, site.metrics_epsilon, site.budget, releases, pricing)
    except ConfigError:  # no noise costs so little, so the hospital refuses
        return
    if question is not None:
        own = Account(run_digest(state.run), plan_text([(question.event, releases)]))
        state.held_out_accounts.setdefault(site.name, own).ask(request, question.event)
        if state.private and config.split.rule != OWN_SPLIT:
            state.account(site.name).ask(request, question.event)


def count_lost_metrics(config: RunConfig, state: RunState, sites: Sequence[Site]) -> None:
    """Counts in ``state.held_out`` what private metrics cost also where their answer was lost, and says so.

    Args:
        config: The run's configuration.
        state: The run's state, which is changed.
        sites: The run's hospitals.
    """
    for site in sites:
        account, reported = state.held_out_accounts.get(site.name), state.held_out.get(site.name)
        counted = bound(account, reported, site.terms) or 0.0
        if account and account.unanswered and config.split.rule != OWN_SPLIT:
            counted = max(counted, bound(state.accounts.get(site.name), None, site.terms) or 0.0)
        if counted > (reported or 0.0) * (1 + ROUNDING):
            state.held_out[site.name] = counted
            state.withheld[site.name] = (
                "private metrics whose answer never came may have been charged, so that an epsilon of its held-out patients of "
                f"{counted:.4g} counts"
            )


def _private(state: RunState, site: Site, objective: Objective, reply: Message, request: str) -> Metrics:
    """Note a hospital's noised counts, or why it let no metrics leave. Raises PolyclinicError if they make no sense."""
    reply_record, record = reply.content.get(RECORD), reply.content.pop(COUNTS, None)
    fields = reply_record if isinstance(reply_record, ConfigRecord) else {}
    if record is None:
        state.withheld[site.name] = " ".join(str(fields.get("withheld", ""))[:_LONGEST].split())
        return {}
    try:
        if not isinstance(record, ArrayRecord):
            raise TypeError("no arrays")
        counts = from_record(record)["counts"].astype(np.float64)
        epsilon, deviation = (float(str(fields[name])) for name in ("held-out-epsilon", "deviation"))
        if charged := str(fields.get("held-out-charged", "")):
            check_told(from_text(charged), site.relation)
        measure = question_of(objective)
        if measure is None:
            raise ValueError("counts that nobody asked for")
        question = measure[0].of_deviation(measure[1], deviation)
        if counts.shape != question.shape or not np.isfinite(counts).all():
            raise ValueError("the counts have another shape")
        # Whatever the hospital says, counts with so little noise cost so much.
        least = Pricing(site.delta, site.accountant, site.relation).cost(question.event)
        if not (0 <= epsilon < np.inf and 0 < deviation < np.inf and least < np.inf):
            raise ValueError("an epsilon or a deviation that cannot be")
    except (LookupError, TypeError, ValueError, RecursionError, PolyclinicError):
        raise PolyclinicError("its private metrics cannot be read") from None
    if charged and (account := state.held_out_accounts.get(site.name)):
        account.hear(request, charged)
    state.score_counts[site.name] = question.noisy_answer(counts, deviation)
    state.held_out[site.name] = max(epsilon, least, state.held_out.get(site.name, 0.0))
    return state.score_counts[site.name].values()


def _predictions(record: object, objective: Objective, by: Judge) -> Predictions:
    """What a hospital told of its held-out rows. Raises PolyclinicError if it makes no sense."""
    try:
        if not isinstance(record, ArrayRecord):
            raise TypeError("no arrays")
        arrays = from_record(record)
        form = made_up_labels(objective.labels, 1)
        labels, scores = arrays["labels"].astype(form.dtype), arrays["scores"].astype(np.float64)
        patient = np.unique(arrays.get("patient", np.arange(len(labels))), return_inverse=True)[1].astype(np.int64)
        group = arrays["group"].astype(np.int64) if "group" in arrays else None
        shapes = {labels.shape[:1], patient.shape, patient.shape if group is None else group.shape}
        wanted = (form.shape[1:], (len(objective.columns),))
        if shapes != {(len(scores),)} or (labels.shape[1:], scores.shape[1:]) != wanted:
            raise ValueError("the shapes do not fit")
        if not np.isfinite(labels).all():
            raise ValueError("a label is not finite")
        by.exact(labels, scores)
    except (KeyError, TypeError, ValueError, PolyclinicError):
        raise PolyclinicError("its predictions of held-out patients cannot be read") from None
    return Predictions(labels, scores, patient, group)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row["site"] != "pooled" and row[name] is not None]
    return float(np.mean(values)) if values else None
