"""The loop over rounds: any Flower Strategy's four methods, with what Flower's own ``start`` lacks.

Hospitals are sampled from the run's seed, replies are ordered by site, a site that refuses or fails drops out of the
round with its reason, every site's metrics are kept, and a checkpoint follows each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, PolyclinicError
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.messages import RECORD, EvaluateRequest, TrainRequest
from polyclinic.privacy.streams import generator
from polyclinic.server.sites import Exchange, Site, SiteGrid

Arrays = dict[str, np.ndarray]
METRICS = ("loss", "auroc", "auprc", "accuracy", "brier")


class RunFailed(PolyclinicError):
    """Too few hospitals answered a round."""


@dataclass
class RunState:
    """All that the next round depends on, and the history so far; what a checkpoint holds.

    ``stopped``: why there will be no further round though some were left.
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

    def shared(self) -> dict[str, ArrayRecord]:
        """What every site's message carries beside the model."""
        if self.standardiser is None:
            return {}
        mean, std = self.standardiser
        return {"standardiser": to_record({"mean": mean, "std": std})}


def run_rounds(
    grid: Grid, sites: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    after_round: Callable[[RunState], None] = lambda state: None,
) -> RunState:  # fmt: skip
    """Run the rounds after ``state.round`` up to ``config.rounds``; ``after_round`` sees the state after each.

    Raises RunFailed when fewer than ``config.min_sites`` sites give a valid reply.
    """
    for number in range(state.round + 1, config.rounds + 1):
        started = time.perf_counter()
        losses = _train(grid, sample_cohort(sites, config, number), strategy, state, config, run, home, number)
        rows = _evaluate(grid, sites, strategy, state, config, run, home, number)
        state.round = number
        elapsed = time.perf_counter() - started
        state.seconds += elapsed
        for row in rows:
            row |= {
                "train_loss": losses.get(row["site"]),
                "epsilon": state.epsilon.get(row["site"]),
                "seconds": elapsed,
            }
        state.rows += rows
        after_round(state)
    return state


def sample_cohort(sites: Sequence[Site], config: RunConfig, number: int) -> list[Site]:
    """The sites of one round: ``fraction_train`` of all, rounded up, without replacement, from the run's seed."""
    size = max(config.min_sites, int(np.ceil(len(sites) * config.fraction_train - 1e-9)))
    if size >= len(sites):
        return list(sites)
    chosen = generator(config.seed, "cohort", number).choice(len(sites), size, replace=False)
    return [sites[index] for index in sorted(chosen)]


def _train(
    grid: Grid, cohort: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    number: int,
) -> dict[str, float]:  # fmt: skip
    """One round of training; changes ``state`` and returns the train losses that policies let out."""

    def request(site: Site) -> TrainRequest:
        return TrainRequest(
            run=run, site=site.index, home=home, round=number, noise_multiplier=state.noise_multiplier,
            public_patients=state.public_patients.get(site.name),
        )  # fmt: skip

    view = SiteGrid(grid, cohort, request, state.shared())
    messages = strategy.configure_train(number, to_record(state.arrays), ConfigRecord(), view)
    exchange = view.exchange(messages, config.timeout)
    replies = _accept(exchange, state, number, state.arrays)
    if len(replies) < config.min_sites:
        raise too_few(exchange, f"Round {number}", len(replies), config)
    losses: dict[str, float] = {}
    for site, reply in replies:
        metrics = next(iter(reply.content.metric_records.values()))
        state.joined[site.name] = state.joined.get(site.name, 0) + 1
        if "train-loss" in metrics:
            losses[site.name] = float(metrics["train-loss"])  # type: ignore[arg-type]
    arrays, _ = strategy.aggregate_train(number, _alike([reply for _, reply in replies]))
    if arrays is None:
        raise RunFailed(f"Round {number}: the strategy {type(strategy).__name__} returned no model.")
    state.arrays = from_record(arrays)
    return losses


def too_few(exchange: Exchange, when: str, replied: int, config: RunConfig) -> PolyclinicError:
    """The error of an exchange with fewer replies than ``min_sites``: BudgetRefused when policies alone are the cause."""
    reasons = "; ".join(sorted({reason for _, reason in exchange.dropped}))
    kind = BudgetRefused if exchange.dropped and exchange.refused == len(exchange.dropped) else RunFailed
    return kind(f"{when}: {replied} hospitals replied, min-sites is {config.min_sites}. {reasons}")


def _evaluate(
    grid: Grid, sites: Sequence[Site], strategy: Strategy, state: RunState, config: RunConfig, run: str, home: str,
    number: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row of metrics for each site, for all patients pooled, and for the mean over sites (macro)."""
    view = SiteGrid(
        grid, sites, lambda site: EvaluateRequest(run=run, site=site.index, home=home, round=number), state.shared()
    )
    messages = strategy.configure_evaluate(number, to_record(state.arrays), ConfigRecord(), view)
    exchange = view.exchange(messages, config.timeout)
    replies = _accept(exchange, state, number)
    rows: list[dict[str, Any]] = []
    predictions: list[Arrays] = []
    for site, reply in replies:
        metrics = next(iter(reply.content.metric_records.values()))
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


def _accept(exchange: Exchange, state: RunState, number: int, like: Arrays | None = None) -> list[tuple[Site, Message]]:
    """The valid replies; others join the dropped with a reason. Notes each site's epsilon and drop-outs in ``state``."""
    valid = []
    for site, reply in exchange.replies:
        problem = _problem(reply, like)
        if problem:
            exchange.dropped.append((site, problem))
            continue
        if RECORD in reply.content.config_records:
            state.epsilon[site.name] = float(reply.content.config_records[RECORD]["epsilon"])  # type: ignore[arg-type]
        valid.append((site, reply))
    for site, reason in exchange.dropped:
        state.dropouts.append({"round": number, "site": site.name, "reason": reason})
    return valid


def _problem(reply: Message, like: Arrays | None) -> str | None:
    """Why a reply cannot be aggregated, or None."""
    if not reply.content.metric_records:
        return "the reply carries no MetricRecord"
    if like is None:
        return None
    if len(reply.content.array_records) != 1:
        return "the reply does not carry exactly one ArrayRecord"
    arrays = from_record(next(iter(reply.content.array_records.values())))
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
    common = set.intersection(*(set(next(iter(reply.content.metric_records.values()))) for reply in replies))
    for reply in replies:
        kept = RecordDict({key: record for key, record in reply.content.items() if key != RECORD})
        for key, record in kept.metric_records.items():
            kept[key] = MetricRecord({name: value for name, value in record.items() if name in common})
        reply.content = kept
    return list(replies)


def to_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}
