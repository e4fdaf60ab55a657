"""Cohorts: sampled from the seed, of the size asked for, and a hospital's turns apart."""

from collections import Counter

import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.server.calibration import calibrate
from polyclinic.server.exchange.cohort import check_cohorts, sample_cohort
from polyclinic.server.exchange.sites import Site

TEMPLATE = {
    "node": 1, "simulated": True, "schema": None, "delta": 1e-3, "budget": 1.0, "relation": "add-remove", "accountant": "pld",
}  # fmt: skip
SITES = [Site(index=i, name=f"h{i}", **TEMPLATE) for i in range(10)]  # type: ignore[arg-type]


def cohorts(rounds: int = 29, **options: object) -> list[list[int]]:
    config = Federation().with_options(**options).config
    last: dict[str, int] = {}
    drawn = []
    for number in range(1, rounds + 1):
        cohort = sample_cohort(SITES, config, number, last)
        last |= {site.name: number for site in cohort}
        drawn.append([site.index for site in cohort])
    return drawn


def test_cohorts_follow_the_seed_and_have_the_size_asked_for() -> None:
    drawn = cohorts(participation={"fraction": 0.29})
    assert all(len(cohort) == 3 for cohort in drawn) and drawn == cohorts(participation={"fraction": 0.29})
    assert drawn != cohorts(participation={"fraction": 0.29}, seed=1)
    assert {index for cohort in drawn for index in cohort} == set(range(10))


def test_a_fixed_number_of_hospitals() -> None:
    assert {len(cohort) for cohort in cohorts(participation={"sites": 4})} == {4}
    assert cohorts() == [list(range(10))] * 29


def test_poisson_cohorts_take_each_hospital_on_its_own() -> None:
    drawn = cohorts(rounds=600, participation={"sampling": "poisson", "fraction": 0.2})
    sizes = Counter(len(cohort) for cohort in drawn)
    assert 0 in sizes and len(sizes) > 4
    share = sum(len(cohort) for cohort in drawn) / 6000
    assert share == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("separation", [2, 3, 5])
def test_a_hospitals_turns_are_apart(separation: int) -> None:
    drawn = cohorts(participation={"sites": 2, "min_separation": separation})
    assert all(len(cohort) == 2 for cohort in drawn)
    for index in range(10):
        turns = [number for number, cohort in enumerate(drawn) if index in cohort]
        assert all(later - earlier >= separation for earlier, later in zip(turns, turns[1:], strict=False))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participation.sites": 11}, "'participation.sites' has the value 11, but 10 hospitals"),
        (
            {"participation.sites": 4, "participation.min-separation": 3},
            "'participation.min-separation' has the value 3.*at most 2",
        ),
    ],
)
def test_cohorts_that_cannot_be_had_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_cohorts(Federation().with_options(**options).config, 10)


def test_fault_09_sampling_hospitals_buys_no_privacy() -> None:
    """The server sees who took part, so a small cohort must not lower the noise."""
    few, all_of_them = (
        calibrate(RunConfig(participation={"fraction": share}, privacy={"delta": 1e-3})) for share in (0.25, 1.0)
    )
    assert few.noise_multiplier == all_of_them.noise_multiplier
