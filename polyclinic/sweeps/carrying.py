"""How the runs of a sweep are carried out: which of them finished before, and the others here or in several processes.

How one run is made is the caller's function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError, why
from polyclinic.files import locked
from polyclinic.runs.folder import Run
from polyclinic.sim.workers import one_process
from polyclinic.sweeps import IMPORTED_ONCE
from polyclinic.sweeps.plan import Planned, identity, in_order

#: Carries out one run and returns its folder; the second argument is the folder of a run that goes on.
Execute = Callable[[RunConfig, Path | None], Path]


@dataclass(frozen=True)
class Outcome:
    """What became of a planned run: its folder, or why it failed."""

    planned: Planned
    run: Run | None = None
    error: str = ""


class Watch:
    """Who watches a sweep. Every method does nothing; a subclass has those that it wants."""

    def on_begin(self, total: int, finished: int) -> None:
        """``finished`` of ``total`` runs were there before."""

    def on_run(self, planned: Planned) -> None:
        """A run begins, or goes on."""

    def on_outcome(self, outcome: Outcome) -> None:
        """A run finished or failed."""


def carry_out(
    runs: Sequence[Planned], folder: Path, execute: Execute, jobs: int = 1, watch: Watch | None = None
) -> list[Outcome]:
    """Carry out the runs that have not finished in ``folder``, and return what became of all of them, in their order.

    A run that finished is recognised by its configuration and is not repeated. One that was broken off goes on from its
    checkpoint, or begins anew where it has none. A run that fails does not stop the others.

    Args:
        runs: Their configurations have ``folder`` as their ``out``.
        folder: The folder of all runs, made if there is none.
        execute: Carries out a run, or goes on with one in a folder, and returns its folder. With several jobs, a function that
            another process can import.
        jobs: Runs at once, each in a process of its own; 1 runs them in this process.
        watch: Who watches; nobody by default.

    Raises:
        ConfigError: Another process carries out a sweep in ``folder``, or nothing can be written there.
        KeyboardInterrupt: Ctrl-C; a note says how to go on.
    """
    watch, outcomes = watch or Watch(), dict[str, Outcome]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Configuration key 'out' has the value {str(folder)!r}, where no folder can be made: {error}."
        ) from None
    planned = {identity(run.config): run for run in runs}
    with locked(
        folder / "sweep.held", f"Another process carries out a sweep in {folder}; wait for its end, or stop it."
    ):
        before = _runs_in(folder)
        outcomes |= {key: Outcome(planned[key], run) for key, run in before.items() if key in planned and run.finished}
        watch.on_begin(len(runs), len(outcomes))
        todo = {
            key: (run.config, _checkpoint(before.get(key)))
            for run in in_order(runs) if (key := identity(run.config)) not in outcomes
        }  # fmt: skip
        calls = _calls_here if jobs == 1 else _calls_in_processes(jobs)
        try:
            for key, result in calls(todo, execute, lambda key: watch.on_run(planned[key])):
                failed = isinstance(result, str)
                outcomes[key] = Outcome(
                    planned[key], None if failed else Run(Path(result)), str(result) if failed else ""
                )
                watch.on_outcome(outcomes[key])
        except KeyboardInterrupt as stop:
            stop.__notes__ = [
                f"{len(outcomes)} of {len(runs)} runs are done; the same command goes on with the others."
            ]
            raise
    return [outcomes[key] for key in planned]


def _runs_in(folder: Path) -> dict[str, Run]:
    """By identity the runs in a folder; of several that are the same one that finished, where there is one."""
    runs: dict[str, Run] = {}
    for run in Run.all_in(folder):
        with suppress(PolyclinicError):  # a configuration of another version
            key = identity(run.config())
            if key not in runs or not runs[key].finished:
                runs[key] = run
    return runs


def _checkpoint(run: Run | None) -> Path | None:
    """The folder of a run that can go on from its checkpoint."""
    if run is None:
        return None
    try:
        run.check_unfinished()
    except ConfigError:
        return None
    return run.path


Todo = Mapping[str, tuple[RunConfig, Path | None]]
#: By identity the run's folder or, as text, why it failed.
Results = Iterator[tuple[str, Path | str]]


def _calls_here(todo: Todo, execute: Execute, started: Callable[[str], None]) -> Results:
    for key, arguments in todo.items():
        started(key)
        yield key, _attempt(execute, *arguments)


def _calls_in_processes(jobs: int) -> Callable[[Todo, Execute, Callable[[str], None]], Results]:
    """Each job has a process of its own, which is made anew after a run that took it down."""

    def calls(todo: Todo, execute: Execute, started: Callable[[str], None]) -> Results:
        pools: dict[int, ProcessPoolExecutor] = {}

        def call(key: str) -> Path | str:
            job = threading.get_ident()
            pool = pools.get(job) or pools.setdefault(job, one_process((*IMPORTED_ONCE, execute.__module__)))
            started(key)
            try:
                return pool.submit(_attempt, execute, *todo[key]).result()
            except BrokenProcessPool:
                del pools[job]
                return "its process was killed, perhaps for want of memory"

        threads = ThreadPoolExecutor(jobs)
        try:
            waiting = {threads.submit(call, key): key for key in todo}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for pool in list(pools.values()):
                for process in list((pool._processes or {}).values()):
                    process.kill()  # on Ctrl-C; what it was at goes on from its checkpoint
                pool.shutdown(cancel_futures=True)

    return calls


def _attempt(execute: Execute, config: RunConfig, goes_on: Path | None) -> Path | str:
    """The run's folder or, as text, why it failed."""
    try:
        return execute(config, goes_on)
    except PolyclinicError as error:
        return str(error)
    except Exception as error:
        return why(error)
