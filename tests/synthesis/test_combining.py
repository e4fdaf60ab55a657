"""Combining rules: known values, what they must do, and how often their intervals hold the truth.

``python tests/synthesis/test_combining.py`` prints the table of docs/synthesis/inference.md.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.synthesis.combining import Rule, combine
from polyclinic.types import Floats

PAGE = Path(__file__).resolve().parents[2] / "docs/synthesis/inference.md"
PATIENTS, SETS, BOUND, DELTA = 500, 5, 4.0, 1e-4


def test_a_worked_example() -> None:
    """q = 1, 2, 3 and u = 0.5: b = 1, so T by hand."""
    q, u = [1.0, 2.0, 3.0], [0.4, 0.5, 0.6]
    worked: dict[Rule, tuple[float, float]] = {
        "partial": (0.5 + 1 / 3, 2 * 2.5**2),
        "full": (4 / 3 - 0.5, 2 * 0.625**2),
        "multiple-imputation": (0.5 + 4 / 3, 2 * 1.375**2),
        "single": (0.5 * 4 / 3, math.inf),
    }
    for rule, (variance, freedom) in worked.items():
        found = combine(q, u, rule)
        np.testing.assert_allclose([found.estimate, found.within, found.between], [2.0, 0.5, 1.0])
        np.testing.assert_allclose([found.variance, found.degrees_of_freedom], [variance, freedom], err_msg=rule)
    low, high = combine(q, u).interval()
    # Of 12 and 13 degrees of freedom, tables of t give 2.1788 and 2.1604 at 0.975; of 12.5 it lies between.
    assert 2.1604 < (high - 2) / math.sqrt(5 / 6) < 2.1788
    np.testing.assert_allclose(low + high, 4)


def test_tables_of_another_size_than_the_real_one() -> None:
    found = combine([1.0, 2.0, 3.0], [0.05, 0.05, 0.05], ratio=10.0)
    np.testing.assert_allclose(found.variance, 0.5 + 1 / 3)
    np.testing.assert_allclose(combine([1.0], [0.05], "single", ratio=10.0).variance, 0.05 * 11)


def test_a_variance_below_zero_has_its_alternative() -> None:
    found = combine([1.0, 1.1, 0.9], [0.5, 0.5, 0.5], "full", ratio=2.0)
    assert found.adjusted and found.variance == 1.0 and found.degrees_of_freedom == 2
    assert combine([1.0, 1.0], [0.5, 0.5], "full").adjusted
    assert not combine([1.0, 5.0], [0.5, 0.5], "full").adjusted


def test_several_quantities_are_combined_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    q, u = rng.normal(size=(4, 3)), rng.uniform(0.1, 2.0, size=(4, 3))
    for rule in ("partial", "single", "full", "multiple-imputation"):
        together = combine(q, u, rule)
        for at in range(3):
            alone = combine(q[:, at], u[:, at], rule)
            np.testing.assert_allclose(together.variance[at], alone.variance)
            np.testing.assert_allclose(np.array(together.interval())[:, at], alone.interval())


TABLES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=8)


@given(TABLES, st.floats(-10, 10), st.floats(0.1, 10))
def test_intervals_move_with_the_quantity(sets: list[tuple[float, float]], shift: float, scale: float) -> None:
    q, u = (np.array(part) for part in zip(*sets, strict=True))
    for rule in ("partial", "single", "multiple-imputation"):
        found, moved = combine(q, u, rule), combine(q * scale + shift, u * scale**2, rule)
        np.testing.assert_allclose(moved.variance, found.variance * scale**2, rtol=1e-6)
        assert found.variance >= 0 and found.degrees_of_freedom >= len(q) - 1 - 1e-9
    assert combine(q, u, "multiple-imputation").variance >= combine(q, u).variance >= np.mean(u)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0], [1.0]), "Rule 'partial' got 1 tables; it needs 2 or more"),
        (([], [], "single"), "needs 1 or more"),
        (([1.0, 2.0], [1.0]), r"shape \(2,\) and variances \(1,\)"),
        (([1.0, math.nan], [1.0, 1.0]), "not finite"),
        (([1.0, 2.0], [1.0, -1.0]), "below 0"),
        (([1.0, 2.0], [1.0, 1.0], "rubin"), "is 'rubin'; allowed are partial, single, full, multiple-imputation"),
    ],
)
def test_what_cannot_be_combined_is_refused(arguments: tuple, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=said):
        combine(*arguments)


def test_a_wrong_ratio_or_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="ratio of synthetic to real rows is 0"):
        combine([1.0, 2.0], [1.0, 1.0], ratio=0.0)
    with pytest.raises(ConfigError, match="imputed tables have the rows of the real one"):
        combine([1.0, 2.0], [1.0, 1.0], "multiple-imputation", ratio=2.0)
    with pytest.raises(ConfigError, match="level of an interval is 95"):
        combine([1.0, 2.0], [1.0, 1.0]).interval(95)


# --- How often a 95 % interval of the mean holds the truth, 0. A normal generator is fitted to 500 patients of N(0, 1).


@cache
def noise_multiplier(epsilon: float) -> float:
    return 0.0 if math.isinf(epsilon) else calibrate_noise_multiplier(epsilon, DELTA, GaussianDpEvent)


def fitted(x: Floats, noise: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(r,) means and deviations of (r, n) patients, from their sums of x and x^2 (L2 norm 1 at most) with Gaussian noise."""
    x = np.clip(x, -BOUND, BOUND)
    scale = noise * math.sqrt(2) / x.shape[1]
    mean = x.mean(axis=1) + BOUND * scale * rng.standard_normal(len(x))
    square = np.square(x).mean(axis=1) + BOUND**2 * scale * rng.standard_normal(len(x))
    return mean, np.sqrt(np.maximum(square - mean**2, 0.05))


def analysed(mean: Floats, deviation: Floats, rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Estimate and variance that a table of so many rows gives, for each (r,) generator."""
    table = mean[:, None] + deviation[:, None] * rng.standard_normal((len(mean), rows))
    return table.mean(axis=1), table.var(axis=1, ddof=1) / rows


def from_one_model(epsilon: float, sets: int, rows: int = PATIENTS) -> Callable[..., tuple[Floats, Floats]]:
    def draw(repetitions: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        model = fitted(rng.standard_normal((repetitions, PATIENTS)), noise_multiplier(epsilon), rng)
        q, u = zip(*(analysed(*model, rows, rng) for _ in range(sets)), strict=True)
        return np.array(q), np.array(u)

    return draw


def from_private_models(epsilon: float, sets: int) -> Callable[..., tuple[Floats, Floats]]:
    """A table of each of several private generators, which share epsilon: each has sqrt(sets) times the noise."""

    def draw(repetitions: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        x, noise = rng.standard_normal((repetitions, PATIENTS)), noise_multiplier(epsilon) * math.sqrt(sets)
        q, u = zip(*(analysed(*fitted(x, noise, rng), PATIENTS, rng) for _ in range(sets)), strict=True)
        return np.array(q), np.array(u)

    return draw


def from_posterior(sets: int) -> Callable[..., tuple[Floats, Floats]]:
    """A table of each of several generators drawn from the posterior of one without privacy (flat prior)."""

    def draw(repetitions: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        mean, deviation = fitted(rng.standard_normal((repetitions, PATIENTS)), 0.0, rng)
        tables = []
        for _ in range(sets):
            spread = deviation * np.sqrt(PATIENTS / rng.chisquare(PATIENTS - 1, repetitions))
            centre = mean + spread / math.sqrt(PATIENTS) * rng.standard_normal(repetitions)
            tables.append(analysed(centre, spread, PATIENTS, rng))
        q, u = zip(*tables, strict=True)
        return np.array(q), np.array(u)

    return draw


def imputed(sets: int, missing: float = 0.5) -> Callable[..., tuple[Floats, Floats]]:
    """Real tables of which so large a share was missing at random and is filled from the posterior."""

    def draw(repetitions: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        known = rng.standard_normal((repetitions, int(PATIENTS * (1 - missing))))
        absent, n = PATIENTS - known.shape[1], known.shape[1]
        tables = []
        for _ in range(sets):
            spread = known.std(axis=1, ddof=1) * np.sqrt((n - 1) / rng.chisquare(n - 1, repetitions))
            centre = known.mean(axis=1) + spread / math.sqrt(n) * rng.standard_normal(repetitions)
            filled = centre[:, None] + spread[:, None] * rng.standard_normal((repetitions, absent))
            whole = np.concatenate([known, filled], axis=1)
            tables.append((whole.mean(axis=1), whole.var(axis=1, ddof=1) / PATIENTS))
        q, u = zip(*tables, strict=True)
        return np.array(q), np.array(u)

    return draw


def coverage(q: Floats, u: Floats, rule: Rule | None, ratio: float = 1.0) -> tuple[float, float]:
    """The share of (m, r) analyses whose interval holds 0, and the median width by that from the real records.

    rule None: the first table as if it were real.
    """
    if rule is None:
        half = stats.norm.ppf(0.975) * np.sqrt(u[0])
        low, high = q[0] - half, q[0] + half
    else:
        low, high = combine(q, u, rule, ratio=ratio).interval()
    real = 2 * stats.norm.ppf(0.975) / math.sqrt(PATIENTS)
    return float(np.mean((low <= 0) & (high >= 0))), float(np.median(high - low) / real)


SETTINGS: dict[str, Callable[..., tuple[Floats, Floats]]] = {
    "one model without privacy, 5 sets": from_one_model(math.inf, SETS),
    "one private model, ε = 3, 5 sets": from_one_model(3.0, SETS),
    "one private model, ε = 1, 5 sets": from_one_model(1.0, SETS),
    "one private model, ε = 0.5, 5 sets": from_one_model(0.5, SETS),
    "5 private models that share ε = 1, a set of each": from_private_models(1.0, SETS),
    "5 models drawn from a posterior, without privacy": from_posterior(SETS),
    "real records, half imputed 5 times": imputed(SETS),
}
RULES: tuple[Rule | None, ...] = (None, "single", "partial", "full", "multiple-imputation")


ONE, POSTERIOR, IMPUTED = (name for name in SETTINGS if "without privacy" in name or "imputed" in name)
Measured = dict[str, dict[Rule | None, tuple[float, float]]]


def table(repetitions: int) -> Measured:
    """Coverage and width in each setting by each rule."""
    found = {}
    for number, (name, draw) in enumerate(SETTINGS.items()):
        q, u = draw(repetitions, np.random.default_rng([7, number]))
        found[name] = {rule: coverage(q, u, rule) for rule in RULES}
    return found


@pytest.fixture(scope="module")
def measured() -> Measured:
    return table(1000)  # a standard error of 0.7 percentage points at 95 %


def test_each_rule_covers_where_it_belongs(measured: Measured) -> None:
    for name, rule in ((ONE, "partial"), (ONE, "single"), (POSTERIOR, "partial"), (IMPUTED, "multiple-imputation")):
        assert 0.93 < measured[name][rule][0] < 0.97, (name, rule)  # type: ignore[index]
    assert measured[POSTERIOR]["full"][0] > 0.93


def test_the_wrong_rule_misleads(measured: Measured) -> None:
    assert measured[ONE][None][0] < 0.88, "one set as if it were real"
    assert measured[ONE]["multiple-imputation"][0] > 0.97
    assert measured[IMPUTED]["partial"][0] < 0.9
    assert measured[POSTERIOR]["full"][1] > 1.2 * measured[POSTERIOR]["partial"][1], "right on average, of little use"


def test_no_rule_covers_the_noise_of_privacy_that_all_sets_share(measured: Measured) -> None:
    for epsilon, most in (("1", 0.92), ("0.5", 0.8)):
        row = measured[f"one private model, ε = {epsilon}, 5 sets"]
        assert max(row[rule][0] for rule in (None, "single", "partial")) < most, epsilon
        widths = [row[rule][1] / measured[ONE][rule][1] for rule in (None, "single", "partial")]
        assert max(widths) < 1.1, "the noise does not show in the sets"


def test_several_private_models_show_their_noise(measured: Measured) -> None:
    row = measured["5 private models that share ε = 1, a set of each"]
    assert 0.93 < row["partial"][0] < 0.97 and row["single"][0] < 0.92


def test_more_rows_do_not_make_more_patients() -> None:
    q, u = from_one_model(math.inf, 1, 10 * PATIENTS)(1000, np.random.default_rng(1))
    assert coverage(q, u, None)[0] < 0.6
    assert 0.93 < coverage(q, u, "single", ratio=10.0)[0] < 0.97


def printed(found: Measured) -> list[str]:
    """Lines of the page's table."""
    cells = {name: [f"{100 * share:.1f} ({width:.2f})" for share, width in row.values()] for name, row in found.items()}
    return [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]


def numbers(lines: list[str]) -> dict[str, list[float]]:
    """Coverage (in percent) and width of each cell, by the line's name."""
    rows = [line.strip("| ").split(" | ") for line in lines]
    return {name: [float(number) for cell in cells for number in cell.strip(")").split(" (")] for name, *cells in rows}


def committed() -> dict[str, list[float]]:
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\|.* \d+\.\d \(\d", line)]
    return numbers(found)


def test_the_page_tells_what_was_measured(measured: Measured) -> None:
    told, found = committed(), numbers(printed(measured))
    assert list(told) == list(found)
    for name, row in found.items():
        np.testing.assert_allclose(row[::2], told[name][::2], atol=5, err_msg=name)
        # Rule 'full' has two widths, one for each sign of its variance; their median is not to be had of 1,000.
        widths = np.delete([row[1::2], told[name][1::2]], RULES.index("full"), axis=1)
        np.testing.assert_allclose(*widths, rtol=0.05, err_msg=name)


@pytest.mark.slow
def test_the_page_is_what_the_script_prints() -> None:
    for name, row in numbers(printed(table(10_000))).items():
        np.testing.assert_allclose(row, committed()[name], atol=0.5, rtol=0.02, err_msg=name)


if __name__ == "__main__":
    print("\n".join(printed(table(10_000))))
