"""Hospitals that share no sum: each one's synthesizer, drawn from by its weight."""

from pathlib import Path

import numpy as np
import pytest

from polyclinic.errors import ConfigError, DataError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.mixture import HospitalMoments, Mixture
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import fit_centrally
from polyclinic.synthesis.synthesizer import Synthesizer, load, save
from tests.synthesis.tables import numbers_only

LAYOUT = Layout.of(numbers_only(2, 2))


def hospital(level: float, ill: float, method: Moments | Independent) -> Synthesizer:
    rng = np.random.default_rng(0)
    y = (rng.random(3_000) < ill).astype(np.int64)
    z = np.concatenate([rng.normal(level, 0.5, (3_000, 2)), np.eye(2)[y]], axis=1)
    return fit_centrally(method, z, np.arange(len(z)), len(z), 0.0, rng)


def test_only_the_mixture_keeps_hospitals_apart() -> None:
    assert HospitalMoments(LAYOUT, radius=2.0).separate
    assert not Moments(LAYOUT).separate


def test_rows_come_from_parts_by_weight_and_class() -> None:
    method = HospitalMoments(LAYOUT, radius=4.0)
    made = Mixture.of([hospital(-3.0, 0.1, method), hospital(3.0, 0.9, method)], [300.0, 100.0])
    drawn = made.sample(40_000, np.random.default_rng(1))
    assert (drawn[:, 0] > 0).mean() == pytest.approx(0.25, abs=0.01)
    assert drawn[:, -1].mean() == pytest.approx(0.75 * 0.1 + 0.25 * 0.9, abs=0.01)
    ill = made.sample(20_000, np.random.default_rng(1), np.ones(20_000, dtype=np.int64))
    assert (ill[:, -1] == 1).all()
    assert (ill[:, 0] > 0).mean() == pytest.approx(0.25 * 0.9 / (0.75 * 0.1 + 0.25 * 0.9), abs=0.015)


def test_a_mixture_of_different_parts_comes_back_from_its_file(tmp_path: Path) -> None:
    parts = [hospital(0.0, 0.5, Moments(LAYOUT)), hospital(1.0, 0.5, Independent(LAYOUT))]
    made = Mixture.of([*parts, Mixture.of(parts, [1, 1])], np.array([5.0, -2.0, 1.0]))
    save(made, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", LAYOUT)
    for one in (made, again):
        np.testing.assert_array_equal(
            one.sample(50, np.random.default_rng(3)), made.sample(50, np.random.default_rng(3))
        )
    np.testing.assert_allclose(made.weights, [5 / 6, 0, 1 / 6])


def test_parts_of_other_packages_and_wrong_weights_are_refused(tmp_path: Path) -> None:
    made = Mixture.of([hospital(0.0, 0.5, Moments(LAYOUT))], [0.0])
    np.testing.assert_array_equal(made.weights, [1.0])
    with pytest.raises(ValueError, match="kind 'os:system'"):
        Mixture.load(LAYOUT, {"weights": np.ones(1)}, {"parts": [{"kind": "os:system", "options": {}}]})
    with pytest.raises(DataError, match="1 synthesizers has 2 weights"):
        Mixture.of(made.parts, [1.0, 2.0])


def test_a_second_round_which_each_hospital_would_be_asked_otherwise_is_refused() -> None:
    with pytest.raises(ConfigError, match="Option 'rounds' of method 'mixture' is 2; it must be 1"):
        HospitalMoments(LAYOUT, rounds=2)
