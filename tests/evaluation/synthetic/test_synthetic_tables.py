"""Columns, pairs and correlations of two tables: known values, scipy, and what must not become a number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from polyclinic.errors import DataError
from polyclinic.evaluation.synthetic.columns import Categorical, Numeric, columns, correlations, pairs, pearson


def frame(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sbp = rng.normal(129, 15, rows)
    return pd.DataFrame(
        {
            "sbp": sbp,
            "dbp": 0.5 * sbp + rng.normal(0, 8, rows),
            "meds": rng.poisson(2.3, rows),
            "arm": rng.choice(["standard", "intensive"], rows),
        }
    )


def test_identical_tables_are_perfect() -> None:
    table = frame()
    table.loc[:20, "sbp"] = np.nan
    found = columns(table, table, {"arm"})
    for name in ("sbp", "dbp", "meds"):
        judged = found[name]
        assert isinstance(judged, Numeric)
        assert (judged.ks, judged.wasserstein, judged.boundary, judged.missing) == (1, 0, 1, 1)
        assert judged.mean_real == judged.mean_synthetic == pytest.approx(table[name].mean())
    assert found["arm"] == Categorical(1.0, pytest.approx(1.0), 1.0)
    assert pairs(table, table, {"arm"}).to_numpy() == pytest.approx(np.ones((4, 4)))
    matrices = correlations(table[["sbp", "dbp", "meds"]], table[["sbp", "dbp", "meds"]])
    assert (matrices.spearman, matrices.frobenius, matrices.largest) == (pytest.approx(1), 0, 0)


def test_known_values_of_columns() -> None:
    real = pd.DataFrame({"x": [0.0, 1, 2, 3], "c": ["a", "a", "b", None]})
    synthetic = pd.DataFrame({"x": [1.0, 2, 3, 8], "c": ["a", "c", "c", "c"]})
    found = columns(real, synthetic, {"c"})
    # The distribution functions are a quarter apart, the mass moves 1, 1, 1 and 5.
    assert found["x"] == Numeric(0.75, 2.0, 0.75, 1.0, 1.5, 3.5)
    # Shares a 2/3, b 1/3 against a 1/4, c 3/4.
    assert found["c"] == Categorical(pytest.approx(0.25), 0.25, 0.75)


def test_numbers_agree_with_scipy_and_the_known_distance_of_a_shift() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=500), rng.normal(0.5, 1, 700)
    found = columns(pd.DataFrame({"x": a}), pd.DataFrame({"x": b}))["x"]
    assert isinstance(found, Numeric)
    assert found.ks == pytest.approx(1 - stats.ks_2samp(a, b).statistic)
    assert found.wasserstein == pytest.approx(0.5, abs=0.12)
    assert columns(pd.DataFrame({"x": a}), pd.DataFrame({"x": a + 2}))["x"].wasserstein == pytest.approx(2)  # type: ignore[union-attr]


def test_pairs_agree_with_contingency_tables_of_pandas() -> None:
    rng = np.random.default_rng(3)
    real, synthetic = (
        pd.DataFrame({name: rng.choice(list("abc"), n, p=p) for name in ("u", "v", "w")})
        for n, p in ((200, [0.5, 0.3, 0.2]), (300, [0.2, 0.3, 0.5]))
    )
    found = pairs(real, synthetic, {"u", "v", "w"})
    for first, second in (("u", "v"), ("u", "w"), ("w", "v")):
        a, b = (pd.crosstab(t[first], t[second], normalize=True) for t in (real, synthetic))
        assert found.loc[first, second] == pytest.approx(1 - (a - b).abs().to_numpy().sum() / 2)
    for name in real:
        single = columns(real, synthetic, set(real))[str(name)]
        assert isinstance(single, Categorical) and found.loc[name, name] == pytest.approx(single.tv)


def test_pairs_see_a_broken_relation_that_columns_do_not() -> None:
    table = frame(2000)
    broken = table.assign(dbp=np.random.default_rng(9).permutation(table["dbp"]))
    found = pairs(table, broken, {"arm"})
    assert found.loc["dbp", "dbp"] == pytest.approx(1) and found.loc["sbp", "dbp"] < 0.8
    assert found.loc["sbp", "arm"] == pytest.approx(1)


def test_a_missing_value_is_a_level_of_a_pair_and_undefined_alone() -> None:
    real = pd.DataFrame({"x": [1.0, 2, np.nan, np.nan], "c": ["a", "a", "b", "b"]})
    nothing = pd.DataFrame({"x": [np.nan] * 4, "c": pd.Series([None] * 4, dtype=object)})
    found = columns(real, nothing, {"c"})
    assert found["x"] == Numeric(None, None, None, 0.5, 1.5, None)
    assert found["c"] == Categorical(None, None, 0.0)
    assert pairs(real, nothing, {"c"}).loc["x", "x"] == pytest.approx(0.5)


def test_tables_that_do_not_match_are_refused() -> None:
    table = frame(10)
    with pytest.raises(DataError, match="only one of them has dbp"):
        columns(table, table.drop(columns="dbp"))
    with pytest.raises(DataError, match="'arm' has entries that are not numbers"):
        columns(table, table)
    with pytest.raises(DataError, match="categorical names sex"):
        pairs(table, table, {"sex"})
    with pytest.raises(DataError, match="rows"):
        columns(table, table.iloc[:0], {"arm"})


def test_correlations_agree_with_numpy_and_scipy() -> None:
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(6, 6))
    a, b = rng.normal(size=(200, 6)) @ mix, rng.normal(size=(300, 6)) @ (mix + 0.3 * rng.normal(size=(6, 6)))
    found = correlations(a, b, list("uvwxyz"))
    ra, rb = np.corrcoef(a.T), np.corrcoef(b.T)
    lower = np.tril_indices(6, -1)
    assert found.real == pytest.approx(ra) and found.synthetic == pytest.approx(rb)
    assert found.spearman == pytest.approx(stats.spearmanr(ra[lower], rb[lower]).statistic)
    assert found.frobenius == pytest.approx(np.linalg.norm(ra - rb))
    assert found.largest == pytest.approx(abs(ra - rb).max())


def test_constant_columns_are_dropped_and_said() -> None:
    table = frame()[["sbp", "dbp", "meds"]]
    synthetic = table.assign(meds=2, dbp=table["dbp"] + 1)
    found = correlations(table, synthetic, list(table))
    assert (found.columns, found.dropped) == (("sbp", "dbp"), ("meds",))
    assert found.real.shape == (2, 2) and found.frobenius == pytest.approx(0, abs=1e-12)
    assert found.spearman is None  # one pair has no order
    none = correlations(table, table.assign(sbp=1, dbp=1), list(table))
    assert (none.spearman, none.frobenius, none.largest) == (None, None, None) and none.columns == ("meds",)
    assert correlations(table, 0 * table).columns == ()


def test_missing_values_use_rows_with_both_and_leave_out_pairs_never_seen_together() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 4)) @ rng.normal(size=(4, 4))
    x[:50, 0], x[50:, 1] = np.nan, np.nan
    found = pearson(x)
    assert found[0, 2] == pytest.approx(np.corrcoef(x[50:, 0], x[50:, 2])[0, 1])
    assert np.isnan(found[0, 1])
    compared = correlations(x, x)
    assert compared.spearman == pytest.approx(1) and compared.largest == 0 and len(compared.columns) == 4


def test_a_correlation_table_with_an_infinite_entry_or_another_width_is_refused() -> None:
    with pytest.raises(DataError, match="infinite"):
        correlations([[1.0, np.inf]], [[1.0, 2.0]])
    with pytest.raises(DataError, match="same F"):
        correlations(np.zeros((3, 2)), np.zeros((3, 3)))
    with pytest.raises(DataError, match="1 names for 2"):
        correlations(np.zeros((3, 2)), np.zeros((3, 2)), ["a"])
