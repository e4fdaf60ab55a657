"""Runs of task cox: lifelines' stratified fit without privacy, intervals that count noise with it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg

from benchmarks.utility.cohorts import cohort, records
from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inference.cox import partial_likelihood
from polyclinic.inspection.result import RunResult
from polyclinic.programs import program_of
from polyclinic.programs.analyses.cox import Cox
from polyclinic.training.survival.cox import CoxTask
from polyclinic.training.task import SiteWork

TERMS = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]


def run(out: Path, options: dict[str, Any], name: str = "ROSSI", **keys: Any) -> RunResult:
    fixed: dict[str, Any] = {
        "task": "cox",
        "task_options": options,
        "privacy.dp": False,
        "pictures": False,
        "out": str(out),
    }
    return Federation.from_dataset(f"benchmarks.utility.cohorts:{name}").run(**(fixed | keys))


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_without_privacy_is_lifelines_fit_stratified_by_hospital(tmp_path: Path, secure: bool) -> None:
    result, table = run(tmp_path, {"terms": " + ".join(TERMS)}, **{"secure.aggregation": secure}), records("rossi")
    theirs = CoxPHFitter().fit(
        table.drop(columns="id"), "week", "arrest", strata=["hospital"], fit_options={"precision": 1e-10}
    )
    ours, off = result.tables["coefficients"].set_index("Term"), 1e-3 if secure else 1e-6  # masked sums are rounded
    assert ours["Estimate"].to_numpy() == pytest.approx(theirs.params_[TERMS].to_numpy(), abs=off)
    assert ours["Std. error"].to_numpy() == pytest.approx(theirs.standard_errors_[TERMS].to_numpy(), abs=off)
    assert ours["p"].to_numpy() == pytest.approx(theirs.summary.loc[TERMS, "p"].to_numpy(), abs=off)
    fit = result.tables["fit"].set_index("Of the fit")["Value"]
    assert float(fit["Log likelihood"]) == pytest.approx(theirs.log_likelihood_, abs=1e-2 if secure else 1e-6)
    ratios = result.tables["ratios"].set_index("Term")
    assert ratios["Low"].to_numpy() == pytest.approx(
        theirs.summary.loc[TERMS, "exp(coef) lower 95%"].to_numpy(), abs=2 * off
    )
    assert "patients are compared within hospitals" in result.folder.report.read_text()


def test_formulas_and_breslows_ties_are_as_statsmodels_has_them(tmp_path: Path) -> None:
    result = run(tmp_path, {"terms": "log1p(pnodes) + tgrade + horTh:age", "ties": "breslow"}, "GBSG2")
    ours, table = result.tables["coefficients"].set_index("Term")["Estimate"], records("gbsg2")
    assert ours.index.tolist() == ["log1p(pnodes)", "tgrade[T.II]", "tgrade[T.III]", "horTh[no]:age", "horTh[yes]:age"]
    grade, hormone, age = (table[name] for name in ("tgrade", "horTh", "age"))
    columns = [
        np.log1p(table["pnodes"]),
        grade == "II",
        grade == "III",
        (hormone == "no") * age,
        (hormone == "yes") * age,
    ]
    x = np.column_stack([column.astype(float) for column in columns])
    theirs = PHReg(table["time"], x, status=table["cens"], strata=table["hospital"], ties="breslow").fit(gtol=1e-10)
    assert ours.to_numpy() == pytest.approx(theirs.params, abs=1e-6)


def test_a_private_run_says_how_much_noise_widened_its_intervals(tmp_path: Path) -> None:
    private = {"privacy.dp": True, "privacy.epsilon": 200.0, "secure.aggregation": True, "secure.shared_noise": True}
    result = run(tmp_path, {"terms": "horTh + log1p(pnodes)", "edges": [600, 1200, 1800]}, "GBSG2", **private)
    plain = run(tmp_path, {"terms": "horTh + log1p(pnodes)"}, "GBSG2").tables["coefficients"].set_index("Term")
    ours = result.tables["coefficients"].set_index("Term")
    assert (ours["Noise"] > 1).all() and (ours["Noise"] < 3).all() and 0 < result.privacy["epsilon"] <= 200
    assert (abs(ours["Estimate"] - plain["Estimate"]) < 2.5 * ours["Std. error"]).all()
    numbers = json.loads((result.path / "analysis.json").read_text())["numbers"]
    assert [row["label"] for row in numbers["forest"]["rows"]] == ["horTh[T.yes]", "log1p(pnodes)"]


def test_steps_do_not_run_away_from_a_rare_category_with_a_large_effect() -> None:
    rng, rows = np.random.default_rng(0), 600
    x = np.column_stack([rng.normal(size=rows), rng.random(rows) < 0.02])
    time, event = rng.exponential(np.exp(-x @ [3.0, 2.5])), rng.random(rows) < 0.25
    program = program_of(RunConfig(task="cox", task_options={"terms": "age + mar"}, privacy={"dp": False}))
    assert isinstance(program, Cox)
    method = program.method(cohort("rossi").schema)
    state: dict[str, np.ndarray] = {"patients": np.array([float(rows)])}
    for number in range(1, method.rounds + 1):
        at = method.question(number, state)["estimate"][0]
        value, score, information = partial_likelihood(time, event, x, at)
        total = np.concatenate([[rows, 0.0, value], score, information[np.triu_indices(2)]])
        state = method.absorb(number, state, total / rows, 0.0)
    assert state["close"][0] < 1e-6 and np.abs(partial_likelihood(time, event, x, state["estimate"])[1]).max() < 1e-6


@pytest.mark.parametrize(("options", "words"), [
    ({}, "terms is ''; give some"), ({"terms": "arrest ~ age"}, "terms is 'arrest ~ age'; give some"),
    ({"terms": "age", "least": 1}, "least is 1; allowed are whole numbers from 3 on"),
    ({"terms": "age", "ties": "exact"}, "ties is 'exact'; allowed are efron, breslow"),
    ({"terms": "0 + fin"}, "must have an intercept"),
    ({"terms": "agee"}, "The formula names 'agee'"), ({"terms": "age", "time": "prio"}, "must be 'prio' and 'arrest'"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, options)
    assert words in str(refused.value)


def test_small_cells_and_small_budgets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2,000 intervals; with privacy it may have 50"):
        run(tmp_path, {"terms": "fin", "intervals": 2000}, **{"privacy.dp": True})
    with pytest.raises(PolyclinicError, match="'mar' rests on fewer than 40 of the hospital's patients"):
        run(tmp_path, {"terms": "mar", "least": 40})
    with pytest.raises(ConfigError, match="budget is too small"):
        run(tmp_path, {"terms": "fin + prio"}, **{"privacy.dp": True, "privacy.epsilon": 1.0})


def test_a_question_of_another_form_is_refused_before_anything_is_computed() -> None:
    program = program_of(RunConfig(task="cox", task_options={"terms": "age + prio"}, privacy={"dp": False}))
    asked = {"round": np.array([1]), "estimate": np.zeros((1, 2)), "size": np.ones((1, 1))}
    assert isinstance(program.plain_task(cohort("rossi").schema, asked), CoxTask)
    for wrong in ({"estimate": np.zeros((1, 3))}, {"size": np.ones(1)}, {"estimate": np.full((1, 2), np.nan)}):
        with pytest.raises(ConfigError, match="question"):
            program.plain_task(cohort("rossi").schema, asked | wrong)


def test_no_noise_is_asked_of_a_partial_likelihood() -> None:
    """A coordinator that says privacy.dp false and still asks for noise would pay for a sum that has none."""
    program = program_of(RunConfig(task="cox", task_options={"terms": "age + prio"}, privacy={"dp": False}))
    schema = cohort("rossi").schema
    asked = {"round": np.array([1]), "estimate": np.zeros((1, 2)), "size": np.ones((1, 1))}
    task, build = program.task(schema, asked), program.builder(schema)
    program.check_training(task, schema, build, {}, program.settings(None))
    for noisy in (program.settings(1.0), program.settings(0.0)):
        with pytest.raises(ConfigError, match="cannot be private"):
            program.check_training(task, schema, build, {}, noisy)
        with pytest.raises(ConfigError, match="cannot be private"):
            site = cast(SiteWork, SimpleNamespace(rows=SimpleNamespace(patients=1), public_patients=1.0))
            task.train(build, {}, [site], noisy)
