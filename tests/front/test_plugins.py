"""What other packages bring by entry points: found by name, told with where it is from, and kept from harm to the rest."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.client.home.policy import Policy
from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import model_named, open_source, plugins, resolve

Quick = Callable[..., RunResult]
Install = Callable[..., None]
MODEL = "from torch import nn\ndef net(features, classes, widths):\n    return nn.Linear(features, classes)\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install("a", "1.0", {"a.py": code}, models="x = a:net")``: a package as pip leaves it, on this Python's path."""
    site = tmp_path / "site"
    site.mkdir()
    os.utime(site, (1, 1))  # what is installed later is later, whatever the clock's steps
    monkeypatch.syspath_prepend(str(site))

    def call(package: str, version: str, files: dict[str, str], raw: str = "", **groups: str) -> None:
        for name, text in files.items():
            (site / name).write_text(text)
        info = site / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        points = "".join(f"[polyclinic.{group}]\n{lines}\n" for group, lines in groups.items())
        (info / "entry_points.txt").write_text(points + raw)

    return call


def listed(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    done = CliRunner().invoke(app, ["plugins", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return {(row["package"], row["name"]): row for row in json.loads(done.stdout)}


def test_a_name_is_told_with_package_version_and_object_and_resolves(install: Install) -> None:
    install("ward", "2.5", {"ward_net.py": "print('hello')\n" + MODEL}, models="ward = ward_net:net")
    assert "ward_net" not in sys.modules
    assert ("models", "ward") in {(plugin.group, plugin.name) for plugin in plugins()}
    assert "ward_net" not in sys.modules, "a list of names imported a plug-in"
    row = listed("models")["ward", "ward"]
    assert row == {"group": "models", "name": "ward", "package": "ward", "version": "2.5", "object": "ward_net:net",
                   "problem": None}  # fmt: skip
    assert model_named("ward") is model_named("ward_net:net")
    with pytest.raises(ConfigError, match=r"Did you mean 'ward'\?"):
        model_named("wrad")


def test_what_is_broken_is_said_and_breaks_nothing_else(install: Install) -> None:
    install("good", "1", {"good_net.py": MODEL}, models="good = good_net:net")
    install("raises", "1", {"raises_net.py": "raise RuntimeError('no licence')\n"}, models="raising = raises_net:net")
    install("leaves", "1", {"leaves_net.py": "import sys\nsys.exit(3)\n"}, models="leaving = leaves_net:net")
    install(
        "hollow",
        "1",
        {},
        models="hollow = good_net:nothing",
        datasets="table = good_net:net",
        strategies="s = good_net:net",
    )
    install("slip", "1", {}, strategy="mine = good_net:net")
    install("torn", "1", {}, raw="[polyclinic.models]\nthis is no entry point\n")
    install("colon", "1", {}, models="a:b = good_net:net")
    found = listed()
    assert found["good", "good"]["problem"] is None
    for key, words in {
        ("raises", "raising"): "RuntimeError: no licence", ("leaves", "leaving"): "SystemExit: 3",
        ("hollow", "hollow"): "AttributeError", ("hollow", "s"): "not a Flower Strategy", ("hollow", "table"): "makes no",
        ("slip", "mine"): "Did you mean 'polyclinic.strategies'?", ("colon", "a:b"): "a colon",
    }.items():  # fmt: skip
        assert words in (found[key]["problem"] or ""), (key, found[key])
    assert any(package == "torn" and row["problem"] for (package, _), row in found.items())
    assert {row["problem"] for (package, _), row in found.items() if package == "polyclinic"} == {None}
    assert len(model_named("good")(3, 2, ()).weight) == 2  # type: ignore[arg-type]
    listing = CliRunner().invoke(app, ["datasets", "--json"])
    assert listing.exit_code == 0 and "breast-cancer" in listing.stdout and '"table"' not in listing.stdout
    assert "Left out: table of hollow 1" in listing.stderr


def test_a_name_that_two_packages_claim_stands_for_neither(install: Install) -> None:
    install("north", "1.0", {"two_nets.py": MODEL}, models="shared = two_nets:net", sources="lake = two_nets:net")
    install("south", "2.0", {}, models="shared = two_nets:net", sources="lake = two_nets:net")
    with pytest.raises(ConfigError, match=r"'shared'.*north 1.0 and south 2.0 claim it"):
        model_named("shared")
    with pytest.raises(ConfigError, match=r"'lake'.*north 1.0 and south 2.0"):
        list(open_source("lake:x", Path(), {}, None))  # type: ignore[arg-type]
    found = listed("models")
    assert all("north 1.0 and south 2.0" in found[package, "shared"]["problem"] for package in ("north", "south"))
    assert "two_nets" not in sys.modules


def test_a_dataset_of_the_studies_names_its_package_where_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    studies = {
        plugin.name for plugin in plugins() if (plugin.package, plugin.group) == ("polyclinic-studies", "datasets")
    }
    # Without the folder of installed packages, and without the repository that is installed from it.
    with monkeypatch.context() as bare:
        bare.setattr(sys, "path", [])
        for name in studies:
            with pytest.raises(
                ConfigError, match=rf"'{name}', a dataset of the package polyclinic-studies, .*pip install"
            ):
                resolve("datasets", name)
    assert {"sprint", "icd"} <= studies


def test_our_names_stay_ours_and_who_claims_them_is_told(install: Install) -> None:
    ours = resolve("models", "logistic")
    assert not any(plugin.package == "impostor" for plugin in plugins())
    install("impostor", "9", {"impostor_net.py": MODEL}, models="logistic = impostor_net:net")
    assert resolve("models", "logistic") is ours and "impostor_net" not in sys.modules
    found = listed("models")
    assert found["polyclinic", "logistic"]["problem"] is None
    assert "polyclinic's own, and impostor 9 claims it" in found["impostor", "logistic"]["problem"]
    assert "impostor_net" not in sys.modules


def test_fault_11_an_accountant_of_another_package_shows_and_never_enforces(install: Install, tmp_path: Path) -> None:
    code = "def none(rate, noise, steps, delta, relation):\n    return 0.0\ndef odd(*asked):\n    return float('nan')\n"
    install("cheap", "1", {"cheap_count.py": code}, accountants="cheap = cheap_count:none\nodd = cheap_count:odd")
    steps = ["account", "--sample-rate", "0.1", "--steps", "10", "--delta", "1e-5", "--accountant"]
    shown = CliRunner().invoke(app, [*steps, "cheap", "--noise-multiplier", "1", "--json"])
    assert json.loads(shown.stdout)["epsilon"] == 0 and json.loads(shown.stdout)["approximate"]
    ours = json.loads(CliRunner().invoke(app, [*steps, "pld", "--noise-multiplier", "1", "--json"]).stdout)
    assert json.loads(shown.stdout)["risk"] == ours["risk"], (
        "what a patient risks is by our accountant, whoever is asked"
    )
    said = CliRunner().invoke(app, [*steps, "cheap", "--noise-multiplier", "1"])
    assert "≈ 0" in said.output and "enforces nothing" in said.output
    for more, words in ((["cheap", "--target-epsilon", "1"], "must be one of pld, rdp"),
                        (["odd", "--noise-multiplier", "1"], "is not an epsilon"),
                        (["ched", "--noise-multiplier", "1"], "Did you mean 'cheap'")):  # fmt: skip
        refused = CliRunner().invoke(app, [*steps, *more])
        assert isinstance(refused.exception, ConfigError) and words in str(refused.exception)
    with pytest.raises(ConfigError, match="accountant"):
        Policy.build({"budget": 1.0, "delta": 1e-3, "accountant": "cheap"}, "hospital.toml")


FREE = """
from dp_accounting import DpEvent, GaussianDpEvent, NoOpDpEvent
from polyclinic.training import classification
class Task:
    def __init__(self, name, event):
        self.name, self.event = name, lambda settings, begun=False: event
    check, train, evaluate = map(staticmethod, (classification.check, classification.train, classification.evaluate))
class Percentile(DpEvent):
    pass
free, made_up = Task("free", NoOpDpEvent()), Task("made-up", Percentile())
"""


@pytest.mark.parametrize(("task", "words"), [("free", "costs nothing"), ("made-up", "can be accounted")])
def test_fault_11_a_task_of_another_package_is_private_by_an_accounted_event_only(
    install: Install, tmp_path: Path, task: str, words: str
) -> None:
    install("tasks", "1", {"free_tasks.py": FREE}, tasks="free = free_tasks:free\nmade-up = free_tasks:made_up")
    with pytest.raises(ConfigError, match=words):
        Federation.from_dataset("breast-cancer", out=str(tmp_path / "runs")).run(task=task, rounds=1)
    assert not (tmp_path / "runs").exists()
    sys.modules.pop("free_tasks", None)
