"""The benchmark of sweeps makes real ones, whose models are those of runs alone; no test asserts a time."""

from dataclasses import replace

import pytest

from benchmarks.sweeps import STUDIES, measured, table


@pytest.mark.slow
def test_a_real_sweep_is_measured_and_its_models_are_those_of_runs_alone() -> None:
    study = replace(
        STUDIES[0],
        arguments=("--dataset", "breast-cancer", "--sites", "2"),
        rounds=2,
        epsilons=(1.0, 3.0),
        seeds=2,
        turns=1,
    )
    row = measured(study)
    assert row["difference"] == 0.0 and row["runs"] == 4 and row["peak_gigabytes"] > 0.1
    assert row["ratio"] == row["alone_seconds"] / row["seconds"]
    result = {"machine": dict.fromkeys(("date", "commit", "cpu"), "x"), "command": "x", "busy_cores": 0, "most_busy": 1}
    assert "4 runs: heart disease, 4 hospitals, 2 rounds" in table(result | {"rows": [row]})
