"""Sums over the patients of all hospitals, round by round, as a Flower strategy; what is made of them is post-processing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.strategies.wrapping import Wrapping
from polyclinic.synthesis.sums import SumsMethod
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays

# The record and the arrays of a question; ``polyclinic.messages`` and ``training.synthesis`` have the same.
_QUESTION, _ROUND, SUM = "question", "round", "sum"


class FedSums(Wrapping):
    """Asks each round of ``method`` for its sum, averaged by ``base``.

    classes: (K,) frequencies of the label. Before ``aggregate_train`` the loop says in ``noise`` the standard deviation of the
    noise in each entry of the mean, in ``patients`` of how many it is, by what is public, and of a method that keeps hospitals
    apart in ``noises`` by node. Resumed from ``state``.
    """

    def __init__(self, base: Strategy, method: SumsMethod, classes: np.ndarray) -> None:
        self.base = base
        self.method = method
        self.separate = bool(getattr(method, "separate", False))
        self.associative = not self.separate
        self.weighted_by_key = "num-examples"
        self.state: Arrays = {"classes": np.asarray(classes, dtype=np.float64)}
        self.states: dict[str, Arrays] = {}
        self.weights: dict[str, float] = {}
        self.done = 0
        self.noise = 0.0
        self.patients = 1.0
        self.noises: dict[str, float] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does, with the question beside the zeros."""
        question = {_ROUND: np.array([server_round]), **self.method.question(server_round, self.state)}
        beside = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in question.items()})
        messages = list(self.base.configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[_QUESTION] = beside
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next round's zeros; the mean has become part of the state."""
        answers = [reply for reply in replies if not reply.has_error()]
        if self.separate:
            for reply in answers:
                self._absorb_one(server_round, reply)
            metrics: MetricRecord | None = MetricRecord()
        else:
            mean, metrics = self.base.aggregate_train(server_round, answers)
            if mean is None:
                return None, None
            known = {**self.state, "patients": np.array([self.patients])}
            self.state = self.method.absorb(server_round, known, -_vector(mean), self.noise)
        self.done = server_round
        size = self.method.size(min(server_round + 1, self.method.rounds), self.state)
        return ArrayRecord({SUM: Array(np.zeros(size))}), metrics

    def _absorb_one(self, server_round: int, reply: Message) -> None:
        node = str(reply.metadata.src_node_id)
        record = next(part for part in reply.content.values() if isinstance(part, ArrayRecord))
        weight = next(float(part[self.weighted_by_key]) for part in reply.content.metric_records.values())  # type: ignore[arg-type]
        state = self.states.get(node, self.state)
        self.states[node] = self.method.absorb(server_round, state, -_vector(record), self.noises.get(node, self.noise))
        self.weights[node] = weight

    def synthesizer(self) -> Synthesizer | None:
        """What draws rows, once all sums are there; None before, and of sums that end in something else."""
        make = getattr(self.method, "synthesizer", None)
        if make is None or self.done < self.method.rounds:
            return None
        if not self.separate:
            return cast(Synthesizer, make(self.state))
        from polyclinic.synthesis.methods.mixture import Mixture

        nodes = sorted(self.states, key=int)
        total = math.fsum(self.weights[node] for node in nodes)
        parts = [make(self.states[node]) for node in nodes]
        found: Synthesizer = Mixture.of(parts, [self.weights[node] / total for node in nodes])
        return found


def _vector(arrays: ArrayRecord) -> np.ndarray:
    return arrays[SUM].numpy().astype(np.float64)
