"""Where a policy names submitters, a hospital takes the runs that one of them signed, whatever the coordinator says of others."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.client.app import app
from polyclinic.client.home.submissions import submitted_runs
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.privacy.secure.signatures import new_identity, public_identity
from polyclinic.releases.kinds import question_as_key, read_question, write_question
from polyclinic.server.calibration import calibrate
from polyclinic.server.phases.enrolment import enrol_request
from polyclinic.wire import submissions as wire
from polyclinic.wire.messages import (
    ASK,
    ENROL,
    RECORD,
    REFUSED,
    STATISTICS,
    AskRequest,
    StatisticsRequest,
    TrainRequest,
)
from polyclinic.wire.submissions import SIGNATURE, SUBMITTER, sign_submission, submission
from tests.client.test_hospital import STRICT, ledger, make_hospital, message

RUN: dict[str, Any] = {"privacy.epsilon": 1.0, "privacy.delta": 1e-3, "rounds": 4, "training.sample-rate": 0.2}
ADA, BOB = new_identity(), new_identity()


def named(more: str = "") -> str:
    keys = {"ada": ADA, "bob": BOB}
    tables = [f'[policy.submitters.{name}]\nkey = "{public_identity(key).hex()}"\n' for name, key in keys.items()]
    return f"{STRICT}\n{tables[1]}{tables[0]}{more}"


def signed(values: dict[str, Any] = RUN, name: str = "ada", private: bytes = ADA) -> RunConfig:
    config = RunConfig.build(values).with_values({SUBMITTER: name})
    return config.with_values({SIGNATURE: sign_submission(config.minimal(), private)})


def at(hospital: Path, config: RunConfig) -> Context:
    """The hospital's context with what Flower makes of a run that was submitted."""
    return Context(1, 1, {"hospital": str(hospital)}, RecordDict(), RunConfig.app_config() | config.for_flower())


def enrols(hospital: Path, config: RunConfig, run: str = "trial-1") -> str:
    reply = app.call_stack([message(enrol_request(run, "", calibrate(config)), ENROL)], [at(hospital, config)])[0]
    answer: Any = reply.content[RECORD]
    return str(answer["refusal"])


def counts(hospital: Path, config: RunConfig, run: str = "trial-1", noise: float = 30.0) -> Message:
    asked = StatisticsRequest(run=run, site=0, noise_multiplier=noise)
    return app.call_stack([message(asked, STATISTICS)], [at(hospital, config)])[0]


def test_a_run_that_a_submitter_signed_is_taken_and_nothing_else_is(tmp_path: Path) -> None:
    hospital, ours = make_hospital(tmp_path, named()), signed()
    assert enrols(hospital, ours) == "" and not counts(hospital, ours).has_error()
    spent = ledger(hospital).epsilon()
    unsigned = RunConfig.build(RUN | {"participation.submitter": "ada"})
    for config, words in [
        (
            RunConfig.build(RUN),
            "takes runs that one of its submitters signed, and this one is of somebody without a name",
        ),
        (signed(name="eve", private=new_identity()), "and this one is of 'eve'"),
        (signed(name="bob"), "not signed with the key that the policy has of 'bob'"),
        (unsigned, "not signed with the key that the policy has of 'ada'"),
        (ours.with_values({"rounds": 5}), "not signed with the key"),
        (ours.with_values({"privacy.epsilon": 2.0}), "not signed with the key"),
    ]:
        assert words in enrols(hospital, config, "trial-2")
        reply = counts(hospital, config, "trial-2")  # a coordinator that lies may leave enrolment out
        assert reply.error.code == REFUSED and words in reply.error.reason
    assert ledger(hospital).epsilon() == spent


def test_who_only_asks_for_the_schema_needs_no_signature_and_uses_none(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path, named()), signed()
    asked = enrol_request("settle", "", trains=False)
    for given_config in (RunConfig.build(RUN), config):
        reply = app.call_stack([message(asked, ENROL)], [at(hospital, given_config)])[0]
        assert reply.content[RECORD]["refusal"] == ""
    assert enrols(hospital, config) == ""


def test_a_signature_is_of_one_run_and_a_person_may_sign_one_run_again(tmp_path: Path) -> None:
    """A coordinator that submits the same under another name is refused; a run that goes on is signed anew."""
    hospital, config = make_hospital(tmp_path, named()), signed()
    assert not counts(hospital, config).has_error()
    again = counts(hospital, config, "trial-2")
    assert (
        again.error.code == REFUSED and "run 'trial-1' has used this signature of 'ada' already" in again.error.reason
    )
    assert not counts(hospital, signed()).has_error() and not counts(hospital, signed(), "trial-3").has_error()
    assert submitted_runs(tmp_path / "home", "ada") == {"trial-1", "trial-3"}
    assert submitted_runs(tmp_path / "home", "bob") == set()


def test_a_signature_that_nobody_brought_in_time_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator cannot keep what was signed for others, to submit it at a hospital that joins later."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) - timedelta(days=31)

    hospital = make_hospital(tmp_path, named())
    with monkeypatch.context() as then:
        then.setattr(wire, "datetime", Clock)
        old = signed()
    assert "was signed more than 30 days ago" in enrols(hospital, old)
    assert counts(hospital, old).error.code == REFUSED and enrols(hospital, signed()) == ""


def test_all_runs_of_a_submitter_share_a_limit_that_others_do_not(tmp_path: Path) -> None:
    """Of a month's epsilon of 0.35 a first run declares 0.3; bob has no limit of his own."""
    small = {**RUN, "privacy.epsilon": 0.3}
    hospital = make_hospital(tmp_path, named("most-epsilon-per-month = 0.35\n"))
    assert enrols(hospital, signed(small)) == "" and not counts(hospital, signed(small), noise=8.0).has_error()
    reply = counts(hospital, signed(small), "trial-2", noise=8.0)
    assert (
        reply.error.code == REFUSED and "All runs of 'ada' in thirty days may spend epsilon 0.35" in reply.error.reason
    )
    assert not counts(hospital, signed(small, "bob", BOB), "trial-3", noise=8.0).has_error()


def test_a_run_costs_no_more_and_has_no_more_rounds_than_was_signed(tmp_path: Path) -> None:
    """Neither the noise nor the number of a round is in the configuration: the coordinator chooses them."""
    small = signed({**RUN, "privacy.epsilon": 0.3})
    hospital = make_hospital(tmp_path, named())
    assert enrols(hospital, small) == ""
    reply = counts(hospital, small, noise=2.0)
    assert reply.error.code == REFUSED and "The run may spend epsilon 0.3" in reply.error.reason
    assert not counts(hospital, small).has_error()
    asked = TrainRequest(run="trial-1", site=0, round=5, noise_multiplier=30.0, public_patients=100.0)
    later = app.call_stack([message(asked, MessageType.TRAIN)], [at(hospital, small)])[0]
    assert later.error.code == REFUSED and "round 5 is asked of a run of 4 rounds" in later.error.reason


def test_one_run_of_a_submitter_is_limited(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, named("most-epsilon-per-run = 0.5\n"))
    assert "The run may spend epsilon 0.5" in enrols(hospital, signed())
    assert enrols(hospital, signed(name="bob", private=BOB), "trial-2") == ""


def test_a_question_is_the_one_that_was_signed(tmp_path: Path) -> None:
    tasks = '["survey", "classification", "statistics"]'
    policy = named().replace(STRICT, f"{STRICT}allowed-tasks = {tasks}\n")
    hospital = make_hospital(tmp_path, policy)
    asked, other, every = (
        read_question(json.dumps({"kind": "survey", "columns": columns, "epsilon": 0.1}))
        for columns in (["age"], ["sbp"], [])
    )
    config = signed({"question": question_as_key(asked), "privacy.delta": 1e-3})

    def ask(question: Any, run: str = "q") -> Message:
        request = AskRequest(run=run, site=0, question=write_question(question))
        return app.call_stack([message(request, ASK)], [at(hospital, config)])[0]

    assert "signed another question than this one" in ask(other).error.reason
    assert not ask(asked).has_error()
    training = counts(hospital, config, "q")  # whoever signed a question signed no training
    assert "signed a question, and no training" in training.error.reason
    assert "signed a question, and no training" in enrols(hospital, config, "q")
    config = signed({"question": question_as_key(every)})  # of all columns, which the coordinator names by the schema
    named_by_schema = every.of(Schema.from_toml(tmp_path / "schema.toml"))
    assert not ask(named_by_schema, "q-2").has_error()


def test_a_record_of_a_submission_that_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path, named()), signed()
    assert not counts(hospital, config).has_error()
    (path,) = (tmp_path / "home" / "submissions").iterdir()
    path.write_text("{")
    assert counts(hospital, config).has_error()


@pytest.mark.parametrize("text", ["key = 'ab'", "", "key = '" + "0" * 64 + "'\nmost-epsilon-per-run = 0.0"])
def test_a_bad_submitter_of_a_policy_is_refused(tmp_path: Path, text: str) -> None:
    from polyclinic.client.home.policy import HospitalFile, Policy

    hospital = make_hospital(tmp_path, f"{STRICT}\n[policy.submitters.ada]\n{text}\n")
    with pytest.raises(ConfigError, match="policy.submitters.ada"):
        Policy.build(HospitalFile.read(hospital).policy, str(hospital))


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "rounds": st.integers(1, 50), "privacy.epsilon": st.floats(0.1, 9), "seed": st.integers(0, 99),
            "model": st.just("mlp"),
            "hidden": st.just("8,4"), "strategy": st.sampled_from(["fedavg", "fedprox", "scaffold"]),
            "task": st.sampled_from(["classification", "synthesis", "regression"]), "timeout": st.floats(1, 99),
        },
    )
)  # fmt: skip
def test_what_was_signed_arrives_by_flowers_run_config(values: dict[str, Any]) -> None:
    """Also what is left open, and whatever is of the coordinator's machine alone."""
    try:
        config = signed(values)
    except ConfigError:
        return
    arrived = RunConfig.from_flower(
        RunConfig.app_config() | config.for_flower() | {"out": "/elsewhere", "timeout": 3.0}
    )
    signature, ours, others = arrived.participation.signature, public_identity(ADA), public_identity(BOB)
    assert submission(arrived.minimal(), signature, ours) and not submission(arrived.minimal(), signature, others)
    assert not submission(arrived.with_values({"rounds": arrived.rounds + 1}).minimal(), signature, ours)
