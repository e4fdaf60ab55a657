"""Intervals of private regressions cover the truth, in fewer trials than the study of docs/regression.md."""

import pytest

from benchmarks.regressions import LAWS, covered, table


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "patients"), [(1.0, 4500), (3.0, 2000)])
@pytest.mark.parametrize("family", LAWS)
def test_intervals_hold_the_truth_as_often_as_they_say(family: str, epsilon: float, patients: int) -> None:
    study = covered(family, patients, epsilon, 80)
    assert study["results"] > 0.95 and 0.91 < study["covered"] < 0.985
    assert max(abs(bias) for bias in study["bias"]) < 0.4 and 1 < study["noise"] < 2


def test_noise_that_hides_the_information_leaves_no_result_and_the_table_says_so() -> None:
    study = covered("logistic", 400, 1.0, 3)
    assert study["results"] == 0 and study["covered"] is None
    result = {"rows": [study], "trials": 3, "hospitals": 4, "delta": 1e-5, "rounds": 10, "command": "c"}
    assert "| logistic | 1 | 400 | – | – | 100% |" in table(result | {"machine": {"date": "d", "commit": "e"}})
