"""MR-MTL: models of the hospitals' own, held near their mean (Liu, Hu, Wu and Smith 2022).

The paper finds it the method of choice where each hospital protects its own patients. The mean takes off the noise that a
hospital adds, as far as hospitals are alike, and personal models cost nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr.serverapp.strategy import FedAvg

from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Sites, Trained


class MRMTL(FedAvg):
    """The mean of the hospitals' models, which each of them is then held near to.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> sites = SimpleNamespace(model=torch.zeros(1, 1), settings=SimpleNamespace(local_steps=1))
        >>> sites.own, sites.gradient = lambda: torch.ones(1, 1), torch.zeros_like
        >>> sites.step = lambda models, gradient: models - 0.5 * gradient
        >>> [MRMTL.Local(pull=pull).round(sites).model.item() for pull in (0.0, 0.5, 1.0)]  # from 1 towards the mean, 0
        [1.0, 0.75, 0.5]
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm A1: steps on the hospital's own model, pulled to the mean that was sent; the own model is what is sent back.

        The pull is a function of what was released before, so it is added after clipping and noise.
        pull: How strong the pull is, the paper's lambda: 0 trains alone, a large one as FedAvg does.
        """

        pull: float = 0.1
        personal: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("pull", self.pull, least=0.0, most=1e6)

        def round(self, sites: Sites) -> Trained:
            models = sites.own()
            for _ in range(sites.settings.local_steps):
                models = sites.step(models, sites.gradient(models) + self.pull * (models - sites.model))
            return Trained(models, own=models)
