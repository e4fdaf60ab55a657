"""Where the policy has require-approval, nothing of a run is computed or charged before a person approved its very terms."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from polyclinic.client.app import app
from polyclinic.client.home import approvals as module
from polyclinic.client.home.approvals import (
    FORMAT,
    Approval,
    approval_named,
    approvals,
    decide,
    pause,
    resume,
    stop,
)
from polyclinic.client.home.holds import current_pause
from polyclinic.client.home.journal import NAME, append
from polyclinic.client.home.policy import Policy
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError
from polyclinic.lines import read_lines
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.server.calibration import calibrate
from polyclinic.server.phases.enrolment import enrol_request
from polyclinic.wire.messages import (
    ASK,
    ENROL,
    RECORD,
    REFUSED,
    STATISTICS,
    AskRequest,
    EnrolRequest,
    StatisticsRequest,
    TrainRequest,
)
from tests.client.test_hospital import STRICT, context, ledger, make_hospital, message, model

WAITS = f'{STRICT}\nrequire-approval = true\nallowed-runs = ["installed"]\n'
RUN: dict[str, Any] = {"privacy.epsilon": 1.0, "privacy.delta": 1e-3, "rounds": 4, "training.sample-rate": 0.2}


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", "as a node that was started by polyclinic")
    return make_hospital(tmp_path, WAITS)


def enrols(hospital: Path, config: RunConfig, request: EnrolRequest | None = None) -> Message:
    asked = request or enrol_request("trial-1", "", calibrate(config))
    return app.call_stack([message(asked, ENROL)], [context(hospital, config)])[0]


def counts(hospital: Path, config: RunConfig, run: str = "trial-1") -> Message:
    asked = StatisticsRequest(run=run, site=0, noise_multiplier=30.0)
    return app.call_stack([message(asked, STATISTICS)], [context(hospital, config)])[0]


def waits(reply: Message) -> tuple[str, bool]:
    said: Any = reply.content[RECORD]
    return said["refusal"], bool(said.get("waits", False))


def test_a_run_waits_until_it_is_approved_and_nothing_is_charged_before(hospital: Path) -> None:
    config, home = RunConfig.build(RUN), hospital.parent / "home"
    why, pending = waits(enrols(hospital, config))
    (found,) = approvals(home)
    assert pending and why == f"the run waits for approval here (terms {found.digest[:12]})"
    assert found.state == "pending" and found.run == "trial-1" and found.settings["rounds"] == 4
    refused = counts(hospital, config)
    assert refused.error.code == REFUSED and "waits for approval" in refused.error.reason
    assert not (home / "ledger.sqlite").exists()
    decide(home, "trial-1", found.digest, "approved", 30.0)
    assert waits(enrols(hospital, config)) == ("", False)
    assert not counts(hospital, config).has_error() and ledger(hospital).epsilon() > 0
    events = [
        (entry["event"], entry["kind"]) for entry in read_lines(home / NAME).entries if entry["kind"] == "approval"
    ]
    assert events == [("pending", "approval"), ("approved", "approval")] and read_lines(home / NAME).intact


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 5},
        {"privacy.epsilon": 2.0},
        {"evaluation.metrics": "none"},
        {"seed": 7},
        {"participation.submitter": "mallory"},
    ],
)
def test_other_terms_under_an_approved_name_wait_anew(hospital: Path, change: dict[str, Any]) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    approved = decide(home, "trial-1", approvals(home)[0].digest, "approved", 30.0)
    other = RunConfig.build({**RUN, **change})
    refused = counts(hospital, other)
    assert refused.error.code == REFUSED and "waits for approval" in refused.error.reason
    asks = approval_named(home, "trial-1")
    assert asks.digest != approved.digest and asks.state == "pending"
    # Who looked at the terms of before cannot approve those of now by them.
    with pytest.raises(ConfigError, match=f"but run 'trial-1' now asks under {asks.digest[:12]}"):
        decide(home, "trial-1", approved.digest[:12], "approved", 30.0)
    assert not (home / "ledger.sqlite").exists()


def test_a_run_that_was_approved_for_little_cannot_spend_more(hospital: Path) -> None:
    """The budget of 2 would allow it, and so would the plan that the coordinator declares."""
    config, home = RunConfig.build(RUN), hospital.parent / "home"
    enrols(hospital, config)
    decide(home, "trial-1", approvals(home)[0].digest, "approved", 30.0)
    asked = StatisticsRequest(run="trial-1", site=0, noise_multiplier=2.0)
    reply = app.call_stack([message(asked, STATISTICS)], [context(hospital, config)])[0]
    assert reply.error.code == REFUSED and "The run may spend epsilon 1 at 'St. Elsewhere'" in reply.error.reason
    assert not counts(hospital, config).has_error() and 0 < ledger(hospital).epsilon() < 1


def test_a_run_whose_plan_costs_more_than_it_asks_for_is_refused_before_anybody_is_asked(hospital: Path) -> None:
    """As where the hospital counts the replacement of a patient: the calibrated noise costs about twice as much there."""
    hospital.write_text(hospital.read_text().replace("budget = 2.0", 'budget = 9.0\nrelation = "replace-one"'))
    why, pending = waits(enrols(hospital, RunConfig.build(RUN)))
    assert "The run may spend epsilon 1 at 'St. Elsewhere'" in why and not pending
    assert not approvals(hospital.parent / "home")


@pytest.mark.parametrize("changed", ["models.py", "helper.py"])
def test_a_plugin_whose_code_changed_waits_anew(
    hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Also where another module of its package did; nothing of it is imported."""
    package = tmp_path / "clinic_nets"
    package.mkdir()
    for name in ("__init__.py", "models.py", "helper.py"):
        (package / name).write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = RunConfig.build({**RUN, "model": "clinic_nets.models:Net"})
    counts(hospital, config)
    (first,) = approvals(hospital.parent / "home")
    assert re.search(r", clinic_nets \(SHA-256 [0-9a-f]{64}\)$", first.code)
    (package / changed).write_text("raise SystemExit(1)\n")
    module._code.cache_clear(), module._digest_of.cache_clear(), module._digest.cache_clear()
    counts(hospital, config)
    (second,) = approvals(hospital.parent / "home")
    assert second.digest != first.digest and second.code != first.code and second.state == "pending"


def test_an_approval_covers_the_code_of_a_kind_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kinds.py").write_text("class Mine: ...\n")
    about = tmp_path / "kinds-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kinds\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[polyclinic.programs]\nmine = kinds:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert re.search(r", kinds \(SHA-256 [0-9a-f]{64}\)$", module._code(RunConfig(task="mine")))


@pytest.mark.parametrize("key", ["out", "timeout", "workers", "participation.approval-wait"])
def test_what_is_of_the_coordinators_machine_is_no_term(hospital: Path, key: str) -> None:
    home = hospital.parent / "home"
    enrols(hospital, RunConfig.build(RUN))
    decide(home, "trial-1", approvals(home)[0].digest, "approved", 30.0)
    value = {"out": "elsewhere", "timeout": 77.0, "workers": 3}.get(key, 9.0)
    assert waits(enrols(hospital, RunConfig.build({**RUN, key: value}))) == ("", False)


def test_a_denial_stops_a_run_that_was_approved(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    decide(home, "trial-1", approvals(home)[0].digest, "approved", 30.0)
    assert not counts(hospital, config).has_error()
    spent = ledger(hospital).epsilon()
    decide(home, "trial-1", "", "denied", 30.0, "the board has not met")
    assert counts(hospital, config).error.reason.endswith("the run was denied here: the board has not met.")
    assert waits(enrols(hospital, config)) == ("the run was denied here: the board has not met", False)
    assert ledger(hospital).epsilon() == spent


def test_a_run_that_was_denied_stays_so_under_other_terms_until_these_are_approved(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    decide(home, "trial-1", "", "denied", 30.0, "no")
    other = RunConfig.build({**RUN, "rounds": 3})
    assert waits(enrols(hospital, other)) == ("the run was denied here: no", False)
    asks = approval_named(home, "trial-1")
    assert asks.state == "denied" and asks.settings["rounds"] == 3
    decide(home, "trial-1", asks.digest, "approved", 30.0)
    assert waits(enrols(hospital, other)) == ("", False)


def test_a_run_is_stopped_also_where_none_needs_an_approval(tmp_path: Path) -> None:
    hospital, config, home = make_hospital(tmp_path), RunConfig.build(RUN), tmp_path / "home"
    assert not counts(hospital, config).has_error() and not approvals(home)
    with pytest.raises(ConfigError, match="No run 'trial-2' has asked here; runs that did: trial-1"):
        stop(home, "trial-2", "")
    append(home, {"event": "asked", "kind": "enrol", "run": "../ledger"})  # a message may have any name
    stop(home, "trial-1", "the board said so")
    assert counts(hospital, config).error.reason.endswith("the run was denied here: the board said so.")
    assert waits(enrols(hospital, config)) == ("the run was denied here: the board said so", False)
    assert not counts(hospital, config, "trial-2").has_error()
    with pytest.raises(ConfigError, match="The run to be stopped"):
        stop(home, "../ledger", "")


def test_a_pause_holds_up_all_runs_and_charges_nothing(tmp_path: Path) -> None:
    hospital, config, home = make_hospital(tmp_path), RunConfig.build(RUN), tmp_path / "home"
    assert not counts(hospital, config).has_error()
    spent = ledger(hospital).epsilon()
    pause(home, "new records come in")
    assert waits(enrols(hospital, config)) == ("the hospital has paused: new records come in", True)
    for run in ("trial-1", "trial-2"):
        reply = counts(hospital, config, run)
        assert reply.error.code == REFUSED and "has paused: new records come in" in reply.error.reason
    assert ledger(hospital).epsilon() == spent
    resume(home)
    assert current_pause(home) is None and not counts(hospital, config, "trial-2").has_error()
    with pytest.raises(ConfigError, match="has not paused"):
        resume(home)
    events = [entry["event"] for entry in read_lines(home / NAME).entries if entry["kind"] == "approval"]
    assert events == ["paused", "resumed"]


def test_a_pause_reads_no_record_for_who_only_asks_for_the_schema(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path), RunConfig.build(RUN)
    next(tmp_path.glob("*.csv")).write_text("not,records\n")
    request = enrol_request("ask-1", "", trains=False)
    assert enrols(hospital, config, request).has_error()
    pause(tmp_path / "home")
    reply: Any = enrols(hospital, config, request).content[RECORD]
    assert reply["refusal"] == "" and reply["schema"]


def test_a_pause_whose_file_cannot_be_read_is_one(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/paused.json").write_text("{")
    assert "the hospital has paused." in counts(hospital, RunConfig.build(RUN)).error.reason


def test_an_approval_expires(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    decide(home, "trial-1", approvals(home)[0].digest, "approved", 2.0)
    later = datetime.now(UTC) + timedelta(days=2, seconds=1)
    monkeypatch.setattr(module, "_now", lambda: later)
    # A run that has ended asks no more, so its expired approval is nothing that waits for a person.
    assert approval_named(home, "trial-1").stands(later) == "expired"
    assert "waits for approval" in counts(hospital, config).error.reason
    assert approval_named(home, "trial-1").state == "pending"
    assert [entry["event"] for entry in read_lines(home / NAME).entries if entry["kind"] == "approval"] == [
        "pending",
        "approved",
        "pending",
    ]


def test_a_coordinators_question_waits_too_and_another_one_waits_anew(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig.build({})
    question = json.dumps({"kind": "survey", "columns": ["age"], "epsilon": 0.1})
    asked = enrol_request("ask-1", "", trains=False, question=question)
    assert waits(enrols(hospital, config, asked))[1]
    ask = AskRequest(run="ask-1", site=0, question=question)
    assert "waits for approval" in app.call_stack([message(ask, ASK)], [context(hospital, config)])[0].error.reason
    decide(home, "ask-1", approval_named(home, "ask-1").digest, "approved", 1.0)
    reply = app.call_stack([message(ask, ASK)], [context(hospital, config)])[0]
    assert not reply.has_error() or "waits for approval" not in reply.error.reason
    other = ask.model_copy(update={"question": question.replace("0.1", "0.2")})
    assert "waits for approval" in app.call_stack([message(other, ASK)], [context(hospital, config)])[0].error.reason


def test_a_question_that_was_approved_is_answered_for_its_price_once(hospital: Path) -> None:
    """Whatever else the messages say: another plan makes another release of the same question."""
    text = hospital.read_text().replace("require-approval", 'allowed-tasks = ["survey"]\nrequire-approval')
    hospital.write_text(text)
    home, config = hospital.parent / "home", RunConfig.build({})
    ask = AskRequest(run="ask-1", site=0, question=json.dumps({"kind": "survey", "columns": ["age"], "epsilon": 0.1}))
    app.call_stack([message(ask, ASK)], [context(hospital, config)])
    decide(home, "ask-1", approval_named(home, "ask-1").digest, "approved", 1.0)
    replies = [app.call_stack([message(ask.model_copy(update={"plan": plan}), ASK)], [context(hospital, config)])[0]
               for plan in ("", "", plan_text([(gaussian_event(50.0), 1)]))]  # fmt: skip
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert "The run may spend epsilon 0.0999" in replies[2].error.reason and ledger(hospital).epsilon() < 0.1


def test_a_question_that_cannot_be_read_waits_for_nobody(hospital: Path) -> None:
    ask = AskRequest(run="ask-1", site=0, question="\x1b[2Jlook here")
    reply = app.call_stack([message(ask, ASK)], [context(hospital, RunConfig.build({}))])[0]
    assert reply.has_error() and not approvals(hospital.parent / "home")


def test_a_file_that_is_being_written_is_no_approval(hospital: Path) -> None:
    home = hospital.parent / "home"
    enrols(hospital, RunConfig.build(RUN))
    (home / "approvals" / ".partial-0a1b2c3d.trial-1.json").write_text("{")
    assert [one.run for one in approvals(home)] == ["trial-1"]


def test_who_settles_what_a_run_leaves_open_asks_nobody(hospital: Path) -> None:
    assert waits(enrols(hospital, RunConfig.build(RUN), enrol_request("settle", "", trains=False))) == ("", False)
    assert not approvals(hospital.parent / "home")


def test_a_coordinator_cannot_fill_the_disk_with_names(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that asked first are forgotten, and none on which a person has decided."""
    monkeypatch.setattr(module, "_MOST_PENDING", 3)
    config, home = RunConfig.build(RUN), hospital.parent / "home"
    counts(hospital, config, "run-0")
    decide(home, "run-0", approval_named(home, "run-0").digest, "approved", 1.0)
    for number in range(1, 6):
        assert "waits for approval" in counts(hospital, config, f"run-{number}").error.reason
        assert len(approvals(home)) <= 4
    assert {one.run for one in approvals(home)} == {"run-0", "run-3", "run-4", "run-5"}


def test_decisions_take_no_place_of_runs_that_wait(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PENDING", 4)
    config, home = RunConfig.build(RUN), hospital.parent / "home"
    for number in range(5):
        counts(hospital, config, f"run-{number}")
        if number < 2:
            decide(home, f"run-{number}", "", "denied", 1.0)
    assert [approval.run for approval in approvals(home) if approval.state == "pending"] == ["run-2", "run-3", "run-4"]


def test_a_run_has_no_more_rounds_than_were_approved(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    decide(home, "trial-1", approvals(home)[0].digest, "approved", 30.0)
    asked = TrainRequest(run="trial-1", site=0, round=5, noise_multiplier=50.0, public_patients=150.0)
    reply = app.call_stack([message(asked, "train", model())], [context(hospital, config)])[0]
    assert reply.error.code == REFUSED and "round 5 is asked of a run of 4 rounds" in reply.error.reason


def test_an_approval_that_cannot_be_read_stops_the_run_and_tells_nobody_why(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig.build(RUN)
    enrols(hospital, config)
    (home / "approvals/trial-1.json").write_text('{"state": "approved"}')
    reply = counts(hospital, config)
    assert reply.has_error() and str(home) not in reply.error.reason
    with pytest.raises(DataError, match="cannot be read as an approval"):
        approvals(home)


def test_approval_needs_known_code() -> None:
    with pytest.raises(ConfigError, match="require-approval needs allowed-runs"):
        Policy.build({"budget": 1.0, "delta": 1e-5, "require-approval": True}, "hospital.toml")


def test_a_file_of_an_approval_has_no_end_without_a_zone(tmp_path: Path) -> None:
    folder = tmp_path / "approvals"
    folder.mkdir()
    whole = Approval(
        "a", "0" * 64, "approved", {}, "", "2026-01-01T00:00:00+00:00", until="2999-01-01T00:00:00"
    ).__dict__
    (folder / "a.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match="cannot be read as an approval"):
        approvals(tmp_path)


def test_bad_answers_to_a_run_change_nothing(hospital: Path) -> None:
    home = hospital.parent / "home"
    enrols(hospital, RunConfig.build(RUN))
    digest = approvals(home)[0].digest
    for days in (0.0, -1.0, math.nan, math.inf, 1e9):
        with pytest.raises(ConfigError, match="--days is"):
            decide(home, "trial-1", digest, "approved", days)
    bad = [("nobody", digest, ""), ("trial-1", digest[:32], ""), ("trial-1", "f" * 64, ""), ("trial-1", digest, "a\nb")]
    for run, terms, why in bad:
        with pytest.raises(ConfigError):
            decide(home, run, terms, "approved", 1.0, why)
    assert approval_named(home, "trial-1").state == "pending"


@pytest.mark.parametrize("number", [FORMAT + 1, None, "some"])
def test_a_file_of_an_approval_of_a_newer_format_is_refused(hospital: Path, number: object) -> None:
    """One without a number is of the first format."""
    home = hospital.parent / "home"
    enrols(hospital, RunConfig.build(RUN))
    path = home / "approvals/trial-1.json"
    content = json.loads(path.read_text())
    assert content.pop("format") == FORMAT
    path.write_text(json.dumps(content))
    assert [one.run for one in approvals(home)] == ["trial-1"]
    path.write_text(json.dumps(content | {"format": number, "a field of the future": 1}))
    with pytest.raises(DataError, match=f"has format {number!r}; this version of Polyclinic reads format {FORMAT}"):
        approvals(home)
    assert counts(hospital, RunConfig.build(RUN)).has_error() and not (home / "ledger.sqlite").exists()
