"""FedNova: hospitals that take different numbers of steps pull alike (Wang et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training.local import LocalHalf, Sites, Trained
from polyclinic.training.task import TrainSettings

_STEPS = "steps-taken"


class FedNova(FedAvg):
    """Each hospital's way is divided by the steps that it took, and the mean way multiplied by the mean number of steps.

    Section 4 of the paper, with plain gradient steps, whose normalising vector sums to their number. A hospital weighs as many
    patients as it has.
    """

    associative = False
    _sent: ArrayRecord | None = None

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Plain steps, of which each hospital takes a number between ``fewest_steps`` and the configured one.

        The number is drawn anew for each hospital and round, by public numbers alone, as the paper's experiments do to stand for
        hospitals of different speed. Every hospital makes, and is charged for, the gradients of all configured steps, so that
        its epsilon does not depend on the draw.

        fewest_steps: 0 has all hospitals take all steps, which makes FedNova FedAvg.
        """

        fewest_steps: int = 0
        metrics: ClassVar[tuple[str, ...]] = (_STEPS,)

        def __post_init__(self) -> None:
            if isinstance(self.fewest_steps, bool) or not isinstance(self.fewest_steps, int) or self.fewest_steps < 0:
                raise ValueError(f"fewest-steps must be a whole number of at least 0, got {self.fewest_steps!r}")

        def check(self, settings: TrainSettings) -> None:
            if settings.optimizer != "sgd" or settings.momentum:
                raise ConfigError(
                    f"Configuration key 'strategy' has the value 'fednova', but optimizer is {settings.optimizer!r} "
                    f"with momentum {settings.momentum:g}: only plain gradient steps are worth alike; set "
                    "training.optimizer to 'sgd' and momentum to 0."
                )
            if self.fewest_steps > settings.local_steps:
                raise ConfigError(
                    f"strategy-options has fewest-steps {self.fewest_steps}, but training.local-steps is "
                    f"{settings.local_steps}; take at most as many."
                )

        def round(self, sites: Sites) -> Trained:
            steps, models = self._steps(sites), sites.model
            for step in range(sites.settings.local_steps):
                moving = torch.tensor([step < most for most in steps], device=models.device)[:, None]
                models = torch.where(moving, sites.step(models, sites.gradient(models)), models)
            return Trained(models, metrics={_STEPS: [float(most) for most in steps]})

        def _steps(self, sites: Sites) -> list[int]:
            most = sites.settings.local_steps
            if not self.fewest_steps:
                return [most] * len(sites.numbers)
            draws = [float(keyed_stream(0, "fednova", number, sites.round).uniform(1)[0]) for number in sites.numbers]
            return [self.fewest_steps + int(draw * (most - self.fewest_steps + 1)) for draw in draws]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg; remembers the model that was sent."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model that was sent, moved by the mean number of steps times the mean way of one step."""
        # One that says to have taken no whole step would outweigh all others.
        answers = [reply for reply in replies if not reply.has_error() and _steps_of(reply) >= 1]
        sent, self._sent = self._sent, None
        mean, metrics = super().aggregate_train(server_round, answers)
        if mean is None or sent is None:
            return mean, metrics
        numbers = [next(iter(reply.content.metric_records.values())) for reply in answers]
        weights = np.array([float(found[self.weighted_by_key]) for found in numbers])  # type: ignore[arg-type]
        steps = np.array([_steps_of(reply) for reply in answers])
        weights = weights / weights.sum()
        factors = weights / steps * (weights @ steps)
        models = [next(iter(reply.content.array_records.values())) for reply in answers]
        for name, array in sent.items():
            before = array.numpy()
            if np.issubdtype(before.dtype, np.floating):
                ways = np.stack([model[name].numpy().astype(np.float64) - before for model in models])
                mean[name] = Array((before + np.tensordot(factors, ways, 1)).astype(before.dtype))
        return mean, metrics


def _steps_of(reply: Message) -> float:
    """How many steps the hospital says that it took; 0 where it says nothing of the kind."""
    said = next(iter(reply.content.metric_records.values())).get(_STEPS, 0.0)
    return float(said) if isinstance(said, int | float) else 0.0
