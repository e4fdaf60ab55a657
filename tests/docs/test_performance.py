"""The page of performance says what benchmarks/results hold, and names every row that misses what was wanted."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from performance import PAGE, PAGES, RESULTS, page, read, rows  # noqa: E402


def test_the_page_is_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/performance.py"
    assert {path.stem for path in RESULTS.glob("*.json")} == set(PAGES), "a result that the page does not tell"


def test_what_the_page_says_in_words_is_what_its_tables_say() -> None:
    engine = read("engine")["rows"]
    text = PAGE.read_text(encoding="utf-8")
    words = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight", 9: "nine", 10: "ten", 11: "eleven", 18: "eighteen"}
    missed = sum(row["met"] is False for row in engine)
    assert f"{words[missed]} of the engine's {words[len(engine)]} rows are missed" in text
    simulator = sum(row["met"] is False for row in read("simulate")["rows"])
    assert f"{words[simulator]} of the simulator's rows are missed" in text
    missed += simulator
    assert sum(met is False for *_, met in rows()) == missed, "another row is missed, of which the page says nothing"
    ours, theirs = (row["node_megabytes"] for row in read("latency")["rows"])
    assert 2 < ours / theirs < 3
    assert all(3.5 < row["ratio"] < 4.5 for row in engine if row["against"] == "pfl")
