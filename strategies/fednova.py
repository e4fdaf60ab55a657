"""FedNova: hospitals that take different numbers of steps pull alike (Wang et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.strategies.base.moving import MovedMean, check_plain_steps
from polyclinic.strategies.base.options import check_count
from polyclinic.training.local import LocalHalf, Sites, Trained
from polyclinic.training.task import TrainSettings

_STEPS = "steps-taken"


class FedNova(MovedMean):
    """Each hospital's way is divided by the steps that it took, and the mean way multiplied by the mean number of steps.

    Section 4 of the paper, with plain gradient steps, whose normalising vector sums to their number. A hospital weighs as many
    patients as it has.

    Examples:
        >>> from types import SimpleNamespace
        >>> settings = SimpleNamespace(local_steps=4)
        >>> sites = SimpleNamespace(model=torch.zeros(3, 1), settings=settings, numbers=[0, 1, 2], round=1)
        >>> sites.gradient, sites.step = lambda models: -torch.ones(3, 1), lambda models, gradient: models - 0.5 * gradient
        >>> trained = FedNova.Local(fewest_steps=1).round(sites)
        >>> trained.metrics, trained.model.flatten().tolist()
        ({'steps-taken': [2.0, 1.0, 2.0]}, [1.0, 0.5, 1.0])
    """

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
            check_count("fewest_steps", self.fewest_steps)

        def check(self, settings: TrainSettings) -> None:
            check_plain_steps(settings, "fednova", "only plain gradient steps are worth alike")
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

    def _weigh(self, answers: list[Message]) -> list[Message]:
        # One that says to have taken no whole step would outweigh all others.
        return [reply for reply in answers if _steps_of(reply) >= 1]

    def _move(self, sent: ArrayRecord, mean: ArrayRecord, answers: Sequence[Message]) -> None:
        """To the model that was sent, moved by the mean number of steps times the mean way of one step."""
        numbers = [next(iter(reply.content.metric_records.values())) for reply in answers]
        weights = np.array([float(metrics[self.weighted_by_key]) for metrics in numbers])  # type: ignore[arg-type]
        steps = np.array([_steps_of(reply) for reply in answers])
        weights = weights / weights.sum()
        factors = weights / steps * (weights @ steps)
        models = [next(iter(reply.content.array_records.values())) for reply in answers]
        for name, array in sent.items():
            before = array.numpy()
            if np.issubdtype(before.dtype, np.floating):
                ways = np.stack([model[name].numpy().astype(np.float64) - before for model in models])
                mean[name] = Array(np.asarray(before + np.tensordot(factors, ways, 1), before.dtype))


def _steps_of(reply: Message) -> float:
    """How many steps the hospital says that it took; 0 where it says nothing of the kind."""
    steps = next(iter(reply.content.metric_records.values())).get(_STEPS, 0.0)
    return float(steps) if isinstance(steps, int | float) else 0.0
