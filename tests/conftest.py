"""What every test may use: the command line as a person runs it, and small fast runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.nursery import Done, python

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

    from polyclinic.inspection.result import RunResult

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"
if "POLYCLINIC_DATA" not in os.environ and SHARED_DATA.is_dir():
    os.environ["POLYCLINIC_DATA"] = str(SHARED_DATA)

# What a run writes is on the disk before it goes on. No test takes the power away, so that memory is as good, and quicker.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

Command = Callable[..., Done]


# These files import JAX, which takes 130 MB: one process of tests runs both.
USE_JAX = ("tests/digests/test_digests.py", "tests/synthesis/methods/test_marginals.py")
# These start Ray clusters, SuperLinks and nodes, each of which would take all cores: one after the other, for beside each other
# they leave too little to the containers of the compose suite.
START_CLUSTERS = (
    "tests/deployment/", "tests/flower/", "tests/chaos/", "tests/sim/test_failing_site.py", "tests/sim/test_grid.py",
    "tests/sim/test_killed_actor.py", "tests/sim/test_two_nodes.py",
)  # fmt: skip
# The longest of all in one process, which begin first.
LONGEST = (START_CLUSTERS[0], "tests/docs/test_docs.py", "tests/server/test_rounds.py")


class ByFile(LoadFileScheduling):
    """The tests of a file go to one process, and those of all files that use JAX, or that start clusters."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        for several in (START_CLUSTERS, USE_JAX):
            if file.startswith(several):
                return several[0]
        return file

    def _assign_work_unit(self, node: WorkerController) -> None:
        for scope in LONGEST[::-1]:
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # here, since the process that only hands out tests reads this file too

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device is here"))


@pytest.fixture(scope="session")
def command() -> Command:
    """``command("run", "--json")`` runs the command line in a process of its own, as a person would."""

    def call(*arguments: str, **options: Any) -> Done:
        return python("-m", "polyclinic", *arguments, **{"NO_COLOR": "1", "COLUMNS": "200"} | options)

    return call


@pytest.fixture(scope="session")
def as_json(command: Command) -> Callable[..., Any]:
    """The JSON that a command prints; fails the test when the command fails."""

    def call(*arguments: str, **options: Any) -> Any:
        done = command(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture(scope="session")
def heart_disease() -> None:
    """Skips a test that needs the heart disease files where there are none."""
    if not (Path(os.environ.get("POLYCLINIC_DATA", "")) / "heart_uci").is_dir():
        pytest.skip("POLYCLINIC_DATA names no folder with heart_uci: the heart disease files are not here")


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., RunResult]:
    """A small private run of the embedded dataset into the test's own folder, whose report is of tables alone."""

    from polyclinic import Federation

    def run(**options: Any) -> RunResult:
        small: dict[str, Any] = {"out": str(tmp_path), "rounds": 2, "training.local-steps": 2}
        return Federation.from_dataset("breast-cancer", **small).run(**{"pictures": False} | options)

    return run
