"""Who drops out of a run of real hospitals: by name, in every round missed, with the reason, and in the log at once."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError, whose
from polyclinic.evaluation.report.context import report_context
from polyclinic.runs.folder import Run
from polyclinic.server.app import _Logged, coordinate
from polyclinic.wire.messages import ENROL, STATISTICS
from tests.server.exchange.test_silent_hospitals import Silent, silent_run
from tests.server.test_history import StopsAfter
from tests.server.test_joining import KEYS, NAMES, Hospitals, charges, hospitals, run

__all__ = ["hospitals"]


def missed(summary: dict[str, Any], site: str) -> list[int]:
    return [drop["round"] for drop in summary["dropouts"] if drop["site"] == site]


def set_policy(folder: Path, name: str, line: str) -> None:
    path = folder / name / "hospital.toml"
    path.write_text(path.read_text() + line + "\n")


def test_fault_43_a_refusing_hospital_is_named_at_the_coordinator_and_is_asked_for_nothing_that_it_pays_for(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_policy(hospitals, "west", "most-local-steps = 1")
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    grid = Hospitals(hospitals, config, lambda done: set(NAMES))
    _, summary = coordinate(grid, config, Run.create(config, pictures=False), progress=_Logged())
    reason = "training.local-steps 2 is above the policy's most-local-steps 1."
    assert [(drop["round"], drop["site"], drop["reason"]) for drop in summary["dropouts"]] == [(0, "west", reason)]
    assert {kind for name, kind in grid.asked if name == "west"} == {ENROL}
    assert not (hospitals / "west" / "home" / "ledger.sqlite").exists()
    warned = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert f"Polyclinic: west dropped out before the first round: {reason}" in [entry.getMessage() for entry in warned]
    shown = report_context(summary, Run.open(hospitals / "runs").rounds())
    assert [(row["site"], row["rounds"]) for row in shown["dropouts"]] == [("west", "before the first")]


def test_one_that_allows_the_run_later_is_in_it_from_then_on(hospitals: Path) -> None:
    set_policy(hospitals, "west", "most-local-steps = 1")
    path = hospitals / "west" / "hospital.toml"

    def here(done: int) -> set[str]:
        if done == 2:
            path.write_text(path.read_text().replace("most-local-steps = 1", "most-local-steps = 9"))
        return set(NAMES)

    _, summary, _ = run(hospitals, here)
    assert summary["metrics"]["sites"]["west"]["rounds_joined"] == 2
    assert charges(hospitals, "west") == ["statistics", "train", "train"]


class Lost(Silent):
    """What west was asked while it was silent ends in an error of its node, which has no name to it."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            name = reply.metadata.reply_to_message_id
            if reply.metadata.src_node_id == 3 and name.startswith("held") and reply.metadata.message_type == ENROL:
                reply.__dict__ |= {"_content": None, "_error": Error(7, "Node Unavailable")}
        return replies


def test_a_silent_hospital_whose_node_then_fails_is_still_called_by_its_name(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "timeout": 0.2})
    grid = Lost(hospitals, config, lambda done: set(NAMES))
    grid.silent = range(2, 6)
    _, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert {drop["site"] for drop in summary["dropouts"]} == {"west"}
    assert set(missed(summary, "west")) == {2, 3, 4}
    assert [drop["reason"] for drop in summary["dropouts"]][-1] == "Node Unavailable"


def test_every_round_that_a_silent_hospital_missed_is_told_also_while_it_is_put_aside(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    summary, _ = silent_run(hospitals, range(2, 99), rounds=6)
    assert missed(summary, "west") == [2, 3, 4, 5, 6]
    shown = report_context(summary, Run.open(hospitals / "runs").rounds())
    assert [(row["site"], row["rounds"]) for row in shown["dropouts"]] == [("west", "2–6")]


def test_every_round_that_a_hospital_missed_after_a_resume_is_told(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(1))
    grid = Hospitals(hospitals, config, lambda done: set(NAMES[1:]))
    _, summary = coordinate(grid, config, folder, resume=True)
    assert missed(summary, "north") == [2, 3, 4]


def test_a_budget_that_was_made_for_the_run_lets_it_be_resumed(hospitals: Path) -> None:
    """What the run has paid already is not asked of the budget once more."""
    for name in NAMES:
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text().replace("budget = 3.0", "budget = 2.0"))
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(3))
    _, summary = coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, resume=True)
    assert {site["rounds_joined"] for site in summary["metrics"]["sites"].values()} == {4} and not summary["dropouts"]


def test_records_that_change_during_a_run_leave_their_hospital_out_of_the_rest_with_a_sentence(hospitals: Path) -> None:
    from polyclinic.client.home.hospital import OwnRecords

    def here(done: int) -> set[str]:
        if done == 2:
            path = hospitals / "west" / "records.csv"
            path.write_text("\n".join(path.read_text().splitlines()[:101]) + "\n")
            OwnRecords.read.cache_clear()
        return set(NAMES)

    _, summary, grid = run(hospitals, here)
    assert missed(summary, "west") == [3, 4] and charges(hospitals, "west") == ["statistics", "train", "train"]
    assert {drop["reason"] for drop in summary["dropouts"]} == {
        "west: refused: the records are not those with which this run began here; they must not change while a run goes "
        "on, nor may their order where batches are cyclic."
    }
    assert ("west", STATISTICS) in grid.asked


def test_a_round_that_fails_says_whose_each_reason_is_and_names_each_hospital_once(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from polyclinic.client.home.hospital import OwnRecords

    def here(done: int) -> set[str]:
        if done >= 2:
            path = hospitals / ("south" if done == 2 else "west") / "records.csv"
            path.write_text("\n".join(path.read_text().splitlines()[:101]) + "\n")
            OwnRecords.read.cache_clear()
        return set(NAMES)

    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "participation.min-sites": 2})
    with pytest.raises(
        PolyclinicError, match=r"^Round 4: 1 hospital replied, participation.min-sites is 2\. south, west: refused: the"
    ):
        coordinate(Hospitals(hospitals, config, here), config, Run.create(config, pictures=False), progress=_Logged())
    [second, third] = [entry for entry in caplog.records if entry.getMessage().startswith(("Round 2", "Round 3"))]
    assert second.levelno == logging.INFO and "dropped out" not in second.getMessage()
    assert third.levelno == logging.WARNING
    assert "2 of 3 hospitals answered (north, west) in " in third.getMessage()
    assert "; dropped out: south: refused: the records are not those" in third.getMessage()


def test_a_reason_stands_once_after_the_names_of_whose_it_is() -> None:
    every = [("b", "b: refused"), ("a", "refused"), ("c", "the budget of 'c' refuses"), ("d", "its disk is full")]
    assert whose(every) == "a, b: refused; d: its disk is full; the budget of 'c' refuses"


def test_two_of_one_name_are_told_apart_by_their_nodes_and_the_true_one_joins_when_the_other_is_gone(
    hospitals: Path,
) -> None:
    path = hospitals / "west" / "hospital.toml"
    path.write_text(path.read_text().replace('site = "west"', 'site = "north"'))
    _, summary, _ = run(hospitals, lambda done: set(NAMES) if done < 2 else set(NAMES[:2]))
    reasons = [drop["reason"] for drop in summary["dropouts"] if drop["site"] == "north" and drop["round"] == 0]
    assert len(reasons) == 2 and all("`polyclinic coordinator nodes` lists" in reason for reason in reasons)
    assert "it is node 1, the other is node 3;" in reasons[0] and "it is node 3, the other is node 1;" in reasons[1]
    assert summary["metrics"]["sites"]["north"]["rounds_joined"] == 2  # the twin was revoked after round 2
    assert charges(hospitals, "north") == ["statistics", "train", "train"]


def test_a_twin_that_comes_during_a_run_costs_the_true_hospital_no_round(hospitals: Path) -> None:
    path = hospitals / "west" / "hospital.toml"
    path.write_text(path.read_text().replace('site = "west"', 'site = "north"'))
    _, summary, grid = run(hospitals, lambda done: set(NAMES) if done else set(NAMES[:2]))
    assert summary["metrics"]["sites"]["north"]["rounds_joined"] == 4
    [dropped] = summary["dropouts"]
    assert "it is node 3, the other is node 1;" in dropped["reason"] and dropped["round"] == 2
    assert {kind for name, kind in grid.asked if name == "west"} == {ENROL}
