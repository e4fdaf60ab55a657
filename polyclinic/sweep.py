"""A sweep: which runs the product of some keys' values asks for, how they are carried out, and the tables of their results.

``plan`` is a pure function from keys to configurations. ``carry_out`` runs what has not finished; how one run is made is its
caller's function. ``results`` and ``combine`` make the tables, of what the runs' folders hold.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from polyclinic.config import SECTIONS, RunConfig
from polyclinic.config.keys import flat_keys
from polyclinic.errors import ConfigError, PolyclinicError, why
from polyclinic.evaluation.intervals import repeated
from polyclinic.files import NewFile, locked, write_files
from polyclinic.runs.folder import Run
from polyclinic.runs.summary import Metrics
from polyclinic.sim.workers import one_process
from polyclinic.spreadsheets import as_text

Value = bool | int | float | str
#: Settings of which each run has one: keys and their values, of one key or of several that go together.
Axis = Sequence[Mapping[str, Any]]
#: Carries out one run and returns its folder; the second argument is the folder of a run that goes on.
Execute = Callable[[RunConfig, Path | None], Path]
POOLED = "pooled"
#: Keys whose values are repetitions of one combination.
_REPEATED = ("seed",)


@dataclass(frozen=True)
class Planned:
    """One run of a sweep.

    values: The values of the keys that vary, by key, without those by which a combination is repeated.
    config: The whole configuration, which holds the seed.
    """

    values: Mapping[str, Value]
    config: RunConfig

    @property
    def combination(self) -> str:
        """The values in words."""
        return ", ".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def repetition(self) -> dict[str, Value]:
        """Which repetition of its combination the run is."""
        return {key: self.config.value(key) for key in _REPEATED}

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in {**self.values, **self.repetition}.items())


@dataclass(frozen=True)
class Outcome:
    """What became of a planned run: its folder, or why it failed."""

    planned: Planned
    run: Run | None = None
    error: str = ""


@dataclass(frozen=True)
class Combination:
    """What the runs with the same values of the keys that vary come to.

    runs: How many finished.
    estimates: By hospital (or ``pooled``) and metric what ``intervals.repeated`` makes of them.
    """

    values: Mapping[str, Value]
    runs: int
    estimates: Mapping[tuple[str, str], dict[str, float | None]]

    @property
    def pooled(self) -> dict[str, dict[str, float | None]]:
        """By metric the estimates over all hospitals: of ``epsilon`` and ``seconds``, then of what held-out patients measure."""
        return {metric: estimate for (site, metric), estimate in self.estimates.items() if site == POOLED}


@dataclass(frozen=True)
class Sweep:
    """A sweep that was carried out.

    folder: Of the runs and of the tables.
    table: A row a run (``results``).
    combinations: What the repetitions of each combination come to, in their order.
    """

    folder: Path
    outcomes: Sequence[Outcome]
    table: pd.DataFrame
    combinations: Sequence[Combination]

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each combination, hospital (or ``pooled``) and metric: the values that vary and the estimate."""
        return pd.DataFrame(
            {**each.values, "site": site, "metric": metric, **estimate}
            for each in self.combinations for (site, metric), estimate in each.estimates.items()
        )  # fmt: skip

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.run is None]


class Watch:
    """Who watches a sweep. Every method does nothing; a subclass has those that it wants."""

    def begun(self, total: int, finished: int) -> None:
        """``finished`` of ``total`` runs were there before."""

    def started(self, planned: Planned) -> None:
        """A run begins, or goes on."""

    def ended(self, outcome: Outcome) -> None:
        """A run finished or failed."""


def plan(given: Mapping[str, Any], axes: Sequence[Axis], seeds: int = 1) -> list[Planned]:
    """The runs of a sweep: each setting of each axis with each of the others, the last axis changing fastest, and then seeds.

    Args:
        given: Configuration keys of all runs, as ``RunConfig.build`` takes them.
        axes: The settings of each key that varies, or of several keys that go together.
        seeds: Repetitions of each combination, whose seeds count up from the seed of ``given``.

    Raises:
        ConfigError: A combination is impossible, which the message names; a key varies twice; two runs are the same.

    >>> runs = plan({"rounds": 2}, [[{"privacy.epsilon": 1}, {"privacy.epsilon": 3}]], seeds=2)
    >>> [str(run) for run in runs][:2]
    ['privacy.epsilon=1.0, seed=0', 'privacy.epsilon=1.0, seed=1']
    """
    if seeds < 1:
        raise ConfigError(f"The number of seeds is {seeds}; it must be 1 or more.")
    flat = [[flat_keys(setting, SECTIONS) for setting in axis] for axis in axes]
    keys = [key for axis in flat for key in dict.fromkeys(key for setting in axis for key in setting)]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"Configuration key {twice[0]!r} varies twice; give all of its values at once.")
    if seeds > 1 and "seed" in keys:
        raise ConfigError("Configuration key 'seed' varies and a number of seeds is given; give one of them.")
    runs: dict[str, Planned] = {}
    for settings in product(*flat):
        chosen = {key: value for setting in settings for key, value in setting.items()}
        with _named(chosen):
            config = RunConfig.build(given, chosen)
        for number in range(seeds):
            repetition = config.changed({"seed": config.seed + number})
            run = Planned({key: config.value(key) for key in keys if key not in _REPEATED}, repetition)
            if runs.setdefault(_identity(repetition), run) is not run:
                raise ConfigError(f"Two runs of the sweep are the same, of {run}; give each value once.")
    return list(runs.values())


def check(runs: Sequence[Planned], checked: Callable[[RunConfig], object]) -> None:
    """Call ``checked`` with one run of each combination. Raises its ConfigError with the combination before it."""
    for run in {run.combination: run for run in reversed(runs)}.values():
        with _named(run.values):
            checked(run.config)


def sweep(runs: Sequence[Planned], execute: Execute, jobs: int = 1, watch: Watch | None = None) -> Sweep:
    """Carry out the runs in their configurations' ``out``, and write the tables there. Arguments and errors as ``carry_out``."""
    folder = Path(runs[0].config.out).expanduser().resolve()
    outcomes = carry_out(runs, folder, execute, jobs, watch)
    table = results(outcomes)
    found = Sweep(folder, outcomes, table, combine(table, runs))
    write_tables(found)
    return found


def carry_out(
    runs: Sequence[Planned], folder: Path, execute: Execute, jobs: int = 1, watch: Watch | None = None
) -> list[Outcome]:
    """Carry out the runs that have not finished in ``folder``, and return what became of all of them, in their order.

    A run that finished is recognised by its configuration and is not repeated. One that was broken off goes on from its
    checkpoint, or begins anew where it has none. A run that fails does not stop the others.

    Args:
        runs: Their configurations have ``folder`` as their ``out``.
        execute: With several jobs, a function that another process can import.
        jobs: Runs at once, each in a process of its own; 1 runs them in this process.

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
    planned = {_identity(run.config): run for run in runs}
    with locked(
        folder / "sweep.held", f"Another process carries out a sweep in {folder}; wait for its end, or stop it."
    ):
        before = _runs_in(folder)
        outcomes |= {key: Outcome(planned[key], run) for key, run in before.items() if key in planned and run.finished}
        watch.begun(len(runs), len(outcomes))
        todo = {key: (run.config, _checkpoint(before.get(key))) for key, run in planned.items() if key not in outcomes}
        calls = _calls_here if jobs == 1 else _calls_in_processes(jobs)
        try:
            for key, result in calls(todo, execute, lambda key: watch.started(planned[key])):
                failed = isinstance(result, str)
                outcomes[key] = Outcome(
                    planned[key], None if failed else Run(Path(result)), str(result) if failed else ""
                )
                watch.ended(outcomes[key])
        except KeyboardInterrupt as stop:
            stop.__notes__ = [
                f"{len(outcomes)} of {len(runs)} runs are done; the same command goes on with the others."
            ]
            raise
    return [outcomes[key] for key in planned]


def results(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row a run: the values that vary, the seed, ``run`` (its folder's name), ``status``, and as far as it went ``epsilon``,
    ``seconds``, the pooled metrics by their names and each hospital's as ``auroc@HOSPITAL``."""
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = {**outcome.planned.values, **outcome.planned.repetition}
        if outcome.run is None:
            rows.append(row | {"run": None, "status": f"failed: {outcome.error}"})
            continue
        summary, sites = outcome.run.summary(), measured(outcome.run)
        status = f"stopped: {summary.stopped}" if summary.stopped else "finished"
        row |= {
            "run": outcome.run.name,
            "status": status,
            "epsilon": summary.privacy.epsilon,
            "seconds": summary.seconds,
        }
        row |= sites.pop(POOLED)
        rows.append(row | {f"{metric}@{site}": value for site, own in sites.items() for metric, value in own.items()})
    return pd.DataFrame(rows)


def measured(run: Run) -> dict[str, dict[str, float]]:
    """The last model's metrics by hospital, and of all held-out patients together as ``pooled``; undefined ones are left out."""
    summary = run.summary()
    judged = summary.evaluation or {}
    estimates = {POOLED: judged.get(POOLED) or {}, **(judged.get("sites") or {})}
    found = {}
    for site, row in {POOLED: summary.metrics.pooled, **summary.metrics.sites}.items():
        exact = row.model_dump(include=set(Metrics.model_fields) - {"released"}, exclude_none=True)
        values = {name: estimate["value"] for name, estimate in estimates.get(site, {}).items()} | exact
        found[site] = {name: float(value) for name, value in values.items() if value is not None}
    return found


def combine(table: pd.DataFrame, runs: Sequence[Planned]) -> list[Combination]:
    """What the repetitions of each combination come to.

    Args:
        table: Of ``results``.
        runs: The same runs, in the same order.
    """
    metrics = list(table.columns)[list(table.columns).index("status") + 1 :]
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run.combination, []).append(place)
    found = []
    for several in places.values():
        estimates = {}
        for column in metrics:
            metric, _, site = column.partition("@")
            if values := table[column].iloc[several].dropna().tolist():
                estimates[site or POOLED, metric] = repeated(values)
        found.append(Combination(runs[several[0]].values, int(table["run"].iloc[several].count()), estimates))
    return found


def write_tables(sweep: Sweep) -> None:
    """``sweep.csv`` and ``sweep.parquet`` of the runs, ``sweep-summary.csv`` and ``sweep-summary.parquet`` of the summary."""
    files = {}
    for name, frame in (("sweep", sweep.table), ("sweep-summary", sweep.summary)):
        text = frame.rename(columns=as_text).map(as_text).to_csv(index=False)
        files[sweep.folder / f"{name}.csv"] = NewFile(text)
        files[sweep.folder / f"{name}.parquet"] = NewFile(partial(frame.to_parquet, index=False))
    write_files(files)


@contextmanager
def _named(values: Mapping[str, Any]) -> Iterator[None]:
    """An impossible configuration is said to be that of these values."""
    try:
        yield
    except ConfigError as error:
        said = ", ".join(f"{key}={value}" for key, value in values.items())
        raise ConfigError(f"With {said}: {error}" if said else str(error)) from None


def _identity(config: RunConfig) -> str:
    """What tells runs apart: all keys that decide a result, and how it is judged."""
    judged = {key: value for key, value in config.flat().items() if key.startswith("evaluation.")}
    return json.dumps(config.decisive() | judged, sort_keys=True)


def _runs_in(folder: Path) -> dict[str, Run]:
    """By identity the runs in a folder; of several that are the same one that finished, where there is one."""
    known: dict[str, Run] = {}
    for run in Run.all_in(folder):
        with suppress(PolyclinicError):  # a configuration of another version
            key = _identity(run.config())
            if key not in known or not known[key].finished:
                known[key] = run
    return known


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
            pool = pools.get(job) or pools.setdefault(job, one_process((execute.__module__,)))
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
