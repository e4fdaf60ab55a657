"""FedRep: a shared representation under heads of the hospitals' own, trained in turns (Collins et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from polyclinic.errors import ConfigError
from polyclinic.strategies.base.options import check_count
from polyclinic.training.local import LocalHalf, Pass, Sites, Trained
from polyclinic.training.modules import matching_arrays
from polyclinic.training.task import TrainSettings


class FedRep(FedAvg):
    """FedAvg over the representation; heads never reach the server.

    Examples:
        >>> from polyclinic.config import RunConfig, train_settings
        >>> settings = train_settings(RunConfig(strategy="fedrep", training={"local_steps": 4}), noise_multiplier=None)
        >>> [(part.name, part.gradients) for part in FedRep.Local(head_steps=1).passes(settings)]
        [('', 3), ('head', 1)]
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1: first the head moves on the representation that was sent, then the representation under that head.

        layers: Patterns of the names of the head's arrays, separated by spaces; empty takes the module's last layer.
        head_steps: How many of the configured steps are the head's; 0 takes half of them.
        """

        layers: str = ""
        head_steps: int = 0

        def __post_init__(self) -> None:
            check_count("head_steps", self.head_steps)

        def check(self, settings: TrainSettings) -> None:
            if not 0 < self._head_steps(settings) < settings.local_steps:
                raise ConfigError(
                    f"Configuration key 'training.local-steps' has the value {settings.local_steps}, of which "
                    f"head-steps {self._head_steps(settings)} leave none for the representation or for the head; take "
                    "more training.local-steps, or other head-steps."
                )

        def stays(self, module: nn.Module) -> list[str]:
            return matching_arrays(module, self.layers)

        def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
            # An audit asks for a single step, which both parts then take; of a run ``check`` refuses it.
            head = max(self._head_steps(settings), 1)
            return (Pass(max(settings.local_steps - head, 1)), Pass(head, "head"))

        def round(self, sites: Sites) -> Trained:
            head, models = sites.stays(), sites.model
            body_steps, head_steps = (local_pass.gradients for local_pass in self.passes(sites.settings))
            for _ in range(head_steps):
                models = _step_moving(sites, models, "head", head)
            for _ in range(body_steps):
                models = _step_moving(sites, models, "", ~head)
            return Trained(models)

        def _head_steps(self, settings: TrainSettings) -> int:
            return self.head_steps or settings.local_steps // 2


def _step_moving(sites: Sites, models: Tensor, name: str, moving: Tensor) -> Tensor:
    return torch.where(moving, sites.step(models, sites.gradient(models, name), name), models)
