"""``polyclinic new``: each kind of package is built, installed, found by its name, and passes the tests that it brings."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hatchling.build import build_wheel
from typer.testing import CliRunner

import polyclinic
from polyclinic.cli import app
from polyclinic.cli.new import KINDS, package
from polyclinic.client.app import app as hospital_app
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import plugins, with_problem
from polyclinic.strategies.registry import make_strategy
from polyclinic.wire.messages import EnrolRequest, TrainRequest
from tests.client.test_hospital import STRICT, context, make_hospital, message, model

NAMES = {
    "strategy": "half-way",
    "task": "near-means",
    "program": "late-mean",
    "dataset": "old-falls",
    "model": "normed-net",
    "app": "half-ward",
}


def install(folder: Path, site: Path) -> None:
    """Build the wheel by the backend that its pyproject.toml names, and unpack it, which is what pip does with one."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        wheel = build_wheel(str(site.parent))
    finally:
        os.chdir(here)
    with zipfile.ZipFile(site.parent / wheel) as found:
        found.extractall(site)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one new package of each kind, and ``site``, where they are installed, on this Python's path."""
    out = tmp_path_factory.mktemp("new")
    patch = pytest.MonkeyPatch()
    patch.chdir(out)
    (out / "site").mkdir()
    for kind, name in NAMES.items():
        done = CliRunner().invoke(app, ["new", kind, name])
        assert done.exit_code == 0 and f"pip install -e {name}" in done.output, done.output
        install(out / name, out / "site")
    patch.syspath_prepend(str(out / "site"))
    yield out
    patch.undo()
    for name in NAMES.values():
        sys.modules.pop(name.replace("-", "_"), None)


def test_each_is_found_by_its_name_and_loads(made: Path) -> None:
    found = {plugin.name: with_problem(plugin) for plugin in plugins() if plugin.package in NAMES.values()}
    assert {(plugin.group, name) for name, plugin in found.items()} == {
        (KINDS[kind].group, name) for kind, name in NAMES.items() if kind != "app"
    }
    assert [plugin.problem for plugin in found.values()] == [""] * 5 and found["half-way"].version == "0.1.0"


@pytest.mark.slow
def test_each_passes_its_own_tests_with_a_small_federation(made: Path) -> None:
    path = os.pathsep.join([str(made / "site"), str(Path(__file__).resolve().parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", *NAMES.values()],
        cwd=made, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "17 passed" in done.stdout, done.stdout


def test_a_hospital_loads_a_program_only_where_its_policy_names_it(made: Path, tmp_path: Path) -> None:
    config = RunConfig.build({"task": "late-mean", "rounds": 2})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=4.0, public_patients=150.0, learning_rate=0.5)
    sys.modules.pop("late_mean", None)
    enrolment = EnrolRequest(run="r", site=0, version=polyclinic.__version__, noise_multiplier=4.0)
    for policy in ("", 'allowed-tasks = ["late-mean"]\n'):
        hospital = make_hospital(tmp_path, STRICT + policy)
        enrolled = hospital_app(message(enrolment, "query.enrol"), context(hospital, config))
        assert ("late_mean" in sys.modules) is bool(policy), enrolled
        reply = hospital_app(message(request, "train", model()), context(hospital, config))
        assert reply.has_content() is bool(policy) and ("late_mean" in sys.modules) is bool(policy)
        if not policy:
            assert "the policy allows the tasks classification" in reply.error.reason
            assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_its_readme_shows_commands_that_there_are(made: Path) -> None:
    for kind, name in NAMES.items():
        if kind == "app":
            continue
        lines = (made / name / "README.md").read_text().split("```")[1].splitlines()[1:]
        listing, run = (line.split() for line in lines if line.startswith("polyclinic "))
        assert CliRunner().invoke(app, [*listing[1:], "--json"]).exit_code == 0
        flags = dict(zip(run[2::2], run[3::2], strict=True))
        assert flags.pop("--rounds") == "2" and flags["--task" if kind == "program" else f"--{kind}"] == name
        RunConfig.build({key.strip("-"): value for key, value in flags.items() if key != "-c"})


def test_nothing_is_written_over_or_shadowed(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    (made / "mine").write_text("my own")
    (made / "gone").symlink_to(made / "nowhere")
    before = sorted(made.rglob("*"))
    for arguments, words in (
        (["strategy", "half-way"], "taken in strategies, by half-way 0.1.0"), (["model", "half-way"], "is there already"),
        (["model", "mine"], "is there already"), (["model", "gone"], "is there already"),
        (["strategy", "fedavg"], "taken in strategies, by polyclinic"), (["model", "torch"], "is installed here"),
        (["modle", "x"], "Did you mean 'model'"), (["model", "../x"], "cannot be"), (["model", "Net"], "cannot be"),
        (["model", "class"], "cannot be"), (["model", "a--b"], "cannot be"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["new", *arguments])
        assert isinstance(done.exception, ConfigError) and words in str(done.exception), arguments
    assert sorted(made.rglob("*")) == before and (made / "mine").read_text() == "my own"


@pytest.mark.slow
@pytest.mark.flower
def test_an_app_runs_under_flower_with_the_strategy_beside_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: Callable[..., Any]
) -> None:
    """From the app's own folder, where nothing is installed but Polyclinic, and the same model as `polyclinic run` gives."""
    app_dir = tmp_path / "half-ward"
    shutil.copytree(made / "half-ward", app_dir)
    monkeypatch.chdir(app_dir)
    few = ["--rounds", "2", "-c", "training.local-steps=2"]
    theirs = as_json("flower", "run", "--app", ".", *few)
    assert Path(theirs["run"]).parent == app_dir / "runs"
    here = as_json("run", "--strategy", "half_ward:HalfWard", *few)
    assert RunResult.read(theirs["run"]).config.strategy == "half_ward:HalfWard"
    for name, value in RunResult.read(here["run"]).arrays.items():
        np.testing.assert_allclose(RunResult.read(theirs["run"]).arrays[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_is_filled_whatever_the_name(kind: str) -> None:
    for path, text in package(kind, "x1-y-2z").items():
        assert "$" not in (path + text).replace("'$PWD/runs'", "") and "x1" in path + text
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_a_strategy_that_hands_options_on_is_told_to_take_every_node(made: Path) -> None:
    """Flower's own would wait for a second node for ever where a round has one."""
    from half_way import HalfWay  # type: ignore[import-not-found]

    strategy = make_strategy(HalfWay, {"share": 0.25, "weighted_by_key": "patients"}, {"hospitals": 3})
    assert (strategy.share, strategy.min_available_nodes, strategy.min_train_nodes) == (0.25, 1, 1)
    assert strategy.weighted_by_key == "patients"
    with pytest.raises(ConfigError, match="names 'shar', which HalfWay does not take; it takes share, weighted-by-key"):
        make_strategy(HalfWay, {"shar": 1}, {})


@pytest.mark.slow
def test_the_example_is_installed_and_passes_its_own_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "plugin"
    (tmp_path / "site").mkdir()
    install(example, tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    brought = [plugin for plugin in plugins() if plugin.package == "polyclinic-falls"]
    assert {(plugin.group, plugin.name) for plugin in brought} == {
        ("datasets", "falls"), ("models", "wide-and-deep"), ("strategies", "decayed")
    }  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", str(example)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
