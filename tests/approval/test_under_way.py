"""A pause, a denial and a stop also hold up a message that is in already: one that waits for its turn, and one at work."""

import threading
import time
from collections.abc import Callable
from copy import copy
from importlib import reload
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.app.message.message import make_message
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory

from polyclinic.client.app import app
from polyclinic.client.home.approvals import pause, resume, stop
from polyclinic.client.home.journal import NAME
from polyclinic.client.home.state import alone
from polyclinic.config import RunConfig
from polyclinic.deployment.flower.supernode import withhold
from polyclinic.lines import read_lines
from polyclinic.wire.messages import REFUSED, TrainRequest
from tests.client.test_hospital import CONFIG, context, ledger, make_hospital, message, model, train

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


@pytest.mark.parametrize("hold", [lambda home: pause(home, "an audit"), lambda home: stop(home, "r", "enough")])
def test_an_answer_that_waits_to_be_fetched_is_held_back(
    hospital: Path, monkeypatch: pytest.MonkeyPatch, hold: Callable[[Path], Any]
) -> None:
    """By Flower's own step of a node, of which the coordinator takes its time to fetch the first answer."""
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", str(hospital))
    home, sent = hospital.parent / "home", []
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    asked = message(request, "train", model())
    asked.metadata.__dict__["_message_id"] = "a" * 64
    reply = app(asked, context(hospital, CONFIG))
    assert reply.has_content()

    def fetch(before: Callable[[], Any]) -> Message:
        node = reload(start_client_internal)
        withhold(node)
        objects = ObjectStoreFactory()
        state, parts = NodeStateFactory(objectstore_factory=objects).state(), {}

        def send(message: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
            sent.append(message)
            return {part.object_id for part in iterate_object_tree(tree)}, "session"

        copied = make_message(copy(reply.metadata), content=reply.content)
        node._insert_message(copied, state, objects.store())
        before()
        node._push_messages(
            state=state, object_store=objects.store(), send=send,
            push_object=lambda run, session, name, part: parts.update({name: part}),
        )  # fmt: skip
        assert set(parts) >= {sent[-1].metadata.message_id}
        return sent[-1]

    assert fetch(lambda: None).has_content()
    refused = fetch(lambda: hold(home))
    assert refused.has_error() and refused.error.code == REFUSED
    assert refused.metadata.reply_to_message_id == reply.metadata.reply_to_message_id
    assert "an audit" in refused.error.reason or "the run was denied here: enough" in refused.error.reason
    last = read_lines(home / NAME).entries[-1]
    assert (last["event"], last["kind"], last["run"], last["round"]) == ("refused", "train", "r", 1)
