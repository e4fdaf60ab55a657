"""Regressions by exact sums: equal to statsmodels on pooled records, whatever hospitals the records are at."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.families import FAMILIES
from polyclinic.training.regression.exact import ExactRegression, Fit
from polyclinic.training.regression.formula import design_of
from polyclinic.types import Arrays, Floats
from tests.inference.records import LAYOUT, records, rows

TABLE = records()
FORMULAS = {
    "linear": "stay ~ age + sex + C(region) + age:sex + smokes", "logistic": "died ~ age + sex + C(region) + age:sex + bmi",
    "poisson": "visits ~ age + bmi + region*sex", "negative-binomial": "visits ~ age + bmi + sex + C(region)",
}  # fmt: skip


def method_of(family: str, formula: str = "", rounds: int = 25, **options: Any) -> ExactRegression:
    return ExactRegression(
        design_of(formula or FORMULAS[family], LAYOUT), FAMILIES[family], LAYOUT, rounds, 5, **options
    )


def state_of(
    method: ExactRegression, tables: list[Floats], patient: list[np.ndarray] | None = None
) -> tuple[Arrays, Floats]:
    """The last state, and (hospitals, k) scores of the last round."""
    people = [np.arange(len(table)) for table in tables] if patient is None else patient
    counts = [int(of.max()) + 1 for of in people]
    state: Arrays = {"patients": np.array([float(sum(counts))])}
    for number in range(1, method.rounds + 1):
        question = method.question(number, state)
        parts = [
            method.contributions(number, question, z, of, n).sum(axis=0)
            for z, of, n in zip(tables, people, counts, strict=True)
        ]
        state = method.absorb(number, state, np.sum(parts, axis=0) / sum(counts), 0.0)
    return state, np.array(parts)[:, 3 : 3 + len(method.names)] * question["size"][0][0]


def hospitals(table: pd.DataFrame) -> list[Floats]:
    return [rows(part) for _, part in table.groupby("hospital")]


def theirs(family: str, robust: bool) -> Any:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    formula = FORMULAS[family]
    used = TABLE.dropna(subset=[name for name in ("age", "smokes", "region") if name in formula]).astype({"age": float})
    kind: dict[str, Any] = {"cov_type": "cluster", "cov_kwds": {"groups": used["hospital"]}} if robust else {}
    if family == "linear":
        return smf.ols(formula, used).fit(**kind)
    if family == "logistic":
        return smf.logit(formula, used).fit(method="newton", tol=1e-14, disp=False, **kind)
    if family == "poisson":
        return smf.glm(formula, used, family=sm.families.Poisson()).fit(tol=1e-14, **kind)
    start = smf.negativebinomial(formula, used).fit(disp=False, method="bfgs", maxiter=500).params
    return smf.negativebinomial(formula, used).fit(start, method="newton", tol=1e-14, disp=False, maxiter=200, **kind)


@pytest.mark.parametrize("robust", [False, True], ids=["classic", "robust"])
@pytest.mark.parametrize("family", FORMULAS)
def test_it_equals_statsmodels_on_pooled_records(family: str, robust: bool) -> None:
    method, expected = method_of(family), theirs(family, robust)
    state, scores = state_of(method, hospitals(TABLE))
    fit = method.fit(state, scores if robust else None)
    names = [name if name != "dispersion" else "alpha" for name in fit.names]
    assert dict(zip(names, fit.estimates, strict=True)) == pytest.approx(dict(expected.params), rel=1e-6)
    errors = np.sqrt(np.diag(fit.covariance))
    assert dict(zip(names, errors, strict=True)) == pytest.approx(dict(expected.bse), rel=1e-6)
    assert fit.loglik == pytest.approx(expected.llf, rel=1e-9) and fit.rows == expected.nobs
    assert 2 * len(names) - 2 * fit.loglik == pytest.approx(expected.aic, rel=1e-9)
    assert fit.rows + fit.left_out == len(TABLE)
    if family == "linear":
        assert fit.deviation**2 == pytest.approx(expected.scale, rel=1e-9)


@pytest.mark.parametrize("family", FORMULAS)
def test_hospitals_do_not_matter_and_no_more_do_sizes_by_which_sums_are_divided(family: str) -> None:
    def fit(method: ExactRegression, tables: list[Floats]) -> Fit:
        return method.fit(state_of(method, tables)[0])

    one, many = fit(method_of(family), [rows(TABLE)]), fit(method_of(family, divided=True), hospitals(TABLE))
    assert one.estimates == pytest.approx(many.estimates, rel=1e-8)
    assert one.covariance == pytest.approx(many.covariance, rel=1e-7, abs=1e-14)


def test_a_patient_with_several_rows_counts_by_each() -> None:
    method, z = method_of("logistic"), rows(TABLE)
    patient = np.arange(len(z)) // 3
    one, each = method.fit(state_of(method, [z])[0]), method.fit(state_of(method, [z], [patient])[0])
    assert one.estimates == pytest.approx(each.estimates, rel=1e-9) and each.rows == one.rows and each.patients == 500


def test_a_category_that_nobody_has_is_left_without_an_estimate_and_changes_nothing() -> None:
    there = TABLE[TABLE["region"] != "west"]
    fit, without = (
        method.fit(state_of(method, hospitals(there))[0])
        for method in (
            method_of("logistic"),
            method_of("logistic", "died ~ age + sex + I(age*0 + 1):sex:age + bmi + C(region)"),
        )
    )
    at = fit.names.index("C(region)[T.west]")
    assert np.isnan(fit.estimates[at]) and np.isnan(fit.covariance[at]).all()
    assert np.isfinite(np.delete(fit.estimates, at)).all() and without.loglik == pytest.approx(fit.loglik)


def test_a_column_far_below_its_public_bound_has_an_estimate() -> None:
    table = TABLE.assign(visits=TABLE["visits"] % 6)
    method, x = method_of("linear", "stay ~ I(visits**4)"), table["visits"].to_numpy(float) ** 4
    slope, _ = np.polyfit(x, table["stay"].to_numpy(float), 1)
    assert method.fit(state_of(method, hospitals(table))[0]).estimates[1] == pytest.approx(slope, rel=1e-6)


def test_a_fit_may_begin_after_the_first_round() -> None:
    """Of hospitals that are combined, one may have been away then."""
    method, z = method_of("logistic"), rows(TABLE)
    state: Arrays = {"patients": np.array([float(len(z))])}
    for number in range(2, 20):
        question = method.question(number, state)
        parts = method.contributions(number, question, z, np.arange(len(z)), len(z))
        state = method.absorb(number, state, parts.mean(axis=0), 0.0)
    assert method.fit(state).estimates == pytest.approx(method.fit(state_of(method, [z])[0]).estimates, rel=1e-8)


@pytest.mark.parametrize(("formula", "said"), [
    ("died ~ age + I(age / 10)", "told apart"), ("died ~ age + I(died_as_sex)", ""), ("died ~ C(sex) + sex", "told apart")
])  # fmt: skip
def test_terms_that_follow_from_others_are_no_result(formula: str, said: str) -> None:
    if not said:
        table = TABLE.assign(sex=TABLE["died"])
        method, said = method_of("logistic", "died ~ sex"), "did not converge"
    else:
        table, method = TABLE, method_of("logistic", formula)
    state, _ = state_of(method, [rows(table)])
    with pytest.raises(DataError, match=said):
        method.fit(state)


def test_a_fit_that_lost_hospitals_says_so() -> None:
    method, whole = method_of("logistic"), rows(TABLE)
    state: Arrays = {}
    for number in range(1, method.rounds + 1):
        z = whole[: len(whole) // 3] if number % 2 else whole[len(whole) // 3 :]
        asked = method.question(number, state)
        each = method.contributions(number, asked, z, np.arange(len(z)), len(z))
        state = method.absorb(number, state | {"patients": np.array([float(len(z))])}, each.mean(axis=0), 0.0)
    with pytest.raises(
        DataError, match=f"hospitals were lost, so that some rounds are of {len(whole) // 3:,} patients and"
    ):
        method.fit(state)


def test_a_hospital_keeps_what_rests_on_few_of_its_patients() -> None:
    method, z = method_of("logistic"), rows(TABLE)
    question = method.question(1, {})

    def refusal(table: pd.DataFrame, patient: np.ndarray | None = None, least: int = 5) -> str:
        of = np.arange(len(table)) if patient is None else patient
        return replace(method, least=least).refusal(1, question, rows(table), of, int(of.max()) + 1)

    assert not refusal(TABLE)
    many = TABLE.dropna()[:400].assign(region="north")
    assert not refusal(many)  # nobody is no cell
    few = many.copy()
    few.loc[few.index[:4], "region"] = "south"
    assert "C(region)[T.south]" in refusal(few) and "fewer than 5" in refusal(few)
    assert not refusal(few, least=4)
    few.loc[few.index[:6], "region"] = "south"
    assert not refusal(few)
    of = np.arange(len(few))
    of[:6] = 0  # the six rows are one patient's
    assert "C(region)[T.south]" in refusal(few, of)
    assert "'died'" in refusal(many.assign(died=[1, 1, 1] + [0] * 397))
    assert "too few patients" in refusal(many[:12], least=1)
    assert len(z) == len(TABLE)


def test_no_formula_and_no_estimate_singles_out_a_few_patients() -> None:
    table = TABLE.dropna().query("age != 37")
    one = pd.concat([table, table.iloc[:1].assign(age=37)])
    z, of = rows(one), np.arange(len(one))
    peak = method_of("linear", "stay ~ I(1 / ((age - 37)**2 + 0.0001))")
    assert "rests on fewer than 5" in peak.refusal(1, peak.question(1, {}), z, of, len(z))
    method = method_of("logistic", "died ~ age")
    assert not method.refusal(2, method.question(2, {}), z, of, len(z))
    steep = {"estimate": np.array([[-37e4, 98e4]]), "size": np.ones((1, 1))}  # all but those of 37 years are certain
    assert "nearly all weight is on fewer than 5" in method.refusal(2, steep, z, of, len(z))


@pytest.mark.parametrize("wrong", [
    {"estimate": np.zeros((1, 3))}, {"estimate": np.zeros((1, 7), dtype=np.float32)}, {"size": np.zeros(1)},
    {"size": np.zeros((0, 1))},
])  # fmt: skip
def test_questions_of_another_form_are_refused(wrong: Arrays) -> None:
    method = method_of("logistic")
    question = method.question(1, {}) | wrong
    with pytest.raises(ConfigError, match="The question's"):
        method.contributions(1, question, rows(TABLE)[:2], np.arange(2), 2)
