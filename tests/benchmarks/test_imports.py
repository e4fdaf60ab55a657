"""The benchmark of starts: what it counts, and the committed result; no test asserts a time."""

import json

from benchmarks import imports


def test_the_processors_seconds_are_of_the_process_that_was_started() -> None:
    idle, work = imports.beside([["-c", "import time; time.sleep(0.2)"], ["-c", "sum(range(10**7))"]], 1)
    assert idle < 0.15 < work + 0.1


def test_the_committed_result_is_of_the_whole_size() -> None:
    result = json.loads(imports.RESULT.read_text())
    assert result["terms"] == {"repeats": 7} and "--quick" not in result["command"]
    assert [(row["what"], row["against"], row["limit"]) for row in result["rows"]] == [
        (what, against, limit) for what, _, against, limit in imports.STARTS
    ]
