"""A strategy around another, which does all that it does not do itself, and what a strategy's methods return."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.errors import ConfigError

Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


def messages_of(
    strategy: Strategy, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> list[Message]:
    """The messages with which a strategy begins a round.

    Args:
        strategy: The strategy.
        server_round: The number of the round, from 1 on.
        arrays: The model.
        config: Of training.
        grid: The nodes.

    Raises:
        ConfigError: The strategy's ``configure_train`` returns none.
    """
    messages = strategy.configure_train(server_round, arrays, config, grid)
    if not isinstance(messages, Iterable):
        raise _returns(strategy, "configure_train", messages, "the messages to the hospitals")
    return list(messages)


def aggregate(strategy: Strategy, server_round: int, replies: Iterable[Message]) -> Aggregated:
    """What a strategy makes of the replies of a round.

    Args:
        strategy: The strategy.
        server_round: The number of the round, from 1 on.
        replies: The hospitals' replies.

    Raises:
        ConfigError: The strategy's ``aggregate_train`` returns something else than a model and metrics.
    """
    pair = strategy.aggregate_train(server_round, replies)
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], ArrayRecord | None)):
        raise _returns(
            strategy, "aggregate_train", pair, "two values, the model (an ArrayRecord or None) and the metrics"
        )
    return pair


def _returns(strategy: Strategy, method: str, value: object, due: str) -> ConfigError:
    kind = "None" if value is None else f"an object of type {type(value).__name__}"
    forgotten = "; is a `return` missing?" if value is None else "."
    return ConfigError(
        f"The strategy {type(strategy).__name__} returns {kind} from {method}, which must return {due}{forgotten}"
    )


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
        return messages_of(self.base, server_round, arrays, config, grid)

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
