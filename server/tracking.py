"""A run at a tracker, beside other runs: the rows of its rounds, as rounds.csv has them, and its configuration; nothing else.

Trackers' packages are optional. A track holds only rounds that a checkpoint holds, so that a resumed run goes on with the
same one. A tracker that fails does not stop a run: it is asked no more, and the run's notes say so.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
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
from polyclinic.training.stacked.engines import Engine

_NO_METRICS = ("round", "site", "seconds")
Plain = Mapping[str, bool | int | float | str]
#: What of a configuration is told to nobody: places on this machine.
_UNTOLD = (
    "out", "resume", "ray-address", "tracking.place", "data.schema-file", "data.imputer-file", "simulation.availability",
)  # fmt: skip
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000  # of one call, as MLflow's server allows


class Track(Protocol):
    """One run at a tracker. Any method may raise anything."""

    #: By which the tracker finds the run again; empty where its place does.
    key: str

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        """Logs the numbers of one round.

        Args:
            step: The round.
            values: The numbers by name.
            first: Whether it is the first of this process; what the track has of this round and later is then void.
        """

    def close(self, status: str) -> None:
        """``status``: FINISHED, or KILLED where the run can go on."""


def check_tracker(config: RunConfig) -> None:
    """Raises ConfigError for a tracker whose package is missing, or a place that holds a password; contacts nobody."""
    if not config.tracking.tool:
        return
    if find_spec(config.tracking.tool) is None:
        raise ConfigError(
            f"Configuration key 'tracking.tool' has the value {config.tracking.tool!r}, whose package is not installed; "
            "`pip install polyclinic[trackers]` brings it."
        )
    if urlsplit(config.tracking.place).password is not None:
        raise ConfigError(
            "Configuration key 'tracking.place' holds a password, which the run's folder would show; leave it out, and set "
            "MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, in the environment."
        )


def open_track(config: RunConfig, folder: Path, key: str) -> Track:
    """The run's track, begun where ``key`` is empty. Raises whatever the tracker does where its place cannot be used.

    Args:
        config: The run's configuration, with the keys ``tracking``.
        folder: The run's folder.
        key: By which the tracker finds the run again.
    """
    keys = {name: value for name, value in config.flat().items() if name not in _UNTOLD}
    if config.tracking.tool == "tensorboard":
        place = (
            Path(config.tracking.place).expanduser() / folder.name if config.tracking.place else folder / "tensorboard"
        )
        return _TensorBoard(place, keys, key)
    default = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}"
    return _Mlflow(config.tracking.place or default, folder.name, keys, key)


class _TensorBoard:
    """Event files, written here and now: a writer with a thread of its own would hide that the disk is full."""

    def __init__(self, place: Path, configuration: Plain, key: str) -> None:
        self.key = "begun"
        self._event = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        place.mkdir(parents=True, exist_ok=True)
        self._path = place / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}"
        self._write([self._event.Event(wall_time=time.time(), file_version="brain.Event:2")])
        if not key:
            self._write([self._event.Event(wall_time=time.time(), step=0, summary=self._text(configuration))])

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        log = self._event.SessionLog
        starts = (
            [self._event.Event(wall_time=time.time(), step=step, session_log=log(status=log.START))] if first else []
        )
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._write([*starts, self._event.Event(wall_time=time.time(), step=step, summary=summary)])

    def close(self, status: str) -> None:
        pass

    def _write(self, events: Sequence[Any]) -> None:
        with self._path.open("ab") as file:
            records = self._records(file)
            for event in events:
                records.write(event.SerializeToString())

    def _text(self, configuration: Plain) -> Any:
        tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto
        kind = import_module("tensorboard.compat.proto.types_pb2").DT_STRING
        metadata = import_module("tensorboard.plugins.text.metadata").create_summary_metadata("configuration", "")
        rows = "\n".join(
            ["| key | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in configuration.items())]
        )
        value = self._summary.Value(
            tag="configuration", metadata=metadata, tensor=tensor(dtype=kind, string_val=[rows.encode()])
        )
        return self._summary(value=[value])


class _Mlflow:
    """A run of the experiment ``polyclinic``; no user, host, source file or artifact is told."""

    def __init__(self, place: str, name: str, configuration: Plain, key: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before it is imported: it would tell its makers
        os.environ.setdefault(
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"
        )  # by default a dead server stops a run for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._entities = import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it sets its own as it is imported
        self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=place)
        if key:
            self.key = key
            self._client.update_run(key, status="RUNNING")
            return
        registered = self._client.get_experiment_by_name("polyclinic")
        experiment = registered.experiment_id if registered else self._client.create_experiment("polyclinic")
        self.key = self._client.create_run(experiment, run_name=name).info.run_id
        parameters = [self._entities.Param(key, str(value)) for key, value in configuration.items()]
        for begin in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self.key, params=parameters[begin : begin + _MOST_PARAMETERS])

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(tag, value, now, step) for tag, value in values.items()]
        for begin in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self.key, metrics=metrics[begin : begin + _MOST_METRICS])

    def close(self, status: str) -> None:
        self._client.set_terminated(self.key, status)


@dataclass(frozen=True)
class _Saved:
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
        self._saved, self._before, self._first = _read(folder), math.inf, True
        if not config.tracking.tool:
            return
        check_tracker(config)
        try:
            self._track = open_track(config, folder, self._saved.key)
            self._keep(key=self._track.key, problem="")
        except Exception as error:
            if not resume:
                raise ConfigError(
                    f"Configuration key 'tracking.tool' has the value {config.tracking.tool!r}, which cannot begin: "
                    f"{_why(error, config)}."
                ) from None
            self._give_up(error)

    def on_folder(self, folder: Path) -> None:
        self._watcher.on_folder(folder)

    def on_step(self, what: str) -> None:
        self._watcher.on_step(what)

    def is_stopping(self) -> bool:
        return self._watcher.is_stopping()

    def on_start(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: Engine | None
    ) -> None:
        self._watcher.on_start(config, sites, privacy, engine)

    def on_round(self, config: RunConfig, state: RunState) -> None:
        self._before = min(self._before, state.round - 1)
        if state.saved == state.round:
            self.tell(state)
        self._watcher.on_round(config, state)

    def on_dropouts(self, dropouts: Sequence[Mapping[str, Any]]) -> None:
        self._watcher.on_dropouts(dropouts)

    def tell(self, state: RunState) -> None:
        """What the track does not have of the state's rounds; of one that is done again, what is true now."""

        def log(track: Track) -> None:
            last_logged = min(self._saved.round, self._before) if self._first else self._saved.round
            rows = [row for row in state.rows if row["round"] > last_logged]
            for number, rows_of_round in groupby(rows, key=lambda row: int(row["round"])):
                values = numbers(list(rows_of_round))
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
            self._ask(lambda track: track.log(self._saved.round, {"privacy-epsilon": epsilon}, False))
        self._ask(lambda track: track.close("FINISHED"))

    def note_stop(self) -> None:
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
            problem=f"The tracker {self._config.tracking.tool} failed after round {self._saved.round} and was told no more: "
            f"{_why(error, self._config)}. This folder has all of it."
        )
        log(logging.WARNING, "%s", self._saved.problem)

    def _keep(self, **changes: Any) -> None:
        self._saved = _Saved(**asdict(self._saved) | changes)
        write_file(Run(self._folder).tracker_file, json_text(asdict(self._saved)))


def numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The finite numbers of one round's rows by ``METRIC/SITE``, and the round's ``seconds``."""
    values = {
        f"{metric.replace('_', '-')}/{_tracker_name(row['site'])}": float(value)
        for row in rows for metric, value in row.items()
        if metric not in _NO_METRICS and isinstance(value, int | float) and math.isfinite(value)
    }  # fmt: skip
    seconds = [float(row["seconds"]) for row in rows if row.get("seconds") is not None]
    return values | ({"seconds": seconds[0]} if seconds else {})


def _of_strategy(state: RunState, number: int) -> dict[str, float]:
    """The finite numbers of the strategy's own that it returned of a round, by ``strategy-PHASE/NAME``; ``evaluation.function``'s
    are of the phase ``server``.
    """
    metrics: Mapping[str, Any] = next(
        (entry for entry in reversed(state.strategy_metrics) if entry["round"] == number), {}
    )
    return {
        f"strategy-{phase}/{_tracker_name(name)}": float(value)
        for phase in ("train", "evaluate", "server") for name, value in metrics.get(phase, {}).items()
        if name not in REPLIED and isinstance(value, int | float) and math.isfinite(value)
    }  # fmt: skip


def _tracker_name(site: str) -> str:
    """A name in the letters that all trackers take; where that changes it, with what tells it from others."""
    clean = re.sub(r"[^A-Za-z0-9_. -]", "_", site)
    return site if clean == site else f"{clean}-{crc32(site.encode()):08x}"


def _read(folder: Path) -> _Saved:
    try:
        return _Saved(**json.loads(Run(folder).tracker_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _Saved()


def _why(error: Exception, config: RunConfig) -> str:
    """One line; of an address from the environment, which may hold a password, only the kind of failure."""
    reason = (
        f": {' '.join(str(error).split())[:200].rstrip('.')}"
        if config.tracking.place or config.tracking.tool != "mlflow"
        else ""
    )
    return f"{type(error).__name__}{reason}"
