"""The trackers by name: where a run's numbers can be shown beside those of other runs. Their packages are optional."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError

Plain = Mapping[str, bool | int | float | str]
_MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}
#: What of a configuration is told to nobody: places on this machine.
_UNTOLD = (
    "out", "resume", "ray-address", "tracking.place", "data.schema-file", "data.imputer-file", "simulation.availability",
)  # fmt: skip
_MLFLOW_AT_ONCE = 100, 1000  # parameters and metrics of one call, as the server allows


class Track(Protocol):
    """One run at a tracker. Any method may raise anything."""

    #: By which the tracker finds the run again; empty where its place does.
    key: str

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        """Numbers of one round. ``first``: of this process; what the track has of this round and later is void."""

    def close(self, status: str) -> None:
        """``status``: FINISHED, or KILLED where the run can go on."""


def check_tracker(config: RunConfig) -> None:
    """Raises ConfigError for a tracker whose package is missing, or a place that holds a password; contacts nobody."""
    if not config.tracking.tool:
        return
    if find_spec(_MODULES[config.tracking.tool]) is None:
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
    """The run's track, begun where ``key`` is empty. Raises whatever the tracker does where its place cannot be used."""
    told = {name: value for name, value in config.flat().items() if name not in _UNTOLD}
    if config.tracking.tool == "tensorboard":
        place = (
            Path(config.tracking.place).expanduser() / folder.name if config.tracking.place else folder / "tensorboard"
        )
        return _TensorBoard(place, told, key)
    default = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}"
    return _Mlflow(config.tracking.place or default, folder.name, told, key)


class _TensorBoard:
    """Event files, written here and now: a writer with a thread of its own would hide that the disk is full."""

    def __init__(self, place: Path, told: Plain, key: str) -> None:
        self.key = "begun"
        self._event = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        place.mkdir(parents=True, exist_ok=True)
        self._path = place / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}"
        self._write([self._event.Event(wall_time=time.time(), file_version="brain.Event:2")])
        if not key:
            self._write([self._event.Event(wall_time=time.time(), step=0, summary=self._text(told))])

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        log = self._event.SessionLog
        starts = (
            [self._event.Event(wall_time=time.time(), step=step, session_log=log(status=log.START))] if first else []
        )
        found = self._summary(value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write([*starts, self._event.Event(wall_time=time.time(), step=step, summary=found)])

    def close(self, status: str) -> None:
        pass

    def _write(self, events: Sequence[Any]) -> None:
        with self._path.open("ab") as file:
            records = self._records(file)
            for event in events:
                records.write(event.SerializeToString())

    def _text(self, told: Plain) -> Any:
        tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto
        kind = import_module("tensorboard.compat.proto.types_pb2").DT_STRING
        metadata = import_module("tensorboard.plugins.text.metadata").create_summary_metadata("configuration", "")
        rows = "\n".join(["| key | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in told.items())])
        value = self._summary.Value(
            tag="configuration", metadata=metadata, tensor=tensor(dtype=kind, string_val=[rows.encode()])
        )
        return self._summary(value=[value])


class _Mlflow:
    """A run of the experiment ``polyclinic``; no user, host, source file or artifact is told."""

    def __init__(self, place: str, name: str, told: Plain, key: str) -> None:
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
        found = self._client.get_experiment_by_name("polyclinic")
        experiment = found.experiment_id if found else self._client.create_experiment("polyclinic")
        self.key = self._client.create_run(experiment, run_name=name).info.run_id
        parameters = [self._entities.Param(key, str(value)) for key, value in told.items()]
        for some in _parts(parameters, _MLFLOW_AT_ONCE[0]):
            self._client.log_batch(self.key, params=some)

    def log(self, step: int, values: Mapping[str, float], first: bool) -> None:
        now = int(1000 * time.time())
        for some in _parts(
            [self._entities.Metric(tag, value, now, step) for tag, value in values.items()], _MLFLOW_AT_ONCE[1]
        ):
            self._client.log_batch(self.key, metrics=some)

    def close(self, status: str) -> None:
        self._client.set_terminated(self.key, status)


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(values), size):
        yield values[begin : begin + size]
