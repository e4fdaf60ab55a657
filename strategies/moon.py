"""MOON: what a model makes of a patient stays close to what the shared model makes of them (Li, He and Song 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flwr.serverapp.strategy import FedAvg
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import LocalHalf, Penalty, Sites, Trained, rows_where_finite


class MOON(FedAvg):
    """FedAvg over models that are trained with a contrastive term.

    Examples:
        >>> MOON.Local(weight=0.5).penalises  # the term is a part of each patient's own loss
        True
        >>> MOON.Local(temperature=0.0)
        Traceback (most recent call last):
            ...
        ValueError: temperature must be a number above 0 and at most 1e+06, got 0.0
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Algorithm 1: a term of each patient's loss draws the representation of their rows to the sent model's, and away from
        the hospital's last model's.

        The term is a part of each patient's own loss, before clipping, so that a round costs what it costs without.
        weight: Of the term beside the loss, the paper's mu.
        temperature: The paper's tau.
        """

        weight: float = 1.0
        temperature: float = 0.5
        keeps: ClassVar[bool] = True
        penalises: ClassVar[bool] = True

        def __post_init__(self) -> None:
            check_number("weight", self.weight, least=0.0, most=1e6)
            check_number("temperature", self.temperature, least=0.0, most=1e6, above=True)

        def round(self, sites: Sites) -> Trained:
            models, last = sites.model, sites.state("last", sites.model)
            penalty = Penalty((sites.model, last), self._term)
            for _ in range(sites.settings.local_steps):
                models = sites.step(models, sites.gradient(models, penalty=penalty))
            return Trained(models, state={"last": rows_where_finite(models, last)})

        def _term(self, own: Tensor, others: Sequence[Tensor]) -> Tensor:
            near, far = (cosine_similarity(own, other, dim=1) for other in others)
            # Equation 3: minus the log of the softmax of the two similarities.
            return self.weight * softplus((far - near) / self.temperature)
