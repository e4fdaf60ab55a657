"""Every kind of run gives what it gave: models, charges, synthetic rows, tables and epsilon, from table.json."""

from pathlib import Path

import pytest

from polyclinic import Federation
from polyclinic.errors import PolyclinicError
from polyclinic.inspection.result import RunResult
from tests.digests.results import arithmetic, differences, results, run
from tests.digests.runs import RESUMED, RUNS
from tests.digests.table import Table, digest
from tests.server.test_history import StopsAfter

TABLE = Table.read()
SAME = TABLE.arithmetic == arithmetic()


def check(name: str, result: RunResult) -> None:
    unlike = differences(TABLE.results(name), results(result), exact=SAME)
    assert not unlike, f"{unlike} differ; `python -m tests.digests '{name}' --why REASON` writes what is now"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    check(name, run(RUNS[name], tmp_path))


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_gives_what_it_gave_in_one_go(name: str, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="lights"):
        run(RUNS[name], tmp_path, StopsAfter(1))
    (folder,) = tmp_path.iterdir()
    check(name, Federation.resume(folder))


def test_every_change_of_the_table_says_why() -> None:
    assert set(TABLE.runs) == set(RUNS)
    for name, entry in TABLE.runs.items():
        number, _, why = entry["why"][-1].partition(" ")
        assert number == digest(entry["results"]), f"the results of {name!r} changed without a line that says why"
        assert all(len(line.split()) > 3 for line in entry["why"]), name
