"""A person at the hospital decides on runs by the command line."""

import json
import re
from pathlib import Path

import pytest

from polyclinic.client.home.journal import append
from polyclinic.config import RunConfig
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.server.phases.enrolment import enrol_request
from tests.approval.test_decisions import counts, enrols, waits
from tests.approval.test_limits import aged
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
    assert "It asks for ε = 0.7; spent so far: 0" in shown and "survey, 1 round\n" in shown and "columns" in shown


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
        (("approve", "trial-1", "--terms", ""), "and give all 64 digits, not 0."),
        (
            ("approve", "trial-2", "--terms", "0123456789ab"),
            "No run 'trial-2' has asked for approval; runs that did: trial-1.",
        ),
        (("show", "trial-2"), "No run 'trial-2' has asked"),
        (("stop", "trial-2"), "No run 'trial-2' has asked here; runs that did: trial-1."),
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
    shown = cli("hospital", "show", hospital, "trial-1").out
    assert "its settings are unknown" in shown and "approve" not in shown.splitlines()[-1].partition("approval")[0]
    assert "ε" not in shown and "rounds" not in shown
    done = cli("hospital", "approve", hospital, "trial-1", "--terms", "")
    assert done.code == 2 and "was stopped before its terms were known here" in done.error
    assert refusal(hospital) == "the run was denied here"
    # As it asks again it tells its terms, by which it can be let go on.
    shown = cli("hospital", "show", hospital, "trial-1").out
    assert "It asks for ε = 1;" in shown
    said = cli("hospital", "approve", hospital, "trial-1", "--terms", shown.rpartition("--terms ")[2].split("`")[0]).out
    assert said.rstrip().endswith("; it was denied before") and not refusal(hospital)


def test_a_stop_is_of_a_run_that_has_asked_here(cli: Cli, hospital: Path) -> None:
    done = cli("hospital", "stop", hospital, "trial-1")
    assert done.code == 2 and done.error == "No run 'trial-1' has asked here; runs that did: none."
    append(hospital / "home", {"event": "asked", "kind": "enrol", "run": "trial-1"})
    append(hospital / "home", {"event": "asked", "kind": "enrol", "run": "../home"})
    done = cli("hospital", "stop", hospital, "trial-2")
    assert done.code == 2 and done.error == "No run 'trial-2' has asked here; runs that did: ../home, trial-1."
    done = cli("hospital", "stop", hospital, "../home")  # a message may have any name
    assert done.code == 2 and "The run to be stopped" in done.error
    assert not [*(hospital / "home" / "approvals").glob("*")]
    assert cli("hospital", "stop", hospital, "trial-1").code == 0


def test_an_approval_says_that_it_has_expired_and_that_the_hospital_is_paused(cli: Cli, asked: Path) -> None:
    [listed] = json.loads(cli("hospital", "pending", asked, "--json").out)
    approve = ("hospital", "approve", asked, "trial-1", "--terms", listed["terms"], "--days", 1e-7)
    assert "paused" not in cli(*approve).out
    cli("hospital", "pause", asked)
    assert f"The hospital is paused: the run waits until `polyclinic hospital resume {asked}`." in cli(*approve).out
    shown = cli("hospital", "show", asked, "trial-1").out.splitlines()[0]
    assert re.fullmatch(r"trial-1: expired; approved by \S+ until \S+", shown)


def test_status_shows_what_is_left_of_a_months_limit(cli: Cli, hospital: Path) -> None:
    file = hospital / "hospital.toml"
    assert "Limit" not in cli("hospital", "status", hospital).out
    limits = {"run": "1.5", "month": "1.0"}
    lines = [f"most-epsilon-per-{name} = {limit}" for name, limit in limits.items()]
    others = [line for line in file.read_text().splitlines() if not line.startswith("most-epsilon-per-")]
    at = next(number for number, line in enumerate(others) if line.startswith("require-approval"))
    file.write_text("\n".join([*others[:at], *lines, *others[at:]]) + "\n")
    said = cli("hospital", "status", hospital).out
    assert "Limit of thirty days: ε = 0 of 1; room in it for one more release of ε = 1\n" in said
    assert "Limit of a run: ε = 1.5\n" in said and "Room: for one more release of ε = 1," in said
    book = Ledger.open(hospital / "home" / "ledger.sqlite", Terms("St. Elsewhere", delta=1e-3, budget=2.0))
    for number in range(2):
        book.charge(gaussian_event(6.0), "statistics", f"run-{number}", 0)
    month = json.loads(cli("hospital", "status", hospital, "--json").out)["ledger"]["month"]
    assert month["epsilon"] == pytest.approx(book.epsilon()) and 1 - month["epsilon"] < month["room"] < 1
    aged(book.path, 31.0)
    ledger = json.loads(cli("hospital", "status", hospital, "--json").out)["ledger"]
    assert ledger["month"] == {"limit": 1.0, "epsilon": 0.0, "room": pytest.approx(1.0, rel=5e-3)}
    assert ledger["room"] == pytest.approx(ledger["month"]["room"]) and ledger["epsilon"] > 0
