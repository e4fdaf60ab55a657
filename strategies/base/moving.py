"""Strategies that take FedAvg's mean of the hospitals' models and move it by the model that was sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from polyclinic.errors import ConfigError
from polyclinic.training.task import TrainSettings


class MovedMean(FedAvg):
    """FedAvg, after which ``_move`` makes the next model of the mean. It needs each hospital's model."""

    associative = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that FedAvg sends; remembers the model that was sent.

        Args:
            server_round: The number of the round, from 1 on.
            arrays: The model.
            config: Of training.
            grid: The nodes.
        """
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of the models, moved as the strategy has it."""
        answers = self._weigh([reply for reply in replies if not reply.has_error()])
        mean, metrics = super().aggregate_train(server_round, answers)
        sent, self._sent = self._sent, None
        if mean is not None and sent is not None:
            self._move(sent, mean, answers)
        return mean, metrics

    def _weigh(self, answers: list[Message]) -> list[Message]:
        """The answers of which the mean is taken: each with the weight 1, whatever its hospital's size."""
        for reply in answers:
            for record in reply.content.metric_records.values():
                record[self.weighted_by_key] = 1.0
        return answers

    @abstractmethod
    def _move(self, sent: ArrayRecord, mean: ArrayRecord, answers: Sequence[Message]) -> None:
        """Change the arrays of ``mean`` in place."""


def check_plain_steps(settings: TrainSettings, strategy: str, why: str) -> None:
    """Check that a step is the learning rate times a gradient.

    Args:
        settings: Of training.
        strategy: Its name, for the error's message.
        why: The strategy needs it, for the error's message.

    Raises:
        ConfigError: for another optimizer than SGD, or momentum.
    """
    if settings.optimizer != "sgd" or settings.momentum:
        raise ConfigError(
            f"Configuration key 'strategy' has the value {strategy!r}, but optimizer is {settings.optimizer!r} "
            f"with momentum {settings.momentum:g}: {why}; set training.optimizer to 'sgd' and momentum to 0."
        )
