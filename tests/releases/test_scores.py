"""Private metrics: what one patient can change, the noise, and how near the figures come to the exact ones."""

import numpy as np
import pytest

from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import keyed_stream, system_stream
from polyclinic.releases.question import Pricing
from polyclinic.releases.scores import _PARTS, BINS, METRICS, ScoreCounts, Scores, count_scores


def made_up(
    rows: int, classes: int, seed: int, patients: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    odds = rng.normal(size=(rows, classes)) + 1.2 * np.eye(classes)[labels]
    scores = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
    return labels, scores, rng.integers(0, patients or rows, rows) if patients else np.arange(rows)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_one_patient_of_any_number_of_rows_changes_the_noised_counts_by_at_most_the_sensitivity(classes: int) -> None:
    labels, scores, patient = made_up(400, classes, classes, patients=37)
    scores[:5], scores[5:8] = np.nan, [[1.0] + [0.0] * (classes - 1)]
    whole, largest = count_scores(labels, scores, patient) @ _PARTS.T, 0.0
    for gone in np.unique(patient):
        rest = patient != gone
        change = whole - count_scores(labels[rest], scores[rest], patient[rest]) @ _PARTS.T
        largest = max(largest, float(np.linalg.norm(change)))
    alone = count_scores(labels[:1], scores[:1], patient[:1]) @ _PARTS.T
    assert largest <= Scores(classes, 1.0).sensitivity
    assert np.linalg.norm(alone) == pytest.approx(Scores(classes, 1.0).sensitivity, rel=1e-9)


def test_the_released_noise_is_as_declared_and_costs_what_was_asked() -> None:
    noise = Scores.within(2, 1.0, 1, Pricing(1e-5, "pld", "add-remove")).noise_multiplier
    assert 0.99 < epsilon(Scores(2, noise).event, 1e-5) <= 1.0
    empty = np.zeros((1, 2, BINS), dtype=np.int64)
    drawn = np.array([Scores(2, noise).answer(empty, system_stream()).counts[0] for _ in range(1000)])
    bins_of = np.linalg.pinv(_PARTS)
    wanted = (noise * Scores(2, 1.0).sensitivity / FINE) ** 2 * bins_of @ bins_of.T
    found = np.cov(drawn.reshape(-1, BINS).T)
    assert np.abs(drawn.mean(axis=0)).max() < 5 * np.sqrt(wanted.max() / 1000)
    assert found.sum() == pytest.approx(wanted.sum(), rel=0.15)
    assert np.diag(found) == pytest.approx(np.diag(wanted), rel=0.2)


def test_several_releases_share_the_epsilon() -> None:
    noises = [
        Scores.within(2, 1.0, releases, Pricing(1e-5, "pld", "add-remove")).noise_multiplier for releases in (1, 2, 5)
    ]
    assert noises[0] < noises[1] < noises[2]
    assert Scores.within(2, 1.0, 1, Pricing(1e-5, "pld", "replace-one")).noise_multiplier > 1.9 * noises[0]


@pytest.mark.parametrize(("classes", "near"), [(2, 0.01), (4, 0.02)])
def test_private_metrics_of_many_patients_are_near_the_exact_ones(classes: int, near: float) -> None:
    labels, scores, patient = made_up(40_000, classes, 1)
    exact = classification_metrics(labels, scores)
    noise = Scores.within(2, 1.0, 1, Pricing(1e-5, "pld", "add-remove")).noise_multiplier
    found = Scores(classes, noise).answer(count_scores(labels, scores, patient), keyed_stream(0, "t", 0, "s")).values()
    for name in ("auroc", "accuracy", "brier", "loss"):
        assert found[name] == pytest.approx(exact[name], abs=near), name
    assert found["patients"] == pytest.approx(40_000, abs=50)


def test_without_noise_the_figures_are_those_of_binned_scores() -> None:
    labels, scores, patient = made_up(3000, 2, 2)
    counts = ScoreCounts(count_scores(labels, scores, patient) / FINE, 1e-9)
    found = counts.values()
    exact = classification_metrics(labels, scores)
    assert found["accuracy"] == pytest.approx(exact["accuracy"], abs=1e-9) and found["patients"] == pytest.approx(3000)
    assert found["auroc"] == pytest.approx(exact["auroc"], abs=0.005)
    assert sum(cell["patients"] for cell in counts.calibration()) == pytest.approx(3000)


def test_the_error_beside_a_figure_is_that_of_the_noise() -> None:
    labels, scores, patient = made_up(1000, 2, 3)
    exact, noise = count_scores(labels, scores, patient), 3.7
    released = [Scores(2, noise).answer(exact, keyed_stream(seed, "t", 0, "s")) for seed in range(150)]
    for name in ("auroc", "accuracy", "patients"):
        spread = np.std([float(one.values()[name] or 0.0) for one in released])
        assert released[0].estimates()[name]["error"] == pytest.approx(spread, rel=0.35), name


def test_noise_that_drowns_the_counts_defines_nothing() -> None:
    drowned = ScoreCounts(np.full((1, 2, BINS), 0.2), 20.0)
    assert all(drowned.estimates()[name]["value"] is None for name in METRICS if name != "patients")


def test_hospitals_are_pooled_by_adding_their_counts() -> None:
    parts = [ScoreCounts(np.full(Scores(3, 1.0).shape, float(k)), 3.0 * k) for k in (1, 2)]
    pooled = ScoreCounts.pool(parts)
    assert (pooled.counts == 3.0).all() and pooled.deviation == pytest.approx(np.hypot(3.0, 6.0))


def test_near_the_end_of_its_range_a_figure_is_not_told_with_less_noise() -> None:
    """Of 60 patients whose scores separate the classes the noisy AUROC is as uncertain as of those whose scores nearly do."""
    labels = np.arange(60) % 2
    perfect, good = (np.stack([1 - chance, chance], axis=1) for chance in (
        np.where(labels == 1, 0.97, 0.03), np.where((labels == 1) ^ (np.arange(60) % 5 == 0), 0.97, 0.03),
    ))  # fmt: skip
    noise = Scores.within(2, 2.0, 1, Pricing(1e-3, "pld", "add-remove")).noise_multiplier
    errors = {}
    for name, scores in (("perfect", perfect), ("good", good)):
        exact = ScoreCounts(
            count_scores(labels, scores, np.arange(60)) / FINE, noise * Scores(2, 1.0).sensitivity / FINE
        )
        estimates = exact.estimates()
        errors[name] = estimates["auroc"]["error"]
        assert 0 <= estimates["auroc"]["value"] <= 1
    assert errors["perfect"] > errors["good"] > 0.05
