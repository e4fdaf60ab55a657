"""The map of docs/architecture.md: its walks go through what is there and never return, and changes touch few files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
WALKS = {
    title: re.findall(r"^\| \d+ \| `([\w/.]+):([\w.]+)` \|", text, re.M)
    for title, text in re.findall(r"^### (.*?)\n(.*?)(?=^##)", PAGE, re.M | re.S)
}
(CHANGES,) = re.findall(r"^## Changes and their files\n(.*?)(?=^## )", PAGE, re.M | re.S)
ROWS = re.findall(r"^\| (?!what|---)(.*?) \| (.*) \|$", CHANGES, re.M)


def names(path: Path) -> set[str]:
    """The functions and classes of a module, methods after their class and a dot."""
    inside = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return inside


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_goes_through_what_is_there_and_never_returns(title: str) -> None:
    steps = WALKS[title]
    assert len(steps) >= 8
    for path, name in steps:
        assert name in names(ROOT / path), f"{path} has no {name}"
    stays = [path for number, (path, _) in enumerate(steps) if number == 0 or steps[number - 1][0] != path]
    assert len(stays) == len({*stays})


def test_there_are_three_walks() -> None:
    assert len(WALKS) == 3


@pytest.mark.parametrize(("change", "files"), ROWS)
def test_a_common_change_touches_three_files_at_most(change: str, files: str) -> None:
    paths = re.findall(r"`([^`]+)`", files)
    assert 1 <= len(paths) <= 3
    for path in paths:
        assert (ROOT / path).exists(), f"{change}: there is no {path}"


def test_at_least_ten_common_changes_are_listed() -> None:
    assert len(ROWS) >= 10
