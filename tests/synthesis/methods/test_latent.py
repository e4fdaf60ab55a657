"""Latent classes are found again, and what is drawn from them has their dependence, which columns alone have not."""

from pathlib import Path

import numpy as np
import pytest

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.classes import apart, calibrate, chosen_codes, tilt
from polyclinic.synthesis.methods.draws import pick
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.sums import MOVED, fit_centrally
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.training.synthesis import ROUND, SumsTask
from polyclinic.types import Floats
from tests.synthesis.methods.test_independent import CODES
from tests.synthesis.tables import MIXED, mixed, numbers_only, rows_of


def patients_of_classes(rows: int, seed: int) -> Floats:
    """(rows, 202) of ``CODES``: four classes of 20 codes each, of which a patient has about half; the first class dies."""
    rng = np.random.default_rng(seed)
    latent = rng.integers(0, 4, rows)
    chance = np.full((4, 200), 0.01)
    for number in range(4):
        chance[number, 20 * number : 20 * number + 20] = 0.4
    died = rng.random(rows) < np.where(latent == 0, 0.8, 0.1)
    return np.concatenate([rng.random((rows, 200)) < chance[latent], np.eye(2)[died.astype(int)]], axis=1).astype(float)


def test_no_vector_is_longer_than_one() -> None:
    layout = Layout.of(MIXED)
    method = Latent(layout, classes=3, rounds=4, most=2)
    z = np.concatenate([rows_of(layout, mixed(60, 1)), np.random.default_rng(0).normal(0, 30, (60, layout.width))])
    patient = np.random.default_rng(1).integers(0, 70, 120)
    state = {"classes": np.full(3, 1 / 3)}
    for round in range(1, 5):
        question = method.question(round, state)
        found = method.contributions(round, question, z, patient, 70)
        assert found.shape == (70, method.size(round, question))
        assert np.linalg.norm(found, axis=1).max() <= 1.0 + 1e-12
        state = method.absorb(round, state, found.mean(axis=0), 0.0)


def test_by_how_much_noise_moves_class_means_follows_from_public_numbers() -> None:
    """Six numbers and the class' own make both vectors sqrt(7) long, half of seven later sums tells of them, and a tenth of the
    patients is a class: whatever the sums hold."""
    columns = (Column(name=f"x{place}", kind="continuous", bounds=(-5.0, 5.0)) for place in range(6))
    label = Column(name="died", kind="binary", role="label")
    method = Latent(Layout.of(Schema(name="numbers", unit="record", columns=(*columns, label))))
    state = {"classes": np.array([0.9, 0.1])}
    for means in np.random.default_rng(0).normal(0.0, 0.01, (3, method.size(1, {}))):
        assert method.absorb(1, state, means, 0.001)[MOVED] == pytest.approx(2.0 * 0.001 * np.sqrt(7.0 / 3.5) / 0.1)


@pytest.mark.parametrize("noise, error", [(0.0, 0.2), (2.0, 0.35)])
def test_codes_occur_together_as_in_the_records(noise: float, error: float) -> None:
    layout = Layout.of(CODES)
    z = patients_of_classes(4_000, 0)
    rng = np.random.default_rng(1)
    found = {}
    for method in (Latent(layout, classes=5), Independent(layout)):
        made = fit_centrally(method, z, np.arange(len(z)), len(z), noise, rng)
        found[method.name] = made.sample(4_000, rng)
    together = [np.cov(rows[:, :80].T) * (1 - np.eye(80)) for rows in (z, found["latent"], found["independent"])]
    assert np.linalg.norm(together[1] - together[0]) < error * np.linalg.norm(together[0])
    assert np.linalg.norm(together[2] - together[0]) > 0.6 * np.linalg.norm(together[0])
    counts = [np.sort(rows[:, :200].sum(axis=1)) for rows in (z, found["latent"])]
    assert np.abs(counts[0] - counts[1]).mean() < 0.2
    dies = [rows[rows[:, :20].sum(axis=1) > 4][:, -1].mean() for rows in (z, found["latent"])]
    assert dies[1] == pytest.approx(dies[0], abs=0.1)


def test_numeric_columns_have_their_means_and_spread() -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(6_000, 2))
    rng = np.random.default_rng(0)
    made = fit_centrally(Latent(layout, classes=6, rounds=10), z, np.arange(len(z)), len(z), 0.0, rng)
    real, records = layout.decode(z), layout.decode(made.sample(20_000, rng))
    for name in ("age", "lactate", "sbp_01"):
        assert records[name].mean() == pytest.approx(real[name].mean(), rel=0.06)
        assert records[name].std() == pytest.approx(real[name].std(), rel=0.2)
        assert records[name].isna().mean() == pytest.approx(real[name].isna().mean(), abs=0.02)
    assert records["age"].corr(records["lactate"]) > 0.5 * real["age"].corr(real["lactate"])
    for name in ("male", "ward", "stage", "died"):
        shares = [table[name].astype(str).value_counts(normalize=True) for table in (real, records)]
        assert shares[0].sub(shares[1], fill_value=0.0).abs().max() < 0.06, name


def test_columns_tell_the_label_as_they_do_alone() -> None:
    """An outcome of a twelfth that three of eight columns tell, each by little, hardly moves latent classes."""
    rng = np.random.default_rng(0)
    layout = Layout.of(numbers_only(8, 2))
    rows = 8_000
    x = np.clip(rng.normal(size=(rows, 8)) @ np.linalg.cholesky(0.7 * np.eye(8) + 0.3).T, -4, 4)
    y = (rng.random(rows) < 1 / (1 + np.exp(3.0 - 0.8 * x[:, 0] + 0.8 * x[:, 1] - 0.6 * x[:, 2]))).astype(np.int64)
    z = np.concatenate([x, np.eye(2)[y]], axis=1)
    made = fit_centrally(Latent(layout, classes=6, rounds=6), z, np.arange(rows), rows, 0.5, rng)
    drawn = made.sample(40_000, rng)
    labels = layout.labels(drawn)
    for label in (0, 1):
        np.testing.assert_allclose(drawn[labels == label, :8].mean(axis=0), x[y == label].mean(axis=0), atol=0.12)
    np.testing.assert_allclose(drawn[:, :8].std(axis=0), x.std(axis=0), rtol=0.12)


def test_tilted_frequencies_have_the_mean_that_is_wanted() -> None:
    rng = np.random.default_rng(0)
    frequencies, weights = rng.uniform(0.05, 0.9, (4, 30)), rng.dirichlet(np.ones(4))
    wanted = weights @ frequencies * rng.uniform(0.5, 1.2, 30)
    found = tilt(frequencies, weights, wanted)
    np.testing.assert_allclose(weights @ found, wanted, rtol=5e-3)
    np.testing.assert_array_equal(np.argsort(found, axis=0), np.argsort(frequencies, axis=0))
    np.testing.assert_allclose(tilt(frequencies, weights, weights @ frequencies), frequencies, rtol=1e-9)


def test_differences_that_noise_explains_are_taken_out() -> None:
    rng = np.random.default_rng(0)
    shares, pooled = np.full(10, 0.1), np.full(50, 0.2)
    means = np.tile(pooled, (10, 1))
    means[0, :10] = 0.9
    sums = shares[:, None] * means + rng.normal(0, 0.01, (10, 50))
    found = apart(sums, shares, pooled, 0.01)
    assert ((found - means) ** 2).sum() < 0.25 * ((sums / shares[:, None] - means) ** 2).sum()
    np.testing.assert_allclose(apart(sums, shares, pooled, 0.0), sums / shares[:, None])


def test_codes_are_chosen_by_their_frequencies_and_as_many_as_said() -> None:
    frequencies = np.array([[0.9, 0.6, 0.3, 0.15, 0.05]])
    count = np.full(100_000, 2)
    found = chosen_codes(frequencies, np.zeros(100_000, dtype=np.int64), count, np.random.default_rng(0))
    assert (found.sum(axis=1) == 2).all()
    np.testing.assert_allclose(found.mean(axis=0), frequencies[0], atol=0.04)
    # Fewer are the likelier ones.
    alone = chosen_codes(frequencies, np.zeros(20_000, dtype=np.int64), np.ones(20_000), np.random.default_rng(0)).mean(
        0
    )
    assert (np.diff(alone) < 0).all()


def test_codes_are_as_frequent_over_all_classes_as_wanted() -> None:
    rng = np.random.default_rng(0)
    frequencies = rng.uniform(0.01, 0.6, (3, 12))
    shares, counts = np.array([0.5, 0.3, 0.2]), rng.dirichlet(np.ones(8), 3)
    plain = chosen_codes_of(frequencies, shares, counts)
    wanted = plain * rng.uniform(0.85, 1.15, 12)
    wanted *= plain.sum() / wanted.sum()
    found = chosen_codes_of(calibrate(frequencies, shares, counts, wanted), shares, counts)
    assert np.abs(found - wanted).max() < 0.02
    assert np.abs(found - wanted).sum() < 0.5 * np.abs(plain - wanted).sum()


def chosen_codes_of(frequencies: Floats, shares: Floats, counts: Floats) -> Floats:
    """How often each code is drawn."""
    rng = np.random.default_rng(1)
    latent = rng.choice(3, 60_000, p=shares)
    count = pick(counts[latent], rng)
    return np.asarray(chosen_codes(frequencies, latent, count, rng).mean(axis=0))


def test_labels_condition_and_draws_follow_the_stream(tmp_path: Path) -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(1_000, 4))
    method = Latent(layout, classes=3, rounds=4)
    made = fit_centrally(method, z, np.arange(len(z)), len(z), 1.0, np.random.default_rng(0))
    labels = np.arange(100) % 3
    drawn = made.sample(100, np.random.default_rng(5), labels)
    np.testing.assert_array_equal(layout.labels(drawn), labels)
    save(made, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", layout)
    np.testing.assert_array_equal(again.sample(100, np.random.default_rng(5), labels), drawn)


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("noise", [0.0, 50.0])
def test_poor_tables_and_few_rounds_do_not_crash(noise: float, rounds: int) -> None:
    layout = Layout.of(MIXED)
    rng = np.random.default_rng(0)
    constant = np.tile(rows_of(layout, mixed(1, 5)), (40, 1))
    for z in (constant, constant[:0]):
        method = Latent(layout, classes=4, rounds=rounds)
        made = fit_centrally(method, z, np.arange(len(z)), max(len(z), 1), noise, rng)
        layout.decode(made.sample(20, rng))
        assert made.sample(0, rng).shape == (0, layout.width)


@pytest.mark.parametrize("wrong", [{"bias": np.zeros((3, 1))}, {"weights": np.zeros(7)}, {"histograms": np.ones(4)}])
def test_a_question_of_other_shapes_is_refused_whatever_the_rows(wrong: dict[str, Floats]) -> None:
    """Broadcast, such arrays would fail or not by how many rows there are."""
    layout = Layout.of(MIXED)
    method = Latent(layout, classes=3, rounds=4)
    used = Bins.of(layout, method.bins).used
    fitting = {"histograms": used / used.sum(axis=1, keepdims=True), "bias": np.zeros(3),
               "weights": np.zeros((3, len(method._scale)))}  # fmt: skip
    z = rows_of(layout, mixed(3, 1))
    assert method.contributions(3, fitting, z, np.arange(3), 3).shape == (3, method.size(3, fitting))
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must have shape"):
        method.contributions(3, {**fitting, **wrong}, z, np.arange(3), 3)
    with pytest.raises(ConfigError, match="watched must be whole numbers"):
        method.contributions(2, {**fitting, "watched": np.array([-1])}, z, np.arange(3), 3)


def test_a_question_that_makes_vectors_infinite_is_refused_before_any_row_is_read() -> None:
    layout = Layout.of(MIXED)
    method = Latent(layout, classes=3, rounds=4)
    used = Bins.of(layout, method.bins).used
    question = {ROUND: np.array([3]), "histograms": -used.astype(np.float64), "bias": np.zeros(3),
                "weights": np.zeros((3, len(method._scale)))}  # fmt: skip
    with pytest.raises(ConfigError, match="vectors that are not finite"):
        SumsTask(method).with_question(question)


@pytest.mark.parametrize("option, value", [("classes", 0), ("rounds", 2), ("most", 0), ("watched", 1), ("start", -1)])
def test_options_out_of_range_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"Option '{option}' of method 'latent'"):
        Latent(Layout.of(MIXED), **{option: value})
