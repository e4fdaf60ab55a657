"""Flower apps written after the patterns of Flower's documentation, run by `flwr run` and by the simulator.

`python -m tests.flower.foreign [NAME...]` runs them under `flwr run` and writes what came out to ``expected.json``.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli.runs.flower import flower_status, superlink
from polyclinic.deployment.environment import flower_settings, with_settings

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
APPS = sorted(path.stem for path in (HERE / "apps").glob("*.py") if path.stem != "made_up_ward")
NODES, ROUNDS = 4, 2
PYPROJECT = """
[project]
name = "{name}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "polyclinic"

[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"

[tool.flwr.app.config]
rounds = {rounds}
nodes = {nodes}
out = "out.json"
"""


def app_folder(name: str, folder: Path) -> Path:
    """The app as a folder of its own."""
    app = folder / name.replace("_", "-")
    app.mkdir(parents=True)
    settings = {"name": app.name, "module": name, "rounds": ROUNDS, "nodes": NODES}
    (app / "pyproject.toml").write_text(PYPROJECT.format(**settings))
    for module in (name, "made_up_ward"):
        (app / f"{module}.py").write_text((HERE / "apps" / f"{module}.py").read_text())
    return app


def simulated(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """What `polyclinic simulate` makes of it."""
    out = folder / f"{name}-{'-'.join(options) or 'plain'}.json"
    app = folder / name.replace("_", "-")
    if not app.exists():
        app_folder(name, folder)
    command = [
        sys.executable,
        "-m",
        "polyclinic",
        "simulate",
        str(app),
        "--nodes",
        str(NODES),
        "-c",
        f'out="{out}"',
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))


def under_flower(name: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What `flwr run` makes of it."""
    out = folder / f"{name}-flower.json"
    command = ["flwr", "run", str(app_folder(name, folder)), "run", "--stream", "--run-config", f'out="{out}"',
               "--federation-config", f"num-supernodes={NODES} client-resources-num-cpus=1"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    status = flower_status(environment)
    assert status[0] == "finished:completed" and out.exists(), f"{status}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    return dict(json.loads(out.read_text()))


def assert_alike(ours: Any, theirs: Any, place: str = "") -> None:
    """The same to rounding, since Flower adds up replies in the order in which they arrive; ``coarse`` numbers to 1e-3."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), place
        for name in theirs:
            assert_alike(ours[name], theirs[name], f"{place}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for index, value in enumerate(theirs):
            assert_alike(ours[index], value, f"{place}[{index}]")
    else:
        near = 1e-3 if ".coarse" in place else 1e-6
        assert ours == pytest.approx(theirs, rel=near, abs=near), place


def main() -> None:
    names = sys.argv[1:] or APPS
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        superlink(Path(folder), environment := with_settings(flower_settings(Path(folder)))),
    ):
        for name in names:
            expected[name] = under_flower(name, Path(folder) / "apps", environment)
            sys.stdout.write(f"{name} {json.dumps(expected[name])[:100]}\n")
            EXPECTED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
