"""The benchmark of the simulator beside `flwr run`: how it takes medians, and the committed result; no test asserts a time."""

import json
from typing import Any

from benchmarks import simulate


def test_a_ratio_is_the_median_of_the_turns() -> None:
    def run(seconds: float) -> dict[str, Any]:
        return {"command": seconds, "strategy": 1.0, "memory": 5e8, "accuracy": 0.5}

    rows = simulate.figures([(run(1.0), run(6.0)), (run(2.0), run(8.0)), (run(1.5), run(15.0))], {"command": 5.0})
    assert (rows[0]["ratio"], rows[0]["ours"], rows[0]["theirs"]) == (6.0, 1.5, 8.0)
    assert (rows[0]["limit"], rows[0]["met"], rows[1]["met"]) == (5.0, True, None)
    what = {"app": "net", "nodes": 10, "rounds": 3, "workers": 1}
    assert "| net, 10 x 3, 1 | command | 1.5 s | 8 s | 6x | ≥ 5x |" in simulate.table([what | rows[0]])


def test_the_committed_result_is_of_the_whole_size() -> None:
    result = json.loads(simulate.RESULT.read_text())
    assert result["terms"] == {"turns": 3} and "--quick" not in result["command"]
    found = [(row["app"], row["nodes"], row["rounds"], row["workers"]) for row in result["rows"]]
    assert found == [case[:4] for case in simulate.CASES for _ in range(3)]
