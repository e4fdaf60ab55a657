"""Code sets: known values, scikit-learn's regressions, and what independent or forgetful codes look like."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.synthetic.codes import co_occurrence, per_patient, predictions, probabilities


def patients(rows: int = 600, seed: int = 0, width: int = 12) -> np.ndarray:
    """Codes that go together through two hidden conditions."""
    rng = np.random.default_rng(seed)
    ill = rng.random((rows, 2)) < 0.3
    chance = np.where(ill @ (np.arange(2)[:, None] == np.arange(width) % 2), 0.6, 0.05)
    return (rng.random((rows, width)) < chance * np.linspace(1, 0.5, width)).astype(np.int8)


def test_identical_tables_are_perfect() -> None:
    table = patients()
    shares = probabilities(table, table)
    assert (shares.rmse, shares.largest, shares.r2) == (0, 0, 1)
    together = co_occurrence(table, table)
    assert {together.l1, together.frobenius, together.excess_l1, together.excess_frobenius} == {0.0}
    each = per_patient(table, table)
    assert each.wasserstein == 0 and each.mean_real == each.mean_synthetic == table.sum() / len(table)


def test_known_values() -> None:
    real, synthetic = [[1, 1], [1, 0], [0, 0], [0, 1]], [[2, 1], [3, 1], [1, 0], [0, 0]]
    shares = probabilities(real, synthetic)
    assert shares.real.tolist() == [0.5, 0.5] and shares.synthetic.tolist() == [0.75, 0.5]
    assert (shares.rmse, shares.largest) == (pytest.approx(0.25 / np.sqrt(2)), 0.25)
    assert shares.r2 is None  # real shares are all the same
    together = co_occurrence(real, synthetic)
    assert (together.l1, together.frobenius) == (1.0, 1.0)  # 2 of 4 against 1 of 4
    assert together.excess_l1 is None  # the real pair is independent
    each = per_patient(real, synthetic)
    assert (each.mean_real, each.mean_synthetic) == (1.0, 1.25)
    assert each.wasserstein == pytest.approx(0.25)


def test_r2_is_of_the_diagonal() -> None:
    real = np.eye(4)[[0, 0, 0, 1, 1, 2]]
    assert probabilities(real, real[:, ::-1]).r2 == pytest.approx(1 - (0.5**2 * 2 + (1 / 6) ** 2 * 2) / 0.138888888)


def test_independent_codes_keep_frequencies_and_lose_all_excess() -> None:
    table = patients(4000)
    rng = np.random.default_rng(1)
    apart = np.stack([rng.permutation(column) for column in table.T], axis=1)
    other_half = patients(4000, seed=2)
    independent, honest = co_occurrence(table, apart), co_occurrence(table, other_half)
    assert probabilities(table, apart).largest == 0
    assert independent.excess_frobenius == pytest.approx(1, abs=0.1)
    assert independent.excess_l1 == pytest.approx(1, abs=0.15)
    for name in ("l1", "frobenius", "excess_l1", "excess_frobenius"):
        assert getattr(honest, name) < getattr(independent, name) / 2
    assert per_patient(table, apart).wasserstein > 5 * per_patient(table, other_half).wasserstein


def test_nothing_together_is_undefined() -> None:
    assert co_occurrence(np.eye(3), np.ones((3, 3))).l1 is None
    assert co_occurrence(np.ones((3, 1)), np.ones((3, 1))).l1 is None


def test_f1_is_scikit_learns_and_shuffled_codes_teach_nothing() -> None:
    train, test = patients(1500), patients(1000, seed=1)
    rng = np.random.default_rng(1)
    apart = np.stack([rng.permutation(column) for column in train.T], axis=1)
    found = predictions(train, apart, test, most=6)
    assert sorted(found.codes, key=lambda c: -train[:, c].mean()) == list(found.codes) and len(found.codes) == 6
    code = found.codes[0]
    others = np.delete(np.arange(12), code)
    model = LogisticRegression(tol=1e-8, max_iter=1000).fit(train[:, others], train[:, code])
    assert found.real[0] == pytest.approx(f1_score(test[:, code], model.predict(test[:, others])), abs=0.01)
    assert found.mean_real is not None and found.mean_synthetic is not None and found.skipped == 0
    assert found.mean_real > 0.3 > 0.1 > found.mean_synthetic
    assert predictions(train, train, test).mean_synthetic == predictions(train, train, test).mean_real


def test_codes_of_one_class_are_skipped_and_forgetting_them_is_counted_apart() -> None:
    train, test = patients(800), patients(500, seed=1)
    forgetful, everywhere = train.copy(), train.copy()
    forgetful[:, 2] = 0
    everywhere[:, 2] = 1
    full = predictions(train, train, test)
    found = predictions(train, forgetful, test)
    place = found.codes.index(2)
    assert found.synthetic[place] is None and found.real[place] is not None and found.skipped == 1
    assert found.mean_absent_zero == pytest.approx((found.mean_synthetic or 0) * 11 / 12)
    assert (found.mean_absent_zero or 1) < (full.mean_absent_zero or 0) == full.mean_synthetic
    assert predictions(train, everywhere, test).mean_absent_zero == pytest.approx(
        predictions(train, everywhere, test).mean_synthetic
    )
    test[:, 2] = 0
    assert predictions(train, train, test).real[place] is None
    nobody = predictions(train, 0 * train, test)
    assert nobody.mean_synthetic is None and nobody.mean_absent_zero == 0 and nobody.skipped == 12


def test_bad_tables_are_refused() -> None:
    with pytest.raises(DataError, match="same J"):
        probabilities(np.ones((3, 2)), np.ones((3, 3)))
    with pytest.raises(DataError, match="above 0"):
        co_occurrence(np.ones((0, 2)), np.ones((3, 2)))
    with pytest.raises(ConfigError, match="at least 1"):
        predictions(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2)), most=0)
