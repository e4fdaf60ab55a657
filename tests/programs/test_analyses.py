"""What all analyses have in common: tables as files, and sums that are exact without privacy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.evaluation.page import render
from polyclinic.evaluation.report import templates
from polyclinic.plugins import dataset_of
from polyclinic.privacy.sums import clipped_total, exact_total
from polyclinic.programs import program_of
from polyclinic.programs.analyses import Table
from polyclinic.runs.tables import analysis_files, table_frame

TABLE = Table(
    "odds", "Odds of 50 % & more", ("Term", "Odds ratio", "p"),
    (("=age_years", 1.23456789, 0.04), ("<b>sex</b>", None, float("nan"))), {"Odds ratio": ".2f", "p": ".3f"}, "By Wald.",
)  # fmt: skip


def as_part(table: Table) -> dict[str, object]:
    return vars(table) | {"shown": table.texts()}


def test_a_table_is_shown_by_its_formats_and_what_has_no_value_is_a_dash() -> None:
    assert TABLE.texts() == [["=age_years", "1.23", "0.040"], ["<b>sex</b>", "–", "–"]]


def test_files_hold_all_digits_and_nothing_that_a_reader_of_them_would_run(tmp_path: Path) -> None:
    analysis = {"title": "t", "refused": None, "tables": [as_part(TABLE)], "numbers": {}, "notes": []}
    files = {
        path.relative_to(tmp_path).as_posix(): str(text)
        for path, text in analysis_files(tmp_path, analysis, {}).items()
    }
    assert sorted(files) == ["analysis.json", "tables/odds.csv", "tables/odds.html", "tables/odds.tex"]
    assert files["tables/odds.csv"].splitlines()[1] == "'=age_years,1.23456789,0.04"
    assert json.loads(files["analysis.json"])["tables"][0]["rows"][0][1] == 1.23456789
    assert "<b>sex" not in files["tables/odds.html"] and "&lt;b&gt;sex" in files["tables/odds.html"]
    assert (
        "Odds of 50 &amp; more" in files["tables/odds.html"] or "Odds of 50 % &amp; more" in files["tables/odds.html"]
    )
    assert (
        r"\caption{Odds of 50 \% \& more. By Wald.}" in files["tables/odds.tex"]
        and r"=age\_years & 1.23" in files["tables/odds.tex"]
    )


def test_a_refused_analysis_leaves_no_files_and_its_page_says_why(tmp_path: Path) -> None:
    refused = {"title": "Regression", "refused": "No result: noise.", "tables": [], "numbers": {}, "notes": []}
    assert analysis_files(tmp_path, refused, {}) == {}
    page = str(render(templates.ANALYSIS, {"analysis": refused, "figures": {}}))
    assert "There is no result" in page and "No result: noise." in page


def test_the_page_shows_each_table_with_its_note() -> None:
    analysis = {
        "title": "Regression",
        "refused": None,
        "tables": [as_part(TABLE)],
        "numbers": {},
        "notes": ["Read this."],
    }
    page = str(render(templates.ANALYSIS, {"analysis": analysis, "figures": {"analysis": []}}))
    assert (
        "<h3>Odds of 50 % &amp; more</h3>" in page
        and "&lt;b&gt;sex" in page
        and "By Wald." in page
        and "Read this." in page
    )


def test_a_table_is_a_data_frame_of_all_digits() -> None:
    expected = pd.DataFrame(
        {"Term": ["=age_years", "<b>sex</b>"], "Odds ratio": [1.23456789, None], "p": [0.04, np.nan]}
    )
    pd.testing.assert_frame_equal(table_frame(as_part(TABLE)), expected)


def test_an_exact_sum_clips_nothing_and_a_private_one_does() -> None:
    rows, patient = np.array([[3.0, 4.0], [0.3, 0.4], [0.3, 0.4]]), np.array([0, 1, 1])

    def vectors(z: np.ndarray, of: np.ndarray, patients: int) -> np.ndarray:
        return np.stack([z[of == number].mean(axis=0) for number in range(patients)])

    np.testing.assert_allclose(exact_total(vectors, 2, rows, patient, 2), [3.3, 4.4], rtol=1e-12)
    np.testing.assert_allclose(clipped_total(vectors, 2, rows, patient, 2), [0.9, 1.2], rtol=1e-8)


@pytest.mark.parametrize(("task", "options", "said"), [
    ("clusters", {"columns": 3}, "has columns 3; it must be a text"), ("clusters", {"k": True}, "has k True; it must be a whole"),
    ("clusters", {"scaling": ["public"]}, r"has scaling \['public'\]; it must be a text"),
    ("effect", {"treatment": "cp=asymptomatic", "control": 0}, "has control 0; it must be a text"),
    ("effect", {"treatment": "sex", "most-weight": "ten"}, "has most-weight 'ten'; it must be a number"),
    ("survival", {"edges": 30}, "has edges 30; it must be a list"),
    ("survival", {"hospitals": 1}, "has hospitals 1; it must be true or false"),
])  # fmt: skip
def test_an_option_of_another_type_is_named(task: str, options: dict[str, object], said: str) -> None:
    config = RunConfig.build({"dataset": "heart-disease-920", "task": task, "task-options": options})
    with pytest.raises(ConfigError, match=said):
        program_of(config)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("task", "options", "name"), [
    ("regression", {"formula": "disease ~ age", "family": "logistic"}, ""), ("components", {}, ""), ("clusters", {}, ""),
    ("regression", {"formula": "disease ~ age", "family": "logistic", "meta": "dl"}, ""), ("effect", {"treatment": "sex"}, ""),
    ("survival", {}, "ROSSI"), ("cox", {"terms": "age"}, "ROSSI"),
])  # fmt: skip
def test_a_run_in_which_no_hospital_answered_says_so(
    task: str, options: dict[str, object], name: str, private: bool
) -> None:
    dataset = f"benchmarks.utility.cohorts:{name}" if name else "heart-disease-920"
    keys = {"dataset": dataset, "task": task, "task-options": options, "privacy.dp": private}
    program = program_of(config := RunConfig.build(keys))
    half = program.half(dataset_of(config).schema, [], 1.0)
    assert half is not None
    assert "No result: " in program.statement(half, half.first(), None, [], None)["analysis"]["refused"]
