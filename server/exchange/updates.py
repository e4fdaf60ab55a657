"""How a round's updates come from its hospitals to the strategy: in the clear, or as a secure sum.

A round asks for updates, takes what has no problem, and has it aggregated; it does not know in which of the two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import Message

from polyclinic.config import compression
from polyclinic.ehr.schema import Schema
from polyclinic.server.exchange.merging import merge
from polyclinic.server.exchange.noise import tell_noise
from polyclinic.server.exchange.replies import alike, problem, unpack
from polyclinic.server.exchange.secure import SecureSum, begin
from polyclinic.server.exchange.sites import Site
from polyclinic.server.state import Run, RunState
from polyclinic.strategies.base.wrapping import Aggregated, aggregate
from polyclinic.strategies.registry import merge_by
from polyclinic.types import Arrays
from polyclinic.wire.compression import Compression

Replies = Sequence[tuple[Site, Message]]


class Updates(Protocol):
    """Updates of one round. ``parties``: whom to ask for them; ``fewest``: how many must come, whatever the run allows."""

    @property
    def parties(self) -> Sequence[Site]: ...

    @property
    def fewest(self) -> int: ...

    def request_fields(self, site: Site) -> dict[str, Any]:
        """The fields of a site's ``TrainRequest`` that this way of collecting needs."""

    def problem(self, reply: Message) -> str | None:
        """Why a reply is no such update, or None; puts the model that an upload stands for in its place."""

    def aggregate(self, replies: Replies) -> Aggregated:
        """The model, None where the strategy keeps the one before, and the metrics that it returned; notes in the run's state
        what is spent of whole hospitals' protection."""


def updates_of(run: Run, state: RunState, cohort: Sequence[Site], number: int) -> Updates:
    """The updates of round ``number``, in the way that the run is configured for.

    Args:
        run: The run.
        state: The run's state before the round.
        cohort: The hospitals of the round.
        number: The round.

    Raises:
        TooFew: The preparation of a secure sum fails.
    """
    origin = origin_of(run, state, number, cohort[0].schema) if cohort else {}
    if not run.config.secure.aggregation:
        return _Clear(run, state, number, origin, cohort, merge_by(run.strategy) or "", compression(run.config))
    settled = state.noise_multiplier, state.learning_rate or 0.0
    total, gone = begin(run, cohort, origin, state.public_patients, number, *settled)
    state.drop(number, gone)
    return _Masked(run, state, number, origin, total)


def origin_of(run: Run, state: RunState, number: int, schema: Schema) -> Arrays:
    """``Program.origin`` of round ``number``, before which ``state`` is.

    Args:
        run: The run.
        state: The run's state before the round.
        number: The round.
        schema: The public schema.
    """
    return run.program.origin(schema, state.model, run.learning.question(number) if run.learning else {})


def never_skips(run: Run) -> bool:
    """Whether a round counts though too few took part: central privacy counts on its noise, or on nobody knowing who did."""
    return run.central is not None and run.central.plan.never_skips


@dataclass(frozen=True, eq=False)
class _Clear:
    """Each hospital's model as it is, or their mean by the metric ``key``, where that is what the strategy starts from."""

    run: Run
    state: RunState
    number: int
    origin: Arrays
    parties: Sequence[Site]
    key: str
    how: Compression
    fewest = 1

    def request_fields(self, site: Site) -> dict[str, Any]:
        # Workers do not average before a mod has seen, and perhaps changed, what leaves each hospital.
        merges = getattr(self.run.grid, "merges", False) and self.run.program.merges_early and not self.run.config.mods
        return {"merge_by": self.key if merges else ""}

    def problem(self, reply: Message) -> str | None:
        return unpack(reply, self.origin, self.how) or problem(reply, self.origin)

    def aggregate(self, replies: Replies) -> Aggregated:
        strategy, models = self.run.strategy, [reply for _, reply in replies]
        tell_noise(self.run.learning, self.run.config, self.state, [site for site, _ in replies])
        aggregated = aggregate(strategy, self.number, alike(merge(models, self.key) if self.key else models))
        if self.run.central:
            self.state.hospital_epsilon = self.run.central.epsilon
        return aggregated


@dataclass(frozen=True, eq=False)
class _Masked:
    """The sum of masked updates alone, opened when enough of them arrived."""

    run: Run
    state: RunState
    number: int
    origin: Arrays
    total: SecureSum

    @property
    def parties(self) -> Sequence[Site]:
        return self.total.parties

    @property
    def fewest(self) -> int:
        return self.total.terms.threshold

    def request_fields(self, site: Site) -> dict[str, Any]:
        return {"secure_parties": self.total.indices, "secure_signatures": self.total.signatures}

    def problem(self, reply: Message) -> str | None:
        return problem(reply) or self.total.problem(reply)

    def aggregate(self, replies: Replies) -> Aggregated:
        opened = self.total.open(replies, self.origin, str(merge_by(self.run.strategy)))
        self.state.drop(self.number, opened.dropped)
        self.state.hospital_epsilon = opened.epsilon
        arrived = [site for site, _ in replies]
        tell_noise(self.run.learning, self.run.config, self.state, arrived, self.total.terms.threshold)
        return aggregate(self.run.strategy, self.number, [opened.reply])
