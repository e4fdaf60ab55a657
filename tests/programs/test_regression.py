"""Regression tables through the whole federation: exact, robust, combined, secret and private ones, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.programs import program_of
from tests.inference.records import SCHEMA, records

FORMULA = "died ~ age + sex + C(region)"
HOSPITALS = ("a", "b", "c", "d")


def __getattr__(name: str) -> Dataset:
    """``made_up``: four hospitals of the tests' records; ``few``: of which the last has three patients of the west;
    ``rare``: of whom there are three in all."""
    if name not in ("made_up", "few", "rare"):
        raise AttributeError(name)
    columns = [column for column in SCHEMA.columns if column.name not in ("ward", "grade")]
    schema = Schema(
        name=name, columns=(
            Column(name="patient", kind="integer", role="patient_id"),
            Column(name="hospital", kind="categorical", role="site", categories=HOSPITALS), *columns,
        ),
    )  # fmt: skip
    return Dataset(
        name=name, title="Made up", description="Made up.", schema=schema, licence="Apache-2.0", citation="none", patients=1500,
        rows=1500, default_sites=4, default_partitioner="natural", load=lambda: table(name), available=lambda: True,
        natural_sites=HOSPITALS, simulated=True,
    )  # fmt: skip


def table(name: str = "made_up") -> pd.DataFrame:
    table = records()
    table = table.assign(hospital=np.array(HOSPITALS, object)[table["hospital"]], patient=np.arange(len(table)))
    west = table.index[(table["region"] == "west") & ((name == "rare") | (table["hospital"] == "d"))]
    return table if name == "made_up" else table.drop(index=west[3:])


def run(out: Path, data: str = "made_up", keys: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    given = {"formula": FORMULA, "family": "logistic", **options}
    config = RunConfig.build(
        {"dataset": f"{__name__}:{data}", "task": "regression", "task-options": given, "privacy.dp": False, "out": str(out)}
        | dict(keys or {})
    )  # fmt: skip
    return dict(Federation.from_config(config).run().summary["analysis"])


def column(analysis: Mapping[str, Any], name: str, heading: str) -> dict[str, Any]:
    table = next(part for part in analysis["tables"] if part["name"] == name)
    at = table["columns"].index(heading)
    return {row[0]: row[at] for row in table["rows"]}


def pooled(**fit: Any) -> Any:
    import statsmodels.formula.api as smf

    used = table().dropna(subset=["age", "region"]).astype({"age": float})
    if fit:
        fit["cov_kwds"] = {"groups": pd.factorize(used["hospital"])[0]}
    return smf.logit(FORMULA, used).fit(method="newton", tol=1e-14, disp=False, **fit)


def test_a_run_is_what_statsmodels_has_of_pooled_records(tmp_path: Path) -> None:
    analysis, expected = run(tmp_path), pooled()
    assert not analysis["refused"]
    assert column(analysis, "coefficients", "Estimate") == pytest.approx(dict(expected.params), rel=1e-6)
    assert column(analysis, "coefficients", "Std. error") == pytest.approx(dict(expected.bse), rel=1e-6)
    assert column(analysis, "coefficients", "p") == pytest.approx(dict(expected.pvalues), rel=1e-5)
    low, high = (dict(expected.conf_int()[at]) for at in (0, 1))
    assert column(analysis, "coefficients", "Low") == pytest.approx(low, rel=1e-6)
    assert column(analysis, "coefficients", "High") == pytest.approx(high, rel=1e-6)
    assert column(analysis, "ratios", "Odds ratio")["age"] == pytest.approx(np.exp(expected.params["age"]), rel=1e-6)
    fit = column(analysis, "fit", "Value")
    assert fit["AIC"] == pytest.approx(expected.aic, rel=1e-8) and fit["Rows"] == str(int(expected.nobs))
    (folder,) = tmp_path.iterdir()
    csv = pd.read_csv(folder / "tables" / "coefficients.csv", index_col=0)
    assert dict(csv["Estimate"]) == pytest.approx(dict(expected.params), rel=1e-6)
    assert "forest" in (folder / "report.html").read_text() or list(folder.rglob("forest*"))
    assert json.loads((folder / "analysis.json").read_text())["task"] == "regression"


@pytest.mark.slow
def test_standard_errors_are_robust_by_hospital(tmp_path: Path) -> None:
    analysis, expected = run(tmp_path, errors="robust"), pooled(cov_type="cluster")
    assert column(analysis, "coefficients", "Std. error") == pytest.approx(dict(expected.bse), rel=1e-6)
    assert column(analysis, "coefficients", "p") == pytest.approx(dict(expected.pvalues), rel=1e-4)


@pytest.mark.slow
def test_each_hospital_by_itself_and_all_together(tmp_path: Path) -> None:
    import statsmodels.formula.api as smf

    from polyclinic.inference.meta import meta_analysis

    analysis = run(tmp_path, meta="reml")
    used, own = table().dropna(subset=["age", "region"]).astype({"age": float}), []
    for _, part in used.groupby("hospital"):
        fit = smf.logit(FORMULA, part).fit(method="newton", tol=1e-14, disp=False)
        own.append((fit.params["age"], fit.bse["age"]))
    rows = next(part for part in analysis["tables"] if part["name"] == "hospitals")["rows"]
    assert [row[2:4] for row in rows if row[0] == "age"] == [pytest.approx(pair, rel=1e-6) for pair in own]
    estimates, errors = np.array(own).T
    expected = meta_analysis(estimates, errors)
    assert column(analysis, "pooled", "Random")["age"] == pytest.approx(expected.random.estimate, rel=1e-6)
    assert column(analysis, "heterogeneity", "τ²")["age"] == pytest.approx(expected.tau2, rel=1e-5, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_secret_sum_gives_nearly_the_same(tmp_path: Path, family: str) -> None:
    formula = {"logistic": FORMULA, "poisson": "visits ~ age + sex"}[family]
    plain = run(tmp_path / "plain", family=family, formula=formula)
    secret = run(tmp_path / "secret", family=family, formula=formula, keys={"secure.aggregation": True})
    for heading, close in (("Estimate", 0.01), ("Std. error", 1e-3)):
        one, other = (column(analysis, "coefficients", heading) for analysis in (plain, secret))
        errors = column(plain, "coefficients", "Std. error")
        assert all(abs(one[term] - other[term]) < close * errors[term] for term in one)


@pytest.mark.slow
def test_a_hospital_with_few_patients_of_a_term_drops_out_and_the_others_go_on(tmp_path: Path) -> None:
    analysis = run(tmp_path, "few")
    whole = len(table().dropna(subset=["age", "region"]).query("hospital != 'd'"))
    assert column(analysis, "fit", "Value")["Rows"] == str(whole)
    (folder,) = tmp_path.iterdir()
    assert "'C(region)[T.west]' rests on fewer than 5" in (folder / "report.html").read_text().replace("&#39;", "'")
    assert column(run(tmp_path / "least", "few", least=3), "fit", "Value")["Rows"] == str(whole + int(
        table("few").dropna(subset=["age", "region"]).query("hospital == 'd'").shape[0]
    ))  # fmt: skip


def test_a_term_that_noise_hides_has_a_dash_and_the_others_their_numbers(tmp_path: Path) -> None:
    keys = {"privacy.dp": True, "privacy.epsilon": 10.0, "secure.aggregation": True, "secure.shared-noise": True}
    ended = run(tmp_path, "rare", keys)
    hidden = {name for name, value in column(ended, "coefficients", "Estimate").items() if value is None}
    assert hidden == {"C(region)[T.west]"} and all(column(ended, "ratios", "Low").values())
    assert "The noise hides C(region)[T.west]" in " ".join(ended["notes"])


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["own", "shared"])
def test_with_noise_intervals_count_it(tmp_path: Path, shared: bool) -> None:
    keys = {"privacy.dp": True, "privacy.epsilon": 8.0, "privacy.delta": 1e-4}
    keys |= {"secure.aggregation": True, "secure.shared-noise": True} if shared else {}
    analysis, expected = run(tmp_path, keys=keys), pooled()
    assert not analysis["refused"], analysis["refused"]
    estimates, errors = (column(analysis, "coefficients", heading) for heading in ("Estimate", "Std. error"))
    assert all(abs(estimates[term] - expected.params[term]) < 4 * errors[term] for term in estimates)
    assert all(1 <= noise < 1.5 for noise in column(analysis, "coefficients", "Noise").values())
    assert all(errors[term] > 0.95 * expected.bse[term] for term in errors)


@pytest.mark.parametrize(("options", "keys", "said"), [
    ({"family": "gamma"}, {}, "family is 'gamma'; allowed are linear"),
    ({"formula": ""}, {}, "formula is ''"),
    ({"formula": "died ~ center(age)"}, {}, "not allowed"),
    ({"formula": "died ~ region:smoker"}, {}, "Did you mean 'smokes'"),
    ({"formula": "region ~ age"}, {}, "must be a number, or have two categories"),
    ({"formula": "visits ~ age"}, {}, "family logistic takes one that is 0 or 1"),
    ({"formula": "stay ~ age", "family": "poisson"}, {}, "may be below 0"),
    ({"least": 2}, {}, "least is 2; allowed are whole numbers from 3 on"),
    ({"errors": "robust"}, {"secure.aggregation": True}, "each hospital's sum"),
    ({"meta": "dl"}, {"secure.aggregation": True}, "each hospital's sum"),
    ({"errors": "robust"}, {"privacy.dp": True}, "errors robust goes with exact sums"),
    ({"formula": "visits ~ age", "family": "negative-binomial"}, {"privacy.dp": True}, "no private fit"),
    ({"robust": True}, {}, "names 'robust'; the task 'regression' takes formula"),
    ({}, {"privacy.dp": True, "privacy.epsilon": 0.1}, "budget is too small"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path, options: Any, keys: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(tmp_path, keys=keys, **options)


def test_no_exact_sum_is_asked_of_a_private_run() -> None:
    """Its method would not look for few patients; a coordinator may say in a message what it did not in the configuration."""
    config = RunConfig.build(
        {"dataset": f"{__name__}:made_up", "task": "regression", "task-options": {"formula": FORMULA}}
    )
    program = program_of(config)
    assert config.privacy.dp and program.price(program.settings(1.0))
    with pytest.raises(ConfigError, match="is private, but exact sums are asked"):
        program.price(program.settings(None))


def test_nobody_is_held_out_under_flower_either() -> None:
    """Flower gives a run all keys of the app's table, of which an empty one has the task's own default."""
    config = RunConfig.from_flower(RunConfig.app_config() | {"task": "regression", "task-options": "formula='a ~ b'"})
    assert config.split.fraction == 0 and config.rounds == 10
