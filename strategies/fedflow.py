"""Federated density estimation as a Flower strategy: hospitals' flows are averaged as classifiers are, and draw the rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.strategies.registry import merge_by
from polyclinic.strategies.wrapping import Wrapping
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays


class FedFlow(Wrapping):
    """``base`` averages flows; rows are drawn by the newest, or by an average over rounds (``recipe.ema``).

    classes: (K,) frequencies of the label. ``averaged``: over rounds, not yet corrected for its beginning at zero.
    """

    def __init__(self, base: Strategy, recipe: Recipe, classes: np.ndarray) -> None:
        self.base = base
        self.recipe = recipe
        self.classes = np.asarray(classes, dtype=np.float64)
        self.associative = merge_by(base) is not None
        self.weighted_by_key = str(getattr(base, "weighted_by_key", "num-examples"))
        self.averaged: Arrays = {}
        self.averaged_rounds = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does."""
        return self.base.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean flow."""
        mean, metrics = self.base.aggregate_train(server_round, replies)
        if mean is not None:
            stays, before = self.recipe.ema, self.averaged
            self.averaged = {
                name: stays * before.get(name, 0.0) + (1 - stays) * array.numpy() for name, array in mean.items()
            }
            self.averaged_rounds += 1
        return mean, metrics

    def synthesizer(self) -> Synthesizer | None:
        """What draws rows; None before the first round."""
        if not self.averaged_rounds:
            return None
        share = 1 - self.recipe.ema**self.averaged_rounds  # as Adam corrects for a mean that begins at zero
        flow = {name: np.asarray(value / share, dtype=np.float32) for name, value in self.averaged.items()}
        return FlowRows(self.recipe, flow, self.classes)
