"""A strategy around another, which does all that it does not do itself."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Wrapping(Strategy):
    """Messages, evaluation and the summary are those of ``base``; a subclass aggregates training."""

    def __init__(self, base: Strategy) -> None:
        self.base = base
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that the base sends; remembers the model that was sent.

        Args:
            server_round: The number of the round, from 1 on.
            arrays: The model.
            config: Of training.
            grid: The nodes.
        """
        self._sent = arrays
        return self.base.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that the base sends.

        Args:
            server_round: The number of the round, from 1 on.
            arrays: The model.
            config: Of evaluation.
            grid: The nodes.
        """
        return self.base.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the base does: what hospitals' policies let leave."""
        return self.base.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the base's settings."""
        self.base.summary()
