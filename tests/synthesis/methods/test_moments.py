"""Moments come out of one noisy sum as they are in the records, and what is drawn has them, noise or not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.basis import Basis, cosines
from polyclinic.synthesis.methods.bins import Bins, distributions
from polyclinic.synthesis.methods.covariance import (
    class_covariances,
    class_means,
    denoise,
    lift,
    on_simplex,
    positive,
    quieten,
    shrunk,
)
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.methods.moments import Moments, present
from polyclinic.synthesis.methods.normal import race
from polyclinic.synthesis.sums import SynthesisMethod, fit_centrally
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.types import Floats
from tests.synthesis.tables import MIXED, mixed, numbers_only, rows_of


def test_cosines_are_orthonormal_and_undone() -> None:
    np.testing.assert_allclose(cosines(7) @ cosines(7).T, np.eye(7), atol=1e-12)
    layout = Layout.of(MIXED)
    basis = Basis.of(layout)
    z = rows_of(layout, mixed(50, 0).dropna())
    u = basis.forward(z)
    np.testing.assert_allclose(basis.turn_back(u) + basis.centre, z[:, : layout.label.start], atol=1e-12)
    apart = z[:, : layout.label.start] - basis.centre
    np.testing.assert_allclose(basis.turned_square(u.T @ u), apart.T @ apart, atol=1e-10)
    np.testing.assert_allclose(basis.square_of(apart.T @ apart), u.T @ u, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"rounds": 2, "radius": 0.4}])
def test_no_vector_is_longer_than_one(options: dict[str, object]) -> None:
    layout = Layout.of(MIXED)
    method = Moments(layout, **options)  # type: ignore[arg-type]
    z = np.concatenate([rows_of(layout, mixed(60, 1)), np.random.default_rng(0).normal(0, 30, (60, layout.width))])
    patient = np.random.default_rng(1).integers(0, 70, 120)
    used = Bins.of(layout, method.bins).used
    state = {"histograms": used / used.sum(axis=1, keepdims=True)}
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        found = method.contributions(round, question, z, patient, 70)
        assert found.shape == (70, method.size(round, question))
        assert np.linalg.norm(found, axis=1).max() <= 1.0 + 1e-12


@pytest.mark.parametrize("rounds", [1, 2])
def test_without_noise_moments_are_those_of_the_records(rounds: int) -> None:
    layout = Layout.of(numbers_only(4, 2))
    rng = np.random.default_rng(0)
    y = (rng.random(20_000) < 0.3).astype(np.int64)
    x = rng.normal(size=(20_000, 4)) @ rng.normal(0, 0.5, (4, 4)) + y[:, None]
    z = np.concatenate([x, np.eye(2)[y]], axis=1)
    made = fit_centrally(Moments(layout, radius=10.0, rounds=rounds), z, np.arange(len(z)), len(z), 0.0, rng)
    drawn = made.sample(200_000, rng)
    for label in (0, 1):
        own = drawn[layout.labels(drawn) == label][:, :4]
        assert len(own) / len(drawn) == pytest.approx((y == label).mean(), abs=0.005)
        # Scores of histograms of 64 bins.
        near = 0.02 if rounds == 1 else 0.05
        np.testing.assert_allclose(own.mean(axis=0), x[y == label].mean(axis=0), atol=near)
        np.testing.assert_allclose(np.cov(own.T), np.cov(x[y == label].T), atol=1.5 * near)


def test_a_patient_of_several_rows_counts_once() -> None:
    layout = Layout.of(numbers_only(2, 1 + 1))
    z = np.array([[1.0, 0.0, 1.0, 0.0], [3.0, 0.0, 1.0, 0.0], [5.0, 5.0, 0.0, 1.0]])
    method = Moments(layout, radius=10.0)
    twice = method.contributions(1, {}, z, np.array([0, 0, 1]), 2)
    each = method.contributions(1, {}, z, np.array([0, 1, 2]), 3)
    np.testing.assert_allclose(twice, [each[:2].mean(axis=0), each[2]])


def test_missing_cells_are_divided_out() -> None:
    layout = Layout.of(MIXED)
    basis = Basis.of(layout)
    whole = mixed(60_000, 2)
    z = rows_of(layout, whole)
    u = basis.forward(z)
    means, covariances, _ = present(basis, u.mean(axis=0)[None], (u.T @ u / len(u))[None], np.ones(1), (0.0, 0.0))
    mean, covariance = means[0], covariances[0]
    seen = whole[["age", "lactate", "sbp_00", "sbp_02"]].to_numpy(dtype=float)
    at = [layout.names.index(name) for name in ("age", "lactate", "sbp_00", "sbp_02")]
    scale = np.array([15.0, 5.0, 45.0, 45.0])
    np.testing.assert_allclose(
        basis.turn_back(mean)[at] * scale + [60, 10, 150, 150], np.nanmean(seen, axis=0), atol=0.01
    )
    found = basis.turned_square(covariance)[np.ix_(at, at)] * np.outer(scale, scale)
    for one in range(4):
        for two in range(4):
            both = ~np.isnan(seen[:, one]) & ~np.isnan(seen[:, two])
            assert found[one, two] == pytest.approx(np.cov(seen[both][:, [one, two]].T, ddof=0)[0, 1], abs=0.01)


@pytest.mark.parametrize("options", [{}, {"rounds": 2}])
def test_every_kind_of_column_is_drawn_as_it_is(options: dict[str, object]) -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(12_000, 3))
    rng = np.random.default_rng(0)
    made = fit_centrally(Moments(layout, radius=5.0, **options), z, np.arange(len(z)), len(z), 0.0, rng)  # type: ignore[arg-type]
    records = layout.decode(made.sample(20_000, rng))
    real = layout.decode(z)
    for name in ("male", "ward", "codes", "stage", "died"):
        real_shares = real[name].astype(str).value_counts(normalize=True)
        shares = records[name].astype(str).value_counts(normalize=True).reindex(real_shares.index).fillna(0.0)
        assert np.abs(shares - real_shares).max() < (0.05 if name in ("stage", "codes") else 0.015), name
    for name in ("age", "lactate", "sbp_01"):
        assert records[name].isna().mean() == pytest.approx(real[name].isna().mean(), abs=0.01)
        assert records[name].mean() == pytest.approx(real[name].mean(), rel=0.01)
        assert records[name].std() == pytest.approx(real[name].std(), rel=0.05)
        older = [table[name].corr(table["codes"].str.contains("401")) for table in (real, records)]
        assert older[1] == pytest.approx(older[0], abs=0.03)
    assert records["age"].corr(records["sbp_01"]) == pytest.approx(real["age"].corr(real["sbp_01"]), abs=0.02)
    assert records["lactate"].max() <= 20.0


def test_labels_condition_and_draws_follow_the_stream(tmp_path: Path) -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(2_000, 4))
    method = Moments(layout, rounds=2)
    made = fit_centrally(method, z, np.arange(len(z)), len(z), 1.0, np.random.default_rng(0))
    labels = np.arange(300) % 3
    drawn = made.sample(300, np.random.default_rng(5), labels)
    np.testing.assert_array_equal(layout.labels(drawn), labels)
    save(made, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", layout)
    np.testing.assert_array_equal(again.sample(300, np.random.default_rng(5), labels), drawn)


def test_a_rare_class_is_not_widened_by_its_noise() -> None:
    rng = np.random.default_rng(0)
    layout = Layout.of(numbers_only(30, 2))
    y = (np.arange(4_000) < 200).astype(np.int64)
    root = np.linalg.cholesky(0.7 * np.eye(30) + 0.3)
    z = np.concatenate([rng.normal(size=(4_000, 30)) @ root.T + 0.5 * y[:, None], np.eye(2)[y]], axis=1)
    made = fit_centrally(Moments(layout), z, np.arange(len(z)), len(z), 2.0, rng)
    drawn = made.sample(5_000, rng, np.ones(5_000, dtype=np.int64))[:, :30]
    assert 0.8 < np.trace(np.cov(drawn.T)) / 30 < 1.1
    apart = np.corrcoef(drawn.T)[np.triu_indices(30, 1)] - 0.3
    assert np.sqrt((apart**2).mean()) < 0.15


def test_noise_is_taken_from_eigenvalues() -> None:
    rng = np.random.default_rng(1)
    truth = np.diag([20.0] + [1.0] * 99)
    noise = rng.normal(size=(100, 100)) * 0.3
    noisy = truth + (noise + noise.T) / 2
    found = positive(denoise(noisy, 0.3))
    assert np.linalg.norm(found - truth) < 0.35 * np.linalg.norm(noisy - truth)
    assert np.trace(denoise(noisy, 0.3)) == pytest.approx(np.trace(noisy))
    np.testing.assert_allclose(denoise(noisy, 0.0), noisy)
    assert np.linalg.eigvalsh(found)[0] > 0


def test_noise_is_taken_from_entries_of_which_few_are_not_0() -> None:
    rng = np.random.default_rng(1)
    truth = np.where(rng.random(3_000) < 0.02, 5.0, 0.0)
    noisy = truth + rng.normal(size=3_000)
    found = shrunk(noisy, 1.0)
    linear = noisy * max(1.0 - 1.0 / (noisy**2).mean(), 0.0)
    assert ((found - truth) ** 2).sum() < 0.35 * ((linear - truth) ** 2).sum()
    assert np.abs(shrunk(rng.normal(size=3_000), 1.0)).max() < 1.0
    np.testing.assert_array_equal(shrunk(noisy, 0.0), noisy)
    # Many numbers, of which a part is fitted to, are drawn in as few are.
    np.testing.assert_allclose(shrunk(np.tile(noisy, 3), 1.0)[:3_000], found, atol=0.05)


def test_what_hangs_together_in_few_places_or_few_directions_is_kept() -> None:
    rng = np.random.default_rng(2)
    pair = np.eye(60)
    pair[0, 1] = pair[1, 0] = 0.9
    together = np.eye(60) + np.outer(direction := rng.normal(size=60), direction) / 6
    for truth, places in ((pair, True), (together, False)):
        noise = rng.normal(size=(60, 60)) * 0.2
        noisy = truth + (noise + noise.T) / 2
        found = quieten(noisy, 0.2)
        assert np.trace(found) == pytest.approx(np.trace(noisy))
        wrong = np.linalg.norm(found - truth)
        assert wrong < 0.45 * np.linalg.norm(noisy - truth)
        if places:
            assert wrong < 0.7 * np.linalg.norm(denoise(noisy, 0.2) - truth)
    np.testing.assert_allclose(quieten(pair, 0.0), pair, atol=1e-12)


def test_missing_cells_do_not_multiply_the_noise_of_a_rare_class() -> None:
    """Entries of a rare class were divided by noisy frequencies of cells that are both there, and stood out of their noise."""
    layout = Layout.of(
        Schema(name="labs", unit="record", columns=(
            *(Column(name=f"lab_{i}", kind="continuous", bounds=(-5.0, 5.0), nullable=True) for i in range(30)),
            Column(name="died", kind="binary", role="label"),
        ))
    )  # fmt: skip
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(3_000, 30)) / 5, (np.arange(3_000) < 250).astype(np.int64)
    x[rng.random(x.shape) < 0.1] = np.nan
    z = layout.rows(x, y)
    for noise_multiplier in (0.7, 2.0):
        made = fit_centrally(Moments(layout, rounds=2), z, np.arange(len(z)), len(z), noise_multiplier, rng)
        drawn = made.sample(8_000, rng, np.arange(8_000) % 2)
        for label in (0, 1):
            correlations = np.corrcoef(drawn[layout.labels(drawn) == label][:, :30].T)[np.triu_indices(30, 1)]
            assert np.sqrt((correlations**2).mean()) < 0.12


def test_projection_onto_a_simplex_is_the_nearest_point() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(20, 5))
    found = on_simplex(values, 1.0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    others = rng.dirichlet(np.ones(5), 5_000)
    nearest = ((values[:, None] - others) ** 2).sum(axis=2).min(axis=1)
    assert (((values - found) ** 2).sum(axis=1) <= nearest + 1e-12).all()


def test_classes_keep_what_noise_does_not_explain() -> None:
    covariances = np.stack([np.eye(20), np.eye(20) + 3.0 * np.ones((20, 20))])
    found = class_covariances(covariances, np.array([0.5, 0.5]), np.full(2, 1e-9))
    np.testing.assert_allclose(found, covariances, atol=1e-4)
    hidden = class_covariances(covariances, np.array([0.999, 0.001]), np.full(2, 0.5))
    np.testing.assert_allclose(hidden[1], hidden[0], atol=0.5)


def test_flat_directions_are_lifted_to_the_noise() -> None:
    close = np.array([[1.0, 0.99], [0.99, 1.0]])
    np.testing.assert_allclose(lift(close, 0.0), close)
    np.testing.assert_allclose(lift(close, 0.3), [[1.0, 0.7], [0.7, 1.0]])
    # However loud the noise, half of the variance stays where it was measured.
    np.testing.assert_allclose(lift(close, 5.0), [[1.0, 0.5], [0.5, 1.0]])
    rng = np.random.default_rng(4)
    root = rng.normal(size=(12, 12)) * rng.uniform(0.1, 3.0, 12)
    uneven = root @ root.T
    found = lift(uneven, 0.5)
    np.testing.assert_allclose(np.diag(found), np.diag(uneven))
    assert np.linalg.eigvalsh(found)[0] > max(10 * np.linalg.eigvalsh(uneven)[0], 0.05)
    assert lift(np.zeros((0, 0)), 1.0).shape == (0, 0)


def test_a_discriminant_of_lifted_moments_parts_classes_better() -> None:
    rng = np.random.default_rng(5)
    values = np.geomspace(0.02, 3.0, 30)
    reached = []
    for _ in range(20):
        apart = np.sqrt(values) * rng.choice([-1.0, 1.0], 30)
        noise = 0.05 * rng.normal(size=(30, 30))
        found = positive(denoise(np.diag(values) + (noise + noise.T) / 2, 0.05))
        both = (lift(found, 0.05 * np.sqrt(30 / 2)), found)
        ways = [np.linalg.solve(one, apart + 0.03 * rng.normal(size=30)) for one in both]
        reached.append([(way @ apart) ** 2 / (values * way**2).sum() / len(values) for way in ways])
    ours, before = np.mean(reached, axis=0)
    assert ours > 0.75 and ours > before + 0.3


def test_a_race_is_won_as_often_as_it_should() -> None:
    wanted = np.array([0.6, 0.3, 0.0, 0.08, 0.02])
    normals = np.random.default_rng(3).normal(size=(400_000, 5)) + race(wanted)
    wins = np.bincount(normals.argmax(axis=1), minlength=5) / len(normals)
    np.testing.assert_allclose(wins, wanted, atol=0.003)


def test_scores_and_quantiles_undo_each_other() -> None:
    layout = Layout.of(MIXED)
    bins, z = Bins.of(layout, 20), rows_of(layout, mixed(500, 6).dropna())
    found = distributions(bins.histograms(z).mean(axis=0), bins.used)
    scores = bins.scores(z, found)
    np.testing.assert_allclose((scores**2).mean(axis=0), 1.0, atol=0.12)
    again, width = bins.quantiles(ndtr(scores), found), np.where(bins.whole, bins.width / 2, 1e-9)
    inside = np.abs(scores) < 3.0
    assert (np.abs(again - z[:, bins.places]) <= width)[inside].all() and inside.mean() > 0.98


def test_noise_alone_does_not_fill_loose_bounds() -> None:
    layout = Layout.of(numbers_only(1, 2))
    bins, rng = Bins.of(layout, 50), np.random.default_rng(0)
    true = np.zeros((1, 50))
    true[0, 20:23] = 0.3, 0.5, 0.2
    noisy = true + 0.02 * rng.normal(size=(1, 50))
    found = distributions(noisy, bins.standing_out(noisy, 0.02))
    np.testing.assert_allclose(found, true, atol=0.05)
    assert found[0, :19].sum() + found[0, 24:].sum() < 0.01
    # Of a column that noise hides wholly every bin stays possible.
    assert bins.standing_out(0.001 * true, 0.02).all()


LOOSE = Layout.of(Schema(name="loose", unit="record", columns=(
    Column(name="pulse", kind="continuous", bounds=(20.0, 300.0)),
    Column(name="creatinine", kind="continuous", bounds=(0.1, 30.0)),
    Column(name="sodium", kind="continuous", bounds=(90.0, 200.0)),
    Column(name="died", kind="binary", role="label"))))  # fmt: skip


def test_loose_bounds_and_skewed_columns_spoil_nothing() -> None:
    rng = np.random.default_rng(0)
    both = rng.normal(size=(20_000, 3)) @ np.linalg.cholesky(0.5 * np.eye(3) + 0.5).T
    y = (rng.random(20_000) < 1 / (1 + np.exp(3.0 - both[:, 0] - 0.7 * both[:, 1]))).astype(np.int64)
    seen = np.stack([75.4 + 13 * both[:, 0], np.exp(0.1 + 0.5 * both[:, 1]), 139 - 4 * both[:, 2]], axis=1)
    low, high = (np.array([column.bounds[side] for column in LOOSE.schema.features]) for side in (0, 1))  # type: ignore[index]
    z = LOOSE.rows(2 * (np.clip(seen, low, high) - low) / (high - low) - 1, y)
    # About epsilon 2 for both rounds and the counts of classes.
    made = fit_centrally(Moments(LOOSE, rounds=2), z, np.arange(len(z)), len(z), 3.5, rng)
    drawn = LOOSE.decode(made.sample(20_000, rng))
    assert drawn["pulse"].mean() == pytest.approx(75.4, abs=0.5) and drawn["pulse"].std() == pytest.approx(13, rel=0.1)
    assert drawn["creatinine"].median() == pytest.approx(np.exp(0.1), abs=0.1)
    assert drawn["creatinine"].mean() == pytest.approx(seen[:, 1].mean(), rel=0.1)
    for column, name in enumerate(("pulse", "creatinine", "sodium")):
        for label in (0, 1):
            own = drawn.loc[drawn["died"] == label, name].median()
            assert own == pytest.approx(np.median(seen[y == label, column]), abs=0.25 * seen[:, column].std())
    ranks = drawn[["pulse", "creatinine", "sodium"]].corr(method="spearman").to_numpy()
    # Rows that are shortened narrow what hangs together.
    assert ranks[0, 1] == pytest.approx(0.48, abs=0.08) and ranks[0, 2] == pytest.approx(-0.48, abs=0.08)


def test_class_means_learn_in_which_directions_classes_differ() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    values = np.geomspace(0.05, 6.0, 30)
    within = (turn * values) @ turn.T
    shares, noise = np.array([0.93, 0.07]), 0.03

    def wrong(power: int, *known: Floats) -> float:
        """How wrong a discriminant's coefficients are that divides differences of ``values`` to this power by ``within``."""
        errors = []
        for _ in range(40):
            apart = turn @ (values ** (power / 2) * rng.normal(0, 0.4, 30))
            noisy = np.outer([-0.07, 0.93], apart) + noise / shares[:, None] * rng.normal(size=(2, 30))
            found = class_means(noisy, shares, noise, *known)
            errors.append(float((np.linalg.solve(within, found[1] - found[0] - apart) ** 2).sum()))
        return float(np.mean(errors))

    assert wrong(2, within) < 0.3 * wrong(2)
    assert wrong(1, within) < 1.1 * wrong(1) and wrong(0, within) < 1.1 * wrong(0)
    exact = rng.normal(size=(2, 30))
    np.testing.assert_array_equal(class_means(exact, shares, 0.0, within), exact)
    hidden = class_means(rng.normal(size=(2, 30)), shares, 50.0, within)
    assert np.abs(hidden - shares @ hidden).max() < 0.2


@pytest.mark.parametrize("noise", [0.0, 50.0])
@pytest.mark.parametrize("options", [{}, {"rounds": 2}])
def test_poor_tables_do_not_crash(noise: float, options: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    layout = Layout.of(MIXED)
    constant = np.tile(rows_of(layout, mixed(1, 5)), (40, 1))
    for z in (constant, constant[:0]):
        made = fit_centrally(Moments(layout, **options), z, np.arange(len(z)), max(len(z), 1), noise, rng)  # type: ignore[arg-type]
        layout.decode(made.sample(20, rng))
        assert made.sample(0, rng).shape == (0, layout.width)


def test_options_out_of_range_and_rows_too_wide_are_refused() -> None:
    layout = Layout.of(MIXED)
    with pytest.raises(ConfigError, match="Option 'radius' of method 'moments' is 0"):
        Moments(layout, radius=0)
    with pytest.raises(ConfigError, match="'rounds'"):
        Moments(layout, rounds=3)
    codes = Column(name="codes", kind="code_set", categories=tuple(str(i) for i in range(1501)))
    label = Column(name="y", kind="binary", role="label")
    with pytest.raises(ConfigError, match="1501 numbers"):
        Moments(Layout.of(Schema(name="wide", unit="record", columns=(codes, label))))


@pytest.mark.parametrize(
    "make", [lambda layout: Moments(layout, rounds=2), Independent, lambda layout: Latent(layout, rounds=3)]
)
def test_records_of_codes_alone_have_no_histograms(make: Callable[[Layout], SynthesisMethod]) -> None:
    """A run of them failed at the server, after its first sum was paid for."""
    codes = Column(name="codes", kind="code_set", categories=("250", "401", "428"))
    layout = Layout.of(
        Schema(name="codes", unit="record", columns=(codes, Column(name="died", kind="binary", role="label")))
    )
    z = layout.rows(
        (np.random.default_rng(0).random((200, 3)) < [0.1, 0.5, 0.9]).astype(float), layout.some_labels(200)
    )
    drawn = fit_centrally(make(layout), z, np.arange(200), 200, 0.0, np.random.default_rng(1))
    np.testing.assert_allclose(
        drawn.sample(4000, np.random.default_rng(2))[:, :3].mean(axis=0), [0.1, 0.5, 0.9], atol=0.1
    )
