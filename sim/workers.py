"""Processes of this machine that make a grid's calls. Each is a pool of one, so that one that dies takes nothing with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

import numpy as np
import torch
from flwr.app import Error, Message

from polyclinic.sim.calls import APP_FAILED, Answer, AppReference, Stack, call_in_worker

# Before any worker is forked: what nearly every run's workers need.
IMPORTED_ONCE = (__name__, "polyclinic.client_app")


class Workers(Protocol):
    """Who makes a grid's calls. ``count`` of them; ``call`` gives stack i to worker i, which keeps what it has loaded."""

    count: int

    def call(self, app: AppReference, stacks: Sequence[Stack]) -> list[list[Answer]]:
        """The answers of every stack, in order. A worker that dies is replaced and its call made once more."""

    def close(self) -> None:
        """End the workers."""


class ProcessWorkers:
    """``count`` processes of this machine, which share ``gpus`` of its GPUs, each one at most."""

    def __init__(self, count: int, gpus: float = 0.0) -> None:
        self.count = count
        self._gpus = gpus
        self._pools: dict[int, ProcessPoolExecutor] = {}

    def call(self, app: AppReference, stacks: Sequence[Stack]) -> list[list[Answer]]:
        found: dict[int, list[Answer]] = {index: [] for index, stack in enumerate(stacks) if not stack}
        for _ in range(2):
            waiting = [index for index in range(len(stacks)) if index not in found]
            futures: dict[int, Future[list[Answer]]] = {}
            for index in waiting:
                try:
                    futures[index] = self._pool(index).submit(call_in_worker, app, stacks[index])
                except BrokenProcessPool:
                    self._pools.pop(index)
            for index, future in futures.items():
                try:
                    found[index] = future.result()
                except BrokenProcessPool:
                    self._pools.pop(index)
        return [found[index] if index in found else lost(stack) for index, stack in enumerate(stacks)]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._pools.clear()

    def _pool(self, index: int) -> ProcessPoolExecutor:
        if index not in self._pools:
            # Not forks of this process, whose threads, torch's and Ray's, do not survive one: of one that only imports.
            server = multiprocessing.get_context("forkserver")
            server.set_forkserver_preload([*IMPORTED_ONCE])
            gpu = int(index * self._gpus / self.count) if self._gpus else None
            self._pools[index] = ProcessPoolExecutor(
                1, server, initializer=_begin_worker, initargs=(dict(os.environ), gpu)
            )
        return self._pools[index]


def lost(stack: Stack) -> list[Answer]:
    """Errors for the sites of a call whose worker died twice."""
    reason = (
        "the worker died twice before this site's reply; a script that uses workers must start its work under "
        "`if __name__ == '__main__':`"
    )
    return [(Message(Error(APP_FAILED, reason), reply_to=message), context.state) for message, context in stack]


def _begin_worker(environment: Mapping[str, str], gpu: int | None) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if gpu is not None:
        # Before CUDA's first use, the process can be shown the one GPU that is its own.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    np.random.seed()  # noqa: NPY002 - forks share it, and a model of somebody's may draw from it
    # Ctrl-C reaches the whole process group; the run itself decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    """A run that is killed takes its workers with it; they would hold its pipes and memory for ever."""
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(1)
