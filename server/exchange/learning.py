"""What a program's half at the server makes of the rounds, as a Flower strategy around the one that averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.errors import DataError
from polyclinic.programs.program import Collected, Half, Reply, State
from polyclinic.strategies.base.wrapping import Wrapping, aggregate
from polyclinic.strategies.registry import merge_by
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import QUESTION


class Learning(Wrapping):
    """``base`` averages what hospitals send, and ``half`` absorbs the mean into ``state``, which checkpoints hold.

    Before ``aggregate_train`` the loop sets three attributes:

    ``noise``: the standard deviation of the noise in each entry of the mean
    ``patients``: of how many patients the mean is
    ``noises``: the standard deviation in each node's own reply
    """

    not_saved = ("half",)

    def __init__(self, base: Strategy, half: Half) -> None:
        super().__init__(base)
        self.half = half
        self.associative = merge_by(base) is not None and not half.separate
        self.weighted_by_key = str(getattr(base, "weighted_by_key", "num-examples"))
        self.state: State = half.first()
        self.noise, self.patients, self.noises = 0.0, 1.0, dict[str, float]()

    def question(self, server_round: int) -> Arrays:
        """What hospitals are asked in the round beside the model, or in place of one."""
        return self.half.question(server_round, self.state)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does, with the half's question.

        Args:
            server_round: The round, from 1 on.
            arrays: The model.
            config: The strategy's numbers.
            grid: The grid of the cohort.
        """
        question = _record(self.question(server_round))
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            if question:
                message.content[QUESTION] = question
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What hospitals are sent next; the mean has become part of the state."""
        sent, self._sent = self._sent, None
        assert sent is not None, "a round begins with configure_train"
        answers = [reply for reply in replies if not reply.has_error()]
        metrics: MetricRecord | None = MetricRecord()
        if self.half.separate:
            each = {str(reply.metadata.src_node_id): self._reply(reply) for reply in answers}
            collected = Collected({}, self.noise, self.patients, each)
        else:
            mean, metrics = aggregate(self.base, server_round, answers)
            if mean is None:
                return None, metrics
            collected = Collected(from_record(mean), self.noise, self.patients)
        self.state, arrays = self.half.absorb(server_round, self.state, from_record(sent), collected)
        return _record(arrays), metrics

    def _reply(self, reply: Message) -> Reply:
        record = next(part for part in reply.content.values() if isinstance(part, ArrayRecord))
        weight = next(float(part[self.weighted_by_key]) for part in reply.content.metric_records.values())  # type: ignore[arg-type]
        return Reply(from_record(record), weight, self.noises.get(str(reply.metadata.src_node_id), self.noise))

    def check(self) -> None:
        """Raises DataError where the state that was put back from a checkpoint is not one of this half."""
        fresh = Learning(self.base, self.half)
        if vars(self).keys() != vars(fresh).keys() or self.state.keys() != fresh.state.keys():
            raise DataError("The checkpoint was written by another version of Polyclinic; begin the run anew.")

    def synthesizer(self) -> Synthesizer | None:
        """What draws synthetic patients; None before it can."""
        return self.half.synthesizer(self.state)

    def choose(self, rounds: Sequence[int]) -> None:
        """Draw from the candidates of these rounds from now on."""
        self.state = self.half.choose(self.state, rounds)


def _record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    # Not ascontiguousarray, which makes a vector of a number, such as batch norm's count of batches.
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})
