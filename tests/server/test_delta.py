"""The delta of a run that names none: of which numbers it is made, and that all hospitals and the server have the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import epsilon, usual_delta
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.runs.simulation import settle
from polyclinic.server.app import coordinate
from polyclinic.server.calibration import calibrate
from tests.client.test_hospital import make_hospital
from tests.server.test_joining import KEYS, NAMES, POLICY, Hospitals

UNNAMED = {**KEYS, "privacy.delta": 0.0}


@given(st.integers(1, 10**9))
def test_a_tenth_of_one_over_the_patients_is_rounded_down_to_one_digit(patients: int) -> None:
    delta = usual_delta(patients)
    assert 0.05 <= delta * patients <= 0.1 * (1 + 1e-12) and float(f"{delta:.0e}") == delta


@pytest.mark.parametrize(
    ("patients", "delta"), [(569, 1e-4), (1_000, 1e-4), (1_001, 9e-5), (40_000, 2e-6), (10**15, 1e-12)]
)
def test_the_delta_of_some_numbers_of_patients(patients: int, delta: float) -> None:
    assert usual_delta(patients) == delta


def test_a_simulation_has_one_delta_whatever_the_split_the_seed_and_the_hospitals() -> None:
    deltas = {settle(RunConfig(sites=sites, seed=seed)).privacy.delta for sites, seed in ((0, 0), (3, 1), (8, 2))}
    assert deltas == {usual_delta(569)}
    public = RunConfig(sites=3, privacy={"patients_per_site": 90})
    assert settle(public).privacy.delta == usual_delta(270)
    assert settle(RunConfig(privacy={"delta": 0.01})).privacy.delta == 0.01


def test_a_table_of_thousands_of_patients_needs_no_delta(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    age = draw.integers(20, 90, 2_500)
    table = pd.DataFrame({"mrn": range(2_500), "age": age, "died": (age + draw.normal(0, 20, 2_500) > 70).astype(int)})
    table["hospital"] = np.where(table.mrn < 1_800, "north", "south")
    result = Federation.from_frame(table, site="hospital", label="died", patient="mrn", out=str(tmp_path)).run(rounds=1)
    assert (
        result.privacy["delta"] == result.config.privacy.delta == RunResult.read(result.path).statement["delta"] == 4e-5
    )
    assert {site["delta"] for site in result.statement["sites"].values()} == {4e-5}
    planned = epsilon(calibrate(result.config).total_event, 4e-5)
    assert result.privacy["epsilon"] == pytest.approx(planned, rel=1e-6) and planned <= 3


def test_a_delta_above_what_patients_allow_is_refused_still() -> None:
    with pytest.raises(ConfigError, match="'privacy.delta' has the value 0.01, which must be below 1/patients"):
        Federation().run(privacy={"delta": 0.01})
    with pytest.raises(ConfigError, match="must be 0, which chooses it, or at least 1e-12"):
        RunConfig(privacy={"delta": 1e-13})


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Real hospitals, of which the last has another delta than the others."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        path = make_hospital(tmp_path / name, POLICY if name != "west" else POLICY.replace("1e-4", "1e-5"))
        path.write_text(path.read_text().replace("St. Elsewhere", name))
    return tmp_path


def test_real_hospitals_policies_state_it(hospitals: Path) -> None:
    config = RunConfig.build(UNNAMED | {"out": str(hospitals / "runs"), "rounds": 2})
    grid = Hospitals(hospitals, config, lambda done: set(NAMES))
    outcome, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert outcome.config.privacy.delta == summary["privacy"]["delta"] == 1e-4
    assert [site.name for site in outcome.sites] == ["north", "south"]
    [left_out] = summary["dropouts"]
    assert left_out["site"] == "west" and "delta 1e-05, the run has 0.0001" in left_out["reason"]
    assert not (hospitals / "west" / "home" / "ledger.sqlite").exists()
    ledger = Ledger.read(hospitals / "north" / "home" / "ledger.sqlite")
    assert (
        ledger.delta == 1e-4
        and ledger.epsilon() == pytest.approx(summary["privacy"]["epsilon"], rel=1e-6)
        and ledger.epsilon() <= 2
    )


def test_a_run_that_goes_on_keeps_the_delta_with_which_it_began(tmp_path: Path) -> None:
    begun = Run.create(settle(RunConfig(out=str(tmp_path))))
    begun.checkpoint.touch()
    assert begun.config().privacy.delta == 1e-4
    again = RunConfig(out=str(tmp_path), resume=begun.name)
    assert Run.to_resume(again).name == begun.name
    other: dict[str, Any] = {"privacy.delta": 1e-5}
    with pytest.raises(ConfigError, match="'privacy.delta' has the value 1e-05, but the run"):
        Run.to_resume(again.with_values(other))
