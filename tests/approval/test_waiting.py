"""A run waits at the coordinator for hospitals where a person must approve it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from flwr.app import Message

from polyclinic.client.home.approvals import approvals, decide, pause, resume
from polyclinic.client.home.holds import current_pause
from polyclinic.config import RunConfig
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.server.phases import enrolment
from tests.server.test_joining import KEYS, NAMES, POLICY, Here, Hospitals, charges, hospitals

__all__ = ["hospitals"]

WAITS = POLICY + 'require-approval = true\nallowed-runs = ["installed"]\n'


class Approves(Hospitals):
    """Somebody at south decides when it has been asked so often."""

    after = 3
    state: Literal["approved", "denied"] = "approved"

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        given = super().push_messages(messages)
        if self.asked.count(("south", "query.enrol")) == self.after:
            home = self.folder / "south" / "home"
            [one] = approvals(home)
            decide(home, one.run, one.digest, self.state, 30.0)
        return given

    def __init__(self, folder: Path, config: RunConfig, here: Here) -> None:
        super().__init__(folder, config, here)
        self.folder = folder


def waiting(folder: Path, monkeypatch: pytest.MonkeyPatch, grid: type[Approves], **keys: Any) -> dict[str, Any]:
    """The summary of a run of which south needs an approval."""
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", "as a node that was started by polyclinic")
    monkeypatch.setattr(enrolment, "_APPROVAL_POLL", 0.01)
    path = folder / "south" / "hospital.toml"
    path.write_text(path.read_text().replace(POLICY, WAITS))
    config = RunConfig.build(KEYS | {"out": str(folder / "runs")}, keys)
    return coordinate(grid(folder, config, lambda _: set(NAMES)), config, Run.create(config, pictures=False))[1]


def test_a_run_waits_for_a_person_and_then_has_the_hospital_from_its_first_round_on(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = waiting(hospitals, monkeypatch, Approves)
    assert {name: site["rounds_joined"] for name, site in summary["metrics"]["sites"].items()} == dict.fromkeys(
        NAMES, 4
    )
    assert charges(hospitals, "south") == charges(hospitals, "north") and not summary["dropouts"]


def test_a_run_that_waits_for_nobody_begins_without_and_whom_a_person_lets_in_joins_later(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = waiting(hospitals, monkeypatch, Approves, **{"participation.approval-wait": 0.0})
    told = summary["metrics"]["sites"]
    assert told["north"]["rounds_joined"] == 4 and 0 < told["south"]["rounds_joined"] < 4
    assert "waits for approval here" in summary["dropouts"][0]["reason"]


def test_a_run_that_a_person_denies_goes_on_without_the_hospital_and_tells_meanwhile_who_refuses(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    west = hospitals / "west" / "hospital.toml"
    west.write_text(west.read_text() + "most-local-steps = 1\n")

    class Denies(Approves):
        state: Literal["approved", "denied"] = "denied"

    summary = waiting(hospitals, monkeypatch, Denies)
    assert set(summary["metrics"]["sites"]) == {"north"}
    lines = [entry.getMessage() for entry in caplog.records]
    refusal = "refused: west: training.local-steps 2 is above the policy's most-local-steps 1."
    assert f"Polyclinic: waits for approval at south; ready: north; {refusal}" in lines
    assert any(one["site"] == "south" and "denied here" in one["reason"] for one in summary["dropouts"])
    assert not (hospitals / "south" / "home" / "ledger.sqlite").exists()


def test_a_hospital_that_pauses_misses_rounds_and_then_joins_again(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pauses(Hospitals):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            home = hospitals / "south" / "home"
            if self.trainings == 1 and not current_pause(home):
                pause(home, "an audit")
            elif self.trainings == 2 and current_pause(home):
                resume(home)
            return super().push_messages(messages)

    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    grid = Pauses(hospitals, config, lambda _: set(NAMES))
    summary = coordinate(grid, config, Run.create(config, pictures=False))[1]
    told = summary["metrics"]["sites"]
    assert told["north"]["rounds_joined"] == 4 and told["south"]["rounds_joined"] == 3
    # It misses the evaluation of round 1 and the training of round 2.
    assert {(one["site"], one["round"]) for one in summary["dropouts"]} == {("south", 1), ("south", 2)}
    assert all("has paused: an audit" in one["reason"] for one in summary["dropouts"])
    assert charges(hospitals, "south").count("train") == 3
