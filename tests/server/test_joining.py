"""Hospitals that come late, or back, while a run goes on: what they join, what they pay, and what the run says of them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.server.federate import Outcome
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.messages import STATISTICS
from tests.client.test_hospital import make_hospital
from tests.server.test_history import StopsAfter

NAMES = ("north", "south", "west")
POLICY = 'budget = 3.0\ndelta = 1e-4\nsmallest-shard = 20\nallowed-tasks = ["classification", "statistics"]\n'
KEYS = {
    "participation.min-sites": 1,
    "rounds": 4,
    "training.local-steps": 2,
    "privacy.epsilon": 2.0,
    "privacy.delta": 1e-4,
}
Here = Callable[[int], set[str]]


class Hospitals(Grid):
    """Real hospitals in this process, each there while ``here(trainings so far)`` names it."""

    def __init__(self, folder: Path, config: RunConfig, here: Here) -> None:
        self.here, self.trainings, self.asked = here, 0, list[tuple[str, str]]()
        self.replies: dict[str, Message] = {}
        self._grids = {}
        for node, name in enumerate(NAMES, 1):
            path = folder / name / "hospital.toml"
            grid = LocalGrid(
                AppReference("polyclinic.client_app"), 1, config.flat(), node_config={"hospital": str(path)}
            )
            self._grids[node] = grid

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, name in enumerate(NAMES, 1) if name in self.here(self.trainings)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._grids[1].create_message(*arguments, **named)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        asked, kinds = [], set()
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.asked.append((NAMES[node - 1], kind))
            kinds.add(kind)
            asked.append(f"{len(self.asked)}")
            if node in self.get_node_ids():
                message.metadata.__dict__["_dst_node_id"] = 1
                [reply] = self._grids[node].send_and_receive([message])
                reply.metadata.__dict__ |= {"_src_node_id": node, "_reply_to_message_id": asked[-1]}
                self.replies[asked[-1]] = reply
        self.trainings += "train" in kinds
        return asked

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return self._grids[1].run


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).mkdir()
        path = make_hospital(tmp_path / name, POLICY)
        path.write_text(path.read_text().replace("St. Elsewhere", name))
    return tmp_path


def run(folder: Path, here: Here, **keys: Any) -> tuple[Outcome, dict[str, Any], Hospitals]:
    config = RunConfig.build(KEYS | {"out": str(folder / "runs")}, keys)
    grid = Hospitals(folder, config, here)
    return *coordinate(grid, config, Run.create(config, pictures=False)), grid


def charges(folder: Path, name: str) -> list[str]:
    return [event["purpose"] for event in Ledger.read(folder / name / "home" / "ledger.sqlite").events()]


def test_who_comes_late_is_in_all_later_rounds_and_pays_for_those_alone(hospitals: Path) -> None:
    outcome, summary, _ = run(hospitals, lambda done: set(NAMES) if done >= 2 else set(NAMES[:2]))
    told = summary["metrics"]["sites"]
    assert {name: told[name]["rounds_joined"] for name in NAMES} == {"north": 4, "south": 4, "west": 2}
    assert charges(hospitals, "west") == ["statistics", "train", "train"]
    assert 0 < told["west"]["epsilon"] < told["north"]["epsilon"] <= 2.0 and not summary["dropouts"]
    assert told["west"]["epsilon"] >= Ledger.read(hospitals / "west" / "home" / "ledger.sqlite").epsilon() * 0.98
    assert [site.index for site in outcome.sites] == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("delta = 1e-4", "delta = 1e-5", "its policy has delta 1e-05, the run has 0.0001"),
        ("budget = 3.0", "budget = 1.0", "its policy's budget is 1"),
        ('site = "west"', 'site = "north"', "another hospital has the same name"),
    ],
)
def test_who_does_not_go_with_the_run_is_told_once_and_asked_for_nothing(
    hospitals: Path, old: str, new: str, why: str
) -> None:
    path = hospitals / "west" / "hospital.toml"
    path.write_text(path.read_text().replace(old, new))
    _, summary, grid = run(hospitals, lambda done: set(NAMES) if done else set(NAMES[:2]))
    [dropped] = summary["dropouts"]
    assert why in dropped["reason"] and dropped["round"] == 2
    assert [kind for name, kind in grid.asked if name == "west"] == ["query.enrol"]
    assert not (hospitals / "west" / "home" / "ledger.sqlite").exists()


class Loses(Hospitals):
    """West counts its patients, and its first so many answers are lost on the way."""

    lost = 1

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        found = super().send_and_receive(asked, timeout=timeout)
        counted = [
            reply for reply in found if (reply.metadata.src_node_id, reply.metadata.message_type) == (3, STATISTICS)
        ]
        if counted and self.lost > 0:
            self.lost -= 1
            found.remove(counted[0])
        return found


def test_one_whose_count_was_lost_is_asked_again_and_pays_once(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    late = Loses(hospitals, config, lambda done: set(NAMES) if done else set(NAMES[:2]))
    _, summary = coordinate(late, config, Run.create(config, pictures=False))
    assert summary["metrics"]["sites"]["west"]["rounds_joined"] == 2
    assert [(drop["round"], drop["site"]) for drop in summary["dropouts"]] == [(2, "west")]
    assert charges(hospitals, "west") == ["statistics", "train", "train"]


@pytest.mark.parametrize(("lost", "joined"), [(1, 2), (9, 0)])
def test_so_is_it_when_the_run_was_broken_off_and_else_the_statement_has_it(
    hospitals: Path, lost: int, joined: int
) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    late = Loses(hospitals, config, lambda done: set(NAMES) if done else set(NAMES[:2]))
    late.lost = lost
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(late, config, folder, progress=StopsAfter(2))
    late.trainings, late.lost = 1, lost - 1
    _, summary = coordinate(late, config, folder, resume=True)
    assert summary["metrics"]["sites"]["west"]["rounds_joined"] == joined and "west" in summary["statement"]["sites"]
    assert charges(hospitals, "west") == ["statistics", *["train"] * joined]


class Dies(Hospitals):
    """The power goes off once hospitals have trained."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        found = super().send_and_receive(asked, timeout=timeout)
        if asked[0].metadata.message_type == "train":
            raise PolyclinicError("power")
        return found


def test_one_that_joined_and_left_in_a_round_that_was_lost_is_in_the_statement(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    first = Hospitals(hospitals, config, lambda done: set(NAMES[:2]))
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(first, config, folder, progress=StopsAfter(2))
    with pytest.raises(PolyclinicError, match="power"):
        coordinate(Dies(hospitals, config, lambda done: set(NAMES)), config, folder, resume=True)
    _, summary = coordinate(first, config, folder, resume=True)
    assert charges(hospitals, "west") == ["statistics", "train"] and "west" in summary["statement"]["sites"]
    assert any("its own ledger has the figure that counts" in note for note in summary["notes"])


@pytest.mark.parametrize(
    "keys",
    [{"strategy": "scaffold"}, {"central.epsilon": 50.0, "central.delta": 0.01, "privacy.patients-per-site": 150}],
)
def test_where_the_sum_counts_on_who_takes_part_nobody_joins(hospitals: Path, keys: dict[str, Any]) -> None:
    _, summary, grid = run(hospitals, lambda done: set(NAMES) if done else set(NAMES[:2]), **keys)
    assert not [kind for name, kind in grid.asked if name == "west"] and set(summary["metrics"]["sites"]) == set(
        NAMES[:2]
    )


def test_a_run_that_goes_on_keeps_who_is_away_at_its_place_and_in_its_privacy(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    # North is away until one more round is done.
    grid = Hospitals(hospitals, config, lambda done: set(NAMES) if done else set(NAMES[1:]))
    resumed = Run.to_resume(config.with_values({"resume": folder.name}))
    outcome, summary = coordinate(grid, config, resumed, resume=True)
    told = summary["metrics"]["sites"]
    assert [site.name for site in outcome.sites] == list(NAMES)
    assert {name: told[name]["rounds_joined"] for name in NAMES} == {"north": 3, "south": 4, "west": 4}
    assert [(drop["round"], drop["site"]) for drop in summary["dropouts"]] == [(3, "north")]
    assert charges(hospitals, "north") == ["statistics", *["train"] * 3] and ("north", STATISTICS) not in grid.asked
    assert 0 < told["north"]["epsilon"] < told["south"]["epsilon"]


def test_one_that_never_comes_back_stays_in_the_statement(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(2))
    grid = Hospitals(hospitals, config, lambda done: set(NAMES[1:]))
    _, summary = coordinate(grid, config, folder, resume=True)
    spent = Ledger.read(hospitals / "north" / "home" / "ledger.sqlite").epsilon()
    assert summary["statement"]["sites"]["north"]["epsilon"] >= spent * 0.98 and spent > 0


def test_what_cannot_be_resumed_says_why(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, progress=StopsAfter(1))
    asked = config.with_values({"resume": folder.name})
    with pytest.raises(ConfigError, match=r"'rounds' has the value 9, but the run .* was begun with 4"):
        Run.to_resume(asked.model_copy(update={"rounds": 9}))
    with pytest.raises(ConfigError, match="not a run's folder"):
        Run.to_resume(config.with_values({"resume": "elsewhere"}))
    with folder.held(), pytest.raises(ConfigError, match="by another process"):
        coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, resume=True)
    simulated = LocalGrid(AppReference("polyclinic.client_app"), 3, config.flat())
    with pytest.raises(PolyclinicError, match="says that it is simulated, and the run's hospitals are real"):
        coordinate(simulated, config, folder, resume=True)


def test_nobody_takes_the_place_of_a_hospital_that_is_away(hospitals: Path) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    here = set(NAMES[:2])
    with pytest.raises(PolyclinicError, match="lights"):
        coordinate(Hospitals(hospitals, config, lambda done: here), config, folder, progress=StopsAfter(2))
    spent = Ledger.read(hospitals / "north" / "home" / "ledger.sqlite").epsilon()
    path = hospitals / "west" / "hospital.toml"
    path.write_text(path.read_text().replace('site = "west"', 'site = "north"'))
    grid = Hospitals(hospitals, config, lambda done: set(NAMES[1:]))
    _, summary = coordinate(grid, config, folder, resume=True)
    assert summary["statement"]["sites"]["north"]["epsilon"] >= spent * 0.98
    assert [kind for name, kind in grid.asked if name == "west"] == ["query.enrol"]
    assert any("another node took part in this run under that name" in drop["reason"] for drop in summary["dropouts"])


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stranger_leaves_itself_out_and_stops_no_run(hospitals: Path, resumed: bool) -> None:
    """West, whose schema is another, is there from the beginning, or when the run goes on."""
    path = hospitals / "west" / "schema.toml"
    path.write_text(path.read_text().replace("120", "121"))
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs")})
    folder = Run.create(config, pictures=False)
    if resumed:
        with pytest.raises(PolyclinicError, match="lights"):
            grid = Hospitals(hospitals, config, lambda done: set(NAMES[:2]))
            coordinate(grid, config, folder, progress=StopsAfter(2))
    _, summary = coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, folder, resume=resumed)
    assert set(summary["metrics"]["sites"]) == set(NAMES[:2]) and summary["rounds"] == 4
    assert any("schema" in drop["reason"] for drop in summary["dropouts"])


def test_two_of_one_name_are_both_left_out(hospitals: Path) -> None:
    path = hospitals / "west" / "hospital.toml"
    path.write_text(path.read_text().replace('site = "west"', 'site = "north"'))
    _, summary, grid = run(hospitals, lambda done: set(NAMES))
    assert set(summary["metrics"]["sites"]) == {"south"}
    assert {drop["site"] for drop in summary["dropouts"]} == {"north"}
    assert not {kind for name, kind in grid.asked if name != "south"} - {"query.enrol"}
