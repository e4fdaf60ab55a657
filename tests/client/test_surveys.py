"""Surveys at a real hospital: charged first, refused in one sentence, released once; nothing exact without its policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.privacy.accounting import epsilon, event_from_json
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.kinds import write_question
from polyclinic.releases.survey import Survey
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.messages import ASK, FAILED, RECORD, REFUSED, AskRequest

SCHEMA = {
    "name": "clinic",
    "columns": [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
        {"name": "ward", "kind": "categorical", "categories": ["other"], "other": "other"},
        {"name": "died", "kind": "binary", "role": "label"},
    ],
}
SURVEYED = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["survey"]\n'


def make_hospital(folder: Path, policy: str = SURVEYED) -> Path:
    rng = np.random.default_rng(0)
    ward = np.where(rng.random(400) < 0.6, "north", "south").astype(object)
    ward[7] = "room of Mrs Smith"
    records = {"id": np.arange(400), "age": rng.integers(20, 90, 400), "ward": ward, "died": rng.integers(0, 2, 400)}
    pd.DataFrame(records).to_csv(folder / "records.csv", index=False)
    Schema.from_dict(SCHEMA).to_toml(folder / "schema.toml")
    (folder / "hospital.toml").write_text(
        f'site = "St. Elsewhere"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\n{policy}'
    )
    return folder / "hospital.toml"


def ask(hospital: Path, asked: float | None = 1.0, columns: tuple[str, ...] = ("age", "ward"), run: str = "s") -> Any:
    LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
    request = AskRequest(run=run, site=0, question=write_question(Survey(columns, asked)))
    context = Context(1, 1, {"hospital": str(hospital)}, RecordDict(), RunConfig().flat())
    return app(Message(RecordDict({RECORD: request.record()}), 1, ASK), context)


def ledger(hospital: Path) -> Ledger:
    return Ledger.read(hospital.parent / "home" / "ledger.sqlite")


def test_a_survey_is_one_charge_and_one_release(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    reply, again = ask(hospital), ask(hospital)
    told = reply.content["query"]
    assert list(told["names"]) == ["north", "south"] and reply.content["arrays"]["cells"].numpy().tolist() == [121, 2]
    events = ledger(hospital).events()
    assert [event["purpose"] for event in events] == ["survey"]
    assert 0.99 < epsilon(event_from_json(events[0]["event"]), 1e-3) <= 1.0
    assert np.array_equal(*(one.content["arrays"]["patients"].numpy() for one in (reply, again)))
    assert list(again.content["query"]["names"]) == ["north", "south"]


def test_no_names_are_told_where_none_is_common(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    records = pd.read_csv(tmp_path / "records.csv")
    records.assign(ward=[f"bed {row}" for row in range(400)]).to_csv(tmp_path / "records.csv", index=False)
    for reply in (ask(hospital), ask(hospital)):  # computed, and as it was kept
        assert list(reply.content["query"]["names"]) == []
        assert reply.content["arrays"]["cells"].numpy().tolist() == [121, 0]


@pytest.mark.parametrize(
    ("policy", "asked", "words"),
    [
        (SURVEYED.replace("survey", "query"), 1.0, "the policy allows query, not 'survey'"),
        (SURVEYED, None, "does not allow training or statistics without privacy"),
        (SURVEYED + "allow-without-privacy = true\n", None, "The privacy budget of 'St. Elsewhere' refuses 'survey'"),
        (SURVEYED, 2.5, "allowed is 2"),
        (SURVEYED + "smallest-noise-multiplier = 9.0\n", 1.0, "below the policy's smallest-noise-multiplier"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_and_costs_nothing(
    tmp_path: Path, policy: str, asked: float | None, words: str
) -> None:
    hospital = make_hospital(tmp_path, policy)
    reply = ask(hospital, asked)
    assert reply.error.code == REFUSED and words in reply.error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists() or not ledger(hospital).events()


def test_a_survey_of_no_column_is_refused(tmp_path: Path) -> None:
    reply = ask(make_hospital(tmp_path), columns=("agee",))
    assert reply.error.code == FAILED and "no feature column 'agee'" in reply.error.reason
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["journal.jsonl"]
