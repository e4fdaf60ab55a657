"""The model card: what it says of a run, what it leaves to the authors, and that names in it are no markup."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from polyclinic import Federation
from polyclinic.errors import DataError
from polyclinic.evaluation.report.card import markdown
from polyclinic.inspection.result import RunResult

SECTIONS = ["Purpose", "Model", "Data", "Privacy", "Metrics", "Limits", "Versions"]


def words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", unescape(text)).split())


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return Federation.from_dataset("trial", out=str(tmp_path_factory.mktemp("runs"))).run(
        rounds=2, seed=48151623, privacy={"delta": 1e-3}, evaluation={"groups": "male"}, pictures=False
    )


def test_a_card_says_what_the_run_measured(trial: RunResult) -> None:
    card, summary = trial.folder.card_file.read_text(), trial.summary
    assert re.findall(r"^## (.*)$", card, re.M) == SECTIONS
    pooled, groups = summary["evaluation"]["pooled"]["auroc"], summary["evaluation"]["groups"]["groups"]
    assert f"| AUROC | {pooled['value']:.3f} ({pooled['low']:.3f} to {pooled['high']:.3f}) |" in card
    for site, row in summary["metrics"]["sites"].items():
        assert f"| {site} | {row['patients']} |" in card
    for group in ("0", "1"):
        assert f"| {group} | {groups[group]['metrics']['auroc']['value']:.3f} (" in card
    assert "| age | integer | years | 40 to 90 | no |" in card and "| controlled | binary |" in card
    assert "add-remove; it compares" in card and "at delta 1.0e-3, per patient" in card
    assert summary["model_sha256"] in card and all(note in re.sub(r"\\(.)", r"\1", card) for note in summary["notes"])


def test_it_holds_neither_the_seed_nor_a_place_of_this_machine(trial: RunResult) -> None:
    card = trial.folder.card_file.read_text()
    assert "48151623" not in card and str(trial.path.parent) not in card and trial.folder.name in card


def test_the_report_has_the_same_card_with_its_authors_purpose(trial: RunResult) -> None:
    assert "Not stated yet" in trial.folder.card_file.read_text()
    trial.folder.purpose_file.write_text("To teach **residents**.\n\nNot for <b>care</b>.\n")
    page = trial.report().read_text()
    card = trial.folder.card_file.read_text()
    assert "## Purpose\n\nTo teach **residents**.\n\nNot for <b>care</b>.\n" in card
    assert "<p>Not for &lt;b&gt;care&lt;/b&gt;.</p>" in page and page.count("<h2>Model card</h2>") == 1
    shown = words(page)
    for line in card.splitlines():
        if line.startswith("- "):
            assert words(re.sub(r"\\(.)", r"\1", line[2:])) in shown
    trial.folder.purpose_file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"purpose.md cannot be read"):
        trial.report()
    trial.folder.purpose_file.unlink()


def test_names_are_no_markup() -> None:
    evil = "a|b\n# c [x](y) <script> `d`"
    card = markdown("t", [("Data", [evil, [evil], {"headings": ["h"], "rows": [[evil]]}])])
    assert card.count("\n#") == 1 and not re.search(r"(?<!\\)[<>`\[]", card)
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in card.splitlines() if line.startswith("|")] == [2, 2, 2]


def test_a_run_without_a_model_of_labelled_patients_has_no_card(
    tmp_path: Path, quick: Callable[..., RunResult]
) -> None:
    drawn = Federation.from_dataset("trial", out=str(tmp_path)).run(
        task="synthesis", synthesis={"rows": 50, "quality": False}, pictures=False
    )
    assert not drawn.folder.card_file.exists() and "Model card" not in drawn.folder.report.read_text()
    assert quick(rounds=1).folder.card_file.is_file()
