"""Nodes of one machine work on few messages at once, and a node that ends, however it does, holds up no other."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyclinic.deployment.flower.turns import Turns, take_turns

HOLD = """
import sys, time
from pathlib import Path
from polyclinic.deployment.flower.turns import Turns
turns = Turns(Path(sys.argv[1]), 1)
print(turns.take(), flush=True)
time.sleep(60)
"""


def node(*runs: int | None | Exception) -> Any:
    """Flower's two steps: each fetch gives the next of ``runs``."""
    answers = iter(runs)

    def pull(**given: Any) -> int | None:
        run = next(answers)
        if isinstance(run, Exception):
            raise run
        return run

    return SimpleNamespace(_pull_and_store_message=pull, _push_messages=lambda **given: "sent")


def test_a_message_waits_while_other_nodes_have_all_places(tmp_path: Path) -> None:
    nodes = [node(7, 8) for _ in range(3)]
    for each in nodes:
        take_turns(each, Turns(tmp_path, 2))
    first, second, third = nodes
    assert first._pull_and_store_message() == 7 and second._pull_and_store_message() == 7
    assert third._pull_and_store_message() is None  # and its message is still at the SuperLink
    assert second._push_messages() == "sent" and third._pull_and_store_message() == 7
    assert second._pull_and_store_message() is None and first._push_messages() == "sent"
    assert second._pull_and_store_message() == 8


def test_who_got_no_message_or_an_error_holds_no_place(tmp_path: Path) -> None:
    first, second = node(None, OSError(), 7), node(7)
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
