"""The benchmark of anonymity: its made-up table, the form of its result, and its place on the page; no test asserts a time."""

import json
from pathlib import Path

import pytest

from benchmarks import anonymity
from benchmarks.common.probes import Sample


def test_the_table_is_as_it_is_said_to_be() -> None:
    table = anonymity.admissions(1000)
    assert len(table) == 1000 and table["id"].nunique() == 800 and set(anonymity.QUASI) < set(table.columns)
    assert (table.groupby("id")["age"].nunique() == 1).all()


def test_the_ratio_is_how_often_the_best_run_fits_into_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([30.0, 20.0, 40.0])
    monkeypatch.setattr(anonymity, "run", lambda probe: Sample(next(seconds)))
    row = anonymity._measured(anonymity.Probe("`risk`", ("a",)), 3)
    assert row.pop("processor_seconds") >= 0
    assert row == {"what": "`risk`", "seconds": 20.0, "limit": 60.0, "ratio": 3.0, "met": True}


def test_the_committed_result_is_of_the_whole_size_and_is_what_the_page_shows(tmp_path: Path) -> None:
    result = json.loads(anonymity.RESULT.read_text())
    assert result["terms"]["rows"] == 100_000 and len(result["terms"]["quasi"]) == 6
    assert all(row["met"] == (row["seconds"] <= row["limit"] == 60) for row in result["rows"])
    assert anonymity.table(result) in anonymity.PAGE.read_text()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{anonymity.BEGIN}\nold\n{anonymity.END}\nafter\n")
    anonymity.write_section(page, result)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
