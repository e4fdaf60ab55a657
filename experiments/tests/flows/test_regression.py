"""The quick form of the regression: all parts run, and what it writes says what the whole one must."""

import json
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent

from polyclinic.experiments import Asked, reproduce
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic_studies.flows.paper_regression import measurements
from polyclinic_studies.flows.regression_flow import BOUNDS, DELTA, LAYOUT, Plan, encoded, noises


@pytest.mark.slow
def test_the_quick_form(tmp_path: Path) -> None:
    reproduce("regression", Asked(tmp_path, quick=True), lambda line: None)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    figures = {"posteriors.svg", "synthetic-records.svg"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md", "config.toml", "parts", *figures}
    newton = [row for row in found["rows"] if row["method"] == "Gauss-Newton"]
    assert [row["epsilon"] for row in newton] == [50.0, 5.0, None]
    assert all(max(row["inflation"]) < 1.5 and row["correlation difference"] < 0.15 for row in newton)
    assert [one["epsilon"] for one in found["coverage"]] == [None, 50.0, 5.0]
    assert all(target["met"] is None for target in found["targets"])
    assert [target["id"] for target in found["targets"]].count("R3") == 4
    assert [run["epsilon"] for run in found["synthetic records"]] == [50.0, 5.0]
    assert abs(found["synthetic records"][0]["flow and moments"]["residual"] - 1) < 0.5


def test_records_are_turned_and_turned_back() -> None:
    table = measurements(3, 50)
    x, _ = LAYOUT.features_and_labels(LAYOUT.rows(encoded(table).x, encoded(table).y))
    low, high = BOUNDS.T
    numbers = (x * (high - low) + low + high) / 2
    np.testing.assert_allclose(numbers[:, 4:8], table[:, :4])
    np.testing.assert_allclose(numbers[:, 8], table[:, 4:].mean(1))
    # A rotation of the measurements: their squares add up to the same.
    np.testing.assert_allclose((numbers[:, :4] ** 2).sum(1), 5 * table[:, 4:].var(1))


def test_the_sums_and_the_steps_together_spend_epsilon() -> None:
    plan = Plan(rounds=3, steps=2, share=0.2)
    moments, each = noises(2.0, plan)
    spent = epsilon(ComposedDpEvent([gaussian_event(moments, 2), gaussian_event(each, 6)]), DELTA)
    assert 1.99 < spent <= 2.0
    # Squared signal-to-noise: a fifth for each sum, the rest for all steps.
    assert moments**-2 / (6 * each**-2) == pytest.approx(0.2 / 0.6)
