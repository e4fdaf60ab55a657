"""Sums over patients, of vectors that someone else computes: the one place that clips them.

Every patient's vector is clipped to L2 norm 1, so that adding or removing a patient moves a sum by at most 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyclinic.types import Floats, Ints

# Numbers in the vectors that are held at once.
_AT_ONCE = 1 << 22
# A clipped vector stays below 1 whatever rounding does.
_MARGIN = 1.0 - 1e-9


#: What each patient adds to a sum: (patients, size) of (n, D) rows, (n,) of whom each is, and how many patients there are; of
#: a patient with several rows their mean.
Contributions = Callable[[Floats, Ints, int], Floats]


def clipped_total(
    contributions: Contributions, size: int, rows: Floats, patient: Ints, patients: int, name: str = "method",
    apart: bool = False,
) -> Floats:  # fmt: skip
    """(size,) sum of the patients' vectors, each clipped to L2 norm 1; one that is not finite counts as zero.

    Neighbouring relation: add or remove one patient.

    Args:
        contributions: Computes the patients' vectors from their rows.
        size: Numbers in a vector.
        rows: (n, d) rows of all patients.
        patient: (n,) index below ``patients`` of each row.
        patients: Number of patients.
        name: Whose vectors they are, in the error's message.
        apart: Computes every patient's vector by itself, so that it is the same bit for bit whoever else is there. Otherwise
            many are computed together, which is faster and rounds by how many they are.

    Raises:
        ValueError: for vectors of another size.
    """
    return _total(contributions, size, rows, patient, patients, (name, apart, _clip))


def exact_total(
    contributions: Contributions, size: int, rows: Floats, patient: Ints, patients: int, name: str = "method"
) -> Floats:
    """(size,) sum of the patients' vectors as they are. Not private.

    Args:
        contributions: Computes the patients' vectors from their rows.
        size: Numbers in a vector.
        rows: (n, d) rows of all patients.
        patient: (n,) index below ``patients`` of each row.
        patients: Number of patients.
        name: Whose vectors they are, in the error's message.

    Raises:
        ValueError: as ``clipped_total`` does.
    """
    return _total(contributions, size, rows, patient, patients, (name, False, lambda vectors: vectors))


def _total(
    contributions: Contributions, size: int, rows: Floats, patient: Ints, patients: int,
    how: tuple[str, bool, Callable[[Floats], Floats]],
) -> Floats:  # fmt: skip
    name, apart, shortened = how
    total = np.zeros(size)
    order = np.argsort(patient, kind="stable")
    ends = np.searchsorted(patient[order], np.arange(patients + 1))
    at_once = max(1, _AT_ONCE // max(size, 1))
    first = 0
    while first < patients:
        # By rows: one patient with very many must not end the hospital's memory, which would be seen.
        last = int(np.searchsorted(ends, ends[first] + at_once, side="right")) - 1
        last = first + 1 if apart else min(max(last, first + 1), first + at_once, patients)
        chosen, vectors = order[ends[first] : ends[last]], np.zeros((last - first, size))
        pieces = np.split(chosen, range(at_once, len(chosen), at_once))
        for some in pieces:
            given = contributions(rows[some], patient[some] - first, last - first)
            if given.shape != vectors.shape:
                raise ValueError(f"{name} gives vectors of shape {given.shape}, needed is {vectors.shape}.")
            # More than one piece are one patient's: the mean of all rows from the pieces' means.
            vectors += np.asarray(given, dtype=np.float64) * (len(some) / len(chosen) if len(pieces) > 1 else 1.0)
        total += shortened(vectors).sum(axis=0)
        first = last
    return total


def _clip(vectors: Floats) -> Floats:
    vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    # By the largest entry first: the square of a large number is infinite.
    scaled = vectors / np.maximum(largest, 1.0)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True) * np.maximum(largest, 1.0)
    clipped: Floats = np.where(norms > 1.0, vectors / np.maximum(norms, 1.0), vectors) * _MARGIN
    return clipped


def mean_of_rows(values: Floats, patient: Ints, patients: int) -> Floats:
    """(patients, k) means of each patient's rows of ``values``; zero for one without rows.

    Args:
        values: (n, k) values of the rows.
        patient: (n,) index below ``patients`` of each row.
        patients: Number of patients.
    """
    counts = np.bincount(patient, minlength=patients)
    if len(values) == patients and (counts == 1).all():
        ordered = np.empty_like(values)
        ordered[patient] = values
        return ordered
    order, present = np.argsort(patient, kind="stable"), counts > 0
    total = np.zeros((patients, values.shape[1]))
    if len(order):
        total[present] = np.add.reduceat(values[order], (np.cumsum(counts) - counts)[present], axis=0)
    return total / np.maximum(counts, 1)[:, None]
