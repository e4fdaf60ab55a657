"""Ray actors that make a grid's calls: on this machine or on a cluster.

What all messages of a call share (the model, the standardiser) is put into Ray's object store once for all actors. The
run's folder must be one that every machine of a cluster sees, for the hospitals' ledgers lie in it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from copy import copy
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict
from ray.exceptions import RayError

from polyclinic.errors import ConfigError
from polyclinic.sim.calls import Answer, App, Stack, call_in_worker, crash_answers
from polyclinic.sim.threads import set_threads


class RayWorkers:
    """``count`` actors, each with one CPU and its part of ``gpus``; Ray restarts one that dies and makes its call again.

    address: "local" starts Ray on this machine, "auto" or a host joins a cluster. threads: that numerical libraries take in
    each. Raises ConfigError when there is none,
    or it has fewer GPUs.
    """

    def __init__(self, count: int, address: str, gpus: float = 0.0, threads: int = 1) -> None:
        self.count = count
        self._begun_here = not ray.is_initialized()
        if self._begun_here:
            try:
                _reach(address)
                ray.init(
                    address=None if address == "local" else address, num_cpus=count if address == "local" else None,
                    include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                )  # fmt: skip
            except (OSError, RuntimeError, ValueError) as error:
                first = str(error).splitlines()[0]
                raise ConfigError(
                    f"Configuration key 'ray-address' has the value {address!r}, where no Ray cluster answers: {first}"
                ) from None
        available = ray.cluster_resources().get("GPU", 0.0)  # type: ignore[no-untyped-call]
        if gpus > available:
            self._leave()
            raise ConfigError(
                f"Configuration key 'gpus' has the value {gpus:g}, but this Ray cluster has {available:g} GPUs."
            )
        actor = ray.remote(num_cpus=1, num_gpus=gpus / count, max_restarts=-1, max_task_retries=1)(_Actor)
        self._actors: list[Any] = [actor.remote(threads) for _ in range(count)]

    def call(self, app: App, stacks: Sequence[Stack]) -> list[list[Answer]]:
        shared = _shared_records(stacks)
        store = ray.put(shared)
        sent = [[_part_message(message, context, shared) for message, context in stack] for stack in stacks]
        asked = {index: self._actors[index].call.remote(app, part, store) for index, part in enumerate(sent) if part}
        answers: dict[int, list[Answer]] = {}
        for index, stack in enumerate(stacks):
            try:
                answers[index] = ray.get(asked[index]) if index in asked else []
            except RayError:
                answers[index] = crash_answers(stack)
        return list(answers.values())

    def close(self, now: bool = False) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._leave()

    def _leave(self) -> None:
        if self._begun_here:
            ray.shutdown()


def _reach(address: str) -> None:
    """Raises OSError or ValueError where nobody listens; Ray itself would wait for minutes, and end the process."""
    if address not in ("local", "auto"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5.0).close()


class _Actor:
    def __init__(self, threads: int) -> None:
        set_threads(threads)

    def call(self, app: App, stack: list[_Parted], shared: dict[int, Any]) -> list[Answer]:
        whole: Stack = []
        for message, names, context in stack:
            message.content = RecordDict({name: shared.get(key, record) for name, key, record in names})  # type: ignore[misc]
            whole.append((message, context))
        return call_in_worker(app, whole)


# A message without its content; for each record its name, its key in the store, and the record where it is not there.
_Parted = tuple[Message, list[tuple[str, int, Any]], Context]


def _shared_records(stacks: Sequence[Stack]) -> dict[int, Any]:
    """The records that several messages carry, by identity."""
    seen: dict[int, Any] = {}
    several: dict[int, Any] = {}
    for stack in stacks:
        for message, _ in stack:
            for record in message.content.values():
                (several if id(record) in seen else seen)[id(record)] = record
    return several


def _part_message(message: Message, context: Context, shared: dict[int, Any]) -> _Parted:
    names = [(name, id(record), None if id(record) in shared else record) for name, record in message.content.items()]
    bare = copy(message)
    bare.content = RecordDict()
    return bare, names, context
