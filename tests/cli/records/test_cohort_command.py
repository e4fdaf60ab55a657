"""``polyclinic cohort``: the counts of each step, the diagram, and that the run reads the same rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.records import own_records
from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.schema import Schema
from polyclinic.evaluation.figures.canvas import to_svg
from polyclinic.evaluation.figures.records import plot_flow

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/json.md"
COHORT = '[[steps]]\nname = "adults"\nkeep = "years >= 18"\n[[steps]]\nname = "new"\nkeep = "old == 0"\n'
STAGES = [("records", 90, 45), ("adults", 80, 40), ("new", 40, 40)]


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Rows for two stays of 45 patients, five of them children, whose ages the hospital calls ``years``."""
    (tmp_path / "schema.toml").write_text("""
name = "clinic"
[[columns]]
name = "id"
kind = "categorical"
role = "patient_id"
[[columns]]
name = "age"
kind = "integer"
bounds = [18, 120]
[[columns]]
name = "died"
kind = "binary"
role = "label"
""")
    rows = [f"p{i // 2},{13 + i // 2},{i % 3 == 0:d},{i % 2}" for i in range(90)]
    (tmp_path / "records.csv").write_text("\n".join(["id,years,died,old", *rows]))
    (tmp_path / "mapping.toml").write_text('[columns.age]\nfrom = "years"\n')
    (tmp_path / "cohort.toml").write_text(COHORT)
    path = tmp_path / "hospital.toml"
    path.write_text(
        'site = "North"\ndata = "records.csv"\nschema = "schema.toml"\nmapping = "mapping.toml"\n'
        'cohort = "cohort.toml"\nhome = "home"\n[policy]\nbudget = 2.0\ndelta = 1e-4\n'
        'allowed-tasks = ["query"]\n'
    )
    return path


def called(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_counts_are_those_of_each_step_and_are_said_not_to_be_private(hospital: Path) -> None:
    found = json.loads(called("cohort", hospital, "--json"))
    assert [(s["name"], s["rows"], s["patients"]) for s in found["stages"]] == STAGES
    assert found["stages"][1]["rows_left_out"] == 10 and found["stages"][1]["patients_left_out"] == 5
    assert found["stages"][2]["rows_left_out"] == 40 and found["stages"][2]["patients_left_out"] == 0
    assert found["private"] is False and found["plot"] is None
    assert {*found, *found["stages"][0]} <= set(re.findall("[a-z_]+", PAGE.read_text()))
    shown = called("cohort", hospital)
    assert "adults" in shown and "not private" in shown


def test_schema_check_and_a_query_read_the_cohorts_rows(hospital: Path) -> None:
    schema = hospital.parent / "schema.toml"
    assert json.loads(called("schema", "check", schema, hospital, "--json"))["records"]["rows"] == 40
    described = HospitalFile.read(hospital)
    chunks = list(own_records(described, hospital.parent, Schema.from_toml(schema)))
    assert sum(len(chunk.records) for chunk in chunks) == 40
    asked = json.loads(called("query", "count", "--epsilon", 2, "--hospital", hospital, "--json"))
    assert 15 < asked["value"] < 45, "of about 30 training patients; all rows would be twice as many"
    assert "adults" not in json.dumps(asked)


def test_the_diagram_has_every_stage_and_what_was_left_out(hospital: Path) -> None:
    svg, png = hospital.parent / "flow.svg", hospital.parent / "flow.png"
    assert json.loads(called("cohort", hospital, "--json", "--plot", svg))["plot"] == str(svg)
    called("cohort", hospital, "--plot", png)
    text = svg.read_text()
    for words in ("records", "90 rows, 45 patients", "left out: 10 rows, 5 patients", "40 rows, 40 patients"):
        assert words in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_diagram_of_patients_alone_counts_them_once() -> None:
    text = to_svg(plot_flow(Flow.of(("randomised", 19435, 19435), ("$known$", 1, 1))))
    assert "19,435 patients" in text and "1 patient" in text and "rows" not in text and "$known$" in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('cohort = "cohort.toml"', "", "there are no steps to count"),
        ('cohort = "cohort.toml"', 'cohort = "absent.toml"', "There is no cohort file"),
        ('"records.csv"', '"absent.csv"', "no records found"),
    ],
)
def test_a_hospital_without_a_cohort_is_told_so(hospital: Path, old: str, new: str, says: str) -> None:
    hospital.write_text(hospital.read_text().replace(old, new))
    done = CliRunner().invoke(app, ["cohort", str(hospital)])
    assert says in str(done.exception) and getattr(done.exception, "exit_code", None) == 2


def test_a_bad_step_or_file_is_refused_before_anything_is_written(hospital: Path) -> None:
    flow = hospital.parent / "flow.pdf"
    done = CliRunner().invoke(app, ["cohort", str(hospital), "--plot", str(flow)])
    assert "must end in .svg or .png" in str(done.exception) and not flow.exists()
    (hospital.parent / "cohort.toml").write_text(COHORT.replace("old == 0", "older == 0"))
    plot = hospital.parent / "flow.svg"
    done = CliRunner().invoke(app, ["cohort", str(hospital), "--plot", str(plot)])
    assert "column 'older' is missing" in str(done.exception) and not plot.exists()


def test_a_datasets_flow_is_shown() -> None:
    shown = json.loads(called("datasets", "show", "ist", "--json"))
    assert shown["flow"][-1] == {
        "name": "state at 6 months known", "rows": 19285, "patients": 19285, "rows_left_out": 150,
        "patients_left_out": 150,
    }  # fmt: skip
    assert "state at 6 months known" in called("datasets", "show", "ist")
    assert json.loads(called("datasets", "show", "breast-cancer", "--json"))["flow"] is None
