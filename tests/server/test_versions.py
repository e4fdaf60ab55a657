"""The versions of all parties: recorded beside a run's results, and equal, or the hospital takes no part."""

import json
from pathlib import Path
from typing import Any

import pytest

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.wire.messages import ENROL
from polyclinic.wire.versions import recorded_versions
from tests.server.test_history import StopsAfter
from tests.server.test_hostile_enrolment import Lying
from tests.server.test_joining import KEYS, NAMES, Hospitals, charges, hospitals, run

__all__ = ["hospitals"]
OURS = polyclinic.__version__


def says_version(version: str | None) -> Any:
    """What makes a hospital's answer one of another version, whose other words nobody here can read."""

    def lie(said: dict[str, Any]) -> dict[str, Any]:
        other = json.loads(said["versions"]) | {"polyclinic": version}
        if version is None:
            del other["polyclinic"]
        return {"site": said["site"], "versions": json.dumps(other), "refusal": "", "a field of the future": 1}

    return lie


def test_the_versions_of_all_parties_are_beside_the_results(hospitals: Path) -> None:
    """Of a late hospital too."""
    run(hospitals, lambda done: set(NAMES) if done >= 2 else set(NAMES[:2]))
    [folder] = (hospitals / "runs").glob("2*")
    recorded = json.loads((folder / "versions.json").read_text())
    assert recorded["coordinator"] == recorded_versions() and set(recorded["hospitals"]) == set(NAMES)
    assert {part["polyclinic"] for part in recorded["hospitals"].values()} == {OURS}
    assert all({"python", "flwr", "torch"} <= set(part) for part in recorded["hospitals"].values())
    assert '"hospitals"' in (folder / "report.html").read_text().replace("&#34;", '"')


def test_a_simulation_has_one_party(quick: Any) -> None:
    result: RunResult = quick(rounds=1)
    assert list(json.loads((result.path / "versions.json").read_text())) == ["coordinator"]


@pytest.mark.parametrize(("version", "words"), [("0.9.9", "Polyclinic 0.9.9"), (None, "does not say its version")])
@pytest.mark.parametrize("late", [False, True])
def test_a_hospital_of_another_version_is_left_out_by_name_and_pays_nothing(
    hospitals: Path, version: str | None, words: str, late: bool
) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 2})
    grid = Lying(hospitals, config, lambda done: set(NAMES) if done or not late else set(NAMES[1:]))
    grid.lie = says_version(version)
    _, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert set(summary["metrics"]["sites"]) == {"south", "west"}
    [dropped] = summary["dropouts"]
    assert dropped["site"] == "north" and dropped["round"] == (2 if late else 0)
    assert words in dropped["reason"] and f"the coordinator has Polyclinic {OURS}" in dropped["reason"]
    assert "install the same version at both" in dropped["reason"]
    assert {kind for name, kind in grid.asked if name == "north"} == {ENROL}
    assert not (hospitals / "north" / "home" / "ledger.sqlite").exists()


def test_one_that_comes_back_with_another_version_is_left_out_until_it_has_the_runs(hospitals: Path) -> None:
    """North upgrades while the coordinator is down, and downgrades after one more round."""
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    grid = Lying(hospitals, config, lambda done: set(NAMES))
    grid.lie = lambda said: said if grid.trainings else says_version("0.9.9")(said)
    _, summary = coordinate(grid, config, folder, resume=True)
    assert [(drop["round"], drop["site"]) for drop in summary["dropouts"]] == [(3, "north")]
    assert "Polyclinic 0.9.9" in summary["dropouts"][0]["reason"]
    assert charges(hospitals, "north") == ["statistics", *["train"] * 3]


def test_a_run_does_not_go_on_with_another_version_than_it_was_begun_with(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    path = folder.path / "versions.json"
    path.write_text(path.read_text().replace(f'"polyclinic": "{OURS}"', '"polyclinic": "0.9.9"'))
    for go_on in (
        lambda: Run.to_resume(config.changed({"resume": folder.name})),
        lambda: Federation.resume(folder.path),
    ):
        with pytest.raises(ConfigError, match=rf"begun with Polyclinic 0.9.9 and this is {OURS}"):
            go_on()
