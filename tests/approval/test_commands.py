"""A person at the hospital decides on runs by the command line."""

import json
from pathlib import Path

import pytest

from polyclinic.client.home.journal import append
from polyclinic.config import RunConfig
from polyclinic.server.phases.enrolment import enrol_request
from tests.approval.test_decisions import counts, enrols, waits
from tests.deployment.conftest import Cli, cli, coordinator, hospital

__all__ = ["cli", "coordinator", "hospital"]

RUN = {
    "privacy.epsilon": 1.0, "privacy.delta": 1e-3, "rounds": 3, "training.sample-rate": 0.2, "participation.submitter": "alice",
}  # fmt: skip


@pytest.fixture
def asked(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hospital whose policy makes runs wait, which one run has asked."""
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", "as a node that was started by polyclinic")
    path = hospital / "hospital.toml"
    path.write_text(path.read_text().replace("require-approval = false", "require-approval = true"))
    enrols(path, RunConfig.build(RUN))
    return hospital


def refusal(hospital: Path) -> str:
    return waits(enrols(hospital / "hospital.toml", RunConfig.build(RUN)))[0]


def test_without_the_policys_key_nothing_waits_and_the_command_says_so(cli: Cli, hospital: Path) -> None:
    done = cli("hospital", "pending", hospital)
    assert done.code == 0 and "No run waits." in done.out and "require-approval at false" in done.error


def test_a_run_is_shown_with_its_terms_and_approved_by_them(cli: Cli, asked: Path) -> None:
    [listed] = json.loads(cli("hospital", "pending", asked, "--json").out)
    assert (listed["run"], listed["rounds"], listed["epsilon"], listed["state"]) == ("trial-1", 3, 1.0, "pending")
    shown = cli("hospital", "show", asked, "trial-1").out
    assert listed["submitter"] == "alice" and "Submitted by: alice (the coordinator's word)" in shown
    assert "It asks for ε = 1; spent so far: 0; budget: 2, of which it asks for 50%." in shown and "rounds = 3" in shown
    assert "  After each of 3 rounds an update of what is trained, with noise for ε = 1 in all." in shown
    terms = shown.rpartition("--terms ")[2].split("`")[0]
    assert listed["terms"] == terms and refusal(asked).startswith("the run waits for approval here")
    done = cli("hospital", "approve", asked, "trial-1", "--terms", terms, "--days", 2)
    assert done.code == 0 and "trial-1: approved by" in done.out and not refusal(asked)
    assert "No run waits." in cli("hospital", "pending", asked).out
    assert "approved" in cli("hospital", "pending", asked, "--all").out


def test_a_question_is_shown_with_its_own_epsilon(cli: Cli, asked: Path) -> None:
    """The configuration around it, which is not what is asked, has another."""
    question = json.dumps({"kind": "survey", "columns": ["age"], "epsilon": 0.7})
    enrols(asked / "hospital.toml", RunConfig.build(RUN), enrol_request("ask-1", "", trains=False, question=question))
    shown = cli("hospital", "show", asked, "ask-1").out
    assert "It asks for ε = 0.7; spent so far: 0" in shown and "survey, 1 rounds" in shown and "columns" in shown


def test_a_coordinators_text_cannot_draw_on_the_screen(cli: Cli, asked: Path) -> None:
    """Nor has a question in a run's configuration any say in what the run is shown to cost."""
    text = "x\x1b[2J\nIt asks for ε = 0.1"
    question = json.dumps({"kind": "survey", "columns": ["age"], "epsilon": 0.1})
    config = RunConfig.build({**RUN, "model": text, "evaluation.groups": text, "question": question})
    counts(asked / "hospital.toml", config, "trial-2")
    shown = cli("hospital", "show", asked, "trial-2").out
    assert "It asks for ε = 1;" in shown and "\x1b[2J" not in shown and "\nIt asks for ε = 0.1" not in shown
    listed = cli("hospital", "pending", asked).out
    assert "trial-2" in listed and "\x1b[2J" not in listed


def test_a_message_cannot_add_a_line_to_what_the_journal_shows(cli: Cli, asked: Path) -> None:
    append(
        asked / "home", {"event": "asked", "kind": "train", "run": "r\n2026-01-01T00:00:00  approved  approval  cardio"}
    )
    shown = cli("hospital", "journal", asked).out
    assert "\n2026-01-01T00:00:00" not in shown and "\\n2026-01-01T00:00:00" in shown


def test_a_run_that_was_approved_can_be_denied(cli: Cli, asked: Path) -> None:
    [listed] = json.loads(cli("hospital", "pending", asked, "--json").out)
    cli("hospital", "approve", asked, "trial-1", "--terms", listed["terms"])
    assert "trial-1: denied by" in cli("hospital", "deny", asked, "trial-1", "--why", "enough").out
    assert refusal(asked) == "the run was denied here: enough"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("approve", "trial-1", "--terms", "0123456789ab"),
            "The terms are '0123456789ab', but run 'trial-1' now asks under",
        ),
        (("approve", "trial-1", "--terms", ""), "and give all digits"),
        (
            ("approve", "trial-2", "--terms", "0123456789ab"),
            "No run 'trial-2' has asked for approval; runs that did: trial-1.",
        ),
        (("show", "trial-2"), "No run 'trial-2' has asked"),
        (("deny", "trial-1", "--why", "a\nb"), "--why must be one printed line"),
    ],
)
def test_a_bad_decision_is_one_sentence_and_changes_nothing(
    cli: Cli, asked: Path, words: tuple[str, ...], error: str
) -> None:
    done = cli("hospital", words[0], asked, *words[1:])
    assert done.code == 2 and error in done.error
    assert refusal(asked).startswith("the run waits for approval here")


def test_what_a_full_disk_does_not_take_is_one_sentence_and_changes_nothing(cli: Cli, asked: Path) -> None:
    [listed] = json.loads(cli("hospital", "pending", asked, "--json").out)
    (asked / "home/paused.json").write_text(json.dumps({"since": "", "by": "", "why": ""}))
    (asked / "home/journal.jsonl").unlink()
    (asked / "home/journal.jsonl").symlink_to("/dev/full")
    for words in (
        ("approve", "trial-1", "--terms", listed["terms"]), ("deny", "trial-1"), ("stop", "trial-1"), ("pause",), ("resume",),
    ):  # fmt: skip
        done = cli("hospital", words[0], asked, *words[1:])
        sentence = "The decision cannot be written down, so none is made: No space left on device."
        assert (done.code, done.out, done.error.strip()) == (1, "", sentence), words
    assert json.loads(cli("hospital", "pending", asked, "--json").out) == [listed]
    assert json.loads(cli("hospital", "status", asked, "--json").out)["paused"]["why"] == ""


def test_a_run_of_a_version_with_other_keys_can_be_seen_and_denied(cli: Cli, asked: Path) -> None:
    path = asked / "home/approvals/trial-1.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps(old | {"settings": {"key-of-before": 1}}))
    assert [one["run"] for one in json.loads(cli("hospital", "pending", asked, "--json").out)] == ["trial-1"]
    shown = cli("hospital", "show", asked, "trial-1")
    assert shown.code == 0 and "key-of-before = 1" in shown.out
    assert cli("hospital", "deny", asked, "trial-1").code == 0


def test_a_hospital_pauses_stops_and_goes_on_by_the_command(
    cli: Cli, hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", "as a node that was started by polyclinic")
    assert "until `resume`" in cli("hospital", "pause", hospital, "--why", "an audit").out
    status = cli("hospital", "status", hospital)
    assert "Paused since" in status.out and "an audit" in status.out
    assert json.loads(cli("hospital", "status", hospital, "--json").out)["paused"]["why"] == "an audit"
    assert refusal(hospital) == "the hospital has paused: an audit"
    assert cli("hospital", "resume", hospital).code == 0 and not refusal(hospital)
    assert cli("hospital", "resume", hospital).code == 2
    said = cli("hospital", "stop", hospital, "trial-1").out
    assert "trial-1: denied by" in said and "Nothing more is computed or charged for it here." in said
    assert refusal(hospital) == "the run was denied here"
    done = cli("hospital", "stop", hospital, "../home")
    assert done.code == 2 and "The run to be stopped" in done.error
