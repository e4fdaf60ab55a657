"""What breaks the guarantee that a game's publication states: one patient in a batch's average, and how batches are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.training.auditing.audit import as_claimed, several
from polyclinic.training.auditing.canaries import noiseless
from polyclinic.training.auditing.fixed import Fixed
from polyclinic.training.auditing.law import ROUNDING, Finding
from polyclinic.training.auditing.subject import moves, neighbours, nobody, noisy_sums
from polyclinic.training.synthesis import GameTask
from polyclinic_studies.published_games.training import AsPublished

# Weights so many times larger: a guarantee holds for any model that a round begins from.
_LARGER = (1.0, 10.0)
# No noise, and yet the steps of a publication.
_NOTHING = 1e-300
_ROUNDS, _SITES, _PATIENTS = 10, 20, 40
# A critic of more numbers is looked at in fewer places, which is as much as memory holds.
_LARGE, _LARGE_ROUNDS, _LARGE_SITES, _LARGE_PATIENTS = 200_000, 10, 2, 8


def published_findings(subject: Fixed, how: AsPublished) -> list[Finding]:
    """What one patient does to a batch, over its share of the clip norm, and whether batches are what accountants assume."""
    return [_sensitivity(subject, how), *_batches(subject)]


def _sensitivity(subject: Fixed, how: AsPublished) -> Finding:
    """An average is a sum over the batch's size, so that a patient may move it by C over that size and no more.

    Where batches are of one patient, that patient alone is looked at.
    """
    settings = noiseless(subject.settings)
    clip, batch = how.batch_clip, round(subject.settings.sample_rate * subject.patients.patients)
    quiet = _quiet(subject, clip)
    build, arrays = quiet.model()
    pairs = neighbours(subject)
    if batch <= 1:
        pairs = {name: (_last(rows), nobody(subject)) for name, (rows, _) in pairs.items()}
    size = 1 if batch <= 1 else min(both.patients for pair in pairs.values() for both in pair)
    found: dict[str, float] = {}
    for larger in _LARGER:
        hospitals = [
            quiet.hospital(rows, settings, "neighbours", name, side)
            for name, both in pairs.items() for side, rows in enumerate(both)
        ]  # fmt: skip
        weights = {name: larger * value for name, value in arrays.items()}
        averages = noisy_sums(quiet, build, weights, hospitals, settings)[0][0]
        shares = {
            name: moved * size / (clip or settings.max_grad_norm) for name, moved in moves(pairs, averages).items()
        }
        found = {name: max(share, found.get(name, 0.0)) for name, share in shares.items()}
    name = max(found, key=found.__getitem__)
    what = f"most that a patient moves a batch's average, over its share of C: {name}"
    return Finding("sensitivity", what, found[name], 0.0, 1.0 + ROUNDING)


def _last(rows: Rows) -> Rows:
    """The last patient alone, as who is added comes last."""
    mine = rows.patient == rows.patients - 1
    return Rows(rows.x[mine], rows.y[mine], np.zeros(int(mine.sum()), dtype=np.int64), 1)


def _batches(subject: Fixed) -> list[Finding]:
    """How often each of some patients is in a round, against Poisson samples."""
    quiet = _quiet(subject, None)
    build, arrays = quiet.model()
    large = sum(value.size for value in arrays.values()) > _LARGE
    rounds, sites, patients = (_LARGE_ROUNDS, _LARGE_SITES, _LARGE_PATIENTS) if large else (_ROUNDS, _SITES, _PATIENTS)
    rows, known = several(quiet, build, arrays, patients)
    rate = max(subject.settings.sample_rate, 1.0 / rows.patients)
    settings = replace(subject.settings, sample_rate=rate, noise_multiplier=0.0)
    hospitals = [quiet.hospital(rows, settings, "sampling", site) for site in range(sites)]
    sums = noisy_sums(quiet, build, arrays, hospitals, settings, rounds)[0]
    size = max(1, round(rate * rows.patients))
    return list(as_claimed(quiet.views(settings)[0], np.rint(known.counts(sums * size / rate))))


def _quiet(subject: Fixed, clip: float | None) -> Fixed:
    task = subject.task
    assert isinstance(task, GameTask) and task.game is not None
    return replace(subject, task=replace(task, game=replace(task.game, published=AsPublished("", _NOTHING, clip))))
