"""The page of performance says what benchmarks/results hold, and names every row that misses what was wanted."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from performance import BEFORE, PAGE, PAGES, RESULTS, engine, page, read, rows  # noqa: E402


def test_the_page_is_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/performance.py"
    assert {path.stem for path in RESULTS.glob("*.json")} == set(PAGES), "a result that the page does not tell"


def test_what_the_page_says_in_words_is_what_its_tables_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    words = {1: "one", 2: "two", 3: "three", 4: "four"}
    missed = {
        name: sum(row["met"] is False for row in read(name)["rows"]) for name in ("simulate", "sweeps", "brought")
    }
    assert f"{words[missed['simulate']]} of the simulator's rows are missed" in text
    assert f"{words[missed['sweeps']]} of the sweeps' rows are missed" in text
    assert f"{words[missed['brought']]} of the five are missed" in text
    assert sum(met is False for *_, met in rows()) == sum(missed.values()), (
        "another row is missed, of which the page says nothing"
    )
    ours, theirs = (row["node_megabytes"] for row in read("latency")["rows"])
    assert 2 < ours / theirs < 3
    assert all(row["ratio"] > 1 for row in read("engine")["rows"] if row["against"] == "pfl")


def test_old_and_new_rounds_stand_side_by_side() -> None:
    old = {row["against"] for row in json.loads(BEFORE.read_text(encoding="utf-8"))["rows"]}
    assert {row["against"] for row in read("engine")["rows"]} >= old, "a row that 0.1 had is measured no more"
    beside = [(before, now) for _, _, before, now, *_ in engine()]
    assert all(now for _, now in beside) and sum(bool(before) for before, _ in beside) >= len(old)
