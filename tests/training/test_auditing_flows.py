"""The audit of flows: maf and nsf pass in many seeds, and planted faults, batch norm between the steps among them, are caught."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.inspection.audits import subject_of_config
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.synthesis.flows.coordinates import Coordinates
from polyclinic.synthesis.flows.fills import Laws
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.training.auditing.audit import audit, sensitivity
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.auditing.densities import Density, of_density
from polyclinic.training.auditing.faults import fault_named
from polyclinic.training.auditing.subject import Claim
from polyclinic.types import Floats
from tests.training.test_auditing_synthesis import DELTA, LAYOUT, ROUNDS, STEPS, patients

SMALL = make(LAYOUT, transforms=2, hidden=8)


def flowed(recipe: Recipe = SMALL, fault: str | None = None, seed: int = 0) -> Density:
    claimed = epsilon(dpsgd_event(0.2, 2.0, 2 * ROUNDS), DELTA)
    return of_density(
        recipe,
        Claim(STEPS, ROUNDS, patients(LAYOUT), LAYOUT.schema.num_classes, claimed, DELTA, seed, fault_named(fault)),
    )


@pytest.mark.parametrize("name", ["maf", pytest.param("nsf", marks=pytest.mark.slow)])
def test_flows_pass(name: str) -> None:
    subject = flowed(make(LAYOUT, name, transforms=2, hidden=8, bins=4))
    found = audit(subject, 60, (30,))
    assert found.caught_by == [] and found.guessing is not None and found.white_box
    assert found.guessing.epsilon_lower <= subject.epsilon
    assert {one.name for one in found.findings} >= {"canaries", "sensitivity", "noise size", "steps", "label counts"}
    assert sensitivity(subject).measured == pytest.approx(1.0, abs=1e-6)  # somebody is clipped


def test_fault_13_a_flows_batch_norm_is_flagged_at_the_noise_that_it_claims() -> None:
    found = audit(flowed(fault="batch-norm"), 40, (20,))
    assert found.violated and found.caught_by == ["refusal", "sensitivity"]
    assert "mixes patients" in str(found.refused) and found.findings[0].measured > 5


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("noise-off", ["canaries", "noise size"]),
        pytest.param("half-noise", ["noise size"], marks=pytest.mark.slow),
        pytest.param("no-clipping", ["canaries", "sensitivity"], marks=pytest.mark.slow),
        pytest.param("shuffled", ["batch sizes", "patients' turns"], marks=pytest.mark.slow),
    ],
)
def test_faults_planted_in_a_flow_are_caught(fault: str, caught_by: list[str]) -> None:
    found = audit(flowed(fault=fault), 150, (100,))
    assert set(caught_by) <= set(found.caught_by) <= {*caught_by, "steps", "pairs"}


class _Scaled(Coordinates):
    """Numbers are centred by the records' own mean, so that each patient moves all others' rows."""

    def draw(self, z: Floats, rng: np.random.Generator, laws: Laws | None = None) -> tuple[Floats, Floats]:
        v, noise = super().draw(z, rng, laws)
        return v - v.mean(axis=0) if len(v) else v, noise


@dataclass(frozen=True, eq=False)
class _Centred(Recipe):
    @property
    def coordinates(self) -> Coordinates:
        return _Scaled(self.layout)


def test_complete_patients_move_the_sum_by_at_most_the_clip() -> None:
    found = sensitivity(flowed(make(LAYOUT, transforms=1, layers=0, complete=True)))
    assert found.passed and 0.9 < found.measured <= 1.0 + 1e-6


def test_coordinates_that_are_made_of_other_patients_are_caught() -> None:
    found = sensitivity(flowed(_Centred(LAYOUT, transforms=2, hidden=8)))
    assert not found.passed and found.measured > 1.1


def test_a_flow_of_the_configuration_is_audited() -> None:
    given = {
        "task": "synthesis",
        "model": "maf",
        "rounds": 2,
        "training.local-steps": 1,
        "synthesis.options": "transforms=1, hidden=4",
    }
    subject = subject_of_config(RunConfig.build(given), seed=0)
    assert isinstance(subject, Density)
    assert subject.epsilon == RunConfig.build(given).privacy.epsilon
    with pytest.raises(ConfigError, match="white box"):
        audit(subject, 40, (20,), white_box=False)


# `polyclinic reproduce audit` has twenty of both.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds"), [("maf", 6), ("nsf", 2)])
def test_no_false_alarm_in_many_seeds(name: str, seeds: int) -> None:
    made: Callable[[int], Any] = lambda seed: flowed(make(LAYOUT, name, transforms=1, hidden=6, bins=4), seed=seed)  # noqa: E731
    for seed in range(seeds):
        found = audit(made(seed), 60, (30,))
        assert found.caught_by == [], (seed, found.caught_by)


@pytest.mark.slow
def test_bounds_of_many_seeds_stay_below_the_claim() -> None:
    bounds = [guess(replace(flowed(), seed=seed), 100, (40,), 0.95, True).epsilon_lower for seed in range(6)]
    assert max(bounds) <= flowed().epsilon and np.median(bounds) < flowed().epsilon / 2
