"""What a run says that real hospitals spent, where their word is old, missing or false."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from polyclinic.config import RunConfig
from polyclinic.evaluation.report import render_report
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.events import PAID_BEFORE
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import Terms, entry_of, flat, from_text, run_digest, to_text
from polyclinic.runs.folder import Run
from polyclinic.server.accounts import Account, bound, doubts
from polyclinic.server.app import coordinate
from polyclinic.wire.messages import RECORD, STATISTICS
from tests.privacy.ledger.test_ledger_terms import ran
from tests.server.test_joining import KEYS, NAMES, Hospitals, hospitals

__all__ = ["hospitals"]
STEP, COUNT = dpsgd_event(0.1, 1.2, 5), gaussian_event(9.0)
TERMS = Terms("north", 1e-5, budget=3.0)


class Tampered(Hospitals):
    """``change`` sees every answer of north's, in order of its requests of one kind, and may lose it by None."""

    change: Callable[[str, int, RecordDict], RecordDict | None] = staticmethod(lambda kind, turn, content: content)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = []
        for reply in super().pull_messages(message_ids):
            kind = reply.metadata.message_type
            if reply.metadata.src_node_id == 1 and reply.has_content():
                turn = [asked for asked in self.asked if asked == ("north", kind)]
                content = self.change(kind, len(turn), reply.content)
                if content is None:
                    continue
                reply.content = content
            found.append(reply)
        return found


def run(folder: Path, change: Callable[[str, int, RecordDict], RecordDict | None], **keys: Any) -> dict[str, Any]:
    config = RunConfig.build(KEYS | {"out": str(folder / "runs"), "rounds": 2, "timeout": 0.2}, keys)
    grid = Tampered(folder, config, lambda done: set(NAMES))
    grid.change = change
    return coordinate(grid, config, Run.create(config, pictures=False))[1]


def says(**values: Any) -> Callable[[str, int, RecordDict], RecordDict]:
    """All of north's answers say this of its ledger."""

    def change(kind: str, turn: int, content: RecordDict) -> RecordDict:
        told = content.get(RECORD)
        if isinstance(told, ConfigRecord) and "epsilon" in told:
            content[RECORD] = ConfigRecord({**told, **values})
        return content

    return change


def spent(folder: Path, name: str) -> float:
    return Ledger.read(folder / name / "home" / "ledger.sqlite").epsilon()


def page_of(summary: dict[str, Any]) -> str:
    return " ".join((Path(summary["run"]) / "report.html").read_text().split())


def loses(kind: str, turn: int) -> Callable[[str, int, RecordDict], RecordDict | None]:
    """North's answer to its ``turn``-th request of a kind is lost on the way, as is all that it is asked after it."""
    gone = []

    def change(now: str, number: int, content: RecordDict) -> RecordDict | None:
        gone.extend([True] if (now, number) == (kind, turn) else [])
        return None if gone else content

    return change


@pytest.mark.parametrize("turn", [1, 2])
def test_fault_38_an_update_that_was_charged_and_never_arrived_is_in_the_statement(hospitals: Path, turn: int) -> None:
    summary = run(hospitals, loses("train", turn))
    own, site = spent(hospitals, "north"), summary["statement"]["sites"]["north"]
    assert site["epsilon"] == pytest.approx(own, rel=1e-9) and site["said"] < own
    assert summary["metrics"]["sites"]["north"]["epsilon"] == site["epsilon"]
    assert summary["privacy"]["epsilon"] >= own
    [note] = [note for note in summary["notes"] if "never came" in note]
    assert note.startswith("north said last") and f"{own:.4g} counts here" in note


def test_fault_38_what_a_ledger_held_before_the_run_is_counted_with_what_was_lost(hospitals: Path) -> None:
    run(hospitals, lambda kind, turn, content: content, privacy={"epsilon": 1.0})
    before = spent(hospitals, "north")
    summary = run(hospitals, loses("train", 2), privacy={"epsilon": 1.0})
    own = spent(hospitals, "north")
    assert own > 1.2 * before
    assert summary["statement"]["sites"]["north"]["epsilon"] == pytest.approx(own, rel=1e-9)


def test_fault_38_a_reply_of_no_use_counts_by_what_it_says_of_the_ledger(hospitals: Path) -> None:
    def change(kind: str, turn: int, content: RecordDict) -> RecordDict:
        if (kind, turn) == ("train", 2):
            content.pop("metrics")
        return content

    summary = run(hospitals, change, **{"evaluation.every": 2})
    assert "carries no MetricRecord" in summary["dropouts"][0]["reason"]
    site = summary["statement"]["sites"]["north"]
    assert site["said"] >= spent(hospitals, "north") * (1 - 1e-9)
    assert not [note for note in summary["notes"] if "never came" in note]


def test_fault_38_one_that_never_says_anything_is_counted_by_what_it_was_asked(hospitals: Path) -> None:
    def mute(kind: str, turn: int, content: RecordDict) -> RecordDict:
        if kind in ("train", "evaluate"):
            content.pop(RECORD)
        return content

    summary = run(hospitals, mute, **{"privacy.patients-per-site": 100, "data.standardise": "none"})
    own, site = spent(hospitals, "north"), summary["statement"]["sites"]["north"]
    assert site["said"] is None and site["epsilon"] == pytest.approx(own, rel=1e-9)
    assert any(note.startswith("north said nothing of its ledger") for note in summary["notes"])


def test_fault_38_charges_in_no_plan_do_not_make_epsilon_smaller(hospitals: Path) -> None:
    """Beside a tiny block, which brings the filter in, a block without a plan would cost nothing."""
    tiny = entry_of(gaussian_event(1e6))

    def change(kind: str, turn: int, content: RecordDict) -> RecordDict:
        told = content.get(RECORD)
        if kind in ("train", "evaluate") and isinstance(told, ConfigRecord) and "charged" in told:
            blocks = [[run, [], charged, []] for run, _, charged, _ in json.loads(str(told["charged"]))]
            blocks.append(["0" * 64, [[tiny, 1]], [[tiny, 1]], []])
            content[RECORD] = ConfigRecord({**told, "epsilon": 0.001, "charged": json.dumps(blocks)})
        return content

    summary = run(hospitals, change, **{"training.sample-rate": 0.2})
    own = spent(hospitals, "north")
    assert summary["privacy"]["epsilon"] >= own * (1 - 1e-9) > 0.5
    assert summary["statement"]["sites"]["north"]["epsilon"] >= own * (1 - 1e-9)


def held_out(folder: Path, name: str) -> float:
    return Ledger.read(folder / name / "home" / "held-out.sqlite").epsilon()


@pytest.mark.parametrize("turn", [1, 2])
def test_a_lost_answer_of_private_metrics_is_in_the_statement(hospitals: Path, turn: int) -> None:
    for name in ("south", "west"):  # whose held-out patients pay nothing
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text() + "metrics-epsilon = 0\n")
    summary = run(hospitals, loses("evaluate", turn), **{"evaluation.releases": 2})
    own = held_out(hospitals, "north")
    assert summary["private_metrics"]["epsilon"] == pytest.approx(own, rel=1e-9) and own > 0.5
    [note] = [note for note in summary["notes"] if "north: private metrics whose answer never came" in note]
    assert f"{own:.4g} counts" in note


def test_a_lost_answer_of_private_metrics_counts_with_what_held_out_patients_had_spent_before(hospitals: Path) -> None:
    run(hospitals, lambda kind, turn, content: content, privacy={"epsilon": 1.0})
    before = held_out(hospitals, "north")
    summary = run(hospitals, loses("evaluate", 2), privacy={"epsilon": 1.0}, evaluation={"releases": 2})
    own = held_out(hospitals, "north")
    assert own > 1.2 * before and summary["private_metrics"]["epsilon"] == pytest.approx(own, rel=1e-9)


def test_in_a_run_that_chose_who_is_held_out_training_patients_pay_for_lost_metrics_too(hospitals: Path) -> None:
    for name in NAMES:
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text() + "allow-splits = true\n")
    summary = run(hospitals, loses("evaluate", 1), split={"seed": 3}, evaluation={"releases": 2})
    site, own = summary["statement"]["sites"]["north"], spent(hospitals, "north")
    assert site["said"] < own and site["epsilon"] >= own * (1 - 1e-9)
    assert summary["private_metrics"]["epsilon"] >= held_out(hospitals, "north") * (1 - 1e-9)


def test_a_hospital_that_refuses_was_not_charged(hospitals: Path) -> None:
    path = hospitals / "north" / "hospital.toml"
    path.write_text(path.read_text().replace("smallest-shard = 20", "smallest-shard = 20\nmost-local-steps = 1"))
    summary = run(hospitals, lambda kind, turn, content: content)
    assert any(drop["site"] == "north" for drop in summary["dropouts"])
    assert "north" not in summary["statement"]["sites"]  # it refused when it enrolled, before any charge
    assert not (hospitals / "north" / "home" / "ledger.sqlite").exists()
    assert not [note for note in summary["notes"] if "never came" in note or "not believed" in note]


@pytest.mark.parametrize("keys", [
    {}, {"data.standardise": "measured"}, {"privacy.patients-per-site": 100, "data.standardise": "none"},
    {"training.batching": "cyclic", "training.sample-rate": 0.5, "training.noise": "banded"}, {"strategy": "scaffold",
    "training.sample-rate": 1.0},
    {"strategy": "ditto"}, {"secure.aggregation": True}, {"task": "output-perturbation", "rounds": 1,
    "training.weight-decay": 0.1},
])  # fmt: skip
def test_an_honest_hospital_is_never_doubted_and_nothing_is_added_to_its_word(
    hospitals: Path, keys: dict[str, Any]
) -> None:
    for name in NAMES:
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text().replace('["classification"', '["output-perturbation", "classification"'))
    summary = run(hospitals, lambda kind, turn, content: content, **keys)
    for name in NAMES:
        site = summary["statement"]["sites"][name]
        assert site["epsilon"] == pytest.approx(spent(hospitals, name), rel=0.02) and site["epsilon"] >= site["said"]
        assert summary["metrics"]["sites"][name]["rounds_joined"] == summary["rounds"]
    assert not [note for note in summary["notes"] if note.startswith(NAMES)]
    assert all(not account["unanswered"] for account in accounts_of(summary).values())


def accounts_of(summary: dict[str, Any]) -> dict[str, Any]:
    from polyclinic.server.checkpoint import load_checkpoint

    state, _, _ = load_checkpoint(Path(summary["run"]) / "checkpoint.safetensors")
    return {name: vars(account) for name, account in state.accounts.items()}


@pytest.mark.parametrize("word", [float("inf"), float("nan"), -1.0])
def test_fault_42_an_epsilon_that_is_none_makes_no_reply_and_no_false_report(hospitals: Path, word: float) -> None:
    summary = run(hospitals, says(epsilon=word), **{"privacy.patients-per-site": 100, "data.standardise": "none"})
    reasons = {drop["reason"] for drop in summary["dropouts"] if drop["site"] == "north"}
    assert len(reasons) == 1 and "must be a finite number of at least 0" in reasons.pop()
    assert 0 < summary["privacy"]["epsilon"] <= 2.0
    page = page_of(summary)
    assert "Differentially private: epsilon" in page
    assert "No privacy guarantee" not in page and "trained without differential privacy" not in page


def test_fault_42_an_epsilon_below_what_the_requests_cost_is_not_believed(hospitals: Path) -> None:
    summary = run(hospitals, says(epsilon=0.001, charged="[]"))
    own, site = spent(hospitals, "north"), summary["statement"]["sites"]["north"]
    assert site["said"] == 0.001 and site["epsilon"] == pytest.approx(own, rel=1e-9)
    assert summary["privacy"]["risk"]["advantage"] > 0
    assert any(note.startswith("north says that its epsilon is 0.001") and "not believed" in note
               for note in summary["notes"])  # fmt: skip


@pytest.mark.parametrize("word", [1e308, 50.0])
def test_fault_42_an_absurd_epsilon_is_named_as_its_hospitals_word(hospitals: Path, word: float) -> None:
    summary = run(hospitals, says(epsilon=word))
    own = spent(hospitals, "north")
    assert summary["privacy"]["epsilon"] == word and summary["privacy"]["private"]
    assert summary["metrics"]["sites"]["south"]["epsilon"] <= 2.0
    [note] = [note for note in summary["notes"] if note.startswith("north says that its epsilon is")]
    assert f"{word:.4g}" in note and f"at most {own:.4g}" in note and "its budget is 3" in note
    page = page_of(summary)
    assert note.split(",")[0] in page and "No privacy guarantee" not in page and "0" * 50 not in page


def test_fault_42_whether_a_run_was_private_is_its_configuration(hospitals: Path) -> None:
    """Also where no hospital's epsilon is known at all."""
    summary = run(hospitals, lambda kind, turn, content: content)
    folder = Run(Path(summary["run"]))
    summary["privacy"]["epsilon"] = None
    for site in summary["metrics"]["sites"].values():
        site["epsilon"] = None
    summary["statement"]["sites"] = {}
    folder.write_summary(summary)
    render_report(folder.path)
    page = page_of(summary)
    assert "Differentially private: epsilon not known" in page and "No privacy guarantee" not in page
    assert "trained without differential privacy" not in page and "no guarantee" not in page


def test_an_account_counts_what_was_there_before_and_every_request_once() -> None:
    account = Account(run_digest("r"))
    account.ask(STATISTICS, COUNT)
    old = entry_of(gaussian_event(7.0))
    before = ran([old, old], "an earlier run")
    account.hear(STATISTICS, to_text((*before, *ran([entry_of(COUNT)], "r"))))
    assert flat(from_text(account.before or "")) == ((old, 2),)
    account.ask("train 1", STEP)
    account.ask("train 1", STEP)  # the same again, as after a resumption
    account.ask("train 2", PAID_BEFORE)  # which costs nothing
    assert account.unanswered == ["train 1"]
    assert dict(flat(account.spent_history())) == {old: 2, entry_of(COUNT): 1, entry_of(STEP): 1}
    assert dict(flat(account.spent_history(unanswered=False))) == {old: 2, entry_of(COUNT): 1}
    account.refuse("train 1")
    assert dict(flat(account.spent_history())) == {old: 2, entry_of(COUNT): 1} and account.has("train") is False
    more = to_text(ran([old] * 5, "an earlier run"))  # another run's charges, which came meanwhile
    account.hear(None, more)
    assert dict(flat(account.spent_history())) == {old: 5, entry_of(COUNT): 1}


def test_a_bound_is_never_below_word_nor_cost() -> None:
    account = Account(run_digest("r"))
    account.ask("train 1", STEP)
    cost = epsilon(STEP, 1e-5)
    assert bound(account, None, TERMS) == bound(account, 0.1, TERMS) == pytest.approx(cost)
    assert bound(account, 9.0, TERMS) == 9.0 and bound(None, None, TERMS) is None
    account.hear("train 1", to_text(ran([entry_of(STEP)], "r")))
    for honest in (cost, epsilon(STEP, 1e-5, quick=True), epsilon(STEP, 1e-5, "rdp")):
        assert doubts({"north": account}, {"north": honest}, {"north": TERMS}) == []
    assert len(doubts({"north": account}, {"north": 0.99 * cost}, {"north": TERMS})) == 1
    assert len(doubts({"north": account}, {"north": 1.1 * epsilon(STEP, 1e-5, "rdp")}, {"north": TERMS})) == 1
