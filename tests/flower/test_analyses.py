"""Analyses and shape functions under Flower: its own simulation, and at real hospitals of a coordinator.

Kinds that differ in what a hospital or the server does; components and clusters go the way of an effect, and a regression that
of Cox's.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic import Federation as Simulation
from polyclinic import RunConfig
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from tests.deployment.conftest import command_line
from tests.deployment.federation import Federation, free_ports, wait_for
from tests.objectives import cohorts
from tests.programs.test_every_way import SHARED, assert_near
from tests.programs.wards import NAMES, RUNS, schema, write

pytestmark = [pytest.mark.flower, pytest.mark.slow]
WARDS = "tests.programs.wards:WARDS"
# What a policy says of a hospital as it is made, and here.
POLICY = {
    "budget = 2.0": "budget = 1000000.0",
    "allowed-tasks = [": 'allowed-tasks = ["regression", "survival", "cox", "components", "clusters", "effect", "query", ',
    "smallest-noise-multiplier = 0.3": "smallest-noise-multiplier = 0.001",
    "allow-splits = false": "allow-splits = true",
    "allow-shared-noise = false": "allow-shared-noise = true",
}
SHARES = {"survival": ["Survival", "Low", "High"], "effect": ["Estimate", "95 % from", "to"]}
# Much is spent, so that numbers with a hospital's own noise, which no seed repeats, are near the simulation's.
KEYS = {"participation.min-sites": 2, "privacy.delta": 1e-3, "privacy.epsilon": 50.0, "timeout": 300.0}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator and two hospitals, whose policies allow analyses, as docs/deploy/README.md makes them."""
    folder = tmp_path_factory.mktemp("federation")
    made = Federation(folder, free_ports(3), command_line)
    for name in NAMES:
        data, of_data = write(folder / f"records-{name}", name)
        shutil.copy(data, folder / f"{name}.csv")
        shutil.copy(of_data, folder / "schema.toml")
    try:
        made.follow(2, 3)
        made.follow(4)
        for name in NAMES:
            own = folder / name / "hospital.toml"
            text = own.read_text()
            for old, new in POLICY.items():
                assert old in text, old
                text = text.replace(old, new)
            own.write_text(text)
        wait_for(made.serving)
        made.follow(5, 6)
        wait_for(lambda: {made.status(name) for name in NAMES} == {"online"})
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("kind", ["survival", "effect", "cox", "ebm"])
def test_real_hospitals_give_the_simulations_numbers_and_charge_what_the_run_states(
    federation: Federation, kind: str, tmp_path: Path
) -> None:
    """One of them under shared noise; all the same but for noise, which real hospitals draw from the operating system."""
    shared = SHARED if kind == "survival" else {}
    keys = RUNS[kind] | KEYS | shared | ({"privacy.epsilon": 150.0} if kind == "cox" else {})
    config = RunConfig.build(keys | {"sites": 2})
    (tmp_path / "run.toml").write_text(config.toml())
    for name in NAMES:
        schema(kind).to_toml(federation.folder / name / "schema.toml")
    done = federation.run("coordinator", "submit", federation.co, tmp_path / "run.toml", "--stream")
    assert done.code == 0, done.error
    theirs = RunResult.read((federation.co / "runs" / "latest.txt").read_text())
    assert not theirs.summary["dropouts"] and not theirs.summary["simulation"]
    for name in NAMES:
        ledger = Ledger.read(federation.folder / name / "home" / "ledger.sqlite")
        charges = [event["purpose"] for event in ledger.events() if event["run"] == theirs.folder.name]
        assert charges.count("train") == config.rounds
        assert theirs.sites.loc[name, "epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02)
    ours = Simulation.from_dataset(WARDS, out=str(tmp_path)).run(**keys, pictures=False)
    if kind == "ebm":
        both = [result.arrays["shapes"].numpy().ravel() for result in (theirs, ours)]
        assert np.corrcoef(both)[0, 1] > 0.9
    elif (
        kind in SHARES
    ):  # counts of a few patients, medians, which are edges, and differences of balance differ by more
        np.testing.assert_allclose(
            *(result.tables[kind][SHARES[kind]].to_numpy() for result in (theirs, ours)), atol=0.05
        )
    else:
        assert_near(theirs, ours, 0.2, 0.05)


def test_a_table_1_of_real_hospitals_is_charged_to_training_and_held_out_patients(
    federation: Federation, tmp_path: Path
) -> None:
    for name in NAMES:
        schema().to_toml(federation.folder / name / "schema.toml")
    asked = ("describe", "age", "sbp", "ward", "--by", "treated", "--epsilon", 4.0)
    theirs = federation.call(*asked, "--coordinator", federation.co, "--out", tmp_path / "theirs")
    ours = federation.call(*asked, "--dataset", WARDS, "--out", tmp_path / "ours")
    assert set(theirs["sites"]) == set(NAMES) == set(ours["sites"]) and not theirs["dropouts"]
    for name, figures in theirs["columns"].items():
        for group, figure in (("overall", figures["overall"]), *figures["groups"].items()):
            other = ours["columns"][name]["overall"] if group == "overall" else ours["columns"][name]["groups"][group]
            for key in ("mean", "median") if name != "ward" else ():
                # Two intervals of 95 % hold the same number, but for one in a thousand.
                assert figure[key]["low"] <= other[key]["high"] and other[key]["low"] <= figure[key]["high"]
    for name in NAMES:
        for file in ("ledger.sqlite", "held-out.sqlite"):
            events = Ledger.read(federation.folder / name / "home" / file).events()
            assert [event["purpose"] for event in events].count("query-description") == 1
        assert 3.9 < theirs["sites"][name]["cost"] <= 4.0
    assert (tmp_path / "theirs" / "tables" / "table1.csv").is_file()


@pytest.mark.parametrize(("kind", "more"), [("survival", SHARED), ("regression", {})])
def test_flowers_simulation_gives_our_simulations_numbers(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    """By halves of the server that are apart: of counts, and of Newton steps."""
    keys = RUNS[kind] | {"privacy.epsilon": 8.0} | more
    config = RunConfig.build(keys | {"dataset": WARDS, "out": str(tmp_path)})
    (tmp_path / "run.toml").write_text(config.toml())
    done = command_line("flower", "run", tmp_path / "run.toml", "--json")
    assert done.code == 0, done.error
    theirs = RunResult.read((tmp_path / "latest.txt").read_text())
    ours = Simulation.from_dataset(WARDS, out=str(tmp_path / "ours")).run(**keys, pictures=False)
    assert_near(theirs, ours, 1e-5)
    assert theirs.privacy["epsilon"] == pytest.approx(ours.privacy["epsilon"], rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "objective"), [("days", "squared"), ("survival", "hazards"), ("codes", "multi-label")]
)
def test_objectives_at_real_hospitals_give_the_simulations_model(
    federation: Federation, kind: str, objective: str, tmp_path: Path
) -> None:
    """All steps are the same but for noise, which a real hospital draws from the operating system; here it is next to none."""
    for name, part in cohorts.two_hospitals(kind).load().groupby("site"):
        part.drop(columns="site").to_csv(federation.folder / f"{name}.csv", index=False)
        cohorts.schema(kind).to_toml(federation.folder / name / "schema.toml")
        own = federation.folder / name / "hospital.toml"
        own.write_text(own.read_text().replace("release-metrics = false", "release-metrics = true")
                       .replace("release-predictions = false", "release-predictions = true"))  # fmt: skip
    privacy = {"epsilon": 10_000.0, "delta": 1e-3, "patients_per_site": 110}
    keys = {f"privacy.{key.replace('_', '-')}": value for key, value in privacy.items()} | {
        "rounds": 3, "training.local-steps": 2, "seed": 5, "sites": 2, "participation.min-sites": 2, "timeout": 300.0,
    }  # fmt: skip
    given = (part for key, value in keys.items() for part in ("-c", f"{key}={value}"))
    done = federation.run("coordinator", "submit", federation.co, *given, "--stream")
    assert done.code == 0, done.error
    theirs = RunResult.read((federation.co / "runs" / "latest.txt").read_text())
    # The same patients are held out: a simulation of hospital files would tell apart equal ids of two hospitals.
    here = Simulation.from_dataset(
        "tests.objectives.cohorts:two_hospitals", dataset_options={"kind": kind}, out=str(tmp_path / "here")
    )
    ours = here.run(rounds=3, training={"local_steps": 2}, privacy=privacy, seed=5, pictures=False)
    assert theirs.summary["objective"] == ours.summary["objective"] and ours.summary["objective"]["name"] == objective
    assert theirs.summary["model"] == ours.summary["model"] and not theirs.summary["simulation"]
    for name, value in ours.arrays.items():
        np.testing.assert_allclose(theirs.arrays[name].numpy(), value.numpy(), rtol=0, atol=0.01)
    assert max(np.abs(value.numpy()).max() for value in ours.arrays.values()) > 0.05
    for metric, value in ours.pooled.items():
        assert theirs.pooled[metric] == pytest.approx(value, rel=0.02, abs=0.02), metric
