"""A question to several real hospitals: their answers add up, and one epsilon is said that holds for all."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.asking import ask
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.statistics import Statistic
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

COLUMNS = [
    {"name": "id", "kind": "integer", "role": "patient_id"},
    {"name": "age", "kind": "integer", "bounds": [0, 120]},
    {"name": "died", "kind": "binary", "role": "label"},
]
COUNT = Statistic("count", epsilon=0.5)


def grid_of(folder: Path, *policies: str) -> LocalGrid:
    """Hospitals of 100, 200, ... patients; each policy adds lines to what all have."""
    grid = LocalGrid(AppReference("polyclinic.client_app"), len(policies), RunConfig().flat())
    rng = np.random.default_rng(0)
    for number, policy in enumerate(policies, start=1):
        home, rows = folder / f"h{number}", 100 * number
        home.mkdir()
        records = {"id": np.arange(rows), "age": rng.integers(20, 90, rows), "died": rng.integers(0, 2, rows)}
        pd.DataFrame(records).to_csv(home / "records.csv", index=False)
        Schema.from_dict({"name": "clinic", "columns": COLUMNS}).to_toml(home / "schema.toml")
        (home / "hospital.toml").write_text(
            f'site = "h{number}"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\nbudget = 1.0\n'
            f'delta = 1e-3\nallowed-tasks = ["query"]\n{policy}\n'
        )
        grid._contexts[number].node_config["hospital"] = str(home / "hospital.toml")
    return grid


def charges(folder: Path, number: int) -> int:
    path = folder / f"h{number}" / "home" / "ledger.sqlite"
    return len(Ledger.read(path).events()) if path.exists() else 0


def test_answers_of_real_hospitals_add_up(tmp_path: Path) -> None:
    result = ask(grid_of(tmp_path, "", "", ""), COUNT)
    assert abs(result["value"] - 600) < 12 * result["standard_error"]
    assert result["value"] == sum(site["value"] for site in result["sites"].values())
    assert [charges(tmp_path, number) for number in (1, 2, 3)] == [1, 1, 1]
    assert result["privacy"]["overlap"] == 1 and result["privacy"]["epsilon"] <= 0.5


def test_a_hospital_that_refuses_is_left_out_and_named(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "", "smallest-noise-multiplier = 9.0")
    result = ask(grid, COUNT)
    assert list(result["sites"]) == ["h1"] and abs(result["value"] - 100) < 12 * result["standard_error"]
    assert [drop["site"] for drop in result["dropouts"]] == ["h2"]
    assert "smallest-noise-multiplier" in result["dropouts"][0]["reason"]
    assert (charges(tmp_path, 1), charges(tmp_path, 2)) == (1, 0)


def test_when_all_refuse_it_is_a_refusal(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "", "smallest-noise-multiplier = 9.0")
    for _ in range(2):
        ask(grid, COUNT)
    with pytest.raises(BudgetRefused, match="allowed is 1") as refused:
        ask(grid, COUNT)
    assert "smallest-noise-multiplier" in str(refused.value)


def test_a_patient_of_two_hospitals_pays_at_both(tmp_path: Path) -> None:
    result = ask(grid_of(tmp_path, "patients-elsewhere = 1", "", ""), COUNT)
    assert result["privacy"]["overlap"] == 2 and 0.98 < result["privacy"]["epsilon"] <= 1.0
    assert result["privacy"]["composition"] == "patients in up to 2 hospitals: composed"
    assert all(site["cost"] <= 0.5 for site in result["sites"].values())


def test_terms_of_their_own_go_together_where_one_epsilon_can_hold(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "", 'accountant = "rdp"')
    result = ask(grid, Statistic("mean", "age", mechanism="gaussian", epsilon=0.5))
    assert abs(result["value"] - 54.5) < 3 + 12 * result["standard_error"] and result["privacy"]["epsilon"] <= 0.5


def test_different_relations_are_not_asked_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'h1' and 'h2' have different relations"):
        ask(grid_of(tmp_path, "", 'relation = "replace-one"'), COUNT)
    assert (charges(tmp_path, 1), charges(tmp_path, 2)) == (0, 0)


def test_an_impossible_question_charges_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'age'"):
        ask(grid_of(tmp_path, "", ""), Statistic("mean", "agee", epsilon=0.5))
    assert (charges(tmp_path, 1), charges(tmp_path, 2)) == (0, 0)


def test_hospitals_whose_records_do_not_fit_are_said_to_be_absent(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "", "smallest-shard = 5000")
    assert "smallest-shard" in ask(grid, COUNT)["dropouts"][0]["reason"]
    with pytest.raises(PolyclinicError, match="No hospital could enrol"):
        (tmp_path / "alone").mkdir()
        ask(grid_of(tmp_path / "alone", "smallest-shard = 5000"), COUNT)
