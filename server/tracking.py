"""A run as its tracker is told of it: the rows of its rounds, as rounds.csv has them, and its configuration; nothing else.

A track holds only rounds that a checkpoint holds, so that a resumed run goes on with the same one. A tracker that fails
does not stop a run: it is asked no more, and the run's notes say so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from logging import WARNING
from pathlib import Path
from typing import Any
from zlib import crc32

from flwr.common.logger import log

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.evaluation.metrics import REPLIED
from polyclinic.files import write_file
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.runs.folder import Run
from polyclinic.runs.json_text import json_text
from polyclinic.server.exchange.sites import Site
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState
from polyclinic.server.tracks import Track, check_tracker, open_track
from polyclinic.training.stacked.engines import Engine

_NO_METRICS = ("round", "site", "seconds")


@dataclass(frozen=True)
class _Kept:
    """What of a track outlives a process: its key at the tracker, its last round, and why it was given up."""

    key: str = ""
    round: int = 0
    problem: str = ""


def tracker_note(folder: Path) -> list[str]:
    """The sentence of a run's notes on a tracker that was given up; none where all went well."""
    problem = _read(folder).problem
    return [problem] if problem else []


class Tracked(Progress):
    """Tells a tracker what ``watcher`` is told. Opened before any hospital is asked for anything."""

    def __init__(self, watcher: Progress, config: RunConfig, folder: Path, resume: bool) -> None:
        """Raises ConfigError where a new run's tracker cannot begin; a resumed one then goes on without it."""
        self._watcher, self._config, self._folder = watcher, config, folder
        self._track: Track | None = None
        self._kept, self._before, self._first = _read(folder), math.inf, True
        if not config.tracking.tool:
            return
        check_tracker(config)
        try:
            self._track = open_track(config, folder, self._kept.key)
            self._keep(key=self._track.key, problem="")
        except Exception as error:
            if not resume:
                raise ConfigError(
                    f"Configuration key 'tracking.tool' has the value {config.tracking.tool!r}, which cannot begin: "
                    f"{_why(error, config)}."
                ) from None
            self._give_up(error)

    def opened(self, folder: Path) -> None:
        self._watcher.opened(folder)

    def doing(self, what: str) -> None:
        self._watcher.doing(what)

    def stopping(self) -> bool:
        return self._watcher.stopping()

    def started(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        self._watcher.started(config, sites, privacy, engine)

    def round_done(self, config: RunConfig, state: RunState) -> None:
        self._before = min(self._before, state.round - 1)
        if state.round % config.checkpoints.every == 0:
            self.tell(state)
        self._watcher.round_done(config, state)

    def dropped(self, dropouts: Sequence[Mapping[str, Any]]) -> None:
        self._watcher.dropped(dropouts)

    def tell(self, state: RunState) -> None:
        """What the track does not have of the state's rounds; of one that is done again, what is true now."""

        def log(track: Track) -> None:
            told = min(self._kept.round, self._before) if self._first else self._kept.round
            rows = [row for row in state.rows if row["round"] > told]
            for number, found in groupby(rows, key=lambda row: int(row["round"])):
                values = numbers(list(found))
                values |= _of_strategy(state, number)
                if number == state.round and state.hospital_epsilon is not None:
                    values["central-epsilon"] = state.hospital_epsilon
                track.log(number, values, self._first)
                self._first = False
                self._keep(round=number)

        self._ask(log)

    def close(self, epsilon: float | None) -> None:
        """The run is whole; ``epsilon``: a patient's, over all the hospitals that may have their records."""
        if epsilon is not None:
            self._ask(lambda track: track.log(self._kept.round, {"privacy-epsilon": epsilon}, False))
        self._ask(lambda track: track.close("FINISHED"))

    def stopped(self) -> None:
        """The run was stopped, and may go on."""
        self._ask(lambda track: track.close("KILLED"))

    def _ask(self, what: Callable[[Track], None]) -> None:
        if self._track is not None:
            try:
                what(self._track)
            except Exception as error:  # whatever a server or a full disk raises
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._track = None
        self._keep(
            problem=f"The tracker {self._config.tracking.tool} failed after round {self._kept.round} and was told no more: "
            f"{_why(error, self._config)}. This folder has all of it."
        )
        log(WARNING, "%s", self._kept.problem)

    def _keep(self, **changes: Any) -> None:
        self._kept = _Kept(**asdict(self._kept) | changes)
        write_file(Run(self._folder).tracker_file, json_text(asdict(self._kept)))


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The finite numbers of one round's rows by ``METRIC/SITE``, and the round's ``seconds``."""
    found = {
        f"{metric.replace('_', '-')}/{_named(row['site'])}": float(value)
        for row in rows for metric, value in row.items()
        if metric not in _NO_METRICS and isinstance(value, int | float) and math.isfinite(value)
    }  # fmt: skip
    seconds = [float(row["seconds"]) for row in rows if row.get("seconds") is not None]
    return found | ({"seconds": seconds[0]} if seconds else {})


def _of_strategy(state: RunState, number: int) -> dict[str, float]:
    """The finite numbers of the strategy's own that it returned of a round, by ``strategy-PHASE/NAME``; ``evaluate-fn``'s are of
    the phase ``server``.
    """
    found: Mapping[str, Any] = next((one for one in reversed(state.strategy_metrics) if one["round"] == number), {})
    return {
        f"strategy-{phase}/{_named(name)}": float(value)
        for phase in ("train", "evaluate", "server") for name, value in found.get(phase, {}).items()
        if name not in REPLIED and isinstance(value, int | float) and math.isfinite(value)
    }  # fmt: skip


def _named(site: str) -> str:
    """A name in the letters that all trackers take; where that changes it, with what tells it from others."""
    clean = re.sub(r"[^A-Za-z0-9_. -]", "_", site)
    return site if clean == site else f"{clean}-{crc32(site.encode()):08x}"


def _read(folder: Path) -> _Kept:
    try:
        return _Kept(**json.loads(Run(folder).tracker_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _Kept()


def _why(error: Exception, config: RunConfig) -> str:
    """One line; of an address from the environment, which may hold a password, only the kind of failure."""
    told = (
        f": {' '.join(str(error).split())[:200].rstrip('.')}"
        if config.tracking.place or config.tracking.tool != "mlflow"
        else ""
    )
    return f"{type(error).__name__}{told}"
