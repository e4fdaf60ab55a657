"""Forked ClientApps: nothing of Polyclinic or of another task is in them, and who dies without a word is answered for.

Nodes of one machine work on few messages at once, and a node that ends, however it does, holds up no other.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeState, NodeStateFactory

from polyclinic.deployment.flower import executor, supernode
from polyclinic.deployment.flower.pauses import Pauses
from polyclinic.deployment.flower.turns import Turns, take_turns

from .conftest import ROOT

# Started as the executor is, by its path; forks by the same forkserver, and each fork tells what it finds.
SCRIPT = f"""
import json, os, sys, threading
import importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("executor", {executor.__file__!r})
executor = importlib.util.module_from_spec(spec)
spec.loader.exec_module(executor)

def task(pipe):
    threads = [path.read_text().strip() for path in Path(f"/proc/{{os.getppid()}}/task").glob("*/comm")]
    found = {{"polyclinic": [name for name in sys.modules if name.startswith("polyclinic")], "torch": "torch" in sys.modules,
             "threads": threads, "path": sys.path, "parent": os.getppid()}}
    executor.draw_anew()
    import numpy as np, torch
    found["global"] = np.random.random()
    before = {{name.split(".")[0] for name in sys.modules}}
    import polyclinic.client_app
    from polyclinic.privacy.streams import system_stream
    found["new"] = sorted({{name.split(".")[0] for name in sys.modules}} - before - set(sys.stdlib_module_names))
    found["noise"], found["random"] = float(system_stream().normal(1)[0]), os.urandom(8).hex()
    torch.set_num_threads(2)
    ones = torch.ones(600, 600, requires_grad=True)
    (ones @ ones).sum().backward()
    found["product"], found["worked"] = float(ones.grad[0, 0]), len(os.listdir("/proc/self/task"))
    pipe.send(found)

if __name__ == "__main__":
    forking = executor.forking()
    told = []
    for _ in range(2):
        ours, theirs = forking._context.Pipe()
        process = forking._context.Process(target=task, args=(theirs,))
        process.start()
        told.append(ours.recv())
        process.join()
    print(json.dumps({{"path": sys.path, "told": told}}), flush=True)
    sys.stdin.read()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(parent: int) -> list[int]:
    """Processes whose parent is that process."""
    stats = [path.read_text().rpartition(")") for path in Path("/proc").glob("[0-9]*/stat")]
    return [int(head.split()[0]) for head, _, tail in stats if int(tail.split()[1]) == parent]


@pytest.mark.slow
def test_a_fork_has_the_third_party_modules_alone_and_draws_its_own_numbers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, "-P", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert parent.stdout is not None
    said = json.loads(parent.stdout.readline())
    first, second = said["told"]
    for found in (first, second):
        assert found["torch"] and not found["polyclinic"] and not set(found["new"]) - {"polyclinic"}
        assert found["path"] == said["path"]
        # A lock that a thread of the process that forks holds would be held for ever. jemalloc (Arrow's) lets go of its own
        # before a fork, and OpenBLAS ends its threads.
        assert len([name for name in found["threads"] if name != "jemalloc_bg_thd"]) == 1
        assert found["worked"] > 1 and found["product"] == 1200.0
    for name in ("global", "noise", "random"):
        assert first[name] != second[name], name
    # Killed, it leaves neither the process that forks nor multiprocessing's tracker.
    left = started(parent.pid)
    assert first["parent"] in left and len(left) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, left))


IDLE = f"""
import importlib.util, json, os, time
spec = importlib.util.spec_from_file_location("executor", {executor.__file__!r})
executor = importlib.util.module_from_spec(spec)
spec.loader.exec_module(executor)

def parent(pipe):
    pipe.send(os.getppid())

def forked(forking):
    ours, theirs = forking._context.Pipe()
    process = forking._context.Process(target=parent, args=(theirs,))
    process.start()
    forking._busy = time.monotonic()
    forking._running.append((process, None))
    forking.reconcile()
    pid = ours.recv()
    process.join()
    forking.reconcile()
    return pid

if __name__ == "__main__":
    forking = executor.forking(preload=("json",), idle=0.2)
    forking.reconcile()
    first = forked(forking)
    kept = forked(forking)
    time.sleep(0.3)
    forking.reconcile()
    time.sleep(0.2)
    state = open(f"/proc/{{first}}/stat").read().rpartition(")")[2].split()[0]
    print(json.dumps([first, kept, state, forked(forking)]))
"""


def test_what_clients_are_forked_from_ends_when_none_has_been_asked_for_a_while(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IDLE)
    done = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, kept, state, anew = json.loads(done.stdout)
    assert first == kept and state == "Z" and anew != first


@pytest.fixture
def node() -> Any:
    """A node's state with a task under way for one message that came, and that message."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 0
    state = NodeStateFactory(ObjectStoreFactory()).state()
    state.set_node_id(3)
    message = Message(RecordDict(), 3, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    state.store_message(message)
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=7, fab_hash="0")
    assert task is not None and state.claim_task(task) and state.activate_task(task)
    return state, task, message


def answers(state: NodeState) -> list[Message]:
    return list(state.get_messages_legacy(is_reply=True))


@pytest.mark.parametrize("taken", [True, False])
def test_a_client_that_died_is_answered_for_at_once_and_one_time(
    node: tuple[NodeState, int, Message], taken: bool
) -> None:
    state, task, message = node
    if taken:
        state.get_messages_legacy(run_ids=[7], is_reply=False)
        state.record_message_processing_start(message.metadata.message_id)
    finish = supernode._answer_failures(type(state).finish_task)
    assert finish(state, task, SubStatus.FAILED, "killed")
    [reply] = answers(state)
    assert reply.has_error() and reply.metadata.reply_to_message_id == message.metadata.message_id
    assert not finish(state, task, SubStatus.FAILED, "killed") and not answers(state)


def test_a_client_that_answered_is_not_answered_for(node: tuple[NodeState, int, Message]) -> None:
    state, task, message = node
    state.get_messages_legacy(run_ids=[7], is_reply=False)
    own = Message(Error(99, "its own words"), reply_to=message)
    own.metadata.__dict__["_message_id"] = own.object_id
    state.object_store.preregister(7, get_object_tree(own))
    for name, part in get_all_nested_objects(own).items():
        state.object_store.put(name, part.deflate())
    state.store_message(own)
    assert supernode._answer_failures(type(state).finish_task)(state, task, SubStatus.FAILED, "its own words")
    assert [reply.error.reason for reply in answers(state)] == ["its own words"]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_reply_that_its_client_gave_in_part_is_given_up(node: tuple[NodeState, int, Message], given: int) -> None:
    state, task, message = node
    state.get_messages_legacy(run_ids=[7], is_reply=False)
    own = Message(RecordDict({"told": MetricRecord({"loss": 0.5})}), reply_to=message)
    own.metadata.__dict__["_message_id"] = own.object_id
    state.object_store.preregister(7, get_object_tree(own))
    state.store_message(own)
    parts = list(get_all_nested_objects(own).items())
    for name, part in parts[:given] if given < 2 else parts:
        state.object_store.put(name, part.deflate())
    assert supernode._answer_failures(type(state).finish_task)(state, task, SubStatus.FAILED, "killed")
    assert (own.object_id in state.object_store) is (given == 2)


def test_a_pause_grows_with_what_was_waited_up_to_flower_s() -> None:
    assert [Pauses.pause(3.0, waited) for waited in (0.0, 1.0, 10.0, 30.0, 1e6)] == [0.2, 0.2, 1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("words", "gives_up"),
    [
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol", False),
        ("[Errno 111] Connection refused", False),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", True),
    ],
)
def test_a_node_gives_up_on_a_certificate_and_on_no_other_fault_of_its_line(words: str, gives_up: bool) -> None:
    from flwr.supercore.retry import make_simple_http_retry_invoker

    connection = SimpleNamespace(make_simple_http_retry_invoker=make_simple_http_retry_invoker)
    supernode.persist(connection)
    invoker = connection.make_simple_http_retry_invoker()
    assert invoker.should_giveup(httpx.ConnectError(words)) == gives_up


def test_a_node_notes_the_heartbeats_that_were_answered_and_no_others(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    file.touch()  # an earlier node's
    connection = SimpleNamespace(HeartbeatSender=lambda send: send)
    supernode.note_heartbeats(connection, file)
    assert not file.exists()
    assert connection.HeartbeatSender(lambda: False)() is False and not file.exists()
    assert connection.HeartbeatSender(lambda: True)() is True and file.exists()
    os.utime(file, (0, 0))
    connection.HeartbeatSender(lambda: False)()
    assert file.stat().st_mtime == 0
    with pytest.raises(SystemExit, match="flwr 1.41"):
        supernode.note_heartbeats(SimpleNamespace(), file)


HOLD = """
import sys, time
from pathlib import Path
from polyclinic.deployment.flower.turns import Turns
turns = Turns(Path(sys.argv[1]), 1)
print(turns.take(), flush=True)
time.sleep(60)
"""


def steps(*runs: int | None | Exception) -> Any:
    """Flower's two steps: each fetch gives the next of ``runs``."""
    answers = iter(runs)

    def pull(**given: Any) -> int | None:
        run = next(answers)
        if isinstance(run, Exception):
            raise run
        return run

    return SimpleNamespace(_pull_and_store_message=pull, _push_messages=lambda **given: "sent")


def test_a_message_waits_while_other_nodes_have_all_places(tmp_path: Path) -> None:
    nodes = [steps(7, 8) for _ in range(3)]
    for each in nodes:
        take_turns(each, Turns(tmp_path, 2))
    first, second, third = nodes
    assert first._pull_and_store_message() == 7 and second._pull_and_store_message() == 7
    assert third._pull_and_store_message() is None  # and its message is still at the SuperLink
    assert second._push_messages() == "sent" and third._pull_and_store_message() == 7
    assert second._pull_and_store_message() is None and first._push_messages() == "sent"
    assert second._pull_and_store_message() == 8


def test_who_got_no_message_or_an_error_holds_no_place(tmp_path: Path) -> None:
    first, second = steps(None, OSError(), 7), steps(7)
    take_turns(first, Turns(tmp_path, 1))
    take_turns(second, Turns(tmp_path, 1))
    assert first._pull_and_store_message() is None
    with pytest.raises(OSError):
        first._pull_and_store_message()
    assert second._pull_and_store_message() == 7 and first._pull_and_store_message() is None


def test_a_node_that_is_killed_lets_go(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "True\n"
        turns = Turns(tmp_path, 1)
        assert not turns.take()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert turns.take()


def test_without_a_folder_nobody_waits(tmp_path: Path) -> None:
    turns = [Turns(tmp_path / "none", 1) for _ in range(3)]
    assert all(each.take() for each in turns)
    (tmp_path / "0").symlink_to("/dev/null")  # another user's trick
    assert Turns(tmp_path, 1).take()
