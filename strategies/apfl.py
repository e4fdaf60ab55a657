"""APFL: each hospital's model is a mixture of one of its own and the shared one (Deng et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.serverapp.strategy import FedAvg

from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Pass, Sites, Trained
from polyclinic.training.task import TrainSettings


class APFL(FedAvg):
    """FedAvg over the shared models; the hospitals' own never reach the server.

    Examples:
        >>> from polyclinic.config import RunConfig, train_settings
        >>> settings = train_settings(RunConfig(strategy="apfl", training={"local_steps": 3}), noise_multiplier=None)
        >>> [(part.name, part.gradients) for part in APFL.Local(alpha=0.25).passes(settings)]  # of the patients, in a round
        [('', 3), ('personal', 3)]
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1: the shared model w and the own model v take a step in turns; the hospital evaluates with their mixture.

        Each step looks at the patients twice, at w and at the mixture, and both are charged.
        alpha: The own model's share of the mixture, from 0 to 1; with ``adaptive`` where it begins.
        adaptive: Whether each hospital's share follows equation 10, a gradient step on the share itself.
        """

        alpha: float = 0.5
        adaptive: bool = False
        personal: ClassVar[bool] = True
        keeps: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("alpha", self.alpha, least=0.0, most=1.0)
            if not isinstance(self.adaptive, bool):
                raise ValueError(f"adaptive must be true or false, got {self.adaptive!r}")

        def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
            return (Pass(settings.local_steps), Pass(settings.local_steps, "personal"))

        def round(self, sites: Sites) -> Trained:
            shared, own = sites.model, sites.state("own", sites.model)
            share = sites.state("share", sites.model[:, :1] * 0 + self.alpha)
            for _ in range(sites.settings.local_steps):
                gradient = sites.gradient(share * own + (1 - share) * shared, "personal")
                slope = (gradient * (own - shared)).sum(1, keepdim=True)
                # The own model moves by the share with which the mixture was made, as all of a step are of the step before.
                own, shared = sites.step(own, share * gradient, "personal"), sites.step(shared, sites.gradient(shared))
                if self.adaptive:
                    share = (share - sites.settings.learning_rate * slope).clamp(0, 1)
            return Trained(shared, own=share * own + (1 - share) * shared, state={"own": own, "share": share})
