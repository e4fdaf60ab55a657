"""SCAFFOLD's server: the model, and beside it the mean of what hospitals' gradients are like (Karimireddy et al. 2020).

Hospitals keep their own control variates and send how these changed (``training.control``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from polyclinic.types import Arrays

# The record of arrays beside the model's, in both directions; ``polyclinic.messages`` has the same name.
CONTROL = "control"


class Scaffold(FedAvg):
    """Algorithm 1: the unweighted mean of the hospitals' models, and the control variate ``control`` over all of them.

    hospitals: how many there are, of which any number takes part in a round. server_learning_rate: how far of the way to
    the mean the model goes. Not associative: it needs each hospital's change of its control variate.
    """

    associative = False

    def __init__(self, hospitals: int, server_learning_rate: float = 1.0) -> None:
        if not (np.isfinite(server_learning_rate) and server_learning_rate > 0):
            raise ValueError(f"server-learning-rate must be positive, got {server_learning_rate}")
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.hospitals = hospitals
        self.server_learning_rate = server_learning_rate
        self.control: Arrays = {}
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg, with the control variate beside the model; it begins at zero."""
        self._sent = arrays
        model = {name: array.numpy() for name, array in arrays.items()}
        floats = {name: value for name, value in model.items() if np.issubdtype(value.dtype, np.floating)}
        self.control = {name: self.control.get(name, np.zeros_like(value)) for name, value in floats.items()}
        beside = ArrayRecord({name: Array(value) for name, value in self.control.items()})
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[CONTROL] = beside
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Moves the model by the mean of the hospitals' steps, and the control variate by their changes over all hospitals."""
        answers = [reply for reply in replies if not reply.has_error()]
        changes = [reply.content.pop(CONTROL, None) for reply in answers]
        for reply in answers:
            for record in reply.content.metric_records.values():
                record[self.weighted_by_key] = 1.0  # the paper's mean is over hospitals, whatever their size
        mean, metrics = super().aggregate_train(server_round, answers)
        sent, self._sent = self._sent, None
        if mean is None or sent is None:
            return mean, metrics
        for name, value in self.control.items():
            found = [change[name].numpy() for change in changes if isinstance(change, ArrayRecord)]
            self.control[name] = value + sum(found, np.zeros_like(value)) / value.dtype.type(self.hospitals)
        for name in self.control:
            before = sent[name].numpy()
            mean[name] = Array(before + self.server_learning_rate * (mean[name].numpy() - before))
        return mean, metrics
