"""Which runs a sweep has: a pure function from configuration keys and their values to configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from polyclinic.config import SECTIONS, RunConfig
from polyclinic.config.keys import flat_keys
from polyclinic.errors import ConfigError
from polyclinic.sim.threads import cores

Value = bool | int | float | str
#: Settings of which each run has one: keys and their values, of one key or of several that go together.
Axis = Sequence[Mapping[str, Any]]
#: Keys whose values are repetitions of one combination.
REPEATED = ("seed", "split.seed", "split.fold")
# For fewer runs no process of their own is started, which takes as long as a few of them.
_RUNS_A_JOB = 8


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
        return {key: self.config.value(key) for key in REPEATED}

    def __str__(self) -> str:
        fold = {"split.fold": self.config.split.fold} if self.config.split.folds else {}
        return ", ".join(f"{key}={value}" for key, value in {**self.values, "seed": self.config.seed, **fold}.items())


def plan(
    given: Mapping[str, Any], axes: Sequence[Axis], seeds: int = 1, folds: int = 0, same_split: bool = False
) -> list[Planned]:
    """The runs of a sweep: each setting of each axis with each of the others, the last axis changing fastest, then seeds, then
    folds.

    Args:
        given: Configuration keys of all runs, as ``RunConfig.build`` takes them.
        axes: The settings of each key that varies, or of several keys that go together.
        seeds: Repetitions of each combination, whose seeds count up from the seed of ``given``.
        folds: With 2 or more, each repetition is a run for each fold.
        same_split: All seeds hold out the same patients. Otherwise each of several seeds is the seed of the split too, unless
            ``split.seed`` is given or patients are split by time.

    Raises:
        ConfigError: A combination is impossible, which the message names; a key varies twice; two runs are the same.

    Examples:
        >>> runs = plan({"rounds": 2}, [[{"privacy.epsilon": 1}, {"privacy.epsilon": 3}]], seeds=2)
        >>> [str(run) for run in runs][:2]
        ['privacy.epsilon=1.0, seed=0', 'privacy.epsilon=1.0, seed=1']
    """
    if seeds < 1:
        raise ConfigError(f"The number of seeds is {seeds}; it must be 1 or more.")
    if folds:
        given = {**flat_keys(given, SECTIONS), "split.folds": folds}
    flat = [[flat_keys(setting, SECTIONS) for setting in axis] for axis in axes]
    keys = [key for axis in flat for key in dict.fromkeys(key for setting in axis for key in setting)]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"Configuration key {twice[0]!r} varies twice; give all of its values at once.")
    for key, is_repeated in (("seed", seeds > 1), ("split.fold", folds > 0)):
        if is_repeated and key in keys:
            raise ConfigError(
                f"Configuration key {key!r} varies, and a number of seeds or folds says so too; give one."
            )
    runs: dict[str, Planned] = {}
    combinations = [{key: value for setting in some for key, value in setting.items()} for some in product(*flat)]
    configs = []
    for chosen in combinations:
        with _named(chosen):
            configs.append(RunConfig.build(given, chosen))
    # Runs that are compared have one optimizer: where some cannot have Newton steps, none has.
    if "training.optimizer" not in keys and not all(config.optimizer_is_open for config in configs):
        configs = [config.taking("sgd") for config in configs]
    for config in configs:
        values = {key: config.value(key) for key in keys if key not in REPEATED}
        draws_splits = seeds > 1 and not same_split and config.split.seed == config.split.time == ""
        for seed, fold in product(range(config.seed, config.seed + seeds), range(folds) or [config.split.fold]):
            split_seed = str(seed) if draws_splits else config.split.seed
            run = Planned(values, config.with_values({"seed": seed, "split.seed": split_seed, "split.fold": fold}))
            if runs.setdefault(identity(run.config), run) is not run:
                raise ConfigError(f"Two runs of the sweep are the same, of {run}; give each value once.")
    return list(runs.values())


def usual_jobs(runs: Sequence[Planned]) -> int:
    """As many as keep the cores busy, where each takes so many runs that its start does not count."""
    busy = max(cores() if run.config.ray_address else run.config.workers for run in runs)
    return max(min(cores() // busy, len(runs) // _RUNS_A_JOB), 1)


def check(runs: Sequence[Planned], checked: Callable[[RunConfig], object]) -> None:
    """Call ``checked`` with one run of each combination. Raises its ConfigError with the combination before it."""
    for run in {run.combination: run for run in reversed(runs)}.values():
        with _named(run.values):
            checked(run.config)


def in_order(runs: Iterable[Planned]) -> list[Planned]:
    """Runs with one seed and one split after each other, so that who is at them deals and encodes the records once."""
    return sorted(runs, key=lambda run: tuple(run.repetition.values()))


def identity(config: RunConfig) -> str:
    """What tells runs apart: all keys that decide a result, and how it is judged."""
    judged = {key: value for key, value in config.flat().items() if key.startswith("evaluation.")}
    return json.dumps(config.decisive() | judged, sort_keys=True)


@contextmanager
def _named(values: Mapping[str, Any]) -> Iterator[None]:
    """An impossible configuration is said to be that of these values."""
    try:
        yield
    except ConfigError as error:
        settings = ", ".join(f"{key}={value}" for key, value in values.items())
        raise ConfigError(f"With {settings}: {error}" if settings else str(error)) from None
