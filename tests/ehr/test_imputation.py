"""Imputation: constants and indicators by the schema, chained equations by two routes, Rubin's rules by published figures."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr.encoding import decode, encode, feature_names, feature_slices, nullable_mask, standardised_mask
from polyclinic.ehr.imputation import Imputer, constants, impute_chained, missing, with_indicators
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.synthesis.combining import combine


def filled(schema: Schema) -> Schema:
    """The schema with a public default for every column that may be missing."""
    fills = {"chol": 200.0, "smoker": "no", "ecg": "abnormal", "stage": "II", "sbp": 120.0}
    columns = [Column.model_validate(c.model_dump() | {"fill": fills.get(c.name)}) for c in schema.columns]
    return Schema(name=schema.name, columns=tuple(columns))


def test_constants_are_the_declared_ones(schema: Schema, records: pd.DataFrame) -> None:
    schema = filled(schema)
    x = encode(records, schema).x
    full = constants(x, schema)
    back, known = decode(full, schema), decode(x, schema)
    assert not missing(full, schema).any()
    for name, value in (("chol", 200.0), ("smoker", "no"), ("ecg", "abnormal"), ("stage", "II"), ("sbp_01", 120.0)):
        gone = known[name].isna()
        assert gone.any() and (back[name][gone] == value).all() and (back[name][~gone] == known[name][~gone]).all()


def test_a_column_without_a_fill_is_named(schema: Schema, records: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match="column 'chol' may be missing and declares no fill"):
        constants(encode(records, schema).x, schema)


def test_indicators_say_what_is_missing_and_change_nothing_else(schema: Schema, records: pd.DataFrame) -> None:
    told = with_indicators(schema)
    x, plain = encode(records, told).x, encode(records, schema).x
    names, before = list(feature_names(told)), list(feature_names(schema))
    extra = [name for name in names if name not in before]
    assert extra == [
        "chol missing",
        "smoker missing",
        "stage missing",
        "sbp_00 missing",
        "sbp_01 missing",
        "sbp_02 missing",
    ]
    assert np.array_equal(x[:, [names.index(name) for name in before]], plain, equal_nan=True)
    assert np.array_equal(x[:, names.index("chol missing")], np.isnan(plain[:, before.index("chol")]))
    for mask in (standardised_mask, nullable_mask):
        of = dict(zip(names, mask(told), strict=True))
        assert not any(of[name] for name in extra) and [of[name] for name in before] == mask(schema).tolist()
    pd.testing.assert_frame_equal(decode(x, told), decode(plain, schema))
    assert with_indicators(told) == told and sum(at.stop - at.start for _, at in feature_slices(told)) == len(before)


NUMBERS = Schema(
    name="numbers",
    unit="record",
    columns=(
        *(Column(name=name, kind="continuous", bounds=(-4, 4), nullable=True) for name in "abc"),
        Column(name="group", kind="categorical", categories=("u", "v", "w"), nullable=True),
        Column(name="yes", kind="binary", nullable=True),
        Column(name="died", kind="binary", role="label"),
    ),
)


def table(rows: int, seed: int = 0, share: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Related features, whole and with cells that are missing at random."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    numbers = np.clip(np.stack([hidden + rng.normal(scale=s, size=rows) for s in (0.3, 0.6, 1.0)], axis=1) / 4, -1, 1)
    group = np.eye(3)[np.digitize(hidden + rng.normal(scale=0.5, size=rows), (-0.5, 0.5))]
    whole = np.concatenate([numbers, group, (hidden[:, None] > 0).astype(float)], axis=1)
    x, gone = whole.copy(), rng.random((rows, 5)) < share
    x[:, [0, 1, 2, 6]] = np.where(gone[:, [0, 1, 2, 4]], np.nan, x[:, [0, 1, 2, 6]])
    x[gone[:, 3], 3:6] = 0.0
    return whole, x


def imputer_of(whole: np.ndarray) -> Imputer:
    ridge = 1e-3 * np.eye(whole.shape[1])
    return Imputer(feature_names(NUMBERS), whole.mean(axis=0), np.cov(whole.T) + ridge)


def chained_by_hand(imputer: Imputer, row: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """Chained equations as they are written: each missing entry regressed on all others, round and round."""
    found = np.where(gone, imputer.mean, row)
    for _ in range(3000):
        for j in np.flatnonzero(gone):
            others = np.arange(len(row)) != j
            weights = np.linalg.solve(imputer.covariance[np.ix_(others, others)], imputer.covariance[others, j])
            found[j] = imputer.mean[j] + (found - imputer.mean)[others] @ weights
    return found


def test_the_imputer_is_where_chained_equations_end() -> None:
    whole, x = table(400)
    imputer, gone = imputer_of(whole), missing(x, NUMBERS)
    for row in np.flatnonzero(gone[:, :3].sum(axis=1) == 2)[:4]:
        only = gone[row] & (np.arange(7) < 3)
        start = np.where(gone[row] & ~only, whole[row], x[row])  # the one-hot is cut to its range, so is left out here
        by_hand = np.clip(chained_by_hand(imputer, start, only), -1, 1)
        assert imputer.fill(start[None], NUMBERS)[0] == pytest.approx(by_hand, abs=1e-6)


def test_an_imputer_is_nearer_the_truth_than_the_mean_and_leaves_what_is_there() -> None:
    whole, x = table(2000)
    gone, found = missing(x, NUMBERS), imputer_of(whole).fill(x, NUMBERS)
    assert np.array_equal(found[~gone], x[~gone]) and not np.isnan(found).any()
    numbers = gone & (np.arange(7) < 3)
    error = np.abs(found - whole)[numbers].mean()
    assert error < 0.7 * np.abs(whole.mean(axis=0) - whole)[numbers].mean()
    assert found[:, 3:6].sum(axis=1) == pytest.approx(np.ones(2000))
    guessed = found[gone[:, 3], 3:6].argmax(axis=1) == whole[gone[:, 3], 3:6].argmax(axis=1)
    assert guessed.mean() > 0.55


def test_a_row_is_filled_by_itself() -> None:
    """What makes imputation safe under privacy: no row's result depends on another row."""
    _, x = table(60)
    imputer = imputer_of(table(500, 1)[0])
    together = imputer.fill(x, NUMBERS)
    alone = np.concatenate([imputer.fill(x[row : row + 1], NUMBERS) for row in range(60)])
    assert np.array_equal(together, alone)


def test_draws_spread_as_the_truth_does() -> None:
    whole, x = table(4000)
    imputer, gone = imputer_of(whole), missing(x, NUMBERS)
    drawn = imputer.fill(x, NUMBERS, np.random.default_rng(0))
    mean = imputer.fill(x, NUMBERS)
    for column in range(3):
        true = whole[:, column].std()
        assert drawn[gone[:, column], column].std() == pytest.approx(true, rel=0.1)
        assert mean[gone[:, column], column].std() < 0.97 * true
    assert set(np.unique(drawn[:, 3:])) == {0.0, 1.0} and (drawn[:, 3:6].sum(axis=1) == 1).all()


def test_an_imputer_is_read_back_and_belongs_to_its_schema(tmp_path: Path, schema: Schema) -> None:
    imputer = imputer_of(table(100)[0])
    imputer.write(tmp_path / "imputer.json")
    again = Imputer.read(tmp_path / "imputer.json")
    again.check(NUMBERS)
    assert np.array_equal(again.covariance, imputer.covariance) and np.array_equal(again.mean, imputer.mean)
    with pytest.raises(ConfigError, match="not of those of schema 'clinic'"):
        again.check(schema)
    with pytest.raises(DataError, match="no imputer file"):
        Imputer.read(tmp_path / "nowhere.json")
    (tmp_path / "imputer.json").write_text('{"features": ["a"], "mean": [0], "covariance": [[-1]]}')
    with pytest.raises(DataError, match="is not an imputer"):
        Imputer.read(tmp_path / "imputer.json")


def test_a_hospitals_own_chained_equations_beat_its_means() -> None:
    whole, x = table(500)
    gone = missing(x, NUMBERS) & (np.arange(7) < 3)
    own, others = impute_chained(x, NUMBERS, 0, [x[:50]])
    assert np.abs(own - whole)[gone].mean() < 0.7 * np.abs(np.nanmean(x, axis=0) - whole)[gone].mean()
    assert others == pytest.approx(own[:50]) and not np.isnan(own).any()
    assert own[:, :3].min() >= -1 and own[:, 3:].min() >= 0 and own.max() <= 1


rubin = partial(combine, rule="multiple-imputation")


def test_several_sets_and_rubins_rules_cover_the_truth() -> None:
    """The mean of b among all, from records of which a quarter is missing, a likelier when c is large."""
    covered = 0
    for seed in range(20):
        whole, x = table(150, seed + 10, share=0.0)
        rng = np.random.default_rng(seed)
        x[rng.random(150) < 1 / (1 + np.exp(-4 * whole[:, 2])), 1] = np.nan
        imputer = imputer_of(whole)
        sets = [imputer.fill(x, NUMBERS, np.random.default_rng((seed, m))) for m in range(10)]
        found = rubin([s[:, 1].mean() for s in sets], [s[:, 1].var(ddof=1) / 150 for s in sets], complete_df=149)
        covered += abs(found.estimate - 0.0) < 2.1 * found.standard_error
        assert found.variance > found.within and 0 < found.missing < 1
    assert covered >= 16


# SAS/STAT, PROC MIANALYZE, "Reading Means and Standard Errors from a Data Set": five imputed sets of the fitness data.
MEANS = [47.0120, 47.2407, 47.4995, 47.1485, 47.0042]
ERRORS = [0.95984, 0.93540, 1.00766, 0.95439, 0.96528]


def test_rubins_rules_give_the_published_figures() -> None:
    found = rubin(MEANS, [error**2 for error in ERRORS], complete_df=30)
    assert found.estimate == pytest.approx(47.180993, abs=2e-5)
    assert found.between == pytest.approx(0.041478, abs=2e-5) and found.within == pytest.approx(0.930853, abs=5e-6)
    assert found.variance == pytest.approx(0.980626, abs=2e-5)
    assert found.degrees_of_freedom == pytest.approx(26.298, abs=2e-3)
    assert found.standard_error == pytest.approx(0.990266, abs=1e-5)


def test_rubins_rules_at_their_limits() -> None:
    same = rubin([2.0, 2.0], [1.0, 3.0])
    assert (same.estimate, same.variance, same.degrees_of_freedom, same.missing) == (2.0, 2.0, math.inf, 0.0)
    assert rubin([2.0, 2.0], [1.0, 3.0], complete_df=10).degrees_of_freedom == pytest.approx(11 / 13 * 10)
    large = rubin(MEANS, [error**2 for error in ERRORS])
    assert large.degrees_of_freedom == pytest.approx(4 / (1.2 * large.between / large.variance) ** 2)
    with pytest.raises(ConfigError, match="got 1 tables; it needs 2 or more"):
        rubin([1.0], [1.0])


def test_draws_of_a_hospitals_own_equations_are_several_sets() -> None:
    _, x = table(120)
    gone = missing(x, NUMBERS)
    sets = impute_chained(x, NUMBERS, 0, draws=3, iterations=3)
    assert len(sets) == 3 and all(np.array_equal(one[~gone], x[~gone]) for one in sets)
    assert not np.array_equal(sets[0], sets[1]) and all(one.max() <= 1 for one in sets)
