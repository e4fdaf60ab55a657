"""Made-up patients: canaries, and hospitals that differ by one patient, typical or extreme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.streams import Stream, keyed_stream
from polyclinic.training.auditing.subject import Subject
from polyclinic.types import Bools, Reals

_COMPANY = 100
_MANY = 64


def canaries(subject: Subject, count: int, scale: float) -> Rows:
    """``count`` patients of one row, each alone in having ``scale`` in a column of its own behind the patients' columns.

    They are the same in every call and no secret: only which of them take part is. A task may have
    ``canaries(features, classes, count, scale, stream)`` of its own, with such columns.
    """
    own: Any = subject.canaries or getattr(subject.task, "canaries", _one_column_each)
    found: Rows = own(subject.features, subject.classes, count, scale, keyed_stream(0, "audit", "canaries"))
    return found


def _one_column_each(features: int, classes: int, count: int, scale: float, stream: Stream) -> Rows:
    x = np.zeros((count, features + count))
    x[np.arange(count), features + np.arange(count)] = scale
    return Rows(x, (stream.uniform(count) * classes).astype(np.int64), np.arange(count), count)


def joined(patients: Rows, canaries: Rows, included: Bools) -> Rows:
    """The patients, zero in the canaries' columns, and behind them the canaries that are ``included``."""
    extra = np.zeros((len(patients.y), canaries.x.shape[1] - patients.x.shape[1]))
    return Rows.joined([replace(patients, x=np.hstack([patients.x, extra])), canaries.of_patients(included)])


def nobody(subject: Subject, extra: int = 0) -> Rows:
    """No patients, with ``extra`` columns behind the subject's."""
    none = np.zeros(0, dtype=np.int64)
    return Rows(np.zeros((0, subject.features + extra)), none, none, 0)


def neighbours(subject: Subject) -> dict[str, tuple[Rows, Rows]]:
    """Pairs of hospitals by what tells them apart, one patient who is in the first alone."""
    # The first few patients, all of one class: their gradients do not cancel, if another patient shifts them all.
    company = subject.patients.of_patients(np.arange(subject.patients.patients) < _COMPANY)
    company = replace(company, y=np.zeros_like(company.y))
    number = np.arange(company.patients)
    without = {f"patient {i + 1}": company.of_patients(number != i) for i in range(min(4, company.patients - 1))}
    return {**{name: (company, rest) for name, rest in without.items()},
            **{name: (Rows.joined([company, one]), company) for name, one in strangers(subject)}}  # fmt: skip


def moves(pairs: Mapping[str, tuple[Rows, Rows]], seen: Reals) -> dict[str, float]:
    """By how much, in L2, what was seen differs in each pair; seen: (2 pairs, P), infinite where it is not finite."""
    with np.errstate(invalid="ignore"):
        moved = np.linalg.norm(seen[::2] - seen[1::2], axis=1)
    return dict(zip(pairs, np.where(np.isfinite(moved), moved, np.inf).tolist(), strict=True))


def strangers(subject: Subject) -> Iterator[tuple[str, Rows]]:
    """Patients to add, each by a name."""
    row = np.nan_to_num(subject.patients.x[:1])
    for label in range(min(2, subject.classes)):
        for name, x in (
            ("a typical one", row),
            ("one of 1e30", np.full_like(row, 1e30)),
            ("one of NaN", np.full_like(row, np.nan)),
            ("an infinite one", np.full_like(row, np.inf)),
            (f"one with {_MANY} rows", np.repeat(3.0 * row + 1.0, _MANY, axis=0)),
        ):
            yield f"{name}, class {label}", one_patient(x, label)


def one_patient(x: Reals, label: int) -> Rows:
    """A patient with the rows ``x`` of one class."""
    return Rows(np.asarray(x), np.full(len(x), label), np.zeros(len(x), dtype=np.int64), 1)
