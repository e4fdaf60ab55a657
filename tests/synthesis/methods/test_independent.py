"""Columns one by one have the frequencies of the records, noise or not."""

from pathlib import Path

import numpy as np
import pytest

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins, distributions
from polyclinic.synthesis.methods.hot import Hot
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.sums import fit_centrally
from polyclinic.synthesis.synthesizer import load, save
from tests.synthesis.tables import MIXED, mixed, rows_of

CODES = Schema(
    name="codes",
    unit="record",
    columns=(
        Column(name="codes", kind="code_set", categories=tuple(f"c{i:03d}" for i in range(200))),
        Column(name="died", kind="binary", role="label"),
    ),
)


@pytest.mark.parametrize("by_label", [True, False])
def test_no_vector_is_longer_than_one(by_label: bool) -> None:
    layout = Layout.of(MIXED)
    method = Independent(layout, by_label=by_label, most=2)
    z = np.concatenate([rows_of(layout, mixed(60, 1)), np.random.default_rng(0).normal(0, 30, (60, layout.width))])
    found = method.contributions(1, {}, z, np.random.default_rng(1).integers(0, 70, 120), 70)
    assert found.shape == (70, method.size(1, {}))
    assert np.linalg.norm(found, axis=1).max() <= 1.0 + 1e-12


@pytest.mark.parametrize("by_label", [True, False])
def test_without_noise_columns_are_those_of_the_records(by_label: bool) -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(5_000, 2))
    rng = np.random.default_rng(0)
    made = fit_centrally(Independent(layout, by_label=by_label), z, np.arange(len(z)), len(z), 0.0, rng)
    real, records = layout.decode(z), layout.decode(made.sample(15_000, rng))
    for name in ("male", "ward", "codes", "stage", "died", "age"):
        shares = [table[name].astype(str).value_counts(normalize=True) for table in (real, records)]
        assert shares[0].sub(shares[1], fill_value=0.0).abs().max() < (0.06 if name == "codes" else 0.02), name
    for name in ("lactate", "sbp_02"):
        assert records[name].isna().mean() == pytest.approx(real[name].isna().mean(), abs=0.01)
        for share in (0.1, 0.5, 0.9):
            assert records[name].quantile(share) == pytest.approx(real[name].quantile(share), rel=0.04)
    older = records.groupby("died")["age"].mean()
    assert (older["yes"] - older["no"] > 3) == by_label


def test_whole_numbers_have_bins_of_their_own() -> None:
    layout = Layout.of(MIXED)
    bins = Bins.of(layout, 24)
    stage = int(np.flatnonzero(bins.places == layout.names.index("stage"))[0])
    assert bins.counts[stage] == 3
    z = rows_of(layout, mixed(500, 3))
    ranks = {"I": 0, "II": 1, "III": 2}
    found = bins.histograms(z)[:, stage, :3].argmax(axis=1)
    np.testing.assert_array_equal(found, mixed(500, 3)["stage"].map(ranks))
    shares = distributions(bins.histograms(z).mean(axis=0), bins.used)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (shares[~bins.used] == 0).all()


WHOLE = Layout.of(Schema(name="whole", unit="record", columns=(
    Column(name="medicines", kind="trajectory", steps=3, bounds=(0.0, 8.0), whole=True),
    Column(name="age", kind="integer", bounds=(18.0, 117.0)),
    Column(name="died", kind="binary", role="label"))))  # fmt: skip


@pytest.mark.parametrize("bins", [9, 10, 64])
def test_whole_numbers_are_not_shifted_by_bins(bins: int) -> None:
    rng = np.random.default_rng(0)
    seen = np.column_stack([rng.binomial(8, 0.3, (4_000, 3)), rng.integers(40, 90, 4_000)])
    low, high = np.array([0, 0, 0, 18.0]), np.array([8, 8, 8, 117.0])
    z = WHOLE.rows(2 * (seen - low) / (high - low) - 1, np.zeros(4_000, dtype=np.int64))
    found = Bins.of(WHOLE, bins)
    assert found.whole.tolist() == [True, True, True, False]
    shares = distributions(found.histograms(z).mean(axis=0), found.used)
    scores = found.scores(z, shares)
    np.testing.assert_allclose(scores.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose((scores[:, :3] ** 2).mean(axis=0), 1.0, atol=1e-6)
    assert 0.8 < (scores[:, 3] ** 2).mean() < 1.05
    drawn = np.zeros((40_000, WHOLE.width))
    drawn[:, found.places] = found.quantiles(rng.random((40_000, 4)), shares)
    again = WHOLE.decode(drawn).iloc[:, :4].to_numpy(dtype=float)
    np.testing.assert_allclose(again.mean(axis=0), seen.mean(axis=0), atol=0.35)
    np.testing.assert_allclose(again[:, :3].mean(axis=0), seen[:, :3].mean(axis=0), atol=0.03)


def test_rare_codes_are_not_multiplied_by_noise() -> None:
    layout = Layout.of(CODES)
    rng = np.random.default_rng(0)
    truth = np.concatenate([[0.5, 0.3, 0.2], np.full(197, 1e-4)])
    z = np.concatenate([rng.random((10_000, 200)) < truth, np.eye(2)[rng.integers(0, 2, 10_000)]], axis=1).astype(float)
    made = fit_centrally(Independent(layout, by_label=False), z, np.arange(len(z)), len(z), 2.0, rng)
    drawn = made.sample(10_000, rng)[:, :200]
    assert drawn.sum(axis=1).mean() == pytest.approx(z[:, :200].sum(axis=1).mean(), abs=0.04)
    np.testing.assert_allclose(drawn.mean(axis=0), truth, atol=0.02)


def test_many_codes_of_one_patient_count_as_the_most() -> None:
    hot = Hot.of(Layout.of(CODES), 4)
    z = np.zeros((2, 202))
    z[0, :4], z[1, :100] = 1, 1
    assert (hot.values(z)[:, :200] ** 2).sum(axis=1) == pytest.approx([4, 4])
    assert hot.counts(z).argmax(axis=2)[:, 0].tolist() == [4, 4]


def test_labels_condition_and_draws_follow_the_stream(tmp_path: Path) -> None:
    layout = Layout.of(MIXED)
    z = rows_of(layout, mixed(1_000, 4))
    made = fit_centrally(Independent(layout), z, np.arange(len(z)), len(z), 1.0, np.random.default_rng(0))
    labels = np.arange(100) % 3
    drawn = made.sample(100, np.random.default_rng(5), labels)
    np.testing.assert_array_equal(layout.labels(drawn), labels)
    save(made, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", layout)
    np.testing.assert_array_equal(again.sample(100, np.random.default_rng(5), labels), drawn)


@pytest.mark.parametrize("noise", [0.0, 50.0])
def test_poor_tables_do_not_crash(noise: float) -> None:
    layout = Layout.of(MIXED)
    rng = np.random.default_rng(0)
    constant = np.tile(rows_of(layout, mixed(1, 5)), (40, 1))
    for z in (constant, constant[:0]):
        for by_label in (True, False):
            method = Independent(layout, by_label=by_label)
            made = fit_centrally(method, z, np.arange(len(z)), max(len(z), 1), noise, rng)
            layout.decode(made.sample(20, rng))
            assert made.sample(0, rng).shape == (0, layout.width)


@pytest.mark.parametrize("option, value", [("bins", 1), ("bins", 2.5), ("most", 0), ("by_label", 1)])
def test_options_out_of_range_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"Option '{option}' of method 'independent'"):
        Independent(Layout.of(MIXED), **{option: value})  # type: ignore[arg-type]
