"""The benchmark's form: a real quick run gives the JSON of the contract; no test asserts a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import engine
from benchmarks.common import machine
from benchmarks.common.probes import Probe, ProbeFailed, Sample
from benchmarks.common.report import BEGIN, END, TITLES, write_section
from benchmarks.common.rows import Goal, Row, measure

ROOT = Path(__file__).parents[2]
KEYS = {"against", "sites", "dp", "ours_seconds", "theirs_seconds", "ratio", "goal", "met", "note"}
OURS, OTHER, THEIRS = Probe("1 worker", ("a",)), Probe("2 workers", ("b",)), Probe("peer", ("c",))


@pytest.mark.slow
def test_a_quick_run_prints_the_json_of_the_contract_alone_and_leaves_the_result_as_it_was() -> None:
    before = engine.RESULT.read_bytes() if engine.RESULT.is_file() else None
    command = [sys.executable, "-m", "benchmarks.engine", "--quick", "--json", "--only", "plain_loop"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(told.stdout)
    (row,) = result["rows"]
    assert {"machine", "command", "rows"} <= set(result)
    assert {"cpu", "cores", "memory_gigabytes", "python", "torch", "flwr", "opacus", "date"} <= set(result["machine"])
    assert set(row) >= KEYS
    assert row["ours_seconds"] > 0
    assert row["ratio"] == pytest.approx(row["theirs_seconds"] / row["ours_seconds"])
    assert before == (engine.RESULT.read_bytes() if engine.RESULT.is_file() else None)


def test_the_faster_of_our_ways_stands_for_us_and_later_turns_leave_the_other_out() -> None:
    asked: list[str] = []

    def run(probe: Probe) -> Sample:
        asked.append(probe.label)
        return Sample({"1 worker": 2.0, "2 workers": 1.0, "peer": 8.0}[probe.label])

    row = measure(Row("flower", 50, True, Goal("at least", 5), (OURS, OTHER), THEIRS), run, "abc")
    assert asked == ["1 worker", "2 workers", "peer", "2 workers", "peer", "2 workers", "peer"]
    assert (row["ours_seconds"], row["theirs_seconds"], row["ratio"], row["met"]) == (1.0, 8.0, 8.0, True)


@pytest.mark.parametrize(("ours", "met"), [(3.0, True), (3.3, False)])
def test_a_goal_of_at_most_divides_ours_by_theirs(ours: float, met: bool) -> None:
    goal = Goal("at most", 1.6)
    assert goal.ratio(ours, 2.0) == ours / 2.0
    assert goal.met(ours, 2.0) is met


def test_a_row_over_its_memory_is_not_met_though_it_is_fast() -> None:
    row = Row("many_sites", 10, True, Goal("at most", 1.5), (OURS,), THEIRS, repeats=1, memory_limit=6.0)
    found = measure(row, lambda probe: Sample(1.0, peak_bytes=7 * 10**9), "abc")
    assert (found["ratio"], found["met"], found["peak_gigabytes"]) == (1.0, False, 7.0)


def test_a_peer_that_is_missing_or_fails_leaves_a_row_without_ratio_that_says_why() -> None:
    def fails(probe: Probe) -> Sample:
        raise ProbeFailed("peer ended with 1: no such module")

    missing = Row("pfl", 200, False, Goal("at least", 5), (OURS,), THEIRS, missing="pfl could not be installed")
    without = measure(missing, lambda probe: Sample(1.0), "abc")
    failed = measure(Row("pfl", 200, False, Goal("at least", 5), (OURS,), THEIRS), fails, "abc")
    assert (without["ratio"], without["met"]) == (None, None)
    assert "could not be installed" in without["note"]
    assert (failed["ours_seconds"], failed["ratio"], failed["failed"]) == (None, None, True)
    assert "no such module" in failed["note"]


def test_an_unmeasured_row_is_measured_and_a_measured_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    rows = [Row(name, 50, True, Goal("at least", 5), (OURS,), THEIRS, repeats=1) for name in ("pfl", "flower")]
    monkeypatch.setattr(engine, "full", lambda names: [row for row in rows if row.against in names])
    monkeypatch.setattr(engine, "quiet", lambda: 0.1)
    monkeypatch.setattr(engine, "run", lambda probe: Sample(1.0))
    assert engine.main(["--only", "pfl", "--out", str(out)]) == 0
    monkeypatch.setattr(engine, "run", lambda probe: Sample(2.0))
    assert engine.main(["--resume", "--out", str(out)]) == 0
    found = {row["against"]: row["ours_seconds"] for row in json.loads(out.read_text())["rows"]}
    assert found == {"flower": 2.0, "pfl": 1.0}
    assert "pfl, 50 sites, DP: kept" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_beside_other_work_no_row_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("pfl", sites, False, Goal("at least", 5), (OURS,), THEIRS, repeats=1) for sites in (50, 200)]
    monkeypatch.setattr(engine, "full", lambda names: rows)
    monkeypatch.setattr(engine, "run", lambda probe: Sample(1.0))
    busy = iter((0.2, 1.9, 1.9))
    monkeypatch.setattr(machine, "busy_cores", lambda: next(busy))
    monkeypatch.setattr(engine, "quiet", lambda: machine.quiet(patience=0.0))
    out = tmp_path / "result.json"
    assert engine.main(["--out", str(out)]) == 3
    assert "Other work takes 1.9 of" in capsys.readouterr().err
    assert not out.exists()
    (row,) = json.loads(out.with_suffix(".partial.json").read_text())["rows"]
    assert (row["sites"], row["busy_cores"]) == (50, 0.2)


def test_work_of_a_second_is_counted() -> None:
    busy = machine.busy_cores(0.2)
    assert busy is None or 0 <= busy <= (os.cpu_count() or 1)


def test_resuming_what_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--quick", "--resume", "--out", str(tmp_path / "none.json")]) == 2
    assert "--resume needs" in capsys.readouterr().err


def test_the_section_of_the_page_is_replaced_between_its_marks_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "engine.md"
    page.write_text(f"# Engine\n\nbefore\n\n## Speed\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    row = measure(Row("flower", 50, True, Goal("at least", 5), (OURS,), THEIRS), lambda probe: Sample(1e-3), "abc")
    place = dict.fromkeys(("date", "commit", "cpu", "cores", "memory_gigabytes", "python", "load"), "x")
    write_section(page, {"machine": place, "rows": [row]}, "results/engine.svg")
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith("# Engine\n\nbefore") and text.endswith("after\n")
    assert f"| {TITLES['flower']} | 50 | DP | 1 ms | 1 ms | 1x | ≥ 5x | no |" in text
