"""FedAvg whose hospitals take shorter steps as rounds go by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


class Decayed(FedAvg):
    """``half_life``: rounds in which the learning rate halves. What hospitals take costs no epsilon, whatever its value."""

    associative = True  # the mean of the models is all that it needs, so simulated hospitals may be averaged early

    def __init__(self, half_life: float = 10.0, **options: Any) -> None:
        super().__init__(**options)
        if not half_life > 0:
            raise ValueError(f"half_life must be positive, got {half_life}")
        self.half_life = half_life

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round > 1:  # config goes on from round to round, as in Flower's own loop
            config["lr"] *= 0.5 ** (1 / self.half_life)
        return super().configure_train(server_round, arrays, config, grid)
