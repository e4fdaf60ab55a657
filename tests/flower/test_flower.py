"""Under Flower itself, for real: its SuperLink and Ray simulation, its bundle, its SuperNodes with hospital files."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic import Federation
from polyclinic.deployment.environment import flower_settings, with_settings
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from tests.objectives import cohorts

pytestmark = pytest.mark.flower
ROOT = Path(__file__).resolve().parents[2]
FAST = {"rounds": 2, "training.local-steps": 2}
KEYS = "rounds=2 training.local-steps=2"
Quick = Callable[..., RunResult]


def assert_same_model(ours: RunResult, theirs: RunResult) -> None:
    for name, value in ours.arrays.items():
        np.testing.assert_allclose(theirs.arrays[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-7)
    assert theirs.privacy["epsilon"] == pytest.approx(ours.privacy["epsilon"], rel=1e-9)


@pytest.mark.slow
def test_flower_run_gives_the_same_model_and_epsilon(
    as_json: Callable[..., Any], quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a file, flags and `-c`, with a strategy and a model that lie in the current folder; results are written there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("study.toml").write_text('strategy = "besides:Gentle"\nmodel = "besides:net"\n[training]\nlocal-steps = 2\n')
    Path("besides.py").write_text(BESIDES)
    summary = as_json("flower", "run", "study.toml", "--rounds", "2", "-c", "seed=3")
    assert len(summary["metrics"]["sites"]) == 4 and Path(summary["run"]).parent == tmp_path / "runs"
    here = quick(**FAST, strategy="besides:Gentle", model="besides:net", seed=3)
    assert_same_model(here, RunResult.read(summary["run"]))
    assert here.summary["model_sha256"] != quick(**FAST, model="besides:net", seed=3).summary["model_sha256"]


BESIDES = """
from flwr.serverapp.strategy import FedAvg
from polyclinic import LocalHalf, Trained
from torch import nn


class Gentle(FedAvg):
    class Local(LocalHalf):
        def round(self, sites):
            models = sites.model
            for _ in range(sites.settings.local_steps):
                models = sites.step(models, 0.5 * sites.gradient(models))
            return Trained(models)


def net(features, classes, widths):
    return nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("strategy=scaffold", "strategy-options=variate=gradient"), ("strategy=ditto",), ("strategy=bulyan",)]
)
def test_strategies_with_more_than_a_mean_run_under_flower_by_name(
    as_json: Callable[..., Any], quick: Quick, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A record beside the model, and what hospitals keep, go Flower's way as they go ours."""
    given = [f'out="{tmp_path}"', "rounds=2", "training.local-steps=2", *options]
    summary = as_json("flower", "run", "--app", str(ROOT), *(part for option in given for part in ("-c", option)))
    here = quick(
        **FAST, **{key.replace("-", "_"): value for key, value in (option.split("=", 1) for option in options)}
    )
    theirs = RunResult.read(summary["run"])
    assert_same_model(here, theirs)
    assert theirs.pooled["loss"] == pytest.approx(here.pooled["loss"], rel=1e-4)


@pytest.mark.slow
def test_flower_run_says_when_the_run_failed(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("flower", "run", "--out", str(tmp_path), "--delta", "0.5")
    assert done.returncode == 1 and "1/patients" in done.stderr and "Traceback" not in done.stderr


def _not_of_a_clone(folder: str, names: list[str]) -> set[str]:
    """What a fresh clone has not, and the tests; below the top, ``runs`` is a room of the library."""
    unwanted = {".venv", ".git", "tests", "__pycache__"} | ({"runs"} if Path(folder) == ROOT else set())
    return unwanted & set(names)


@pytest.mark.slow
def test_bare_flwr_run_from_the_bundle_alone(quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flwr run .` with no Polyclinic installed, Flower's default of two SuperNodes, our four hospitals, and a strategy and a
    model that lie beside; then a value that cannot be, whose sentence is the last that is said.
    """
    binaries = _python_without_polyclinic(tmp_path / "bare")
    environment = with_settings(flower_settings(tmp_path / "flwr")) | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(_free_port()),
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    (tmp_path / "flwr").mkdir()
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, symlinks=True, ignore=_not_of_a_clone)
    (clone / "besides.py").write_text(BESIDES)
    missing = subprocess.run(
        [binaries / "python", "-c", "import polyclinic"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert missing.returncode != 0, "polyclinic is importable in the bare environment, so this test would show nothing"

    def flwr_run(keys: str) -> str:
        given = f'out="{tmp_path / "runs"}" {KEYS} {keys}'
        return subprocess.run(
            ["flwr", "run", ".", "--stream", "--run-config", given], cwd=clone, env=environment, capture_output=True,
            text=True, timeout=400,
        ).stdout  # fmt: skip

    try:
        said = flwr_run('strategy="besides:Gentle" model="besides:net"')
        assert _status(environment) == "finished:completed", said[-3000:]
        folder = Path((tmp_path / "runs" / "latest.txt").read_text())
        assert f"results go to {folder}" in said
        failed = flwr_run("seed=-1")
        assert _status(environment).startswith("finished:failed")
        sentence = "Configuration key 'seed' has the value -1, which must be at least 0."
        assert "ERROR" in failed and f"{sentence}\nTHIS RUN FAILED, though `flwr run` may exit with 0." in failed
        assert (tmp_path / "runs" / "latest.txt").read_text() == str(folder)
    finally:
        _stop_processes_of(tmp_path)
    theirs = RunResult.read(folder)
    assert len(theirs.sites) == 4
    monkeypatch.syspath_prepend(str(clone))
    assert_same_model(quick(**FAST, strategy="besides:Gentle", model="besides:net"), theirs)


@pytest.mark.slow
def test_real_hospitals_on_supernodes_keep_records_ledger_and_metrics(tmp_path: Path) -> None:
    """SuperLink and two SuperNodes as in docker-compose.yml; what reaches the coordinator is what the policy lets out."""
    sys.path.insert(0, str(ROOT / "tests" / "client"))
    from test_hospital import make_hospital

    files = []
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        files.append(make_hospital(tmp_path / name, "budget = 2.0\ndelta = 1e-3\n"))
        files[-1].write_text(files[-1].read_text().replace("St. Elsewhere", name))
    result = _run_on_supernodes(tmp_path, files, "rounds=1 training.local-steps=2 privacy.epsilon=2.0")
    assert list(result.sites.index) == ["north", "south"]
    assert not result.summary["simulation"]
    assert 0 <= result.pooled["auroc"] <= 1 and 0.9 < result.summary["private_metrics"]["epsilon"] <= 1.0  # noised
    assert result.summary["engine"] is None
    assert result.summary["metrics"]["sites"]["north"]["patients"] is None
    for name in ("north", "south"):
        ledger = Ledger.read(tmp_path / name / "home" / "ledger.sqlite")
        assert [event["purpose"] for event in ledger.events()] == ["statistics", "train"]
        held_out = Ledger.read(tmp_path / name / "home" / "held-out.sqlite")
        assert [event["purpose"] for event in held_out.events()] == ["private-metrics"] and held_out.epsilon() <= 1.0
        assert ledger.epsilon() <= 2.0
        assert result.sites.loc[name, "epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02)
    everything = b"".join(path.read_bytes() for path in result.path.rglob("*") if path.is_file())
    assert b"records.csv" not in everything


@pytest.mark.slow
def test_an_objective_on_flowers_own_supernodes_gives_the_simulations_model(tmp_path: Path) -> None:
    """All steps are the same but for noise, which a real hospital draws from the operating system; here it is next to none."""
    kind, objective, files = "survival", "hazards", []
    for name, part in cohorts.two_hospitals(kind).load().groupby("site"):
        folder = tmp_path / name
        folder.mkdir()
        part.drop(columns="site").to_csv(folder / "records.csv", index=False)
        cohorts.schema(kind).to_toml(folder / "schema.toml")
        files.append(folder / "hospital.toml")
        files[-1].write_text(
            f'site = "{name}"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\ndelta = 1e-3\n'
            "budget = 20000.0\nsmallest-noise-multiplier = 0.001\nrelease-metrics = true\nrelease-predictions = true\n"
        )
    privacy = {"epsilon": 10_000.0, "delta": 1e-3, "patients_per_site": 110}
    theirs = _run_on_supernodes(
        tmp_path, files, "rounds=3 training.local-steps=2 seed=5 "
        + " ".join(f"privacy.{key.replace('_', '-')}={value}" for key, value in privacy.items()),
    )  # fmt: skip
    # The same patients are held out: a simulation of hospital files would tell apart equal ids of two hospitals.
    here = Federation.from_dataset(
        "tests.objectives.cohorts:two_hospitals", dataset_options={"kind": kind}, out=str(tmp_path / "here")
    )
    ours = here.run(rounds=3, training={"local_steps": 2}, privacy=privacy, seed=5, pictures=False)
    assert theirs.summary["objective"] == ours.summary["objective"] and ours.summary["objective"]["name"] == objective
    assert theirs.summary["model"] == ours.summary["model"] and not theirs.summary["simulation"]
    for name, value in ours.arrays.items():
        np.testing.assert_allclose(theirs.arrays[name].numpy(), value.numpy(), rtol=0, atol=0.01)
    assert max(np.abs(value.numpy()).max() for value in ours.arrays.values()) > 0.05
    for metric, value in ours.pooled.items():
        assert theirs.pooled[metric] == pytest.approx(value, rel=0.02, abs=0.02), metric


def _run_on_supernodes(tmp_path: Path, hospitals: list[Path], keys: str) -> RunResult:
    """A run of Flower's own command at a SuperLink with a SuperNode for each hospital file."""
    port, home = _free_port(), tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = with_settings(flower_settings(home)) | {"PYTHONPATH": str(ROOT)}
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), "--isolation", "subprocess",
            "--disable-runtime-dependency-installation"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(link, environment, tmp_path / "link.log"))
        for hospital in hospitals:
            folder = hospital.parent
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--isolation", "subprocess",
                    "--port", str(_free_port()), "--node-config", f'hospital="{hospital}"']  # fmt: skip
            stack.enter_context(_process(node, environment | {"FLWR_HOME": str(folder / "flwr")}, folder / "node.log"))
        time.sleep(8)
        keys = f'out="{tmp_path / "runs"}" participation.min-sites=2 sites=2 timeout=300.0 {keys}'
        done = subprocess.run(
            ["flwr", "run", str(ROOT), "site", "--stream", "--run-config", keys], env=environment, capture_output=True,
            text=True, timeout=500,
        )  # fmt: skip
        assert _status(environment) == "finished:completed", done.stdout[-3000:]
    return RunResult.read((tmp_path / "runs" / "latest.txt").read_text())


def test_flowers_config_has_our_keys_and_defaults() -> None:
    from polyclinic.config import SECTIONS, RunConfig
    from polyclinic.config.keys import flat_keys

    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert flat_keys(told, SECTIONS) == RunConfig.app_config()


def _python_without_polyclinic(folder: Path) -> Path:
    """A virtual environment that sees this one's packages but not the editable install of Polyclinic."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    ours = Path(next(path for path in sys.path if path.endswith("site-packages")))
    theirs = next(folder.glob("lib/python*/site-packages"))
    # A path from a .pth file is not searched for .pth files itself, so the editable install stays behind.
    (theirs / "packages.pth").write_text(f"{ours}\n")
    for script in (*Path(sys.executable).parent.glob("flwr*"), *Path(sys.executable).parent.glob("flower*")):
        lines = script.read_text().splitlines(keepends=True)
        target = folder / "bin" / script.name
        target.write_text(f"#!{folder / 'bin' / 'python'}\n" + "".join(lines[1:]))
        target.chmod(0o755)
    return folder / "bin"


@contextlib.contextmanager
def _process(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(arguments, env=environment, stdout=sink, stderr=sink, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _stop_processes_of(folder: Path) -> None:
    """Flower leaves its local SuperLink running; it is known by its files."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ProcessLookupError):
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                started = (entry / "environ").read_bytes().decode(errors="replace")
                if "flower-super" in command and str(folder) in started:
                    os.kill(int(entry.name), signal.SIGTERM)


def _status(environment: dict[str, str]) -> str:
    for _ in range(60):
        listed = subprocess.run(
            ["flwr", "list", "--limit", "1", "--format", "json"], env=environment, capture_output=True, text=True
        )
        status = str(json.loads(listed.stdout)["runs"][0]["status"])
        if status.startswith("finished"):
            break
        time.sleep(0.5)
    return status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
