"""Queries at hospitals: charged first, refused in one sentence, released once, and each question's noise its own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon, event_from_json
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases import statistics
from polyclinic.releases.kinds import write_question
from polyclinic.releases.statistics import Statistic
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.messages import ASK, FAILED, RECORD, REFUSED, AskRequest

SCHEMA = {
    "name": "clinic",
    "columns": [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
        {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "unit": "mmHg", "nullable": True},
        {"name": "died", "kind": "binary", "role": "label"},
    ],
}
ASKING = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["query"]\n'
CONFIG = RunConfig(dataset="breast-cancer", sites=3)


def make_hospital(folder: Path, policy: str = ASKING) -> Path:
    rng = np.random.default_rng(0)
    ages, sbp = rng.integers(20, 90, 200), rng.normal(130, 15, 200).round(1)
    records = pd.DataFrame({"id": np.arange(200), "age": ages, "sbp": sbp, "died": rng.integers(0, 2, 200)})
    records.to_csv(folder / "records.csv", index=False)
    Schema.from_dict(SCHEMA).to_toml(folder / "schema.toml")
    (folder / "hospital.toml").write_text(
        f'site = "St. Elsewhere"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\n{policy}'
    )
    return folder / "hospital.toml"


def request(**changes: Any) -> AskRequest:
    """Fields of the request, and of the question."""
    own = {name: value for name, value in changes.items() if name in AskRequest.model_fields}
    asked = {"statistic": "count", "epsilon": 0.5} | {name: changes[name] for name in changes.keys() - own}
    return AskRequest(**{"run": "q", "site": 0, "question": write_question(Statistic(**asked))} | own)


def sent(asked: AskRequest) -> Message:
    LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
    return Message(RecordDict({RECORD: asked.record()}), 1, ASK)


def ask(hospital: Path, **changes: Any) -> Message:
    context = Context(1, 1, {"hospital": str(hospital)}, RecordDict(), CONFIG.flat())
    return app(sent(request(**changes)), context)


def ask_simulated(home: Path, sites: tuple[int, ...] = (0, 1, 2), **changes: Any) -> list[Message]:
    messages = [sent(request(site=site, home=str(home), **changes)) for site in sites]
    contexts = [Context(1, 1 + site, {"partition-id": site}, RecordDict(), CONFIG.flat()) for site in sites]
    return app.call_stack(messages, contexts)


def cells(reply: Message) -> np.ndarray:
    return reply.content["arrays"]["cells"].numpy()


def ledger(hospital: Path) -> Ledger:
    return Ledger.read(hospital.parent / "home" / "ledger.sqlite")


def test_an_answer_is_noised_charged_and_says_what_it_cost(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    reply = ask(hospital)
    assert abs(cells(reply)[0] - 200) < 60 and cells(reply)[0] == round(cells(reply)[0])
    event = event_from_json(ledger(hospital).events()[0]["event"])
    assert 0.49 < epsilon(event, 1e-3) <= 0.5
    assert reply.content[RECORD]["epsilon"] == pytest.approx(ledger(hospital).epsilon(), rel=0.02)
    told = reply.content["query"]
    assert (told["budget"], told["relation"], told["accountant"]) == (2.0, "add-remove", "pld")
    assert [event["purpose"] for event in ledger(hospital).events()] == ["query-count"]


def test_a_query_asked_again_gets_the_same_answer_and_costs_nothing(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    asked = {"statistic": "histogram", "column": "age"}
    first, again = ask(hospital, **asked), ask(hospital, **asked)
    assert np.array_equal(cells(first), cells(again)) and len(ledger(hospital).events()) == 1
    assert dict(first.content["query"]) == dict(again.content["query"])
    one, same = (ask_simulated(tmp_path / "runs", **asked | {"column": "mean_radius"}) for _ in range(2))
    assert [cells(r).tolist() for r in one] == [cells(r).tolist() for r in same]
    found = Ledger.read_all(tmp_path / "runs" / "ledger.sqlite")
    assert [len(site.events()) for site in found.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    "change", [{"run": "r"}, {"epsilon": 0.6}, {"mechanism": "gaussian"}, {"where": ("age >= 60",)}, {"column": "sbp"}]
)
def test_any_other_query_is_a_new_release(tmp_path: Path, change: dict[str, Any]) -> None:
    hospital = make_hospital(tmp_path)
    ask(hospital), ask(hospital, **change)
    assert len(ledger(hospital).events()) == 2 and ledger(hospital).epsilon() > 0.9


def test_simulated_questions_have_noise_of_their_own(tmp_path: Path) -> None:
    replies = [
        *ask_simulated(tmp_path, mechanism="gaussian"), *ask_simulated(tmp_path, mechanism="gaussian", run="q2"),
        *ask_simulated(tmp_path, mechanism="gaussian", where=("malignant == 1",)),
    ]  # fmt: skip
    noise = [cells(reply)[0] % 1 for reply in replies]
    assert len({round(part, 6) for part in noise}) == len(noise)


def test_a_real_hospitals_noise_follows_no_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (ask(make_hospital(tmp_path / name), mechanism="gaussian") for name in ("a", "b"))
    assert cells(one)[0] != cells(other)[0]


def test_a_budget_refuses_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospital = make_hospital(tmp_path)
    assert ask(hospital, epsilon=1.5).has_content()
    reply = ask(hospital, epsilon=0.6, run="q2")
    assert reply.error.code == REFUSED and "budget of 'St. Elsewhere' refuses 'query-count'" in str(reply.error.reason)
    assert ask(hospital, epsilon=0.4999, run="q3").has_content()
    assert ledger(hospital).epsilon() <= 2.0 and len(ledger(hospital).events()) == 2


def test_a_budget_of_exactly_the_epsilon_is_enough(tmp_path: Path) -> None:
    for number, mechanism in enumerate(("laplace", "gaussian", "discrete-gaussian")):
        (tmp_path / str(number)).mkdir()
        hospital = make_hospital(tmp_path / str(number))
        assert ask(hospital, epsilon=2.0, mechanism=mechanism).has_content()


def test_the_charge_stays_when_the_answer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospital = make_hospital(tmp_path)

    def broken(*_: object) -> None:
        raise ConfigError("row 8")

    monkeypatch.setattr(statistics, "patient_values", broken)
    reply = ask(hospital, statistic="mean", column="age")
    assert str(reply.error.reason) == "the hospital failed; its own log has the details"
    assert len(ledger(hospital).events()) == 1


@pytest.mark.parametrize(
    ("policy", "changes", "code", "words"),
    [
        ("budget = 2.0\ndelta = 1e-3\n", {}, REFUSED, "the policy allows classification, statistics, not 'query'"),
        (ASKING + "smallest-noise-multiplier = 5.0\n", {}, REFUSED, "below the policy's smallest-noise-multiplier 5"),
        (ASKING, {"column": "agee"}, FAILED, "Did you mean 'age'"),
        (ASKING, {"where": ("age >= 200",)}, FAILED, "public bounds 0 to 120"),
        (ASKING, {"mechanism": "none"}, FAILED, "mechanism must be one of"),
        (ASKING, {"mechanism": "randomised-response"}, FAILED, "'replace-one', not 'add-remove'"),
        (ASKING, {"statistic": "sum"}, FAILED, "statistic must be one of"),
        (ASKING, {"epsilon": 1000.0}, FAILED, "epsilon must lie"),
        (ASKING, {"relation": "replace-one", "mechanism": "randomised-response"}, FAILED, "not 'add-remove'"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_ledger(
    tmp_path: Path, policy: str, changes: dict[str, Any], code: int, words: str
) -> None:
    reply = ask(make_hospital(tmp_path, policy), **changes)
    assert reply.error.code == code and words in str(reply.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_request_does_not_widen_a_real_hospitals_policy(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, ASKING.replace("2.0", "0.4"))
    reply = ask(hospital, budget=50.0, ledger=str(tmp_path / "other.sqlite"), home=str(tmp_path / "elsewhere"))
    assert reply.error.code == REFUSED and "allowed is 0.4" in str(reply.error.reason)
    assert not (tmp_path / "other.sqlite").exists() and not (tmp_path / "elsewhere").exists()


def test_randomised_response_asks_patients_who_are_there(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, ASKING + 'relation = "replace-one"\n')
    reply = ask(hospital, statistic="histogram", column="died", mechanism="randomised-response", epsilon=1.0)
    assert cells(reply).sum() == pytest.approx(200)
    assert ledger(hospital).events()[0]["event"]["type"] == "RandomizedResponseDpEvent"
    assert 0.99 < ledger(hospital).epsilon() <= 1.0


def test_simulated_hospitals_share_the_ledger_that_is_named(tmp_path: Path) -> None:
    named = tmp_path / "deep" / "mine.sqlite"
    replies = ask_simulated(tmp_path, ledger=str(named), budget=0.7)
    assert all(reply.has_content() for reply in replies)
    again = ask_simulated(tmp_path, ledger=str(named), budget=0.7, run="q2", sites=(0, 1))
    assert [reply.error.code for reply in again] == [REFUSED, REFUSED]
    assert [len(found.events()) for found in Ledger.read_all(named).values()] == [1, 1, 1]
    assert not (tmp_path / "ledger.sqlite").exists()


def test_questions_of_different_kinds_in_one_call_are_each_answered(tmp_path: Path) -> None:
    asked = [request(site=0, home=str(tmp_path)), request(site=1, home=str(tmp_path), epsilon=0.1),
             request(site=2, home=str(tmp_path), column="nothing")]  # fmt: skip
    contexts = [Context(1, 1 + site, {"partition-id": site}, RecordDict(), CONFIG.flat()) for site in range(3)]
    one, other, wrong = app.call_stack([sent(each) for each in asked], contexts)
    assert one.content[RECORD]["epsilon"] > 4 * other.content[RECORD]["epsilon"] > 0
    assert "no column 'nothing'" in str(wrong.error.reason)


def test_a_broken_request_is_refused(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    question = json.loads(request().question)
    wrong = [{**question, "bins": "many"}, {**question, "more": 1}, {**question, "kind": "sum"}, {"kind": "statistic"}]
    for changes in ({"question": None}, {"question": "{"}, *({"question": json.dumps(one)} for one in wrong)):
        message = sent(request())
        record = {**request().record(), **changes}
        message.content[RECORD] = ConfigRecord({name: value for name, value in record.items() if value is not None})
        context = Context(1, 1, {"hospital": str(hospital)}, RecordDict(), CONFIG.flat())
        assert "Message field 'question" in str(app(message, context).error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
