"""The one place that clips sums: no patient, whatever their rows, moves a sum by more than 1."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import class_frequencies, clipped_total
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True)
class _Means:
    name: str = "means"
    rounds: int = 1

    @property
    def layout(self) -> Layout:
        raise NotImplementedError

    def question(self, round: int, state: Arrays) -> Arrays:
        return {}

    def size(self, round: int, question: Arrays) -> int:
        return 3

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        return mean_of_rows(z, patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        raise NotImplementedError

    def synthesizer(self, state: Arrays) -> Synthesizer:
        raise NotImplementedError


ANY = st.floats(width=64, allow_nan=True, allow_infinity=True)


@given(arrays.arrays(np.float64, (6, 3), elements=ANY), arrays.arrays(np.int64, 6, elements=st.integers(0, 3)))
def test_one_patient_moves_a_sum_by_at_most_one(z: Floats, patient: Ints) -> None:
    together = clipped_total(_Means(), 1, {}, z, patient, 4)
    for gone in range(4):
        kept = patient != gone
        without = clipped_total(_Means(), 1, {}, z[kept], patient[kept], 4)
        assert np.linalg.norm(together - without) <= 1.0


def test_short_vectors_are_summed_as_they_are() -> None:
    z = np.random.default_rng(0).normal(0, 0.1, (50, 3))
    patient = np.random.default_rng(1).integers(0, 20, 50)
    means = [z[patient == one].mean(0) for one in range(20) if (patient == one).any()]
    np.testing.assert_allclose(clipped_total(_Means(), 1, {}, z, patient, 20), np.sum(means, axis=0), rtol=1e-8)


def test_noisy_counts_make_a_distribution() -> None:
    found = class_frequencies(np.array([90.0, -4.0, 10.0]))
    assert found.sum() == 1.0
    assert (found > 0).all()
    assert found.argmax() == 0
