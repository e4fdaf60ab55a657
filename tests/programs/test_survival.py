"""Runs of task survival: lifelines' numbers without privacy, and what leaves, is refused and is shown."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test
from statsmodels.duration.survfunc import survdiff
from typer.testing import CliRunner

from benchmarks.utility.cohorts import cohort, records
from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.cli.analyses.analyse import Options
from polyclinic.cli.analyses.survival import with_time
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.inspection.audits import subject_of_config
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_of
from polyclinic.programs import program_of
from polyclinic.training.auditing.audit import noise, sampling, sensitivity
from polyclinic.training.auditing.subject import canaries
from polyclinic.training.survival.counts import Outcome, SurvivalCounts
from tests.conftest import ROOT

COHORTS = "benchmarks.utility.cohorts:"


def run(out: Path, options: dict[str, Any], name: str = "GBSG2", **keys: Any) -> RunResult:
    fixed: dict[str, Any] = {
        "task": "survival",
        "task_options": options,
        "privacy.dp": False,
        "pictures": False,
        "out": str(out),
    }
    return Federation.from_dataset(COHORTS + name).run(**(fixed | keys))


def exact() -> dict[str, Any]:
    """Options by which results are those of Kaplan and Meier."""
    table = records("gbsg2")
    return {"edges": sorted({float(time) for time in table["time"][table["cens"] == 1]}), "within": "before"}


def test_a_run_without_privacy_is_what_lifelines_says_of_all_patients_together(tmp_path: Path) -> None:
    result, table = run(tmp_path, exact() | {"by": "horTh"}), records("gbsg2")
    numbers = json.loads((result.path / "analysis.json").read_text())["numbers"]
    for curve in numbers["survival"]["curves"]:
        some = table[table["horTh"] == curve["name"]]
        theirs = KaplanMeierFitter().fit(some["time"], some["cens"])
        assert curve["survival"] == pytest.approx(theirs.predict(curve["edges"]).to_numpy(), abs=1e-9)
    test = multivariate_logrank_test(table["time"], table["horTh"], table["cens"])
    assert numbers["log-rank"]["statistic"] == pytest.approx(test.test_statistic, abs=1e-9)
    groups = result.tables["groups"].set_index("Group")
    assert groups["Events"].tolist() == [299, 205, 94] and groups["Patients"].tolist() == [686, 440, 246]
    medians = [KaplanMeierFitter().fit(t["time"], t["cens"]).median_survival_time_ for _, t in table.groupby("horTh")]
    assert groups["Median (days)"].iloc[1:].tolist() == medians
    assert result.tables["survival"]["Group"].value_counts().tolist() == [12, 12, 12]
    page = result.folder.report.read_text()
    assert "Log-rank test: chi-squared 8.56 on 1 degrees of freedom, p = 0.003" in page
    assert result.privacy["epsilon"] is None


def test_hospitals_have_curves_of_their_own_and_the_test_compares_within_them(tmp_path: Path) -> None:
    result, table = run(tmp_path, exact() | {"by": "tgrade", "hospitals": True, "fewest": 3}), records("gbsg2")
    numbers = json.loads((result.path / "analysis.json").read_text())["numbers"]
    strata = table["hospital"].to_numpy()
    statistic, p = survdiff(
        table["time"].to_numpy(), table["cens"].to_numpy(), table["tgrade"].to_numpy(), strata=strata
    )
    assert numbers["log-rank"] == {"statistic": pytest.approx(statistic), "freedom": 2, "p": pytest.approx(p)}
    for number, hospital in enumerate(("east", "north", "south")):
        curve, some = numbers["survival-hospitals"]["curves"][number], table[table["hospital"] == hospital]
        theirs = KaplanMeierFitter().fit(some["time"], some["cens"])
        assert curve["name"] == f"hospital {number + 1}"
        assert curve["survival"] == pytest.approx(theirs.predict(curve["edges"]).to_numpy(), abs=1e-9)
    with pytest.raises(ConfigError, match="keeps hospitals' sums apart"):
        run(tmp_path, {"hospitals": True}, **{"secure.aggregation": True})


@pytest.mark.parametrize(
    "keys", [{}, {"secure.aggregation": True}, {"secure.aggregation": True, "secure.shared_noise": True}]
)
def test_noisy_curves_are_near_the_exact_ones_and_cost_what_they_may(tmp_path: Path, keys: dict[str, Any]) -> None:
    options = {"by": "horTh", "intervals": 8}
    private = run(tmp_path, options, **{"privacy.dp": True, "privacy.epsilon": 8.0, **keys})
    plain = run(tmp_path, options)
    noisy, true = (result.tables["survival"] for result in (private, plain))
    assert 0 < private.privacy["epsilon"] <= 8.0
    both = true.merge(noisy, on=["Group", "Until (days)"], suffixes=("", " noisy"))
    assert len(both) >= 15
    assert (both["Survival"] - both["Survival noisy"]).abs().max() < 0.08
    inside = (both["Low noisy"] <= both["Survival"]) & (both["Survival"] <= both["High noisy"])
    assert inside.mean() > 0.9
    assert any("Intervals and the test count the noise" in note for note in private.summary["analysis"]["notes"])


def test_noise_that_hides_everybody_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="noise hides how many patients are at risk"):
        assert run(tmp_path, {}, **{"privacy.dp": True, "privacy.epsilon": 0.01}).tables


def test_without_privacy_a_hospital_says_nothing_of_a_few_patients(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="Of the group 'I' there are fewer than 30 patients here"):
        run(tmp_path, {"by": "tgrade", "fewest": 30})
    assert run(tmp_path, {"by": "tgrade", "fewest": 25}).tables["groups"]["Group"].tolist() == ["all", "I", "II", "III"]


def test_a_patient_adds_a_vector_of_length_one_whatever_the_number_of_rows() -> None:
    schema = cohort("gbsg2").schema
    method = program_of(RunConfig(task="survival", task_options={"by": "horTh"})).method(schema)
    assert isinstance(method, SurvivalCounts)
    rng = np.random.default_rng(0)
    z = method.layout.rows(rng.uniform(-1, 1, (9, method.layout.features)), method.layout.some_labels(9))
    vectors = method.contributions(1, {}, z, np.array([0, 1, 2, 3, 4, 5, 5, 5, 6]), 7)
    assert vectors.shape == (7, 2 * 61) and vectors.sum(axis=1) == pytest.approx(1)
    assert (np.linalg.norm(vectors, axis=1) <= 1).all()


def test_few_patients_are_counted_at_a_hospital_whatever_the_grid_is_and_however_many_rows_they_have() -> None:
    options = {"by": "horTh", "intervals": 2000}
    method = program_of(RunConfig(task="survival", task_options=options)).method(cohort("gbsg2").schema)
    layout, rng = method.layout, np.random.default_rng(0)
    z = layout.rows(rng.uniform(-1, 1, (20_000, layout.features)), layout.some_labels(20_000))
    groups = layout.values(z, method.outcome.by)
    tracemalloc.start()
    assert not method.refusal(1, {}, z, np.arange(len(z)), len(z))
    # All of a group's rows are four patients'.
    few = np.where(groups == groups[0], np.arange(len(z)) % 4, np.arange(len(z)))
    assert "fewer than 5 patients" in method.refusal(1, {}, z, few, len(z))
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


@pytest.mark.parametrize(("options", "words"), [
    ({"time": "tme"}, "names 'tme' as time, which is no feature and no label of schema 'gbsg2'. Did you mean 'time'?"),
    ({"event": "age"}, "(--event) names 'age' as event, a column of kind 'integer'; it must hold two values, such as 0 and 1"),
    ({"by": "age"}, "names 'age' as by, a column of kind 'integer'; it must be a column with categories"),
    ({"edges": [3.0, 1.0]}, "numbers that rise, above 0 and up to 3000"),
    ({"intervals": 0}, "has intervals 0; allowed are 1 to 2,000"),
    ({"intervals": 2.5}, "has intervals 2.5; it must be a whole number"),
    ({"fewest": 2}, "has fewest 2; allowed are whole numbers from 3 on"),
    ({"within": "all"}, "has within 'all'; allowed are half, before"), ({"gird": 3}, "names 'gird'; the task 'survival' takes"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused_before_anything_is_spent(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, options)
    assert words in str(refused.value)
    assert not list(tmp_path.glob("**/ledger.sqlite"))


def own_tables(folder: Path, **columns: Any) -> str:
    """A folder with the table of one hospital."""
    rows = np.arange(80)
    table = pd.DataFrame({"age": 30 + rows % 50, "days": 10 + rows * 7 % 61, "died": rows % 2}).assign(**columns)
    table.to_csv(folder / "north.csv", index=False)
    return str(folder / "north.csv")


@pytest.mark.parametrize("task", [["cox", "age"], ["survival"]])
@pytest.mark.parametrize(
    ("columns", "time", "words"),
    [
        ({"days": -np.arange(80) - 7}, "days", "'days', the time (--time), may hold numbers below 0; allowed are 0 and more"),
        ({}, "day", "--time names 'day', which is not a column of the tables. Did you mean 'days'?"),
        ({"days": ["long", *range(79)]}, "days", "--time takes a number, but column 'days' has 1 cell without a number"),
        ({"died": ["0", "1", "maybe", "0"] * 20}, "days", "(--event) names 'died' as event, a column of kind 'categorical'"),
    ],
)  # fmt: skip
def test_own_tables_whose_times_or_events_cannot_be_are_told_by_the_commands_options(
    tmp_path: Path, task: list[str], columns: dict[str, Any], time: str, words: str
) -> None:
    given = [
        "--data",
        own_tables(tmp_path, **columns),
        "--time",
        time,
        "--event",
        "died",
        "--out",
        str(tmp_path / "runs"),
    ]
    refused = CliRunner().invoke(app, [*task, *given, "--epsilon", "1"]).exception
    assert isinstance(refused, ConfigError | DataError) and words in str(refused)
    assert not any(cell in str(refused) for cell in ("-7", "-86", "long", "maybe", "--label"))
    assert not (tmp_path / "runs").exists()


def test_a_time_of_few_values_is_one(tmp_path: Path) -> None:
    options = {"files": own_tables(tmp_path, days=np.arange(80) % 4), "label": "days"}
    config = RunConfig(dataset="tables", dataset_options=options, task="survival", task_options={"time": "days"})
    assert dataset_of(config).schema.label.bounds == (0, 3)


def test_a_schema_whose_times_may_be_below_0_is_refused() -> None:
    columns = [
        column.model_copy(update={"bounds": (-1.0, 3000.0)}) if column.name == "time" else column
        for column in cohort("gbsg2").schema.columns
    ]
    schema = cohort("gbsg2").schema.model_copy(update={"columns": tuple(columns)})
    with pytest.raises(ConfigError, match="Column 'time', the time .* below 0"):
        Outcome.of(schema, "time", "cens")


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"data": ["cohort"]}, "days"),
        ({"data": ["cohort"], "label": "weeks"}, "weeks"),
        ({"data": ["cohort"], "schema": Path("schema.toml")}, None),
        ({"data": ["north/hospital.toml"]}, None),
        ({"dataset": "trial"}, None),
    ],
)
def test_the_time_of_drafted_tables_is_their_label_which_no_draft_clips(
    given: dict[str, Any], label: str | None
) -> None:
    assert with_time(Options(**given), "days").label == label
    assert with_time(Options(**given), None).label == given.get("label")


@pytest.mark.slow
def test_the_command_prints_the_tables(tmp_path: Path, command: Callable[..., Any]) -> None:
    given = ("survival", "--dataset", COHORTS + "GBSG2", "--out", str(tmp_path))
    done = command(
        *given,
        "--time",
        "time",
        "--event",
        "cens",
        "--by",
        "horTh",
        "--edges",
        "365,730,1095",
        "--no-dp",
        cwd=str(ROOT),
    )
    assert done.returncode == 0 and "Log-rank test: chi-squared" in done.stdout and "Median (days)" in done.stdout
    done = command(*given, "--edges", "a,b", cwd=str(ROOT))
    assert done.returncode == 2 and "--edges is 'a,b'; write numbers with commas between them" in done.stderr


@pytest.mark.parametrize(
    ("dataset", "task", "options"),
    [
        (COHORTS + "GBSG2", "survival", {"by": "horTh"}),
        (COHORTS + "GBSG2", "cox", {"terms": "horTh + log1p(pnodes)", "edges": [600, 1200]}),
        ("ist-survival", "survival", {}),
    ],
)
def test_an_audit_takes_the_sum_for_one_that_a_patient_moves_by_one_at_most(
    dataset: str, task: str, options: dict[str, Any]
) -> None:
    """Labels have two columns, times and events, also those of canaries, of whom a sum may tell only one from all others."""
    subject = subject_of_config(RunConfig(dataset=dataset, task=task, task_options=options))
    assert canaries(subject, 20, 1.0).y.shape == (20, 2)
    assert all(finding.passed for finding in (sensitivity(subject), *noise(subject), *sampling(subject)))


@pytest.mark.slow
def test_the_page_shows_what_the_runs_say(tmp_path: Path) -> None:
    page = (ROOT / "docs/survival.md").read_text(encoding="utf-8")
    (header,) = [line for line in page.splitlines() if line.startswith("| share alive")]
    rows = [line.split("|")[1:-1] for line in page.split(header)[1].splitlines()[2:7]]
    options = {"by": "rxasp", "edges": [7, 14, 30, 60, 90, 120, 150, 180]}
    shared = {"privacy.epsilon": 1.0, "secure.aggregation": True, "secure.shared_noise": True}
    for place, keys in enumerate(({"privacy.dp": False}, {"privacy.epsilon": 1.0}, shared), 1):
        ist = Federation.from_dataset("ist-survival", sites=50)
        result = ist.run(task="survival", task_options=options, pictures=False, out=str(tmp_path), **keys)
        curves = result.tables["survival"].set_index(["Group", "Until (days)"])
        for row, at in zip(rows, (("N", 14.0), ("Y", 14.0), ("N", 180.0), ("Y", 180.0)), strict=False):
            value, low, high = (f"{curves.loc[at, name]:.3f}"[1:] for name in ("Survival", "Low", "High"))
            assert row[place].strip() == f"{value} ({low} to {high})", at
        test = result.folder.analysis()["numbers"]["log-rank"]
        assert rows[4][place].strip() == f"χ² {test['statistic']:.2f}, p = {test['p']:.2f}".replace("p = 0.", "p = .")
