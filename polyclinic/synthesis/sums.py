"""Methods that need of hospitals only sums over patients: what one round asks, and the one place that clips.

Every patient's vector is clipped to L2 norm 1, so that adding or removing a patient moves a sum by at most 1.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from polyclinic.ehr.checks import Floats, Ints
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Arrays, Synthesizer

# Numbers in the vectors that are held at once.
_AT_ONCE = 1 << 22
# A clipped vector stays below 1 whatever rounding does.
_MARGIN = 1.0 - 1e-9


class SumsMethod(Protocol):
    """A method of ``rounds`` sums. ``state`` holds what was made of the sums so far, all of it public; it begins with
    ``classes``, (K,) frequencies of the label.
    """

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def rounds(self) -> int: ...

    def question(self, round: int, state: Arrays) -> Arrays:
        """What hospitals must be told for the sum of ``round``, from 1 on."""
        ...

    def size(self, round: int, state: Arrays) -> int:
        """How many numbers that sum has."""
        ...

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) what each patient adds; of a patient with several rows in (n, D) ``z`` their mean."""
        ...

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state. mean: (size,) noisy sum by the number of patients; noise: standard deviation in each of its entries."""
        ...

    def synthesizer(self, state: Arrays) -> Synthesizer:
        """What the last state draws by."""
        ...


def clipped_total(
    method: SumsMethod, round: int, question: Arrays, size: int, z: Floats, patient: Ints, patients: int
) -> Floats:
    """(size,) sum of the patients' vectors, each clipped to L2 norm 1; one that is not finite counts as zero.

    Neighbouring relation: add or remove one patient. Raises ValueError where the method gives vectors of another size.
    """
    total = np.zeros(size)
    order = np.argsort(patient, kind="stable")
    ends = np.searchsorted(patient[order], np.arange(patients + 1))
    at_once = max(1, _AT_ONCE // max(size, 1))
    first = 0
    while first < patients:
        # By rows: one patient with very many must not end the hospital's memory, which would be seen.
        last = int(np.searchsorted(ends, ends[first] + at_once, side="right")) - 1
        last = min(max(last, first + 1), first + at_once, patients)
        rows, found = order[ends[first] : ends[last]], np.zeros((last - first, size))
        pieces = np.split(rows, range(at_once, len(rows), at_once))
        for some in pieces:
            given = method.contributions(round, question, z[some], patient[some] - first, last - first)
            if given.shape != found.shape:
                raise ValueError(f"{method.name} gives vectors of shape {given.shape}, needed is {found.shape}.")
            # More than one piece are one patient's: the mean of all rows from the pieces' means.
            found += np.asarray(given, dtype=np.float64) * (len(some) / len(rows) if len(pieces) > 1 else 1.0)
        total += _clipped(found).sum(axis=0)
        first = last
    return total


def _clipped(vectors: Floats) -> Floats:
    vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    # By the largest entry first: the square of a large number is infinite.
    scaled = vectors / np.maximum(largest, 1.0)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True) * np.maximum(largest, 1.0)
    clipped: Floats = np.where(norms > 1.0, vectors / np.maximum(norms, 1.0), vectors) * _MARGIN
    return clipped


def mean_of_rows(values: Floats, patient: Ints, patients: int) -> Floats:
    """(patients, k) means of each patient's rows of (n, k) ``values``; zero for one without rows."""
    counts = np.bincount(patient, minlength=patients)
    if len(values) == patients and (counts == 1).all():
        found = np.empty_like(values)
        found[patient] = values
        return found
    total = np.zeros((patients, values.shape[1]))
    np.add.at(total, patient, values)
    return total / np.maximum(counts, 1)[:, None]


def class_frequencies(counts: Floats) -> Floats:
    """(K,) a distribution from noisy counts: each class keeps a little, so that none is impossible."""
    positive = np.maximum(counts, max(1e-3 * float(np.abs(counts).sum()), 1.0))
    found: Floats = positive / positive.sum()
    return found


def fit_centrally(
    method: SumsMethod, z: Floats, patient: Ints, patients: int, noise_multiplier: float, rng: np.random.Generator,
) -> Synthesizer:  # fmt: skip
    """All rounds over one table, as a trusted curator would; each round's sum has Gaussian noise of ``noise_multiplier``.

    The frequencies of classes are had with the same noise, as one more release. Not private at noise 0.
    """
    label = mean_of_rows(z[:, method.layout.label], patient, patients).sum(axis=0)
    state: Arrays = {"classes": class_frequencies(label + noise_multiplier * rng.standard_normal(len(label)))}
    for round in range(1, method.rounds + 1):
        size = method.size(round, state)
        total = clipped_total(method, round, method.question(round, state), size, z, patient, patients)
        noisy = total + noise_multiplier * rng.standard_normal(size)
        state = method.absorb(round, state, noisy / patients, noise_multiplier / patients)
    return method.synthesizer(state)
