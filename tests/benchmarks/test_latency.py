"""The benchmark of latency: what it counts, and its place on the page; no test asserts a time."""

import json
import os
import subprocess
import sys

from benchmarks import latency


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


def test_the_committed_result_is_of_the_whole_size_and_is_what_the_page_shows() -> None:
    result = json.loads(latency.RESULT.read_text())
    assert result["terms"] == {"sites": 2, "rounds": 4, "local_steps": 2, "patients": 150}
    assert [row["way"] for row in result["rows"]] == ["ours", "flower"]
    assert latency.table(result) in latency.PAGE.read_text()
