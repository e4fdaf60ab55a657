"""The paper's accounting against values computed apart (systems.md, 1d), and against its own formula."""

import dataclasses
from typing import Any

import pytest

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.composition import clt_mu, gdp_delta
from polyclinic_studies.flows.gdp_claims import PAPER, Claim, duality_gap, line

# sigma: GDP, PRV, RDP
LISTED = {
    7.36: (31.99, 31.87, 35.12),
    11.44: (16.00, 15.99, 17.95),
    18.28: (8.00, 8.01, 9.16),
    29.93: (4.00, 4.01, 4.67),
    1.30: (50.2, 49.15, 52.0),
    6.68: (5.004, 5.027, 5.42),
    14.88: (2.000, 2.012, 2.18),
    27.82: (1.000, 1.011, 1.09),
}
QUICK = (6.68, 14.88, 27.82)


def marked(noise: float) -> Any:
    return pytest.param(noise, marks=() if noise in QUICK else pytest.mark.slow, id=f"{noise:g}")


@pytest.mark.parametrize("noise", [marked(noise) for noise in LISTED])
def test_every_line_against_the_listed_epsilons(noise: float) -> None:
    claim = next(claim for claim in PAPER if claim.noise_multiplier == noise)
    found = line(claim)
    added, replaced = found.epsilon["add-remove"], found.epsilon["replace-one"]
    assert [added[name] for name in ("gdp", "prv", "rdp")] == pytest.approx(LISTED[noise], rel=5e-3)
    # The bounds bracket each other, and a replaced patient is dearer by about two, or much more where epsilon is large.
    assert added["pld"] <= min(added["prv"], added["rdp"])
    assert replaced["pld"] > 2 * added["pld"]
    assert found.holds and not found.holds_replaced
    assert found.together == pytest.approx(added["pld"]) if claim.runs == 1 else found.together > 10 * added["pld"]
    assert found.leaks_someone == (claim.experiment == "health records")


@pytest.mark.parametrize("claim", PAPER, ids=lambda claim: f"{claim.noise_multiplier:g}")
def test_epsilon_and_delta_are_duals(claim: Claim) -> None:
    assert abs(duality_gap(claim)) < 5e-3


def test_the_printed_mu_of_the_health_records_is_the_formulas() -> None:
    for claim in PAPER[:4]:
        mu = clt_mu(claim.sample_rate, claim.noise_multiplier, claim.steps)
        assert mu == pytest.approx(claim.mu[0], abs=6e-3)
        assert gdp_delta(claim.mu[0], claim.epsilon) == pytest.approx(claim.delta, rel=0.05)


def test_less_noise_than_claimed_does_not_hold() -> None:
    assert not line(dataclasses.replace(PAPER[-1], noise_multiplier=20.0)).holds


def test_no_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="runs must be at least 1, got 0"):
        line(dataclasses.replace(PAPER[-1], runs=0))
