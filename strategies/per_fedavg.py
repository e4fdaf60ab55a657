"""Per-FedAvg: a shared model from which one step at a hospital leads to its own (Fallah, Mokhtari and Ozdaglar 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.serverapp.strategy import FedAvg

from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Pass, Sites, Trained
from polyclinic.training.task import TrainSettings


class PerFedAvg(FedAvg):
    """FedAvg over the models from which hospitals adapt.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> sites = SimpleNamespace(model=torch.zeros(1, 1), settings=SimpleNamespace(local_steps=1))
        >>> sites.gradient, sites.step = lambda models, *name: models - 1, lambda models, gradient: models - 0.5 * gradient
        >>> trained = PerFedAvg.Local(inner_rate=0.5).round(sites)
        >>> trained.own.item(), trained.model.item()  # what the hospital evaluates with, and what it sends
        (0.5, 0.25)
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1 with the first-order gradient: each step goes along the gradient at a point one inner step away.

        Each step looks at the patients twice, on batches of their own, and both are charged. A hospital evaluates with the model
        that it was sent after one inner step, which is the first inner step of the round and costs nothing more.
        inner_rate: The length of the inner step, the paper's alpha.
        """

        inner_rate: float = 0.1
        personal: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("inner_rate", self.inner_rate, least=0.0, most=1e6, above=True)

        def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
            return (Pass(settings.local_steps), Pass(settings.local_steps, "inner"))

        def round(self, sites: Sites) -> Trained:
            models, own = sites.model, None
            for _ in range(sites.settings.local_steps):
                adapted = models - self.inner_rate * sites.gradient(models, "inner")
                own = adapted if own is None else own
                models = sites.step(models, sites.gradient(adapted))
            return Trained(models, own=own)
