"""The examples in docstrings run, and every public entry of seven rooms has one."""

import doctest
import inspect
import re
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.test_reference import DESCRIBED, ROOT, module_named

ROOMS = re.compile(r"polyclinic\.((privacy|programs|strategies|releases|runs|sim)\b|ehr\.expressions$)")
# Protocols only describe what classes of other names do, whose examples show it.
PROTOCOLS = {
    "polyclinic.privacy.mechanisms.Mechanism", "polyclinic.privacy.noise.process.Factorisation",
    "polyclinic.privacy.streams.Stream", "polyclinic.programs.sums.ModelMethod", "polyclinic.releases.question.Plan",
    "polyclinic.releases.question.Question",
}  # fmt: skip
# It trains under privacy for a quarter of a minute, and tests of sweeps and descriptions do the same.
LEFT_OUT = "polyclinic.federation"
# It compiles a model.
SLOW = "polyclinic.runs.exporting"


def modules_with(text: str) -> list[str]:
    """The library's modules in whose source a line begins with ``text``."""
    folders = [ROOT / "polyclinic", *(ROOT / name for name in ("client", "server", "sim", "strategies"))]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    places = [path.relative_to(ROOT) for path in paths if re.search(rf"^ *{text}", path.read_text("utf-8"), re.M)]
    names = {".".join(place.with_suffix("").parts).removesuffix(".__init__") for place in places}
    return sorted(name if name.startswith("polyclinic.") else f"polyclinic.{name}" for name in names)


def entries() -> dict[str, object]:
    """The public functions and classes of the rooms by full name: what packages offer and the reference describes."""
    things: list[object] = []
    for name in {*DESCRIBED, *modules_with("__all__ = "), "polyclinic.ehr.expressions"}:
        if not ROOMS.match(name):
            continue
        if (module := module_named(name)) is None:
            place, _, own = name.rpartition(".")
            things.append(getattr(import_module(place), own))
        elif hasattr(module, "__all__"):
            things += [getattr(module, own) for own in module.__all__]
        else:
            things += [thing for thing in vars(module).values() if getattr(thing, "__module__", None) == name]
    made = [thing for thing in things if inspect.isclass(thing) or inspect.isroutine(thing)]
    by_name = {f"{thing.__module__}.{thing.__qualname__}": thing for thing in made}
    return {name: thing for name, thing in by_name.items() if not name.rpartition(".")[2].startswith("_")}


def test_every_public_entry_has_an_example() -> None:
    public = entries()
    assert len(public) > 250
    # Without the heading the site shows an example as a quotation.
    without = {name for name, thing in public.items() if not re.search(r"Examples:\n +>>> ", thing.__doc__ or "")}
    assert without == PROTOCOLS


@pytest.mark.parametrize("module", [
    pytest.param(name, marks=pytest.mark.slow if name == SLOW else ())
    for name in modules_with(">>> ") if name != LEFT_OUT
])  # fmt: skip
def test_the_examples_are_true(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = doctest.testmod(import_module(module))
    assert results.attempted and not results.failed
