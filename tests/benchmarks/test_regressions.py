"""Intervals of private regressions cover the truth, in fewer trials than the study of docs/regression.md."""

import pytest

from benchmarks.regressions import LAWS, covered, table


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "patients"), [(1.0, 4500), (3.0, 2000)])
@pytest.mark.parametrize("family", LAWS)
def test_intervals_hold_the_truth_as_often_as_they_say(family: str, epsilon: float, patients: int) -> None:
    found = covered(family, patients, epsilon, 80)
    assert found["results"] > 0.95 and 0.91 < found["covered"] < 0.985
    assert max(abs(bias) for bias in found["bias"]) < 0.4 and 1 < found["noise"] < 2


def test_noise_that_hides_the_information_leaves_no_result_and_the_table_says_so() -> None:
    found = covered("logistic", 400, 1.0, 3)
    assert found["results"] == 0 and found["covered"] is None
    told = {"rows": [found], "trials": 3, "hospitals": 4, "delta": 1e-5, "rounds": 10, "command": "c"}
    assert "| logistic | 1 | 400 | – | – | 100% |" in table(told | {"machine": {"date": "d", "commit": "e"}})
