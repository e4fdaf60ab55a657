"""The benchmarks of latency and of growth: what they count, and their places on the page; no test asserts a time."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import latency
from benchmarks.latency import growth


def test_a_tree_is_a_process_with_all_below_it_and_counts_those_that_ended() -> None:
    work = "sum(range(4 * 10**7))"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}]); print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", below], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline()
    assert process.pid in latency.tree(os.getpid()) and latency.tree(process.pid) == [process.pid]
    assert latency.spent(process.pid) > 0.05 and 3 < latency.memory(process.pid) < 100
    process.communicate()


@pytest.mark.parametrize(("sites", "ways"), [(2, ["ours", "flower"]), (30, ["ours"])])
def test_the_committed_result_is_of_the_whole_size_and_is_what_the_page_shows(sites: int, ways: list[str]) -> None:
    result = json.loads(latency.place(sites)[0].read_text())
    assert result["terms"] == {"sites": sites, "rounds": 4, "local_steps": 2, "patients": 150}
    assert [row["way"] for row in result["rows"]] == ways
    assert latency.table(result) in latency.PAGE.read_text()


def test_thirty_nodes_that_wait_are_small() -> None:
    [row] = json.loads(latency.place(30)[0].read_text())["rows"]
    assert row["waiting_megabytes"] < 250


def test_a_thousand_rounds_leave_no_more_than_their_records() -> None:
    result = json.loads(growth.RESULT.read_text())
    assert result["terms"]["rounds"] == 1000 and growth.table(result) in growth.PAGE.read_text()
    added = {row["what"]: row["a_round"] for row in result["rows"]}
    assert added["journal"] < 2000 and added["ledger"] < 500 and added["home"] < 1 and added["run"] < 2000
    assert added["memory"] < 20_000


def test_growth_is_counted_by_what_lies_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.main(["--quick", "--json"]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(rows) == set(growth.TITLES) and rows["journal"]["last"] > rows["journal"]["early"] > 0
    assert rows["ledger"]["a_round"] > 0 and rows["memory"]["last"] > 1e8
