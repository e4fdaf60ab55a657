"""Ditto: beside the shared model each hospital trains one of its own, held near the shared one (Li et al. 2021b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.serverapp.strategy import FedAvg

from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Pass, Sites, Trained
from polyclinic.training.task import TrainSettings


class Ditto(FedAvg):
    """FedAvg over the shared models; the hospitals' own never reach the server.

    Examples:
        >>> from polyclinic.config import RunConfig, train_settings
        >>> settings = train_settings(RunConfig(strategy="ditto", training={"local_steps": 3}), noise_multiplier=None)
        >>> [(part.name, part.gradients) for part in Ditto.Local(pull=0.5).passes(settings)]  # of the patients, in a round
        [('', 3), ('personal', 3)]
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1: the shared model as FedAvg has it, then the hospital's own, pulled to the model that was sent.

        The own model is trained on the same patients a second time, which is charged, and is what its hospital evaluates with.
        pull: How strong the pull is, the paper's lambda.
        """

        pull: float = 0.1
        personal: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("pull", self.pull, least=0.0, most=1e6)

        def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
            return (Pass(settings.local_steps), Pass(settings.local_steps, "personal"))

        def round(self, sites: Sites) -> Trained:
            shared = super().round(sites).model
            own = sites.own()
            for _ in range(sites.settings.local_steps):
                gradient = sites.gradient(own, "personal")
                own = sites.step(own, gradient.add(own - sites.model, alpha=self.pull), "personal")
            return Trained(shared, own=own)
