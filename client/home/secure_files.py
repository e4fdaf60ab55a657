"""What a hospital keeps of a secure sum in its home: a round's secrets, and the answers that left.

The secrets are readable by its user alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from polyclinic.client.calls import Call
from polyclinic.client.home.releases import Reply, is_released, read_release, write_release
from polyclinic.errors import PolyclinicError
from polyclinic.files import SECRET, write_file
from polyclinic.types import Arrays
from polyclinic.wire.arrays import to_record
from polyclinic.wire.messages import RECORD, SECURE, RoundRequest

A = TypeVar("A", bound=RoundRequest)
# What a round may leave in a home: its secrets, and the answers of its phases.
_LEFT = re.compile(
    r"(?:\.partial-\w+\.)?"  # being written, or left so by a crash
    r"(?:secure-(?P<run>.+)|release-(?P<other>.+)-secure-(?:keys|shares|confirm|unmask))-(?P<round>\d+)\.safetensors"
)
_FORGOTTEN_SECONDS = 30 * 24 * 3600.0
_MOST_PENDING = 100


def once(call: Call[A], purpose: str, identity: str, answer: Callable[[Call[A]], Arrays]) -> RecordDict:
    """The answer that left before to the same question; a new one where none left. Refuses another question.

    Args:
        call: The message, read.
        purpose: What is asked, as part of the file's name.
        identity: Identifies the question.
        answer: Makes the arrays of a new answer.

    Raises:
        PolyclinicError: The hospital answered this purpose of this round to another question.
    """
    place = Reply(call.hospital.home, call.request.run, purpose, call.request.round)
    content = read_release(place, identity)
    if content is not None:
        return content
    if is_released(place):
        raise refusal(call, f"it has answered {purpose} of this round to another question")
    reply = RecordDict({SECURE: to_record(answer(call)), RECORD: ConfigRecord({"site": call.hospital.site})})
    write_release(place, identity, reply, call.config.checkpoints.rounds_kept, durable=not call.hospital.simulated)
    return reply


def refusal(call: Call[A], why: str) -> PolyclinicError:
    """The error of a hospital that does not answer a phase."""
    return PolyclinicError(f"{call.hospital.site}: refused in the secure sum of round {call.request.round}: {why}.")


def read_secrets(call: Call[A]) -> Arrays:
    """The secrets of the call's round. Raises PolyclinicError when there are none, or when they are for another place in it."""
    try:
        secrets = load_file(_path(call))
    except (OSError, SafetensorError):
        raise refusal(call, "it has no secrets of this round, or has erased them") from None
    if (place := int(secrets["site"][0])) != call.request.site:
        raise refusal(call, f"its keys are those of hospital {place}, not of {call.request.site}")
    return secrets


def write_secrets(call: Call[A], secrets: Arrays) -> None:
    """Keep the round's secrets for its later phases, readable by this user alone. Atomic."""
    path = _path(call)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(value) for name, value in secrets.items()}
    write_file(path, partial(save_file, arrays), mode=SECRET, durable=not call.hospital.simulated)


def erase_secrets(call: Call[A]) -> None:
    """Forget the secrets of the call's round."""
    _path(call).unlink(missing_ok=True)


def erase_earlier_secrets(call: Call[A]) -> None:
    """Forget the secrets of the run's rounds before the call's."""
    for path in call.hospital.home.glob("*secure-*"):
        named = _LEFT.fullmatch(path.name)
        if named and named["run"] == call.request.run and int(named["round"]) < call.request.round:
            path.unlink(missing_ok=True)


def make_room(call: Call[A]) -> None:
    """Forget rounds of which nothing was heard for thirty days. Raises PolyclinicError where too many others had keys alone.

    A round's files are forgotten together, its secrets first: without them nothing of it is answered anew.
    """
    home = call.hospital.home
    rounds: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(home.glob("*secure-*"), reverse=True):
        if named := _LEFT.fullmatch(path.name):
            rounds.setdefault((named["run"] or named["other"], named["round"]), []).append(path)
    for key, paths in list(rounds.items()):
        if max(map(_write_time, paths)) < time.time() - _FORGOTTEN_SECONDS:
            for path in paths:
                path.unlink(missing_ok=True)
            del rounds[key]
    pending = sum(not is_released(Reply(home, run, "train", int(number))) for run, number in rounds)
    if pending >= _MOST_PENDING:
        raise refusal(
            call,
            f"in the last thirty days it was asked for the keys of {pending} other rounds without training; allowed are "
            f"{_MOST_PENDING}",
        )


def _write_time(path: Path) -> float:
    """When the file was written; now, where another process has just renamed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _path(call: Call[A]) -> Path:
    return call.hospital.home / f"secure-{call.request.run}-{call.request.round:06d}.safetensors"
