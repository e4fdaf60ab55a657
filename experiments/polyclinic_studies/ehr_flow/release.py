"""Synthetic patients of the EHR experiment: by a private flow, and by one private sum of moments.

Neighbouring relation: add or remove one patient; the number of patients is public. Rows stand at (value - centre) / spread of
the public schema. A missing cell is drawn in every round from what the flow of that round says of it, given the rest of its
record (``polyclinic.synthesis.flows.fills``); in sums it stands at its public centre. Both are functions of one patient's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray

from polyclinic.ehr.encoding import public_standardiser
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import DataError
from polyclinic.models.flows import ConditionalFlow
from polyclinic.models.tabular import initialise
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.streams import keyed_stream, torch_seed
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import clipped_total
from polyclinic.training.density import DensityTask
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats
from polyclinic_studies.ehr_flow.cohort import ATTRIBUTES, COLUMNS, SCHEMA
from polyclinic_studies.flows.published import clipped_sum_at_once, influence, published_flow

CENTRE, SPREAD = (np.array([getattr(a, name) for a in ATTRIBUTES], dtype=np.float64) for name in ("centre", "spread"))
LOW, HIGH = (np.array([a.bounds[end] for a in ATTRIBUTES], dtype=np.float64) for end in (0, 1))


class _Everybody(Layout):
    """A layout whose patients are all of one class: the outcome is made of two of their numbers."""

    @property
    def classes(self) -> int:
        return 1


LAYOUT = _Everybody.of(SCHEMA)


@dataclass(frozen=True)
class FlowSettings:
    """A masked autoregressive flow of patients without missing cells, and its private Adam. They were chosen on simulated
    cohorts of other seeds (200 to 207).

    rounds: how often in ``steps`` missing cells are drawn anew, and hospitals with noise of their own averaged.
    """

    transforms: int = 1
    layers: int = 0
    hidden: int = 32
    steps: int = 50
    rounds: int = 25
    rate: float = 0.02
    clip: float = 1.0
    sample_rate: float = 1.0

    def event(self, noise: float) -> DpEvent:
        """What one flow costs."""
        return dpsgd_event(self.sample_rate, noise, self.steps)

    def recipe(self) -> Recipe:
        """It begins as the standard normal."""
        size = {"transforms": self.transforms, "layers": self.layers, "hidden": self.hidden}
        return make(LAYOUT, "maf", complete=True, **size)

    def settings(self, steps: int, noise: float | None, **changed: object) -> TrainSettings:
        """Of ``steps`` steps at a hospital."""
        terms = {"optimizer": "adam", **changed}
        return TrainSettings(self.sample_rate, steps, self.rate, self.clip, noise, **terms)  # type: ignore[arg-type]


def scaled(values: Floats) -> Floats:
    """(n, 19) in spreads from the public centre, bounds kept, NaN where missing."""
    return np.asarray((np.clip(values, LOW, HIGH) - CENTRE) / SPREAD)


def values(u: Floats, truncate: bool = True) -> Floats:
    """(n, 19) in units; ``truncate``: within the public bounds. Raises DataError where numbers are not finite."""
    found = CENTRE + SPREAD * u
    if not np.isfinite(found).all():
        raise DataError("The synthetic patients hold numbers that are not finite: the flow has diverged.")
    # Forests take single precision.
    return np.asarray(np.clip(found, LOW, HIGH) if truncate else np.clip(found, -1e30, 1e30))


def flows(
    tables: Sequence[Sequence[Floats]], settings: FlowSettings, noise: float | None, seed: int
) -> list[ConditionalFlow]:
    """A flow for each of ``tables``, all trained at once; a table is the (n_k, 19) scaled rows of each of its hospitals.

    Hospitals take steps with noise of their own, ``noise`` times the clip, and their flows are averaged after each of the
    settings' rounds by their numbers of patients. One hospital is training on the spot.
    """
    owners = [(number, place) for number, table in enumerate(tables) for place in range(len(table))]
    task, begin = DensityTask(settings.recipe()), [_start(settings)] * len(tables)
    kept: list[Arrays] = [{} for _ in owners]
    rounds = min(settings.rounds, settings.steps)
    local = settings.settings(settings.steps // rounds, noise)
    for round in range(rounds):
        work = [
            _work(tables[number][place], begin[number], kept[i], (seed, round, number, place))
            for i, (number, place) in enumerate(owners)
        ]
        updates = task.train(task.recipe.module, begin[0], work, local)
        kept = [dict(update.state) for update in updates]
        for number, table in enumerate(tables):
            own = [update.arrays for update, (owner, _) in zip(updates, owners, strict=True) if owner == number]
            begin[number] = _mean(own, [len(rows) for rows in table])
    return [_module(settings, arrays) for arrays in begin]


def flows_by_shared_noise(
    tables: Sequence[Sequence[Floats]], settings: FlowSettings, noise: float, seed: int
) -> list[ConditionalFlow]:
    """As ``flows``, where each step is one secure sum: every hospital adds its share of one noise to its clipped gradients,
    and the server, which sees the noisy mean alone, takes the Adam step. Missing cells are drawn anew in every step.

    The guarantee of ``noise`` holds against those who see the sum; all patients take part in every step.
    """
    task, models = DensityTask(settings.recipe()), [_start(settings)] * len(tables)
    first, second = ([{name: np.zeros_like(a) for name, a in m.items()} for m in models] for _ in range(2))
    for step in range(1, settings.steps + 1):
        work, owner = [], []
        for number, table in enumerate(tables):
            work += [_work(rows, models[number], {}, (seed, step, number, place)) for place, rows in enumerate(table)]
            owner += [number] * len(table)
        share = settings.settings(1, noise / sqrt(len(tables[0])), optimizer="sgd")
        updates = task.train(task.recipe.module, models[0], work, share)
        for number, table in enumerate(tables):
            own = [update.arrays for update, one in zip(updates, owner, strict=True) if one == number]
            mean = _mean(own, [len(rows) for rows in table])
            models[number] = {
                name: _adam(old, (old - mean[name]) / settings.rate, first[number], second[number], name, step, settings.rate)
                for name, old in models[number].items()
            }  # fmt: skip
    return [_module(settings, arrays) for arrays in models]


def drawn(module: ConditionalFlow, rows: int, rng: np.random.Generator) -> Floats:
    """(rows, 19) scaled draws."""
    base = torch.from_numpy(rng.standard_normal((rows, len(COLUMNS))))
    found: Floats = module.draw(base, torch.ones(rows, module.context, dtype=base.dtype)).numpy()
    return found


def moments(
    table: Sequence[Floats], noise: float, rng: np.random.Generator, shared: bool = True, rows: int = 500
) -> Floats:
    """(rows, 19) scaled draws of the library's ``moments`` by one sum over hospitals' scaled rows, missing cells at the centre.

    noise: its standard deviation in the sum, each patient's vector having length 1 at most; ``shared``: once in all, else once
    for each hospital.
    """
    complete = Schema(name="complete", columns=tuple(c.model_copy(update={"nullable": False}) for c in SCHEMA.columns))
    method = Moments(_Everybody.of(complete))
    size, patients = method.size(1, {}), sum(len(part) for part in table)
    deviation = noise * (1.0 if shared else sqrt(len(table)))
    total = deviation * rng.standard_normal(size)
    for part in table:
        z = np.concatenate([np.nan_to_num(part), np.ones((len(part), 1))], axis=1)
        total = total + clipped_total(method, 1, {}, z, np.arange(len(part)), len(part))
    state = method.absorb(1, {"classes": np.ones(1)}, total / patients, deviation / patients)
    return method.synthesizer(state).sample(rows, rng)[:, : len(COLUMNS)]


def batch_norm(patients: Floats, quick: bool = False) -> dict[str, dict[str, float]]:
    """By how many times the clip of 10 a record moves the clipped sum of 32 complete patients' gradients, in the published form
    of flow and without its batch norm: the largest among them, and one whose every value is six spreads too high.
    """
    n, blocks, hidden = (6, 2, 8) if quick else (32, 5, 50)
    found = {}
    for name, with_it in (("with batch norm", True), ("without", False)):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(torch_seed(0, "batch norm"))
            module = published_flow(len(COLUMNS), 0, blocks, hidden, with_it).double()
        found[name] = moved(module, scaled(patients[:n]), 10.0)
    return found


def moved(module: ConditionalFlow, rows: Floats, clip: float) -> dict[str, float]:
    """By how many times ``clip`` a record moves the clipped sum of (n, 19) scaled rows: the largest among them, and the first
    one's if its every value were six spreads higher. ``module`` is left in training mode.
    """
    given = torch.from_numpy(rows)
    largest = influence(module, given, clip).max()
    wrong = torch.cat([given[:1] + 6, given[1:]])
    apart = clipped_sum_at_once(module, wrong, clip) - clipped_sum_at_once(module, wrong[1:], clip)
    return {"largest": float(largest), "wrong": float(apart.norm()) / clip}


def _start(settings: FlowSettings) -> Arrays:
    return {name: value.numpy() for name, value in initialise(settings.recipe().module, torch_seed(0, "model")).items()}


def _work(rows: Floats, begin: Arrays, kept: Arrays, key: tuple[int, ...]) -> SiteWork:
    n = len(rows)
    mean, std = public_standardiser(SCHEMA)
    own = Rows(rows * std + mean, np.zeros(n, dtype=np.int64), np.arange(n), n)
    sampling, noise, layers = (keyed_stream(key[0], purpose, *key[1:]) for purpose in ("batches", "noise", "layers"))
    return SiteWork(own, sampling, noise, float(n), kept, layers, own=begin)


def _mean(arrays: Sequence[Arrays], weights: Sequence[int]) -> Arrays:
    return {
        name: np.average([one[name] for one in arrays], axis=0, weights=weights).astype(a.dtype)
        for name, a in arrays[0].items()
    }


def _adam(
    old: Floats, gradient: Floats, first: Arrays, second: Arrays, name: str, step: int, rate: float
) -> NDArray[np.float64]:
    first[name] = 0.9 * first[name] + 0.1 * gradient
    second[name] = 0.999 * second[name] + 0.001 * gradient**2
    root = np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
    found = old - rate * first[name] / (1 - 0.9**step) / root
    return np.asarray(found, dtype=old.dtype)


def _module(settings: FlowSettings, arrays: Arrays) -> ConditionalFlow:
    return settings.recipe().flow_of(arrays).double()
