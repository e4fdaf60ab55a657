"""A model fitted to patients at one place until it converges, without privacy: what a run is shown beside.

A model of one layer is fitted as scikit-learn's ``LogisticRegression`` is by default, any other as its ``MLPClassifier`` with
early stopping, on features of mean 0 and deviation 1. The loss and its gradient are the task's own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from polyclinic.ehr.encoding import Standardiser
from polyclinic.ehr.shard import Rows
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.training.modules import load
from polyclinic.training.task import SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Builder, Floats

_STRENGTH = 1.0  # of half the squared length of one output's weights, beside the sum of patients' losses
_BATCH, _RATE, _FEWEST_STEPS, _MOST_LOOKS, _PATIENCE, _TOLERANCE = 200, 1e-3, 20, 200, 10, 1e-4
_HELD_OUT, _FEWEST_HELD_OUT = 0.1, 10
_WHOLE = TrainSettings(1.0, 1, 1.0, 1.0, None, double=True)


def scale_of(rows: Rows) -> Standardiser:
    """Mean and standard deviation of each feature, (features,) each, missing cells left out; 1 for a constant's deviation.

    Examples:
        >>> scale_of(Rows(np.array([[1.0, 5.0], [3.0, 5.0]]), np.zeros(2, dtype=np.int64), np.arange(2), 2))
        (array([2., 5.]), array([1., 1.]))
    """
    present = np.isfinite(rows.x)
    count = np.maximum(present.sum(axis=0), 1)
    mean = np.where(present, rows.x, 0.0).sum(axis=0) / count
    deviation = np.sqrt((np.where(present, rows.x - mean, 0.0) ** 2).sum(axis=0) / count)
    return mean, np.where(deviation > 1e-12, deviation, 1.0)


def fit(task: Task, build: Builder, first: Arrays, rows: Rows, seed: int) -> Arrays:
    """The model of least loss on ``rows``, from the arrays ``first``.

    Args:
        task: Its ``train`` takes full-batch or Adam's steps on the mean over patients of their rows' mean loss.
        build: Makes the model's module.
        first: The model's arrays at the start.
        rows: Standardised by ``scale_of``.
        seed: Of the patients held out for early stopping, and of batches.
    """
    module = load(build, first)
    two_classes = rows.y.ndim == 1 and rows.y.dtype.kind == "i" and rows.y.max() <= 1
    # Of two classes' outputs only the difference counts, so that each has half the weights of one output.
    strengths = {
        name: (_STRENGTH * 2 if two_classes and len(value) == 2 else _STRENGTH) if value.dim() > 1 else 0.0
        for name, value in module.named_parameters()
    }
    if len(module.state_dict()) == len(strengths) and sum(map(bool, strengths.values())) == 1:
        return _minimise(task, build, first, strengths, rows)
    return _stopped_early(task, build, first, rows, seed)


def _minimise(task: Task, build: Builder, first: Arrays, strengths: dict[str, float], rows: Rows) -> Arrays:
    """By L-BFGS, with so strong a penalty of each array's squared length."""
    sizes = np.cumsum([first[name].size for name in strengths])[:-1]
    strength = np.concatenate([np.full(first[name].size, value) for name, value in strengths.items()])

    def arrays(flat: Floats) -> Arrays:
        parts = zip(strengths, np.split(flat, sizes), strict=True)
        return {name: part.reshape(first[name].shape) for name, part in parts}

    def flat(model: Arrays) -> Floats:
        return np.concatenate([model[name].ravel() for name in strengths]).astype(np.float64)

    def objective(point: Floats) -> tuple[float, Floats]:
        stream = keyed_stream(0, "comparison")
        [update] = task.train(build, arrays(point), [SiteWork(rows, stream, stream)], _WHOLE)
        penalty = strength * point / rows.patients
        return update.loss + float(penalty @ point) / 2, point - flat(update.arrays) + penalty

    optimum = minimize(objective, flat(first), jac=True, method="L-BFGS-B", options={"maxiter": 1000, "gtol": 1e-6})
    return {name: value.astype(first[name].dtype) for name, value in arrays(optimum.x).items()}


def _stopped_early(task: Task, build: Builder, first: Arrays, rows: Rows, seed: int) -> Arrays:
    """By Adam, until the loss of a tenth of the patients, ten at least, has not fallen for ``_PATIENCE`` looks."""
    held_out = np.zeros(rows.patients, dtype=bool)
    draw, count = generator(seed, "comparison"), max(_FEWEST_HELD_OUT, int(_HELD_OUT * rows.patients))
    held_out[draw.permutation(rows.patients)[: count if 2 * count <= rows.patients else 0]] = True
    seen = rows.of_patients(~held_out)
    judged = rows.of_patients(held_out) if held_out.any() else seen
    rate = min(1.0, _BATCH / seen.patients)
    steps = TrainSettings(rate, max(_FEWEST_STEPS, round(1 / rate)), _RATE, 1.0, None, optimizer="adam")
    streams = keyed_stream(seed, "comparison", "batches"), keyed_stream(seed, "comparison", "layers")
    work = SiteWork(seen, streams[0], streams[0], layers=streams[1])
    model, best, least, waited = first, first, np.inf, 0
    for _ in range(_MOST_LOOKS):
        [update] = task.train(build, model, [work], steps)
        model, work = update.arrays, replace(work, state=update.state)
        [look] = task.train(build, model, [replace(work, rows=judged, state={})], _WHOLE)
        waited = 0 if look.loss < least - _TOLERANCE else waited + 1
        if look.loss < least:
            best, least = model, look.loss
        if waited >= _PATIENCE:
            break
    return best
