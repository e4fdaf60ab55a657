"""A flow at one place, by the functions that hospitals and server call: what a federation of one hospital equals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream, torch_seed
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.training.density import DensityTask
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats

Streams = Callable[[str, int], Stream]


def begun(recipe: Recipe, classes: Floats, seed: int = 0) -> FlowRows:
    """The flow before its first step, which draws by its base. classes: (K,) frequencies of the label."""
    first = {name: value.numpy() for name, value in initialise(recipe.module, torch_seed(seed, "model")).items()}
    return FlowRows(recipe, first, classes)


def train_centrally(
    rows: FlowRows, records: Rows, settings: TrainSettings, rounds: int, seed: int = 0,
    public_patients: float | None = None, streams: Streams | None = None,
) -> FlowRows:  # fmt: skip
    """``rows`` after ``rounds`` rounds over one table of encoded records, averaged over rounds as the recipe says.

    streams: by purpose and round; a simulation's by default, which protect nobody. With a noise multiplier the flow is private
    for one patient added or removed, as ``DensityTask.event(settings)`` composed over ``rounds`` says.
    """
    task, recipe = DensityTask(rows.recipe), rows.recipe
    arrays, averaged = rows.flow, dict.fromkeys(rows.flow, np.zeros(()))
    kept: Arrays = {}
    draw = streams or (lambda purpose, round: keyed_stream(seed, purpose, round))
    for round in range(1, rounds + 1):
        batches, noise, layers = (draw(purpose, round) for purpose in ("batches", "gradient-noise", "layers"))
        work = SiteWork(records, batches, noise, public_patients, kept, layers)
        update = task.train(recipe.module, arrays, [work], settings)[0]
        arrays, kept = update.arrays, update.state
        averaged = {name: recipe.ema * averaged[name] + (1 - recipe.ema) * value for name, value in arrays.items()}
    share = 1 - recipe.ema**rounds
    flow: Arrays = {name: (value / share).astype(np.float32) for name, value in averaged.items()}
    return replace(rows, flow=flow)
