"""Every kind of analysis, and shape functions, under Flower: its own simulation, and at real hospitals of a coordinator."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyclinic import Federation as Simulation
from polyclinic import RunConfig
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from tests.deployment.conftest import command_line
from tests.deployment.federation import Federation, free_ports, wait_for
from tests.programs.test_every_way import SHARED, assert_near
from tests.programs.wards import NAMES, RUNS, schema, write

pytestmark = [pytest.mark.flower, pytest.mark.slow]
WARDS = "tests.programs.wards:WARDS"
# What a policy says of a hospital as it is made, and here.
POLICY = {
    "budget = 2.0": "budget = 2000.0",
    "allowed-tasks = [": 'allowed-tasks = ["regression", "survival", "cox", "components", "clusters", "effect", "query", ',
    "allowed-models = [": 'allowed-models = ["ebm", ',
    "smallest-noise-multiplier = 0.3": "smallest-noise-multiplier = 0.01",
    "allow-splits = false": "allow-splits = true",
    "allow-shared-noise = false": "allow-shared-noise = true",
    "release-metrics = false": "release-metrics = true",
}
# Much is spent, so that numbers with a hospital's own noise, which no seed repeats, are near the simulation's.
KEYS = {"participation.min-sites": 2, "privacy.delta": 1e-3, "privacy.epsilon": 30.0, "timeout": 300.0}


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


def spent(federation: Federation, name: str) -> tuple[float, list[str]]:
    """What a hospital's ledger says, and for what each charge was."""
    ledger = Ledger.read(federation.folder / name / "home" / "ledger.sqlite")
    return ledger.spent(), [event["purpose"] for event in ledger.events()]


@pytest.mark.parametrize("kind", RUNS)
def test_real_hospitals_give_the_simulations_numbers_and_charge_what_the_run_states(
    federation: Federation, kind: str, tmp_path: Path
) -> None:
    """Half of the kinds under shared noise; all the same but for noise, which real hospitals draw from the operating system."""
    shared = SHARED if kind in ("survival", "components") else {}
    config = RunConfig.build(RUNS[kind] | KEYS | shared | {"sites": 2})
    (tmp_path / "run.toml").write_text(config.toml())
    for name in NAMES:
        schema(kind).to_toml(federation.folder / name / "schema.toml")
    trained = {name: spent(federation, name)[1].count("train") for name in NAMES} if federation.runs else dict.fromkeys(NAMES, 0)
    done = federation.run("coordinator", "submit", federation.co, tmp_path / "run.toml", "--stream")
    assert done.code == 0, done.error
    theirs = RunResult.read((federation.co / "runs" / "latest.txt").read_text())
    assert not theirs.summary["dropouts"] and not theirs.summary["simulation"]
    for name in NAMES:
        epsilon, purposes = spent(federation, name)
        assert purposes.count("train") == trained[name] + config.rounds
        assert theirs.sites.loc[name, "epsilon"] == pytest.approx(epsilon, rel=0.02)
    ours = Simulation.from_dataset(WARDS, out=str(tmp_path)).run(**RUNS[kind] | KEYS | shared, pictures=False)
    assert_near(theirs, ours, 0.1)
