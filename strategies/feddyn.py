"""FedDyn: each hospital's objective is moved so that all have their optimum where the federation's is (Acar et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message

from polyclinic.strategies.base.moving import MovedMean
from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Sites, Trained, rows_where_finite
from polyclinic.types import Arrays


class FedDyn(MovedMean):
    """Algorithm 1's server: the unweighted mean of the hospitals' models, less what their drift adds up to.

    hospitals: How many there are, of which any number takes part in a round. alpha: The paper's alpha, of hospitals too.

    Examples:
        >>> from types import SimpleNamespace
        >>> sites = SimpleNamespace(model=torch.zeros(1, 1), settings=SimpleNamespace(local_steps=2))
        >>> sites.gradient, sites.step = lambda models: models - 1, lambda models, gradient: models - 0.5 * gradient
        >>> sites.state = lambda name, first: first  # a hospital's first round
        >>> trained = FedDyn.Local(alpha=0.1).round(sites)
        >>> round(trained.model.item(), 3), round(trained.state["drift"].item(), 4)
        (0.725, -0.0725)
    """

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1's hospital: steps along g - h_i + alpha (theta - model), after which h_i takes up the hospital's drift.

        alpha: How strongly a model is held near the one that was sent; large values go with noise.
        """

        alpha: float = 0.1
        keeps: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("alpha", self.alpha, least=0.0, most=1e6, above=True)

        def round(self, sites: Sites) -> Trained:
            drift, models = sites.state("drift", torch.zeros_like(sites.model)), sites.model
            for _ in range(sites.settings.local_steps):
                gradient = sites.gradient(models)
                models = sites.step(models, gradient - drift + self.alpha * (models - sites.model))
            # The server drops a model that is not finite, and then the drift of all hospitals stays as it was, too.
            new = rows_where_finite(drift - self.alpha * (models - sites.model), drift)
            return Trained(models, state={"drift": new})

    def __init__(self, hospitals: int, alpha: float = 0.1) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.hospitals = hospitals
        self.alpha = alpha
        self.drift: Arrays = {}

    def _move(self, sent: ArrayRecord, mean: ArrayRecord, answers: Sequence[Message]) -> None:
        """By the drift of all hospitals over alpha."""
        share = len(answers) / self.hospitals
        for name, array in sent.items():
            before, after = array.numpy(), mean[name].numpy()
            if np.issubdtype(before.dtype, np.floating):
                drift = self.drift.get(name, np.zeros_like(before)) - self.alpha * share * (after - before)
                self.drift[name] = np.asarray(drift, before.dtype)
                mean[name] = Array(np.asarray(after - self.drift[name] / self.alpha, before.dtype))
