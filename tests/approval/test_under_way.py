"""A pause, a denial and a stop also hold up a message that is in already: one that waits for its turn, and one at work."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from polyclinic.client.home.approvals import pause, resume, stop
from polyclinic.client.home.state import alone
from polyclinic.config import RunConfig
from tests.client.test_hospital import ledger, make_hospital, train

POLICY = "budget = 9.0\ndelta = 1e-3\n"


def in_a_thread(work: Callable[[], Message]) -> tuple[threading.Thread, list[Message]]:
    replies: list[Message] = []
    thread = threading.Thread(target=lambda: replies.append(work()))
    thread.start()
    return thread, replies


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    return make_hospital(tmp_path, POLICY)


@pytest.mark.parametrize("hold", [lambda home: pause(home, "an audit"), lambda home: stop(home, "r", "enough")])
def test_a_message_that_waits_for_its_turn_is_refused_and_not_charged(
    hospital: Path, hold: Callable[[Path], Any]
) -> None:
    home = hospital.parent / "home"
    with alone(home):
        thread, replies = in_a_thread(lambda: train(hospital))
        time.sleep(0.5)  # until it waits
        hold(home)
    thread.join()
    assert (
        replies[0].has_error()
        and "the hospital has paused" in replies[0].error.reason
        or "denied" in replies[0].error.reason
    )
    assert not (home / "ledger.sqlite").exists() or ledger(hospital).epsilon() == 0


def test_what_was_being_worked_on_stays_until_the_pause_ends_and_is_charged_once(hospital: Path) -> None:
    home, config = hospital.parent / "home", RunConfig(training={"local_steps": 2000, "sample_rate": 0.2})

    def ask() -> Message:
        return train(hospital, config=config, noise_multiplier=60.0)

    thread, replies = in_a_thread(ask)
    while not (home / "ledger.sqlite").exists() or not ledger(hospital).events():
        time.sleep(0.01)
    pause(home, "an audit")
    thread.join()
    assert replies[0].has_error() and "the hospital has paused: an audit" in replies[0].error.reason
    spent = ledger(hospital).epsilon()
    assert spent > 0 and ask().has_error()
    resume(home)
    assert not ask().has_error() and ledger(hospital).epsilon() == spent and len(ledger(hospital).events()) == 1
