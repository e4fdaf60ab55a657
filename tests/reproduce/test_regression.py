"""The quick form of the regression: all parts run, and what it writes says what the whole one must."""

import json
from pathlib import Path

import pytest

from polyclinic.reproduce.experiment import Asked, experiment_named, reproduce


@pytest.mark.slow
def test_the_quick_form(tmp_path: Path) -> None:
    reproduce(experiment_named("regression"), Asked(tmp_path, quick=True), lambda line: None)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md", "config.toml", "posteriors.svg"}
    newton = [row for row in found["rows"] if row["method"] == "Gauss-Newton"]
    assert [row["epsilon"] for row in newton] == [50.0, 5.0, None]
    assert all(max(row["inflation"]) < 1.5 and row["correlation difference"] < 0.15 for row in newton)
    assert [one["epsilon"] for one in found["coverage"]] == [None, 50.0, 5.0]
    assert all(target["met"] is None for target in found["targets"])
