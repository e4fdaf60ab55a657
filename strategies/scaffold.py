"""SCAFFOLD: gradients corrected by control variates, so that hospitals that differ do not drift apart.

Karimireddy et al. 2020, Algorithm 1. Each step's gradient g becomes g - c_i + c, where c is the server's control variate and
c_i the hospital's own. Neither is more than a function of what was clipped and noised before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from polyclinic.strategies.base.moving import MovedMean, check_plain_steps
from polyclinic.strategies.base.options import check_number
from polyclinic.training.local import BESIDE, LocalHalf, Pass, Sites, Trained, rows_where_finite
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays

_CONTROL = "control"


class Scaffold(MovedMean):
    """The server's half: the unweighted mean of the hospitals' models, and the control variate ``control`` over all of them.

    hospitals: how many there are, of which any number takes part in a round. server_learning_rate: how far of the way to
    the mean the model goes. Not associative: it needs each hospital's change of its control variate.

    Examples:
        >>> from types import SimpleNamespace
        >>> sites = SimpleNamespace(model=torch.zeros(1, 1), settings=SimpleNamespace(local_steps=2, learning_rate=0.5))
        >>> sites.state, sites.from_server = lambda name, first: first, lambda name: torch.ones(1, 1)
        >>> sites.gradient, sites.step = lambda models: models + 1, lambda models, gradient: models - 0.5 * gradient
        >>> trained = Scaffold.Local().round(sites)
        >>> trained.model.item(), trained.sent["control"].item()
        (-1.5, 0.5)
    """

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """The hospitals' half, with plain SGD only, since a step must be the learning rate times a gradient.

        variate: Where a hospital's new control variate comes from. "update" (option II): the mean of the round's own gradients,
            read off the model's way; no record is looked at again. "gradient" (option I): a gradient at the server's model over
            all patients. It is a clipped sum of its own, with noise that makes it as noisy as one step's; it is charged.
        """

        variate: str = "update"
        receives: ClassVar[tuple[str, ...]] = (_CONTROL,)
        sends: ClassVar[tuple[str, ...]] = (_CONTROL,)
        keeps: ClassVar[bool] = True

        def __post_init__(self) -> None:
            if self.variate not in ("update", "gradient"):
                raise ValueError(f"variate must be 'update' or 'gradient', got {self.variate!r}")

        def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
            steps = super().passes(settings)
            return steps if self.variate == "update" else (*steps, Pass(1, _CONTROL, all_patients=True))

        def check(self, settings: TrainSettings) -> None:
            check_plain_steps(settings, "scaffold", "control variates correct plain gradient steps")

        def round(self, sites: Sites) -> Trained:
            own = sites.state(_CONTROL, torch.zeros_like(sites.model))
            correction, settings, models = sites.from_server(_CONTROL) - own, sites.settings, sites.model
            for _ in range(settings.local_steps):
                models = sites.step(models, sites.gradient(models) + correction)
            if self.variate == "update":
                variate = (sites.model - models) / (settings.local_steps * settings.learning_rate) - correction
            else:
                variate = sites.gradient(sites.model, _CONTROL)
            variate = rows_where_finite(variate, own)
            return Trained(models, state={_CONTROL: variate}, sent={_CONTROL: variate - own})

    def __init__(self, hospitals: int, server_learning_rate: float = 1.0) -> None:
        check_number("server_learning_rate", server_learning_rate, least=0.0, above=True)
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.hospitals = hospitals
        self.server_learning_rate = server_learning_rate
        self.control: Arrays = {}
        self._changes: list[Any] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that FedAvg sends, with the control variate beside the model; it begins at zero.

        Args:
            server_round: The number of the round, from 1 on.
            arrays: The model.
            config: Of training.
            grid: The nodes.
        """
        model = {name: array.numpy() for name, array in arrays.items()}
        floats = {name: value for name, value in model.items() if np.issubdtype(value.dtype, np.floating)}
        self.control = {name: self.control.get(name, np.zeros_like(value)) for name, value in floats.items()}
        beside = ArrayRecord({name: Array(value) for name, value in self.control.items()})
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[BESIDE + _CONTROL] = beside
        return messages

    def _weigh(self, answers: list[Message]) -> list[Message]:
        self._changes = [reply.content.pop(BESIDE + _CONTROL, None) for reply in answers]
        return super()._weigh(answers)

    def _move(self, sent: ArrayRecord, mean: ArrayRecord, answers: Sequence[Message]) -> None:
        """By the server's learning rate of the way; the control variate moves by the hospitals' changes over all of them."""
        changes, self._changes = self._changes, []
        for name, value in self.control.items():
            arrays = [change[name].numpy() for change in changes if isinstance(change, ArrayRecord)]
            self.control[name] = np.asarray(
                value + sum(arrays, np.zeros_like(value)) / value.dtype.type(self.hospitals)
            )
        for name in self.control:
            before = sent[name].numpy()
            mean[name] = Array(np.asarray(before + self.server_learning_rate * (mean[name].numpy() - before)))
