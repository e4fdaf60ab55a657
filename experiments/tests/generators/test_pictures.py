"""Scores of pictures: known values of the definitions, scipy, and scikit-learn's digits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm
from sklearn.datasets import load_digits

from polyclinic.errors import DataError
from polyclinic_studies.generators.pictures import (
    PictureClassifier,
    coverage,
    fit_classifier,
    frechet_distance,
    generate_score,
    inception_score,
    label_agreement,
)


def test_inception_score_runs_from_one_to_the_number_of_classes() -> None:
    certain = np.eye(10).repeat(3, axis=0)
    assert inception_score(certain) == pytest.approx(10)
    assert inception_score(np.full((5, 10), 0.1)) == pytest.approx(1)
    assert inception_score(certain[:3]) == pytest.approx(1)  # one class only
    # Two pictures, (1, 0) and (1/2, 1/2): mean (3/4, 1/4), divergences ln 4/3 and (ln 2/3 + ln 2)/2 = (ln 4/3)/2.
    assert inception_score([[1.0, 0.0], [0.5, 0.5]]) == pytest.approx((4 / 3) ** 0.75)
    assert inception_score(np.empty((0, 10))) is None and inception_score([[np.nan, 1.0]]) is None


def test_generate_score_is_a_place_in_its_set_and_not_monotone() -> None:
    found = generate_score({"a": 2.0, "b": 5.0, "c": 8.0})
    assert found == {"a": pytest.approx(0.5), "b": pytest.approx(0.0), "c": pytest.approx(0.5)}
    assert generate_score({"a": 2.0}) == {"a": None}
    assert generate_score({"a": 2.0, "b": 2.0}) == {"a": None, "b": None} and generate_score({}) == {}


def test_frechet_distance_of_known_gaussians_and_against_scipy() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    b = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + 0.5
    sa, sb = np.cov(a.T), np.cov(b.T)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(sa + sb - 2 * sqrtm(sa @ sb).real)
    assert frechet_distance(a, b) == pytest.approx(expected)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-8)
    assert frechet_distance(a, a + 2.0) == pytest.approx(5 * 4.0)
    scale = np.array([[-1.0], [1.0]])
    assert frechet_distance(scale, 3 * scale) == pytest.approx((3 - 1) ** 2 * 2)  # (s1 - s2)^2 of one dimension
    assert frechet_distance(a[:1], b) is None and frechet_distance(a * np.nan, b) is None
    with pytest.raises(DataError, match="same H"):
        frechet_distance(a, b[:, :2])


def test_label_agreement() -> None:
    assert label_agreement([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1]) == pytest.approx(2 / 3)
    assert label_agreement(np.empty((0, 2)), []) is None


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, PictureClassifier]:
    data = load_digits()
    pictures, labels = data.images / 16, data.target
    return pictures, labels, fit_classifier(pictures[:1200], labels[:1200], seed=1)


def test_scores_put_real_digits_above_blurred_above_noise(
    digits: tuple[np.ndarray, np.ndarray, PictureClassifier],
) -> None:
    pictures, labels, judge = digits
    held_out, asked = pictures[1200:], labels[1200:]
    rng = np.random.default_rng(0)
    sets = {
        "real": held_out,
        "blurred": 0.5 * held_out + 0.5 * held_out.mean(axis=0),
        "noise": rng.random(held_out.shape),
    }
    inception = {name: inception_score(judge.probabilities(x)) or 0 for name, x in sets.items()}
    assert 7 < inception["real"] <= judge.classes == 10
    assert inception["real"] > inception["blurred"] > inception["noise"] > 1
    distance = [frechet_distance(judge.features(pictures[:597]), judge.features(x)) or 0 for x in sets.values()]
    assert distance[0] < distance[1] < distance[2]
    agreement = [label_agreement(judge.probabilities(x), asked) or 0 for x in sets.values()]
    assert agreement[0] > 0.9 and agreement[2] < 0.3


def test_two_classes_and_scikit_learns_probabilities(
    digits: tuple[np.ndarray, np.ndarray, PictureClassifier],
) -> None:
    pictures, labels, _ = digits
    few = labels < 2
    judge = fit_classifier(pictures[few], labels[few], hidden=8)
    p = judge.probabilities(pictures[few])
    assert judge.classes == 2 and p.sum(axis=1) == pytest.approx(np.ones(few.sum()))
    assert (label_agreement(p, labels[few]) or 0) > 0.95


def test_bad_pictures_are_refused(digits: tuple[np.ndarray, np.ndarray, PictureClassifier]) -> None:
    pictures, labels, judge = digits
    with pytest.raises(DataError, match="16 pixels, and the classifier was fitted on 64"):
        judge.features(np.zeros((2, 4, 4)))
    with pytest.raises(DataError, match="missing pixel"):
        judge.features(np.full((2, 8, 8), np.nan))
    with pytest.raises(DataError, match="0..K-1"):
        fit_classifier(pictures[labels > 0], labels[labels > 0])


def test_coverage_falls_with_every_mode_that_is_left_out() -> None:
    rng = np.random.default_rng(0)
    centres = 10.0 * np.eye(4, 9)
    real = np.concatenate([centre + rng.normal(size=(50, 9)) for centre in centres])
    for modes in (1, 2, 4):
        drawn = np.concatenate([centre + rng.normal(size=(200, 9)) for centre in centres[:modes]])
        assert coverage(real, drawn) == pytest.approx(modes / 4, abs=0.03)
    assert coverage(real, np.repeat(real[:1], 100, axis=0)) < 0.125  # less than half of its own mode
    assert coverage(real[:5], real) is None
