"""Processes of this machine that make a grid's calls. Each is a pool of one, so that one that dies takes nothing with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Protocol

import numpy as np

from polyclinic.sim.calls import Answer, App, Stack, call_in_worker, crash_answers
from polyclinic.sim.forkserver import begin
from polyclinic.sim.threads import set_threads

# Before any worker is forked: what the workers of nearly every federation need.
IMPORTED_ONCE = ("polyclinic.client_app",)


class Workers(Protocol):
    """Who makes a grid's calls. ``count`` of them; ``call`` gives stack i to worker i, which keeps what it has loaded."""

    count: int

    def call(self, app: App, stacks: Sequence[Stack]) -> list[list[Answer]]:
        """The answers of every stack, in order. A worker that dies is replaced and its call made once more."""

    def close(self, now: bool = False) -> None:
        """End the workers; ``now``: with what they are doing unfinished."""


class ProcessWorkers:
    """``count`` processes of this machine, which share ``gpus`` of its GPUs, each one at most.

    threads: that numerical libraries take in each. imported_once: modules that are imported once for all of them, from
    ``folder`` where they are not installed.
    """

    def __init__(
        self, count: int, gpus: float = 0.0, threads: int = 1, imported_once: Sequence[str] = IMPORTED_ONCE,
        folder: str = "",
    ) -> None:  # fmt: skip
        self.count = count
        self._gpus = gpus
        self._threads = threads
        self._imported_once = [__name__, *imported_once]
        self._folder = folder
        self._pools: dict[int, ProcessPoolExecutor] = {}
        self._making = threading.Lock()
        self._beginning: threading.Thread | None = None

    def call(self, app: App, stacks: Sequence[Stack]) -> list[list[Answer]]:
        answers: dict[int, list[Answer]] = {index: [] for index, stack in enumerate(stacks) if not stack}
        for _ in range(2):
            waiting = [index for index in range(len(stacks)) if index not in answers]
            futures: dict[int, Future[list[Answer]]] = {}
            for index in waiting:
                try:
                    futures[index] = self._pool(index).submit(call_in_worker, app, stacks[index])
                except BrokenProcessPool:
                    self._pools.pop(index, None)
            for index, future in futures.items():
                try:
                    answers[index] = future.result()
                except BrokenProcessPool:
                    self._pools.pop(index, None)
        return [answers[index] if index in answers else crash_answers(stack) for index, stack in enumerate(stacks)]

    def begin(self) -> None:
        """Start all of them, and return at once; without it each starts with its first call."""
        self._beginning = threading.Thread(target=self._begin)
        self._beginning.start()

    def _begin(self) -> None:
        for index in range(self.count):
            with suppress(BrokenProcessPool):  # the first call makes it anew
                self._pool(index).submit(os.getpid)

    def close(self, now: bool = False) -> None:
        if self._beginning:
            self._beginning.join()
        for pool in self._pools.values():
            if now:
                # As `terminate_workers` of Python 3.14 does.
                for process in list(pool._processes.values()):
                    process.kill()
            pool.shutdown(cancel_futures=True)
        self._pools.clear()

    def _pool(self, index: int) -> ProcessPoolExecutor:
        with self._making:
            if index in self._pools:
                return self._pools[index]
            gpu = int(index * self._gpus / self.count) if self._gpus else None
            self._pools[index] = one_process(self._imported_once, self._folder, gpu, self._threads)
            return self._pools[index]


def one_process(
    imported_once: Sequence[str], folder: str = "", gpu: int | None = None, threads: int = 1
) -> ProcessPoolExecutor:
    """A pool of one process.

    It is no fork of this process, whose threads, torch's and Ray's, do not survive one: it is a fork of one that only imports.

    Args:
        imported_once: Modules that are imported before the fork.
        folder: Where they lie if they are not installed.
        gpu: Which of the visible GPUs is the one that the process sees; None leaves it all of them.
        threads: That numerical libraries take in it.
    """
    begin(imported_once, folder)
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(1, context, initializer=_begin_worker, initargs=(dict(os.environ), gpu, threads))


def _begin_worker(environment: Mapping[str, str], gpu: int | None, threads: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if gpu is not None:
        # Before CUDA's first use, the process can be shown the one GPU that is its own.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    np.random.seed()  # noqa: NPY002 - forks share it, and a model of somebody's may draw from it
    # Ctrl-C reaches the whole process group; the run itself decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_threads(threads)
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    """A run that is killed takes its workers with it; they would hold its pipes and memory for ever."""
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(1)
