"""The versions of all parties: recorded beside a run's results; a hospital that counts privacy differently takes no part."""

import json
from functools import partial
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
from polyclinic.wire.versions import PRIVACY_FORMAT, recorded_versions, version_title, versions
from tests.server.test_history import StopsAfter
from tests.server.test_hostile_enrolment import Lying
from tests.server.test_joining import KEYS, NAMES, Hospitals, charges, hospitals, run

__all__ = ["hospitals"]
OURS = polyclinic.__version__


def says_format(**number: str) -> Any:
    """What makes a hospital's answer one of another version, whose other words nobody here can read."""

    def lie(said: dict[str, Any]) -> dict[str, Any]:
        own = {name: its for name, its in json.loads(said["versions"]).items() if name != "privacy_format"}
        other = own | {"polyclinic": "0.9.9", **number}
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


@pytest.mark.parametrize(
    ("number", "words"), [({"privacy_format": "999"}, "privacy format 999"), ({}, "privacy format not said")]
)
@pytest.mark.parametrize("late", [False, True])
def test_a_hospital_of_another_privacy_format_is_left_out_by_name_and_pays_nothing(
    hospitals: Path, number: dict[str, str], words: str, late: bool
) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 2})
    grid = Lying(hospitals, config, lambda done: set(NAMES) if done or not late else set(NAMES[1:]))
    grid.lie = says_format(**number)
    _, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert set(summary["metrics"]["sites"]) == {"south", "west"}
    [dropped] = summary["dropouts"]
    assert dropped["site"] == "north" and dropped["round"] == (2 if late else 0)
    assert (
        f"the hospital has Polyclinic 0.9.9 ({words}) and the coordinator has {version_title(versions())}"
        in dropped["reason"]
    )
    assert "install versions of the same format at both" in dropped["reason"]
    assert {kind for name, kind in grid.asked if name == "north"} == {ENROL}
    assert not (hospitals / "north" / "home" / "ledger.sqlite").exists()


def test_one_that_comes_back_with_another_format_is_left_out_until_it_has_the_runs(hospitals: Path) -> None:
    """North upgrades while the coordinator is down, and downgrades after one more round."""
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    grid = Lying(hospitals, config, lambda done: set(NAMES))
    grid.lie = lambda said: said if grid.trainings else says_format(privacy_format="999")(said)
    _, summary = coordinate(grid, config, folder, resume=True)
    assert [(drop["round"], drop["site"]) for drop in summary["dropouts"]] == [(3, "north")]
    assert "Polyclinic 0.9.9" in summary["dropouts"][0]["reason"]
    assert charges(hospitals, "north") == ["statistics", *["train"] * 3]


def test_a_hospital_of_another_version_that_counts_alike_takes_part_with_a_warning(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 2})
    grid = Lying(hospitals, config, lambda done: set(NAMES))
    grid.lie = lambda said: said | {"versions": said["versions"].replace(OURS, "0.9.9\\nforged")}
    _, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert set(summary["metrics"]["sites"]) == set(NAMES) and not summary["dropouts"]
    assert f"north has version '0.9.9\\nforged', the coordinator has {OURS}; both have privacy format" in caplog.text
    assert "south has version" not in caplog.text


def test_a_run_goes_on_with_another_version_and_not_under_another_privacy_format(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 5})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    path = folder.path / "versions.json"
    other = path.read_text().replace(f'"polyclinic": "{OURS}"', '"polyclinic": "0.9.9"')
    path.write_text(other)
    resumed = config.with_values({"resume": folder.name})
    assert Run.to_resume(resumed).path == folder.path
    assert f"was begun with version 0.9.9 and goes on with {OURS}" in caplog.text
    for done in (3, 4):  # the second goes on with what the first did
        with pytest.raises(PolyclinicError, match="lights"):
            coordinate(
                Hospitals(hospitals, config, lambda done: set(NAMES)),
                config,
                folder,
                resume=True,
                progress=StopsAfter(done),
            )
    recorded = folder.versions()
    assert recorded["coordinator"]["polyclinic"] == "0.9.9"
    assert [later["polyclinic"] for later in recorded["resumed"].values()] == [OURS]
    for number, words in (('"privacy_format": "999"', "999"), ('"some": "thing"', "not said")):
        path.write_text(other.replace(f'"privacy_format": "{PRIVACY_FORMAT}"', number))
        for go_on in (partial(Run.to_resume, resumed), partial(Federation.resume, folder.path)):
            with pytest.raises(
                ConfigError, match=rf"with Polyclinic 0.9.9 \(privacy format {words}\) and this is .*{OURS}"
            ):
                go_on()
