"""The quick form of each experiment: it runs, and what it writes says what the whole one must."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyclinic.reproduce import cvsim6, dissimilarity, gdp

ROOT = Path(__file__).resolve().parents[2]


def test_cvsim6(tmp_path: Path) -> None:
    cvsim6.run(tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert max(row["difference"] for row in found["published"]) < 0.01
    (case,) = found["cases"]
    assert max(case["hold-out error"].values()) < 0.1
    for source in case["sources"]:
        flow, exact = source["flow"], source["exact"]
        for i in range(2):
            assert abs(flow["mean"][i] - exact["mean"][i]) < 0.3 * exact["deviation"][i]
            assert flow["deviation"][i] == pytest.approx(exact["deviation"][i], rel=0.3)
    assert case["sources"][1]["noise multiplier"] > 0.5
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md", "cycle.svg", "posteriors.svg"}


def test_dissimilarity(tmp_path: Path) -> None:
    dissimilarity.run(tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert max(found["largest difference"].values()) < 2e-3
    assert "wasserstein | 0.500 (0.500)" in (tmp_path / "table.md").read_text()


def test_gdp(tmp_path: Path) -> None:
    gdp.run(tmp_path, quick=True)
    assert "2.2 times the claim" in (tmp_path / "table.md").read_text()
    assert [row["holds"] for row in json.loads((tmp_path / "results.json").read_text())["lines"]] == [True, True]


def test_a_quick_run_does_not_replace_the_committed_results() -> None:
    command = [sys.executable, "-m", "experiments.dissimilarity", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--quick needs --out" in done.stderr


@pytest.mark.parametrize("name", ["cvsim6", "dissimilarity", "gdp"])
def test_committed_results_are_of_the_whole_experiment(name: str) -> None:
    found = json.loads((ROOT / "experiments" / name / "results.json").read_text(encoding="utf-8"))
    assert found["quick"] is False
