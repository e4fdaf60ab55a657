"""Which replies of an exchange count: those that carry what was asked for. The others drop out, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, whose
from polyclinic.server.exchange.merging import arrays_of, is_merged, metrics_of
from polyclinic.server.exchange.sites import Exchange, Site
from polyclinic.server.state import RunState
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, records_of, to_record
from polyclinic.wire.compression import Compression, decode
from polyclinic.wire.messages import RECORD, is_model

#: What Flower's strategies weigh by.
EXAMPLES = "num-examples"
_SHOWN = 100
_LARGEST_METRIC = 1e100


class RunFailed(PolyclinicError):
    """A round gave no model."""


class TooFew(RunFailed):
    """Too few hospitals answered a round."""


def too_few(exchange: Exchange, when: str, replied: int, config: RunConfig, threshold: int = 1) -> PolyclinicError:
    """The error of an exchange with fewer replies than ``min_sites``, or than a secure sum's ``threshold``.

    Args:
        exchange: The exchange, with who dropped out and why.
        when: The round and phase, in words.
        replied: How many hospitals replied.
        config: The run's configuration, with ``participation.min_sites``.
        threshold: Of a secure sum; 1 for none.

    Returns:
        BudgetRefused when policies alone are the cause, otherwise TooFew.
    """
    reasons = whose((site.name, reason) for site, reason in exchange.dropped)
    kind = BudgetRefused if exchange.dropped and exchange.refused == len(exchange.dropped) else TooFew
    needed = (
        f"the secure sum needs {threshold}"
        if replied < threshold > 1
        else f"participation.min-sites is {config.participation.min_sites}"
    )
    return kind(f"{when}: {replied} {'hospital' if replied == 1 else 'hospitals'} replied, {needed}. {reasons}")


def accept(
    exchange: Exchange, state: RunState, number: int, problem: Callable[[Message], str | None],
    counted: Mapping[str, float] | None = None, request: str | None = None,
) -> list[tuple[Site, Message]]:  # fmt: skip
    """The valid replies; others join the dropped with a reason. Notes each site's epsilon and drop-outs in ``state``.

    Args:
        exchange: The replies of a round, and who dropped out.
        state: The run's state, which is changed.
        number: The round.
        problem: What is wrong with a reply, or None.
        counted: Patients by site, as counted before the first round, which replies that weigh by examples must keep to.
        request: By which name ``state`` knows what the hospitals were asked, where that cost them something.
    """
    valid = []
    for site, reply in exchange.replies:
        # What a hospital says of its ledger counts also where the rest of its reply is of no use: it has left.
        why = _unheard(state, site, reply, request)
        why = problem(reply) or _weight_problem(reply, (counted or {}).get(site.name)) or why
        if why:
            exchange.dropped.append((site, why))
        else:
            valid.append((site, reply))
    state.drop(number, exchange.dropped)
    return valid


def _unheard(state: RunState, site: Site, reply: Message, request: str | None) -> str | None:
    """Why what a reply says of the hospital's ledger makes no sense, or None; notes it in ``state`` where it does."""
    record = reply.content.get(RECORD)
    if isinstance(record, ConfigRecord):
        try:
            state.hear(site.name, record, request)
        except PolyclinicError as error:
            return str(error)
    return None


def _weight_problem(reply: Message, counted: float | None) -> str | None:
    """Why a reply's weight is not the hospital's, or None: one that claimed more would have the mean to itself."""
    claimed = metrics_of(reply).get(EXAMPLES)
    if (
        counted is None
        or is_merged(reply)
        or not isinstance(claimed, int | float)
        or math.isclose(claimed, counted, rel_tol=1e-6)
    ):
        return None
    return f"it says that it trained on {claimed:g} examples, where {counted:g} were counted before the first round"


def unpack(reply: Message, like: Arrays, how: Compression) -> str | None:
    """Puts the model that an upload stands for in its place; returns why there is none, or None.

    Args:
        reply: The reply, whose content is changed.
        like: The model that was sent.
        how: The compression of the run.
    """
    if not how.active or is_merged(reply):
        return None
    for key, record in reply.content.items():
        if isinstance(record, ArrayRecord) and is_model(key):
            try:
                reply.content[key] = to_record(decode(from_record(record), like, how))
            except ConfigError as error:
                return str(error)
    return None


def problem(reply: Message, like: Arrays | None = None) -> str | None:
    """Why a reply cannot be aggregated, or None; ``like``: the arrays that its own must be like."""
    records = records_of(reply.content, MetricRecord)
    if not records:
        return "the reply carries no MetricRecord"
    if [name for name, _ in records] != ["metrics"]:
        return "the reply does not carry exactly one MetricRecord, named 'metrics'"
    for name, value in records[0][1].items():
        if isinstance(value, list) or not math.isfinite(value):
            return f"metric {name[:_SHOWN]!r} is not a finite number"
        if abs(value) > _LARGEST_METRIC:  # sums and pictures of larger ones are not finite
            return f"metric {name[:_SHOWN]!r} is {value:.3g}; allowed are numbers up to {_LARGEST_METRIC:g}"
    if like is None:
        return None
    array_records = arrays_of(reply)
    if is_merged(reply) and not array_records:
        return None
    models = [from_record(record) for name, record in array_records if is_model(name)]
    if len(models) != 1:
        return "the reply does not carry exactly one ArrayRecord of a model"
    floats = {name: value for name, value in like.items() if np.issubdtype(value.dtype, np.floating)}
    changes = [from_record(record) for name, record in array_records if not is_model(name)]
    return next(filter(None, (_misfit(models[0], like), *(_misfit(change, floats) for change in changes))), None)


def averaging_problem(reply: Message, asked: Iterable[str], weight: str) -> str | None:
    """Why a strategy cannot average a reply with the others, or None.

    Args:
        reply: A hospital's reply.
        asked: The records in which arrays were sent, and in which the reply's must be.
        weight: The metric that weighs the reply, which must be above 0.
    """
    if is_merged(reply):
        return None
    if not {name for name, _ in arrays_of(reply)} <= set(asked):
        return "the reply's arrays are not in the records in which they were sent"
    if not metrics_of(reply).get(weight, 0.0) > 0:  # type: ignore[operator]
        return f"its metric {weight!r} is not a number above 0"
    return None


def _misfit(arrays: Arrays, like: Arrays) -> str | None:
    """How a reply's arrays are not those that it should carry, or None."""
    for name, value in like.items():
        if name not in arrays or arrays[name].shape != value.shape:
            return f"array {name!r} is missing or does not have shape {value.shape}"
        if arrays[name].dtype.kind not in "biuf":
            return f"array {name!r} does not hold numbers"
        if not np.isfinite(arrays[name]).all():
            return f"array {name!r} holds values that are not finite"
    if set(arrays) != set(like):
        return "the reply's arrays are not those of the model"
    return None


def alike(replies: Sequence[Message]) -> list[Message]:
    """Replies whose metric records hold the metrics that all of them hold: Flower refuses to average others."""
    named = [set(metrics_of(reply)) for reply in replies]
    common = set.intersection(*named) if named else set()
    for reply, names in zip(replies, named, strict=True):
        reply.content.pop(RECORD, None)
        if names != common:
            for key, record in reply.content.metric_records.items():
                reply.content[key] = MetricRecord({name: value for name, value in record.items() if name in common})
    return list(replies)
