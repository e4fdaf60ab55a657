"""Hospitals that err when they enrol, or fall silent while they are online: who waits for them, and how they come back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from polyclinic.config import RunConfig
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.wire.messages import ENROL
from tests.server.test_joining import KEYS, NAMES, Here, Hospitals, charges, hospitals, run

__all__ = ["hospitals"]


def test_one_that_errs_when_it_enrols_is_asked_again_before_each_round_and_told_once(hospitals: Path) -> None:
    path = hospitals / "west" / "schema.toml"
    away = path.rename(path.with_suffix(".away"))

    def here(done: int) -> set[str]:
        if done >= 2 and away.exists():
            away.rename(path)
        return set(NAMES)

    _, summary, grid = run(hospitals, here)
    assert summary["metrics"]["sites"]["west"]["rounds_joined"] == 2
    assert charges(hospitals, "west") == ["statistics", "train", "train"]
    assert [kind for name, kind in grid.asked if name == "west"][:4] == [
        ENROL
    ] * 4  # at the start, and before each round
    [dropped] = summary["dropouts"]
    assert dropped["round"] == 0 and dropped["site"] == "node 3" and "schema cannot be used" in dropped["reason"]


class Registered(Hospitals):
    """The SuperLink knows the nodes by the names under which the coordinator registered their keys."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=f"{NAMES[node - 1]} clinic") for node in self.get_node_ids()]


def test_one_that_errs_when_it_enrols_is_called_by_the_name_of_its_registration_also_between_rounds(
    hospitals: Path,
) -> None:
    (hospitals / "west" / "schema.toml").rename(hospitals / "west" / "schema.away")
    south = (hospitals / "south" / "schema.toml").rename(hospitals / "south" / "schema.away")

    def here(done: int) -> set[str]:
        if done >= 2 and south.exists():
            south.rename(south.with_suffix(".toml"))
        return {"north", "west"} if done == 0 else set(NAMES)

    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    _, summary = coordinate(Registered(hospitals, config, here), config, Run.create(config, pictures=False))
    assert [(drop["round"], drop["site"]) for drop in summary["dropouts"]] == [
        (0, "west clinic (node 3)"),
        (2, "south clinic (node 2)"),
    ]
    assert all("schema cannot be used" in drop["reason"] for drop in summary["dropouts"])
    assert summary["metrics"]["sites"]["south"]["rounds_joined"] == 2  # under its own name, once it can


class Silent(Hospitals):
    """West takes messages while ``silent`` has the number of exchanges of training and evaluation so far, and answers later."""

    silent: range = range(0)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.exchanges, self.held = 0, list[tuple[str, Message]]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        every, mute = list(messages), self.exchanges in self.silent
        taken = [message for message in every if mute and message.metadata.dst_node_id == 3]
        self.exchanges += any(message.metadata.message_type in ("train", "evaluate") for message in every)
        sent = super().push_messages(message for message in every if message not in taken)
        for message in taken:
            self.asked.append(("west", message.metadata.message_type))
            self.held.append((f"held-{len(self.asked)}", message))
        return sent + [name for name, _ in self.held[len(self.held) - len(taken) :]]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        while self.held and self.exchanges not in self.silent:
            name, message = self.held.pop(0)
            message.metadata.__dict__["_dst_node_id"] = 1
            [self.replies[name]] = self._grids[3].send_and_receive([message])
            self.replies[name].metadata.__dict__ |= {"_src_node_id": 3, "_reply_to_message_id": name}
        return super().pull_messages(message_ids)


def silent_run(
    folder: Path, silent: range, here: Here = lambda done: set(NAMES), **keys: Any
) -> tuple[dict[str, Any], Silent]:
    config = RunConfig.build(KEYS | {"out": str(folder / "runs"), "timeout": 0.2}, keys)
    grid = Silent(folder, config, here)
    grid.silent = silent
    return coordinate(grid, config, Run.create(config, pictures=False))[1], grid


@pytest.mark.parametrize(("silent", "when", "trained"), [(range(2, 6), 2, 3), (range(1, 6), 1, 2)])
def test_one_that_falls_silent_is_waited_for_once_and_comes_back_when_it_answers(
    hospitals: Path, silent: range, when: int, trained: int
) -> None:
    """In round 2's training, or in round 1's evaluation, and until round 4."""
    summary, grid = silent_run(hospitals, silent)
    asked = [kind for name, kind in grid.asked if name == "west" and kind in (ENROL, "train")]
    assert asked == [ENROL, *["train"] * (trained - 1), ENROL, "train"]
    west = summary["metrics"]["sites"]["west"]
    assert west["rounds_joined"] == 2 and charges(hospitals, "west") == ["statistics", *["train"] * trained]
    assert {(drop["site"], drop["reason"]) for drop in summary["dropouts"]} == {("west", "no reply within 0.2 seconds")}
    assert [drop["round"] for drop in summary["dropouts"]] == [*range(when, 4)]  # each round that it missed
    spent = Ledger.read(hospitals / "west" / "home" / "ledger.sqlite").epsilon()
    assert summary["statement"]["sites"]["west"]["epsilon"] >= spent * 0.98


def test_one_that_never_answers_again_stays_in_the_statement(hospitals: Path) -> None:
    summary, grid = silent_run(hospitals, range(2, 99))
    assert [kind for name, kind in grid.asked if name == "west" and kind in (ENROL, "train")] == [
        ENROL,
        "train",
        "train",
        ENROL,
    ]
    assert summary["statement"]["sites"]["west"]["epsilon"] > 0 and summary["rounds"] == 4
    assert any("its own ledger has the figure that counts" in note for note in summary["notes"])


def test_where_nobody_may_join_a_silent_one_stays_in_every_round(hospitals: Path) -> None:
    _, grid = silent_run(hospitals, range(2, 4), strategy="scaffold", **{"training.sample-rate": 1.0})
    assert [kind for name, kind in grid.asked if name == "west" and kind in (ENROL, "train")] == [ENROL] + ["train"] * 4


def test_an_impostor_does_not_keep_out_the_silent_one_whose_name_it_takes(hospitals: Path) -> None:
    """It enrols before round 4, when the silent one's answer comes."""
    path = hospitals / "south" / "hospital.toml"
    path.write_text(path.read_text().replace("south", "west"))
    summary, _ = silent_run(hospitals, range(2, 6), lambda done: set(NAMES) - (set() if done >= 3 else {"south"}))
    assert summary["metrics"]["sites"]["west"]["rounds_joined"] == 2
    refused = [drop for drop in summary["dropouts"] if drop["site"] == "west" and drop["round"] == 4]
    assert ["it is node 2, the other is node 3" in drop["reason"] for drop in refused] == [True]
    assert charges(hospitals, "west") == ["statistics", *["train"] * 3]
