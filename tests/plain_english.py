"""The lint of words: names that say nothing, long sentences, parameters without a word.

``python -m tests.plain_english PATH ...`` prints each place; without a path it reads the whole repository. ``--write``
lowers the numbers in plain_english.json, which tests/packaging/test_plain_english.py lets fall and never rise.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / "tests/packaging/plain_english.json"

FORBIDDEN = frozenset({"found", "told", "kept", "had", "known", "said", "one"})
"""Names that no variable, parameter or function has: each says how a value came about, and none what it is."""

PARTICIPLE = re.compile(
    r"_*((?!embed$)[a-z]*[^e]ed|begun|brought|built|chosen|drawn|given|held|lost|made|seen|sent|shown|spent|taken|written)"
)
"""A function of such a name says what was done to its result, and not what it does. A property may have one: it is a state."""

MOST_WORDS = 30
"""The longest sentence of a page or a docstring, in words."""

PARAMETERS = 3
"""A public function with as many parameters tells each of them in ``Args``."""

ENTRY = r"([-*+]|\d+[.)]) |[`\w*]+(, [`\w*]+)*:( |$)"
"""How an entry of a list begins, or one of the parameters in a docstring."""

LIBRARY = ("polyclinic/", "client/", "server/", "sim/", "strategies/")
GENERATED = ("docs/reference/commands.md", "docs/reference/configuration.md", "docs/reference/json.md", "CHANGELOG.md")
"""Pages that are written from help texts and docstrings, and the history, whose past entries stay as they are."""


@dataclass(frozen=True)
class Place:
    """One thing to repair: where, of which kind (name, participle, sentence, args, heading), and the words."""

    path: str
    line: int
    kind: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.words}"


def places(path: str) -> list[Place]:
    """All places of one file of the repository, in the order of its lines."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return sorted(_of_code(path, text) if path.endswith(".py") else _of_page(path, text), key=lambda place: place.line)


def files() -> list[str]:
    """The library's modules and the pages, as paths from the root."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]
    modules = [path for path in paths if path.endswith(".py") and path.startswith(LIBRARY)]
    return modules + [path for path in paths if path.endswith(".md") and path not in GENERATED]


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The line and the words of each sentence of a markdown text, without code, comments and addresses.

    A sentence ends at a full stop, a question mark, an exclamation mark, or with its paragraph, list entry or table cell.
    """
    text = re.sub(r"```.*?```|~~~.*?~~~|<!--.*?-->", lambda part: "\n" * part[0].count("\n"), text, flags=re.S)
    block, start = "", 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        new = not bare or bare.startswith(("|", "#", ">>>", "...")) or re.match(ENTRY, bare)
        if new and block:
            yield from ((start, part) for part in _split(block))
            block = ""
        if bare.startswith("|"):
            yield from ((number, part) for cell in bare.strip("|").split("|") for part in _split(cell))
        elif bare and not bare.startswith(("#", ">>>", "...")):
            start = start if block else number
            block += " " + bare


def _split(block: str) -> list[str]:
    block = re.sub(r"`[^`]*`", "code", block)
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    return [part for part in re.split(r"(?<=[.!?])[\"')\]*]*\s+(?=[A-Z0-9*_`\"(\[])", block.strip()) if part]


def _long(path: str, first: int, text: str) -> Iterator[Place]:
    for line, sentence in sentences(text):
        words = re.findall(r"[^\W_][\w'’.,/-]*", sentence)
        if len(words) > MOST_WORDS:
            yield Place(path, first + line - 1, "sentence", f"{len(words)} words: {sentence[:90]}")


def _of_page(path: str, text: str) -> Iterator[Place]:
    yield from _long(path, 1, text)
    without_code = re.sub(r"```.*?```", lambda part: "\n" * part[0].count("\n"), text, flags=re.S)
    for number, line in enumerate(without_code.splitlines(), 1):
        if re.match(r"#+ (What|How it is|Why it is|Where it) ", line) or re.match(r"#+ .*[.;]$", line):
            yield Place(path, number, "heading", line)


def _of_code(path: str, text: str) -> Iterator[Place]:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in _names(node):
            if name.strip("_") in FORBIDDEN:
                yield Place(path, getattr(node, "lineno", 1), "name", name)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and PARTICIPLE.fullmatch(node.name) and not _is_state(node):
            yield Place(path, node.lineno, "participle", node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            described = ast.get_docstring(node)
            if described:
                yield from _long(path, node.body[0].lineno, described)
    for node in [
        *tree.body,
        *(inner for outer in tree.body if isinstance(outer, ast.ClassDef) for inner in outer.body),
    ]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            given = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            given = [name for name in given if name not in ("self", "cls")]
            described = ast.get_docstring(node)
            inherited = described is None and node not in tree.body  # an override's words are its base's
            if path.startswith("polyclinic/cli/") and _has_help(node):
                continue
            if len(given) >= PARAMETERS and not inherited and not set(given) <= _described(described or ""):
                yield Place(path, node.lineno, "args", f"{node.name}({', '.join(given)})")


def _is_state(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function is a property, or what holds within a ``with``."""
    return any(ast.unparse(each).endswith(("property", "contextmanager")) for each in node.decorator_list)


def _has_help(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether each parameter is one of a command, whose help stands with it or with its named type."""
    types = [each.annotation for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    texts = [ast.unparse(each) if each else "" for each in types]
    return all("typer." in text or (text != "Any" and text.rpartition(".")[2][:1].isupper()) for text in texts)


def _described(docstring: str) -> set[str]:
    """The parameters that the entries of ``Args`` name, one or several in an entry."""
    _, _, entries = docstring.partition("Args:\n")
    listed = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", entries, re.M)
    return {name.strip(" *") for names in listed for name in names.split(",")}


def _names(node: ast.AST) -> Iterator[str]:
    """The names that one node gives to something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def counts() -> dict[str, dict[str, int]]:
    """For each file with something to repair: how many places of each kind."""
    result: dict[str, dict[str, int]] = {}
    for path in files():
        of_file: dict[str, int] = {}
        for place in places(path):
            of_file[place.kind] = of_file.get(place.kind, 0) + 1
        if of_file:
            result[path] = dict(sorted(of_file.items()))
    return dict(sorted(result.items()))


def main() -> None:
    """Print the places of the given files, or of all; with ``--write`` note today's numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--write", action="store_true", help="note today's numbers as the most that are allowed")
    args = parser.parse_args()
    if args.write:
        COUNTS.write_text(json.dumps(counts(), indent=1) + "\n", encoding="utf-8")
        return
    for path in args.paths or files():
        for place in places(path):
            print(place)


if __name__ == "__main__":
    main()
