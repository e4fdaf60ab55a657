"""The loop over rounds: any Flower Strategy's four methods, with what Flower's own ``start`` lacks.

Hospitals are sampled from the run's seed, replies are ordered by site, a site that refuses or fails drops out of the
round with its reason, every site's metrics are kept, and a checkpoint follows each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.arrays import Arrays, from_record, to_record
from polyclinic.compression import Compression, decode
from polyclinic.config import RunConfig, compression
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, several
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.messages import CONTROL, LOCAL, RECORD, STANDARDISER, EvaluateRequest, TrainRequest
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger_terms import composed, from_text
from polyclinic.server.cohort import sample_cohort
from polyclinic.server.merging import arrays_of, is_merged, merge, metrics_of
from polyclinic.server.secure import SecureSum, SumRefused, begin
from polyclinic.server.sites import Exchange, Site, SiteGrid
from polyclinic.strategies.central import CentralDP
from polyclinic.strategies.registry import merge_by

TOLD = ("train_loss", "bytes_down", "bytes_up", "simulated_seconds")
METRICS = ("loss", "auroc", "auprc", "accuracy", "brier")


class RunFailed(PolyclinicError):
    """Too few hospitals answered a round."""


@dataclass
class RunState:
    """All that the next round depends on, and the history so far (``rows``, ``dropouts``); what a checkpoint stands for.

    ``stopped``: why there will be no further round though some were left. ``sampled``: the round for which each site was
    last asked; ``trained``: the last whose reply came. ``hospital_epsilon``: what central noise has spent so far of a whole
    hospital's protection. ``charged``: how often real hospitals were charged what, as they told last. ``local``: the arrays
    that stay at hospitals; here they are as they were at first.
    """

    arrays: Arrays
    standardiser: tuple[np.ndarray, np.ndarray] | None = None
    public_patients: dict[str, float] = field(default_factory=dict)
    noise_multiplier: float | None = None
    round: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    dropouts: list[dict[str, Any]] = field(default_factory=list)
    epsilon: dict[str, float] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    patients: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str | None = None
    sampled: dict[str, int] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    hospital_epsilon: float | None = None
    charged: dict[str, str] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)

    def hear(self, site: str, told: ConfigRecord) -> None:
        """Note what a site says of its ledger. Raises PolyclinicError if it makes no sense."""
        try:
            self.epsilon[site] = float(told["epsilon"])  # type: ignore[arg-type]
            if "charged" in told:
                composed(from_text(str(told["charged"])))
                self.charged[site] = str(told["charged"])
        except (KeyError, LookupError, TypeError, ValueError):
            raise PolyclinicError(f"what {site} says of its ledger cannot be read") from None

    def newest_rows(self) -> list[dict[str, Any]]:
        """The rows of the round that is done."""
        rows = takewhile(lambda row: row["round"] == self.round, reversed(self.rows))
        return list(rows)[::-1]

    @property
    def model(self) -> Arrays:
        """The arrays that strategies see and hospitals send: all but the local ones."""
        return {name: value for name, value in self.arrays.items() if name not in self.local}

    def beside(self) -> dict[str, ArrayRecord]:
        """What every site's message carries beside the model."""
        found = {}
        if self.standardiser is not None:
            mean, std = self.standardiser
            found[STANDARDISER] = to_record({"mean": mean, "std": std})
        if self.local:
            found[LOCAL] = to_record({name: self.arrays[name] for name in self.local})
        return found


def run_rounds(
    grid: Grid, sites: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    after_round: Callable[[RunState], None] = lambda state: None, ledger: Ledger | None = None,
) -> RunState:  # fmt: skip
    """Run the rounds after ``state.round`` up to ``config.rounds``; ``after_round`` sees the state after each.

    ledger: charged for what secure sums tell of whole hospitals.

    Stops early, and says so in ``state.stopped``, when budgets leave fewer than ``config.min_sites`` sites for a later
    round. Raises RunFailed when too few give a valid reply for another reason, BudgetRefused in the first round.
    """
    for number in range(state.round + 1, config.rounds + 1):
        started = time.perf_counter()
        try:
            told = _train(grid, sites, strategy, state, config, run, home, number, ledger)
        except BudgetRefused as refusal:
            # The hospitals paid for the rounds that are done, so their result must not be lost with the rest.
            if state.round == 0:
                raise
            state.stopped = str(refusal)
            break
        if number % config.evaluate_every == 0 or number == config.rounds:
            rows = _evaluate(grid, sites, strategy, state, config, run, home, number)
        else:
            rows = [{"round": number, "site": name} | dict.fromkeys(METRICS) for name in told]
        state.round = number
        elapsed = time.perf_counter() - started
        state.seconds += elapsed
        state.rows += [
            row | dict.fromkeys(TOLD) | told.get(row["site"], {})
            | {"epsilon": state.epsilon.get(row["site"]), "seconds": elapsed}
            for row in rows
        ]  # fmt: skip
        after_round(state)
    if state.stopped and state.round % config.evaluate_every:
        kept = [row for row in state.rows if row["round"] != state.round]
        state.rows = kept + _evaluate(grid, sites, strategy, state, config, run, home, state.round)
    return state


def _train(
    grid: Grid, sites: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    number: int, ledger: Ledger | None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """One round of training; changes ``state`` and returns what was told of each site that took part (``TOLD``).

    A round that nobody is sampled for, or that simulated conditions leave with too few replies, changes no model; but where
    central privacy counts on nobody knowing who was sampled, or on every round's noise, it gets its noise like any other.
    """
    key = merge_by(strategy)
    merging = key if key and getattr(grid, "merges", False) and not config.secure_aggregation else ""
    secure: SecureSum | None = None

    def request(site: Site) -> TrainRequest:
        return TrainRequest(
            run=run, site=site.index, home=home, round=number, noise_multiplier=state.noise_multiplier,
            public_patients=state.public_patients.get(site.name), merge_by=merging,
            secure_parties=secure.indices if secure else None,
            secure_weight=secure.weights[site.name] if secure else 1.0,
        )  # fmt: skip

    cohort = sample_cohort(sites, config, number, state.sampled)
    state.sampled |= {site.name: number for site in cohort}
    always = isinstance(strategy, CentralDP) and strategy.plan.never_skips
    given = state.model
    if not cohort and config.site_sampling == "poisson" and not always:
        return {}
    if config.secure_aggregation:
        try:
            secure, gone = begin(grid, cohort, given, state.public_patients, config, run, home, number, ledger)
        except SumRefused:
            if not config.loses_replies:
                raise
            return {}
        _note(state, number, gone)
        cohort = list(secure.parties)
    # Flower's strategies wait for a node to appear, so that an empty cohort is configured for all, and none is asked.
    view = SiteGrid(grid, cohort or sites, request, state.beside())
    messages = strategy.configure_train(number, to_record(given), ConfigRecord(), view)
    exchange = view.exchange(messages if cohort else [], config.timeout)
    replies = _accept(exchange, state, number, _unlike(given, compression(config), secure))
    threshold = secure.terms.threshold if secure else 1
    if cohort and len(replies) < max(min(config.min_sites, len(cohort)), threshold):
        shortfall = too_few(exchange, f"Round {number}", len(replies), config, threshold)
        if isinstance(shortfall, BudgetRefused) or not config.loses_replies:
            raise shortfall
        if not always:
            return {}
    told: dict[str, dict[str, Any]] = {}
    for site, reply in replies:
        metrics = metrics_of(reply)
        down, up = exchange.sizes[site.index]
        told[site.name] = {
            "train_loss": None if config.central else metrics.get("train-loss"), "bytes_down": down, "bytes_up": up,
            "simulated_seconds": metrics.get("simulated-seconds"),
        }  # fmt: skip
    models = [reply for _, reply in replies]
    if secure and key:
        try:
            opened = secure.open(replies, given, key)
        except SumRefused:
            if not config.loses_replies:
                raise
            return {}
        _note(state, number, opened.dropped)
        models, state.hospital_epsilon = [opened.reply], opened.epsilon
    arrays, _ = strategy.aggregate_train(number, _alike(merge(models, key) if key else models))
    if arrays is None:
        raise RunFailed(f"Round {number}: the strategy {type(strategy).__name__} returned no model.")
    state.joined |= {name: state.joined.get(name, 0) + 1 for name in told}
    state.trained |= dict.fromkeys(told, number)
    state.arrays = state.arrays | _as_before(from_record(arrays), given)
    if isinstance(strategy, CentralDP):
        state.hospital_epsilon = strategy.epsilon
    return told


def _as_before(arrays: Arrays, before: Arrays) -> Arrays:
    """The model in the types that it had: means are in float64."""
    floats = {name for name, value in before.items() if np.issubdtype(value.dtype, np.floating)}
    return {
        name: value.astype(before[name].dtype, copy=False) if name in floats else value
        for name, value in arrays.items()
    }


def too_few(exchange: Exchange, when: str, replied: int, config: RunConfig, threshold: int = 1) -> PolyclinicError:
    """The error of an exchange with fewer replies than ``min_sites``, or than a secure sum's ``threshold``.

    BudgetRefused when policies alone are the cause.
    """
    reasons = several(sorted({reason for _, reason in exchange.dropped}), between="; ")
    kind = BudgetRefused if exchange.dropped and exchange.refused == len(exchange.dropped) else RunFailed
    needed = f"the secure sum needs {threshold}" if replied < threshold > 1 else f"min-sites is {config.min_sites}"
    return kind(f"{when}: {replied} hospitals replied, {needed}. {reasons}")


def _evaluate(
    grid: Grid, sites: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    number: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row of metrics for each site, for all patients pooled, and for the mean over sites (macro)."""
    view = SiteGrid(
        grid, sites, lambda site: EvaluateRequest(run=run, site=site.index, home=home, round=number), state.beside()
    )
    messages = strategy.configure_evaluate(number, to_record(state.model), ConfigRecord(), view)
    exchange = view.exchange(messages, config.timeout)
    replies = _accept(exchange, state, number, lambda reply: _problem(reply, None))
    rows: list[dict[str, Any]] = []
    predictions: list[Arrays] = []
    for site, reply in replies:
        metrics = metrics_of(reply)
        rows.append({"round": number, "site": site.name} | {name: metrics.get(name) for name in METRICS})
        if "patients" in metrics:
            state.patients[site.name] = int(metrics["patients"])  # type: ignore[arg-type]
        if "predictions" in reply.content:
            predictions.append(from_record(reply.content.pop("predictions")))  # type: ignore[arg-type]
    if replies:
        strategy.aggregate_evaluate(number, _alike([reply for _, reply in replies]))
    if predictions:
        scores = np.concatenate([part["scores"] for part in predictions])
        labels = np.concatenate([part["labels"] for part in predictions])
        pooled = classification_metrics(labels, scores)
        majority = float(np.bincount(labels).max() / len(labels))
        rows.append(
            {"round": number, "site": "pooled", "majority": majority} | {name: pooled[name] for name in METRICS}
        )
    if rows:
        rows.append({"round": number, "site": "macro"} | {name: _mean(rows, name) for name in METRICS})
    return rows


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row["site"] != "pooled" and row[name] is not None]
    return float(np.mean(values)) if values else None


def _accept(
    exchange: Exchange, state: RunState, number: int, problem: Callable[[Message], str | None]
) -> list[tuple[Site, Message]]:
    """The valid replies; others join the dropped with a reason. Notes each site's epsilon and drop-outs in ``state``."""
    valid = []
    for site, reply in exchange.replies:
        why = problem(reply)
        if why:
            exchange.dropped.append((site, why))
            continue
        told = reply.content.get(RECORD)
        if isinstance(told, ConfigRecord):
            try:
                state.hear(site.name, told)
            except PolyclinicError as error:
                exchange.dropped.append((site, str(error)))
                continue
        valid.append((site, reply))
    _note(state, number, exchange.dropped)
    return valid


def _note(state: RunState, number: int, dropped: Sequence[tuple[Site, str]]) -> None:
    state.dropouts += [{"round": number, "site": site.name, "reason": reason} for site, reason in dropped]


def _unlike(like: Arrays, how: Compression, secure: SecureSum | None) -> Callable[[Message], str | None]:
    """Why a trained reply cannot be aggregated, or None; puts the model that an upload stands for in its place."""
    if secure is not None:
        return lambda reply: _problem(reply, None) or secure.problem(reply)
    return lambda reply: _unpacked(reply, like, how) or _problem(reply, like)


def _unpacked(reply: Message, like: Arrays, how: Compression) -> str | None:
    """Put the model that an upload stands for in its place; or why there is none."""
    if not how.active or is_merged(reply):
        return None
    for key, record in reply.content.items():
        if isinstance(record, ArrayRecord) and key != CONTROL:
            try:
                reply.content[key] = to_record(decode(from_record(record), like, how))
            except ConfigError as error:
                return str(error)
    return None


def _problem(reply: Message, like: Arrays | None) -> str | None:
    """Why a reply cannot be aggregated, or None."""
    records = list(reply.content.values())
    if not any(isinstance(record, MetricRecord) for record in records):
        return "the reply carries no MetricRecord"
    if like is None:
        return None
    array_records = arrays_of(reply)
    if is_merged(reply) and not array_records:
        return None
    models = [from_record(record) for name, record in array_records if name != CONTROL]
    if len(models) != 1:
        return "the reply does not carry exactly one ArrayRecord of a model"
    floats = {name: value for name, value in like.items() if np.issubdtype(value.dtype, np.floating)}
    changes = [from_record(record) for name, record in array_records if name == CONTROL]
    return next(filter(None, (_misfit(models[0], like), *(_misfit(change, floats) for change in changes))), None)


def _misfit(arrays: Arrays, like: Arrays) -> str | None:
    """How a reply's arrays are not those that it should carry, or None."""
    for name, value in like.items():
        if name not in arrays or arrays[name].shape != value.shape:
            return f"array {name!r} is missing or does not have shape {value.shape}"
        if not np.isfinite(arrays[name]).all():
            return f"array {name!r} holds values that are not finite"
    if set(arrays) != set(like):
        return "the reply's arrays are not those of the model"
    return None


def _alike(replies: Sequence[Message]) -> list[Message]:
    """Replies whose metric records hold the metrics that all of them hold: Flower refuses to average others."""
    named = [set(metrics_of(reply)) for reply in replies]
    common = set.intersection(*named) if named else set()
    for reply, names in zip(replies, named, strict=True):
        reply.content.pop(RECORD, None)
        if names != common:
            for key, record in reply.content.metric_records.items():
                reply.content[key] = MetricRecord({name: value for name, value in record.items() if name in common})
    return list(replies)
