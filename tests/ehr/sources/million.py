"""A hospital of a million patients in a child process: enrol, statistics and one round, and the memory that it took.

Called as ``python -m tests.ehr.sources.million HOSPITAL``; prints {"peak_bytes", "steps", "seconds"}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.models.tabular import initialise
from polyclinic.programs import program_of
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.messages import RECORD, STANDARDISER, Request, StatisticsRequest, TrainRequest
from tests.memory import peak_bytes

CONFIG = RunConfig(training={"optimizer": "sgd"})
SCHEMA = Schema(
    name="million",
    columns=(
        Column(name="id", kind="integer", role="patient_id"),
        *(Column(name=f"lab{i}", kind="continuous", bounds=(0, 100), nullable=i % 2 == 0) for i in range(18)),
        *(Column(name=f"count{i}", kind="integer", bounds=(0, 50)) for i in range(4)),
        *(Column(name=f"flag{i}", kind="binary") for i in range(3)),
        *(Column(name=f"ward{i}", kind="categorical", categories=("a", "b", "c", "d")) for i in range(3)),
        Column(name="died", kind="binary", role="label"),
    ),
)


def asked(request: Request, kind: str, hospital: Path, **arrays: dict[str, np.ndarray]) -> RecordDict:
    content = RecordDict({RECORD: request.record()})
    for name, values in arrays.items():
        content[name] = ArrayRecord({key: Array(value) for key, value in values.items()})
    context = Context(1, 1, {"hospital": str(hospital)}, RecordDict(), CONFIG.flat())
    reply = app(Message(content, 1, kind), context)
    assert reply.has_content(), reply.error
    return reply.content


def main(hospital: Path) -> None:
    began = time.monotonic()
    LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
    asked(StatisticsRequest(run="r", site=0, noise_multiplier=20.0), "query.statistics", hospital)
    width = len(feature_names(SCHEMA))
    arrays = {
        "arrays": {name: value.numpy() for name, value in initialise(program_of(CONFIG).builder(SCHEMA), 0).items()},
        STANDARDISER: {"mean": np.full(width, 0.1), "std": np.full(width, 0.5)},
    }
    task = TrainRequest(run="r", site=0, round=1, noise_multiplier=5.0, public_patients=700_000.0, learning_rate=0.5)
    metrics = asked(task, "train", hospital, **arrays)["metrics"]
    peak = peak_bytes()
    print(json.dumps({"peak_bytes": peak, "steps": metrics["steps"], "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
