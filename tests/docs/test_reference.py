"""The reference has all that the packages offer and all that pages and notebooks import."""

import json
import re
from importlib import import_module
from inspect import isroutine
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DESCRIBED = {
    name
    for page in (ROOT / "docs/reference/api").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M)
}


def shown_code() -> str:
    """The Python of all pages and notebooks."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    ]
    for notebook in (ROOT / "examples/notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        blocks += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n".join(blocks)


def imported() -> set[tuple[str, str]]:
    """(module, name) of each import from Polyclinic that a page or a notebook shows."""
    lines = re.findall(r"^\s*from (polyclinic(?:\.[\w.]+)?) import (\([^)]*\)|[^\n#]+)", shown_code(), re.M)
    return {
        (module, name.split(" as ")[0].strip())
        for module, names in lines
        for name in names.strip("()").split(",")
        if name.strip()
    }


def offered() -> set[tuple[str, str]]:
    """(module, name) of each name in a package's ``__all__``."""
    packages = ("polyclinic", "polyclinic.ehr", "polyclinic.experiments", "polyclinic.programs")
    return {(package, name) for package in packages for name in import_module(package).__all__ if name[0] != "_"}


def module_named(name: str) -> ModuleType | None:
    """The module of that name; None where it is the name of a class or a function."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize(("module", "name"), sorted(offered() | imported()))
def test_what_users_import_is_in_the_reference(module: str, name: str) -> None:
    try:
        thing = getattr(import_module(module), name)
    except AttributeError:
        thing = import_module(f"{module}.{name}")
    homes = {f"{module}.{name}", module}
    if isinstance(thing, type) or isroutine(thing):
        homes |= {thing.__module__, f"{thing.__module__}.{thing.__qualname__}"}
    else:
        homes |= {home for home in DESCRIBED if getattr(module_named(home), name, None) is thing}
    assert homes & DESCRIBED, f"docs/reference/api has no ::: line for {module}.{name}"
