"""A noise process at a real hospital: paid for as a whole when it begins, and no step of it is ever used twice."""

import shutil
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dp_accounting import DpEvent, SelfComposedDpEvent
from flwr.app import Message

from polyclinic.client.app import app
from polyclinic.client.home.state import alone
from polyclinic.config import RunConfig, train_settings
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.central import CentralPlan
from polyclinic.privacy.events import PAID_BEFORE
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.noise.factorisations import Banded, Buffered
from polyclinic.training import classification
from polyclinic.wire.messages import FAILED, REFUSED, TrainRequest
from tests.client.test_hospital import context, ledger, make_hospital, message, model
from tests.nursery import python

CONFIG = RunConfig(
    training={
        "local_steps": 3,
        "sample_rate": 0.25,
        "batching": "cyclic",
        "noise": "sqrt-toeplitz",
        "learning_rate": 0.5,
    },
    rounds=4,
)
WHOLE = epsilon(gaussian_event(6.0), 1e-3)


def train(hospital: Path, config: RunConfig = CONFIG, shift: float = 0.0, **changes: Any) -> Message:
    values = {"run": "r", "site": 0, "round": 1, "noise_multiplier": 6.0, "public_patients": 150.0} | changes
    arrays = {name: value + np.float32(shift) for name, value in model().items()}
    return app(message(TrainRequest(**values), "train", arrays), context(hospital, config))


def beside_its_plan(event: DpEvent) -> float:
    """What Gaussian releases cost where nobody declared the later ones first: the accountant's epsilon at three quarters of delta
    (docs/privacy/filter.md)."""
    return epsilon(event, 0.75 * 1e-3)


def spent(hospital: Path) -> float:
    return ledger(hospital).epsilon()


def test_the_process_is_paid_for_when_it_begins_and_then_no_more(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    for number in range(1, 5):
        assert train(hospital, round=number).has_content()
        assert spent(hospital) == pytest.approx(WHOLE)
    settings = train_settings(CONFIG, 6.0)
    assert classification.event(settings) == gaussian_event(6.0)
    assert len(ledger(hospital).events()) == 4


def test_steps_beyond_the_last_that_was_paid_for_are_refused(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    for number in range(1, 5):
        train(hospital, round=number)
    assert train(hospital, round=5).has_error()


def test_the_same_question_gets_the_same_answer_and_costs_nothing(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    train(hospital)
    first, again = train(hospital, round=2), train(hospital, round=2)
    for name, value in first.content["arrays"].items():
        assert np.array_equal(value.numpy(), again.content["arrays"][name].numpy())
    assert len(ledger(hospital).events()) == 2 and spent(hospital) == pytest.approx(WHOLE)


@pytest.mark.parametrize("change", [{"shift": 1.0}, {"public_patients": 149.0}])
def test_another_question_of_a_round_that_is_done_pays_for_a_new_process(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    hospital = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n")
    train(hospital)
    train(hospital, round=2)
    assert train(hospital, round=2, **change).has_content()
    assert spent(hospital) == pytest.approx(beside_its_plan(gaussian_event(6.0, 2)), rel=1e-3)


@pytest.mark.parametrize(
    ("noise", "config"),
    [
        (5.0, CONFIG),
        (6.0, CONFIG.with_values({"privacy.max-grad-norm": 5.0})),
        (6.0, CONFIG.with_values({"training.sample-rate": 0.5})),
        (6.0, CONFIG.with_values({"rounds": 40})),
        (6.0, CONFIG.with_values({"training.noise": "independent"})),
    ],
)
def test_other_terms_halfway_pay_for_a_new_process(tmp_path: Path, noise: float, config: RunConfig) -> None:
    """Else a server would pay for much noise in the first round and ask for little in the second."""
    hospital = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\n")
    train(hospital)
    before = spent(hospital)
    assert train(hospital, config, round=2, noise_multiplier=noise).has_content()
    assert spent(hospital) > before * 1.3


def test_a_lost_state_pays_for_a_new_process_or_is_refused(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 0.2\ndelta = 1e-3\n")
    hospital_spent = train(hospital, noise_multiplier=12.0)
    assert hospital_spent.has_content()
    for kept in (tmp_path / "home").glob("optimizer-*"):
        kept.unlink()
    reply = train(hospital, round=2, noise_multiplier=12.0)
    assert reply.error.code == REFUSED


def keep(home: Path, backup: Path) -> None:
    """Copy all files in ``home`` but the ledger and the lock."""
    backup.mkdir()
    for path in home.glob("*.safetensors"):
        shutil.copy2(path, backup)


def restore(backup: Path, home: Path) -> None:
    """Make ``home`` what it was, but for the ledger."""
    for path in home.glob("*.safetensors"):
        path.unlink()
    for path in backup.iterdir():
        shutil.copy2(path, home)


@pytest.mark.parametrize("noise", ["sqrt-toeplitz", "tree", "blt"])
def test_fault_22_a_state_older_than_the_ledger_pays_for_a_new_process(tmp_path: Path, noise: str) -> None:
    """Rounds 2 and 3 left; with the files as they were after round 1, either is another use of the same steps."""
    hospital, home = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n"), tmp_path / "home"
    config = CONFIG.with_values({"training.noise": noise})
    train(hospital, config)
    whole = spent(hospital)
    keep(home, tmp_path / "backup")
    for number in (2, 3):
        train(hospital, config, round=number)
    assert spent(hospital) == pytest.approx(whole)
    restore(tmp_path / "backup", home)
    assert train(hospital, config, round=4, shift=1.0).has_content()
    event = classification.event(train_settings(config, 6.0))
    twice = beside_its_plan(SelfComposedDpEvent(event, 2))
    assert twice > whole * 1.3 and spent(hospital) == pytest.approx(twice, rel=1e-3)


def test_fault_22_a_state_of_the_same_round_but_of_an_earlier_use_pays_too(tmp_path: Path) -> None:
    """The number of the round alone would not show it: round 2 was answered twice, by a process each."""
    hospital, home = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\n"), tmp_path / "home"
    for number in (1, 2):
        train(hospital, round=number)
    keep(home, tmp_path / "backup")
    train(hospital, round=3)
    train(hospital, round=2, shift=1.0)
    restore(tmp_path / "backup", home)
    train(hospital, round=3, shift=1.0)
    assert spent(hospital) == pytest.approx(beside_its_plan(gaussian_event(6.0, 3)), rel=1e-3)


def test_fault_22_an_older_state_is_refused_where_the_budget_pays_for_no_new_process(tmp_path: Path) -> None:
    hospital, home = make_hospital(tmp_path, f"budget = {WHOLE * 1.05}\ndelta = 1e-3\n"), tmp_path / "home"
    train(hospital)
    keep(home, tmp_path / "backup")
    train(hospital, round=2)
    restore(tmp_path / "backup", home)
    reply = train(hospital, round=3)
    assert reply.error.code == REFUSED and "budget" in str(reply.error.reason)
    assert spent(hospital) == pytest.approx(WHOLE)


def test_fault_22_a_round_that_was_charged_and_left_no_state_pays_for_a_new_process(tmp_path: Path) -> None:
    """A crash and a restored backup look alike: nobody can know that the round's steps did not leave."""
    hospital = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n")
    train(hospital)
    Ledger.open(ledger(hospital).path, ledger(hospital).terms).charge(PAID_BEFORE, "train", "r", 2)
    assert train(hospital, round=2).has_content()
    assert spent(hospital) == pytest.approx(beside_its_plan(gaussian_event(6.0, 2)), rel=1e-3)


def test_the_same_process_goes_on_where_state_and_ledger_were_restored_to_the_same_round(tmp_path: Path) -> None:
    """The ledger decides, not how old the files are: nothing was charged after them."""
    hospital, home = make_hospital(tmp_path), tmp_path / "home"
    for number in (1, 2):
        train(hospital, round=number)
    keep(home, tmp_path / "backup")
    restore(tmp_path / "backup", home)
    train(hospital, round=3)
    assert spent(hospital) == pytest.approx(WHOLE)


@pytest.mark.parametrize("asked", [{"round": 3}, {"round": 2}])
def test_fault_22_a_ledger_older_than_the_state_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Round 3 would go on with what the ledger no longer pays for; the reply to round 2 would be sent again as if free."""
    hospital, home = make_hospital(tmp_path), tmp_path / "home"
    train(hospital)
    shutil.copy2(home / "ledger.sqlite", tmp_path / "old.sqlite")
    train(hospital, round=2)
    shutil.copy2(tmp_path / "old.sqlite", home / "ledger.sqlite")
    (home / "journal.jsonl").unlink()  # with which nothing would be answered at all
    reply = train(hospital, **asked)
    assert reply.error.code == FAILED and "restore the newest ledger" in str(reply.error.reason)
    assert len(ledger(hospital).events()) == 1


def test_fault_22_a_ledger_that_was_lost_is_not_begun_anew_beside_noise_under_way(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    train(hospital)
    for name in ("ledger.sqlite", "journal.jsonl"):
        (tmp_path / "home" / name).unlink()
    assert "restore the newest ledger" in str(train(hospital, round=2).error.reason)


def test_a_shard_that_changed_cannot_go_on(tmp_path: Path) -> None:
    from polyclinic.client.home.hospital import OwnRecords

    hospital = make_hospital(tmp_path)
    train(hospital)
    make_hospital(tmp_path, rows=180)
    OwnRecords.read.cache_clear()
    assert train(hospital, round=2).has_error()


def test_the_same_records_in_another_order_cannot_go_on(tmp_path: Path) -> None:
    """Batches go by the patients' order: another one would bring patients back before their turn, unpaid."""
    from polyclinic.client.home.hospital import OwnRecords

    hospital = make_hospital(tmp_path)
    train(hospital)
    records = pd.read_csv(tmp_path / "records.csv")
    pd.concat([records[1:], records[:1]]).to_csv(tmp_path / "records.csv", index=False)
    OwnRecords.read.cache_clear()
    reply = train(hospital, round=2)
    assert reply.has_error() and "order" in str(reply.error.reason)
    assert len(ledger(hospital).events()) == 1


def test_two_rounds_at_once_do_not_go_on_from_the_same_state(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n")
    train(hospital)
    replies: list[Message] = []
    asked = [
        Thread(target=lambda count=count: replies.append(train(hospital, round=2, public_patients=count)))
        for count in (150.0, 149.0)
    ]
    with alone(tmp_path / "home"):
        for one in asked:
            one.start()
        asked[0].join(1.0)
        assert not replies and len(ledger(hospital).events()) == 1
    for one in asked:
        one.join()
    assert all(reply.has_content() for reply in replies) and len(replies) == 2
    assert spent(hospital) == pytest.approx(beside_its_plan(gaussian_event(6.0, 2)), rel=1e-3)


def test_a_process_that_was_killed_in_a_round_lets_the_next_one_go_on(tmp_path: Path) -> None:
    script = "import os, pathlib, signal, sys\nfrom polyclinic.client.home.state import alone\n"
    script += "with alone(pathlib.Path(sys.argv[1])):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    killed = python("-c", script, str(tmp_path))
    assert killed.returncode < 0
    with alone(tmp_path):
        pass


def test_a_process_is_made_for_the_epoch_that_its_batches_have() -> None:
    bands = train_settings(CONFIG.with_values({"training.noise": "banded"}), 6.0).noise
    assert bands is not None and bands.factorisation == Banded(12, 4)
    made = train_settings(CONFIG.with_values({"training.noise": "blt"}), 6.0)
    assert made.noise is not None and made.noise.factorisation == Buffered(12, made.participation)
    fewer = CONFIG.with_values({"training.noise": "banded", "training.noise-options": "bands=2, restart=6"})
    process = train_settings(fewer, 6.0).noise
    assert process is not None and process.factorisation == Banded(6, 2)


def test_central_noise_is_made_for_the_separation_of_the_hospitals() -> None:
    process = CentralPlan(1.0, 1.0, 4, 4, noise="banded", rounds=20, separation=5).process
    assert process is not None and process.factorisation == Banded(20, 5)
