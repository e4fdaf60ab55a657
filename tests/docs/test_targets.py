"""The table of all targets is what the committed results say, and every page says of a goal what the table does."""

import json
import re
import sys
from pathlib import Path

import pytest

from polyclinic.experiments.together import page, results, together

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from generate import RESULTS, VERDICTS, studies, verdicts  # noqa: E402

AGAIN = "run `python docs/generate.py`"
GOAL = re.compile(r"\bR(1[0-7]|[1-9])\b")
#: Where R2 is a measure of errors, R4 a version of FHIR, and R12 an example.
OTHERS = {"evaluation.md", "objectives.md", "privacy/held-out.md", "records/sources.md", "reference/json.md"}
#: Records of decisions are of their day.
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "decisions"]
NAMED = [path for path in PAGES if GOAL.search(path.read_text()) and str(path.relative_to(ROOT / "docs")) not in OTHERS]
JUDGES = re.compile(r"\b(met|meets|missed|misses|reached|reproduced|verdict)\b")


def test_the_committed_table_is_what_the_committed_results_say() -> None:
    whole = together(studies(), results(RESULTS))
    assert json.loads((RESULTS / "targets.json").read_text()) == whole, AGAIN
    assert (RESULTS / "targets.md").read_text() == page(whole), AGAIN


def test_no_committed_result_is_of_a_short_form() -> None:
    assert not [one.experiment for one in results(RESULTS) if one.quick or one.preset != "sound"]


@pytest.mark.parametrize(
    "path", [path for path in PAGES if VERDICTS.search(path.read_text())], ids=lambda path: path.stem
)
def test_pages_have_the_verdicts_of_the_table(path: Path) -> None:
    text = path.read_text()
    assert verdicts(path, text, json.loads((RESULTS / "targets.json").read_text())) == text, AGAIN


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.stem)
def test_a_page_that_names_a_goal_has_its_verdict_from_the_table_alone(path: Path) -> None:
    """Prose may say what was measured; whether a goal is met is said by the lines that ``docs/generate.py`` writes."""
    text = path.read_text()
    prose = VERDICTS.sub("", text)
    listed = {name for match in re.finditer(r"<!-- targets ([^\n]*) -->", text) for name in match[1].split(", ")}
    assert {f"R{number}" for number in GOAL.findall(prose)} <= listed
    judged = [
        sentence for sentence in re.split(r"(?<=[.:])\s", prose) if GOAL.search(sentence) and JUDGES.search(sentence)
    ]
    assert not judged


def test_every_goal_has_a_page() -> None:
    listed = {name for path in PAGES for match in re.finditer(r"<!-- targets ([^\n]*) -->", path.read_text())
              for name in match[1].split(", ")}  # fmt: skip
    assert {f"R{number}" for number in range(1, 18)} <= listed
