"""The audit of task synthesis, whose rows are as wide as the schema says: no canary can have a column of its own.

So every canary has a hospital of its own in place of it. The auditor, who plays the server, chooses what is public: a critic
whose dropout draws nothing, a generator that gives one row always, and the questions of a method's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.shard import Rows, Shard
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise
from polyclinic.objectives.objective import made_up_labels
from polyclinic.privacy.statistics import PatientTotal
from polyclinic.privacy.streams import Stream, torch_seed
from polyclinic.synthesis.games.fakes import fake_rows, generator_of, pairs
from polyclinic.synthesis.games.game import Game, Published
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import SumsMethod, class_frequencies, clipped_total
from polyclinic.training.auditing.faults import Train, train_unchecked
from polyclinic.training.auditing.law import ROUNDING, Finding
from polyclinic.training.auditing.subject import Claim, Subject, arrays_with_noise, moves, neighbours
from polyclinic.training.preparation import PatientSums
from polyclinic.training.synthesis import ROUND, GameTask, SumsTask
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder

_NO_PLACE = {"batch-norm": "a model, of which a sum has none", "shuffled": "batches, of which a sum takes none"}


def count_classes(shard: Shard) -> PatientTotal:
    """The training patients of each class, as they are paid for."""
    return PatientSums(shard.schema, by_class=True).exact(shard)


@dataclass(frozen=True, eq=False)
class Fixed(Subject):
    """Task synthesis. ``parts``: of sums, a subject for each round, by its ``number``.

    ``published``: the training keeps no epsilon, so that only what breaks it is looked for. ``counts``: what of the labels is
    paid for before.
    """

    layout: Layout = field(kw_only=True)
    parts: tuple[Fixed, ...] = ()
    number: int = 0
    published: Published | None = None
    counts: Callable[[Shard], PatientTotal] = count_classes

    def model(self, extra: int = 0) -> tuple[Builder, Arrays]:
        """The builder and the arrays; nothing is made wider."""
        if isinstance(self.task, SumsTask):
            return self.build(self.features), {}
        build = self.fault.build(self.build(self.features), self.layout.width)
        first = initialise(build, torch_seed(self.seed or 0, "audit", "model"))
        return build, {name: value.double().numpy() for name, value in first.items()}

    @property
    def numbers(self) -> int:
        """How many numbers of a round have noise."""
        if isinstance(self.task, SumsTask):
            return self.task.size
        build, arrays = self.model()
        return sum(arrays[name].size for name in arrays_with_noise(self, build, arrays))

    @property
    def canaries(self) -> Callable[[int, int, int, float, Stream], Rows]:
        """Different patients of one row, within the schema's bounds."""
        return _different


def of_sums(method: SumsMethod, claim: Claim) -> Fixed:
    """All rounds of a method, whose questions are those that the patients' own sums would lead to.

    Raises ConfigError for a fault that a sum has no place for.
    """
    fault, patients = claim.fault.name, claim.patients
    if fault in _NO_PLACE:
        raise ConfigError(f"The fault {fault!r} is of {_NO_PLACE[fault]}.")
    layout, z = method.layout, method.layout.rows(patients.x, patients.y)
    parts = []
    labels = made_up_labels(claim.columns, claim.classes) if claim.columns else np.arange(claim.classes)
    alone = vars(replace(claim, rounds=1))
    state: Arrays = {
        "classes": class_frequencies(np.bincount(layout.labels(z), minlength=layout.classes).astype(np.float64)),
        "patients": np.array([float(patients.patients)]),
    }
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        task: Any = SumsTask(method, {ROUND: np.array([round]), **question})
        parts.append(
            Fixed(
                **alone, task=task, build=lambda features: nn.Sequential, labels=labels, layout=layout, number=round
            )
        )  # fmt: skip
        total = clipped_total(method, round, question, z, patients.patient, patients.patients)
        state = method.absorb(round, state, total / patients.patients, 1e-9)
    # The round of the most numbers tells the most canaries apart: a last one may have two.
    return replace(max(parts, key=lambda part: part.numbers), parts=tuple(parts), rounds=method.rounds)


def of_game(game: Game, layout: Layout, claim: Claim) -> Fixed:
    """Rounds of a game against a generator that draws nothing.

    Args:
        game: The game.
        layout: The layout of the rows.
        claim: What training claims, and what is planted.
    """
    game = replace(game, core=lambda at: _Still(at.label.start), begin=lambda at: {})
    task: Any = GameTask(game, layout, clips=False).with_question({})
    if claim.fault.train:
        claim = replace(claim, fault=replace(claim.fault, train=_in_pairs(task)))
    return Fixed(
        **vars(claim), task=task, build=lambda features: lambda: _steady(game.critic(layout)), layout=layout,
        published=game.published,
    )  # fmt: skip


def label_counts(subject: Fixed) -> Finding:
    """The most that one patient moves the counts of labels that are paid for, over what the noise is made for."""
    both = neighbours(subject)
    counted = [
        subject.counts(Shard("audit", subject.layout.schema, r.x, r.y, r.patient, np.zeros(r.patients, dtype=bool)))
        for pair in both.values() for r in pair
    ]  # fmt: skip
    distances, most = moves(both, np.array([counts.total for counts in counted])), counted[0].sensitivity
    name = max(distances, key=distances.__getitem__)
    what = f"most that a patient moves the counts, over their noise's: {name}"
    return Finding("label counts", what, distances[name] / most, 0.0, 1.0 + ROUNDING)


class _Still(nn.Module):
    """A generator's network that gives the same row always."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        return torch.zeros(len(label), self.columns)


def _different(features: int, classes: int, count: int, scale: float, stream: Stream) -> Rows:
    x = np.asarray(scale * (2.0 * stream.uniform((count, features)) - 1.0), dtype=np.float64)
    return Rows(x, (stream.uniform(count) * classes).astype(np.int64), np.arange(count), count)


def _steady(module: nn.Module) -> nn.Module:
    """``module``, whose dropout drops nothing."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return module


def _in_pairs(task: GameTask) -> Train:
    """The critic's step on pairs, without the check that refuses a critic which mixes patients."""

    def train(build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        game, layout = task.game, task.layout
        assert game is not None and layout is not None
        generator, rng = generator_of(game, layout, task.question), np.random.default_rng(0)
        tables = []
        for site in work:
            z = layout.rows(site.rows.x, site.rows.y, site.number)
            fakes = fake_rows(generator, game, layout, layout.labels(z), rng)
            tables.append(pairs(game, layout, z, site.rows.patient, site.rows.patients, fakes))
        both = [replace(site, rows=rows) for site, rows in zip(work, tables, strict=True)]
        return train_unchecked(build, arrays, both, replace(settings, loss=game.loss))

    return train
