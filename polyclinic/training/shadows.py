"""Shadow models: the same training on other patients, of whom it is known who took part (Shokri et al. 2017).

Many are trained at once, as so many sites of the stacked engine. Nothing here is private or leaves this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training.task import SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Bools, Builder, Floats


def train_shadows(
    task: Task, build: Builder, arrays: Arrays, hospitals: Sequence[tuple[Rows, Bools]], settings: TrainSettings, rounds: int,
    seed: int,
) -> list[Arrays]:  # fmt: skip
    """Federated averages of the task's own training, from ``arrays`` on: one for each shadow model.

    The settings' noise and batches are each shadow's own. A hospital weighs as many patients as take part there, as in
    federated averaging, whatever the run's strategy.

    Args:
        task: The task of the run.
        build: Makes the model's module.
        arrays: The model's arrays, from which all shadows start.
        hospitals: All patients of each, and who takes part, (shadows, patients).
        settings: The settings of a round.
        rounds: The number of rounds.
        seed: The seed of batches and noise.
    """
    shadows = range(len(hospitals[0][1]))
    rows = [[part.of_patients(inside[shadow]) for part, inside in hospitals] for shadow in shadows]
    weights = [np.array([part.patients for part in own], dtype=np.float64) for own in rows]
    models = [dict(arrays) for _ in shadows]
    kept_arrays: list[list[Arrays]] = [[{} for _ in hospitals] for _ in shadows]
    for number in range(rounds):
        work = [
            SiteWork(
                part, keyed_stream(seed, "shadow-batches", *key), keyed_stream(seed, "shadow-noise", *key),
                float(max(part.patients, 1)), kept_arrays[shadow][site], keyed_stream(seed, "shadow-layers", *key),
                own=models[shadow], number=site,
            )
            for shadow in shadows for site, part in enumerate(rows[shadow])
            for key in [(number, shadow, site)]
        ]  # fmt: skip
        updates = iter(task.train(build, arrays, work, replace(settings, double=False)))
        for shadow in shadows:
            mine = [next(updates) for _ in hospitals]
            kept_arrays[shadow] = [update.state for update in mine]
            models[shadow] = _mean([update.arrays for update in mine], weights[shadow])
    return models


def _mean(models: Sequence[Arrays], weights: Floats) -> Arrays:
    shares = weights / weights.sum()
    return {
        name: np.sum([share * model[name] for share, model in zip(shares, models, strict=True)], axis=0).astype(
            value.dtype
        )
        for name, value in models[0].items()
    }
