"""A run's report shows the quality of its synthetic patients; a hospital judges at home; drawn rows are asked the rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from polyclinic import Federation, RunResult
from polyclinic.cli import app
from polyclinic.ehr.datasets.trial import SCHEMA, generate_trial
from polyclinic.ehr.rules import violations
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.report import render_report
from polyclinic.inspection.quality import judge_at_home, judge_run
from polyclinic.runs.synthesize import synthesize
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import save
from polyclinic.types import Arrays, Floats, Ints
from tests.cli.test_json_page import NAMED
from tests.evaluation.browser import browser, needs_browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    out = str(tmp_path_factory.mktemp("runs"))
    return Federation.from_dataset("trial", sites=2, out=out).run(task="synthesis", model="moments")


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    generate_trial(1, 120, 5).to_csv(tmp_path / "records.csv", index=False)
    SCHEMA.to_toml(tmp_path / "schema.toml")
    (tmp_path / "hospital.toml").write_text(
        'site = "North"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n'
        "[policy]\nbudget = 1.0\ndelta = 1e-3\n"
    )
    return tmp_path / "hospital.toml"


@pytest.mark.slow
def test_a_runs_report_shows_how_like_its_patients_are(run: RunResult) -> None:
    found = json.loads((run.path / "quality.json").read_text())
    assert not set(found) - NAMED and not set(found["tables"]["synthetic"]) - NAMED
    assert found["full"] is False and found["transfer"] is None and found["hospital"] is None
    patients = run.summary["metrics"]["sites"]
    assert found["rows"]["held_out"] + found["rows"]["training"] == sum(
        int(one["patients"]) for one in patients.values()
    )
    section = (run.path / "report.html").read_text().split("Quality of the synthetic patients")[1].split("<h2>")[0]
    assert section.count("data:image/svg+xml") == 5, "columns, correlations, three trajectories"
    assert "which epsilon does not cover" in section and "Rules broken" in section and "dbp &lt; sbp" in section
    done = CliRunner().invoke(app, ["quality", str(run.path), "--quick", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == found, "the seed decides"


@pytest.mark.slow
def test_a_hospital_judges_at_home_and_nothing_is_charged(run: RunResult, hospital: Path) -> None:
    page = hospital.parent / "quality.html"
    found = judge_at_home(run.path, hospital, page, full=False)
    assert found["hospital"] == "North" and sum(found["rows"][side] for side in ("held_out", "training")) == 120
    assert json.loads((hospital.parent / "quality.json").read_text()) == found
    text = page.read_text()
    assert "Stays at the hospital" in text and "those of North" in text and text.count("data:image/svg+xml") == 5
    assert not (hospital.parent / "home").exists()
    assert [one.stat().st_mode & 0o777 for one in (page, page.with_name("quality.json"))] == [0o600, 0o600]
    with pytest.raises(ConfigError, match="exists already"):
        judge_at_home(run.path, hospital, page, full=False)
    SCHEMA.model_copy(update={"columns": (*SCHEMA.columns[:4], *SCHEMA.columns[5:])}).to_toml(
        hospital.parent / "schema.toml"
    )
    with pytest.raises(ConfigError, match="other columns"):
        judge_at_home(run.path, hospital, page, full=False)


def test_a_certificate_counts_the_rules_that_its_rows_break(run: RunResult, tmp_path: Path) -> None:
    certificate = json.loads(synthesize(run.path, 60, tmp_path / "t.csv", sets=2).read_text())
    tables = pd.concat([pd.read_csv(tmp_path / f"t-0{number}.csv") for number in (1, 2)])
    (counted,) = violations(tables, SCHEMA.rules, SCHEMA.columns)
    assert certificate["rules"] == [
        {"rule": "dbp < sbp", "asked": counted.asked, "broken": counted.broken, "share": counted.share}
    ]


@dataclass(frozen=True)
class Diverged:
    """A generator whose numbers have run away."""

    layout: Layout

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        return np.full((rows, self.layout.width), np.nan)

    def arrays(self) -> Arrays:
        return {"nothing": np.zeros(1)}

    def options(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Diverged:
        return cls(layout)


def test_a_generator_that_diverged_is_not_judged(run: RunResult, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    save(Diverged(Layout.of(SCHEMA)), folder / "synthesizer.safetensors")
    found = judge_run(folder, full=False)
    assert "diverged" in found["undefined"] and "tables" not in found
    assert "Undefined: the generator has diverged" in (folder / "report.html").read_text()


def test_what_cannot_be_judged_says_why(run: RunResult, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(run.summary))
    run.rounds.to_parquet(tmp_path / "rounds.parquet")
    (tmp_path / "quality.json").write_text('{"undefined": "no patient was held out"}')
    assert "<p>Undefined: no patient was held out.</p>" in render_report(tmp_path).read_text()
    (tmp_path / "quality.json").write_text("{}")
    with pytest.raises(DataError, match="polyclinic quality"):
        render_report(tmp_path)
    (tmp_path / "config.toml").write_text('task = "classification"\n')
    with pytest.raises(ConfigError, match="draws no patients"):
        judge_run(tmp_path)
    done = CliRunner().invoke(app, ["quality", str(run.path), "--out", "page.html"])
    assert done.exit_code != 0 and isinstance(done.exception, ConfigError | SystemExit)


@needs_browser
def test_the_section_renders_in_a_browser_and_asks_for_nothing(run: RunResult, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open((run.path / "report.html").as_uri())
        widths = tab.value("[...document.images].map(image => image.naturalWidth)")
        assert len(widths) >= 4 and all(width > 100 for width in widths)
        assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        asked = [
            event["params"]["request"]["url"] for event in tab.told if event["method"] == "Network.requestWillBeSent"
        ]
        assert asked and all(url.startswith(("file:", "data:")) for url in asked)
        tab.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
        assert tab.value("document.documentElement.scrollWidth") <= 360
