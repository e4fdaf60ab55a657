"""Every accountant that is shown, against golden values and against each other; those that only show never enforce."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import (
    RELATIONS,
    calibrate_noise_multiplier,
    dpsgd_event,
    epsilon,
    gaussian_event,
    plan,
)
from polyclinic.privacy.accounting.comparison import SHOWN, curves, shown_epsilon
from polyclinic.privacy.accounting.composition import clt_mu
from polyclinic.privacy.ledger import Ledger, Terms

GOLDEN = json.loads(Path(__file__).with_name("golden_accounting.json").read_text())
QUICK = [row for row in GOLDEN if row["steps"] <= 400 or row["row"] == "clt_bad"]
SHOWN_ONLY = [name for name in SHOWN if name not in ("pld", "rdp")]


def _shown(accountant: str, row: dict, relation: str = "add-remove") -> float:
    return shown_epsilon(accountant, row["sample_rate"], row["noise_multiplier"], row["steps"], row["delta"], relation)


def _name(row: dict) -> str:
    return row["row"]


@pytest.mark.parametrize("row", GOLDEN, ids=_name)
def test_gdp_reproduces_golden_mu_and_epsilon(row):
    tolerance = 2e-4 if "sprint" in _name(row) else 1e-6  # as many digits as the golden value has
    assert clt_mu(row["sample_rate"], row["noise_multiplier"], row["steps"]) == pytest.approx(row["mu"], rel=tolerance)
    assert _shown("gdp", row) == pytest.approx(row["gdp"], rel=tolerance)


@pytest.mark.parametrize("row", QUICK, ids=_name)
def test_prv_is_opacus_upper_bound(row):
    assert _shown("prv", row) == pytest.approx(row["prv"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in GOLDEN if row not in QUICK], ids=_name)
def test_prv_is_opacus_upper_bound_for_many_steps(row):
    tolerance = 1e-4 if "sprint" in _name(row) else 1e-6
    terms = row["sample_rate"], row["noise_multiplier"], row["steps"], row["delta"]
    # One row needs a larger grid than the command allows: half a minute and 4 GB.
    assert shown_epsilon("prv", *terms, largest_grid=2**25) == pytest.approx(row["prv"], rel=tolerance)


@pytest.mark.parametrize("row", GOLDEN, ids=_name)
@pytest.mark.parametrize("accountant", ["basic", "advanced", "zcdp", "rdp"])
def test_the_elementary_accountants_are_bounds(row, accountant):
    assert _shown(accountant, row) >= row["pld"] * (1 - 1e-3)
    if "pld_replace_one" in row:
        assert _shown(accountant, row, "replace-one") >= row["pld_replace_one"] * (1 - 1e-3)


def test_full_batches_are_a_gaussian_to_every_accountant():
    exact = epsilon(gaussian_event(2.0), 1e-5)
    assert shown_epsilon("basic", 1.0, 2.0, 1, 1e-5) == pytest.approx(exact, rel=1e-3)
    assert shown_epsilon("zcdp", 1.0, 20.0, 100, 1e-5) == pytest.approx(2.1657, rel=1e-3)
    assert exact < shown_epsilon("advanced", 1.0, 2.0, 1, 1e-5) < 1.1 * exact


def test_advanced_composition_wins_over_basic_when_steps_are_many():
    many, few = (0.01, 4.0, 10_000, 1e-5), (0.5, 1.0, 2, 1e-5)
    assert shown_epsilon("advanced", *many) < 0.1 * shown_epsilon("basic", *many)
    assert shown_epsilon("advanced", *few) == pytest.approx(shown_epsilon("basic", *few), rel=0.05)


def test_fault_18_the_gaussian_limit_understates_and_is_refused_wherever_epsilon_is_enforced(tmp_path):
    row = next(row for row in GOLDEN if row["row"] == "clt_bad")
    assert _shown("gdp", row) == pytest.approx(0.8515, rel=1e-3) and _shown("pld", row) == pytest.approx(
        3.239, rel=1e-3
    )
    words = "'gdp' is an approximation that can understate epsilon"
    with pytest.raises(ConfigError, match=words):
        Ledger.open(tmp_path / "ledger.sqlite", Terms("a", 1e-5, budget=1.0, accountant="gdp"))
    with pytest.raises(ConfigError, match=words):
        calibrate_noise_multiplier(1.0, 1e-5, gaussian_event, "gdp")
    with pytest.raises(ConfigError, match=words):
        plan(epsilon=1.0, delta=1e-5, training=lambda z: ((gaussian_event(z), 1),), accountant="gdp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("accountant", SHOWN_ONLY)
def test_what_only_shows_is_refused_in_one_sentence(accountant):
    with pytest.raises(ConfigError, match="only .* enforce") as refusal:
        epsilon(gaussian_event(1.0), 1e-5, accountant)
    assert repr(accountant) in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("relation", RELATIONS)
def test_curves_rise_with_the_steps_and_end_where_each_accountant_does(relation):
    found = curves(0.05, 1.0, 200, 1e-5, relation)
    assert set(found) == set(SHOWN) - ({"prv"} if relation == "replace-one" else set())
    for accountant, (steps, eps) in found.items():
        assert steps[-1] == 200 and np.all(np.diff(steps) > 0) and np.all(np.diff(eps) > 0)
        assert eps[-1] == pytest.approx(shown_epsilon(accountant, 0.05, 1.0, 200, 1e-5, relation))


def test_curves_of_one_step_are_points():
    assert all(len(steps) == len(eps) == 1 for steps, eps in curves(0.1, 1.0, 1, 1e-5).values())


def test_impossible_requests_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'zcdp'"):
        shown_epsilon("zcpd", 0.1, 1.0, 10, 1e-5)
    with pytest.raises(ConfigError, match="only the relation 'add-remove'"):
        shown_epsilon("prv", 0.1, 1.0, 10, 1e-5, "replace-one")
    with pytest.raises(ConfigError, match="delta"):
        shown_epsilon("basic", 0.1, 1.0, 10, 0.0)
    with pytest.raises(ConfigError, match="sample_rate"):
        shown_epsilon("basic", 0.0, 1.0, 10, 1e-5)


def test_a_grid_beyond_memory_has_no_bound():
    assert shown_epsilon("prv", 0.1, 0.3, 3000, 1e-5, largest_grid=2**16) == math.inf
    assert shown_epsilon("gdp", 0.1, 0.01, 10, 1e-5) == math.inf


def test_more_noise_costs_less_to_every_accountant():
    for accountant in SHOWN:
        spent = [shown_epsilon(accountant, 0.1, noise, 50, 1e-5) for noise in (0.8, 1.5, 4.0)]
        assert spent[0] > spent[1] > spent[2] > 0
    assert epsilon(dpsgd_event(0.1, 4.0, 50), 1e-5) <= shown_epsilon("advanced", 0.1, 4.0, 50, 1e-5)
