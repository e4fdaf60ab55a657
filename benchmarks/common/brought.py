"""Models that users bring, made-up patients for them, and our training of them at many hospitals.

``python -m benchmarks.common.brought NAME --sites S --rounds R [--way plain]`` prints one JSON object: the processor's
seconds of each round of all hospitals.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.common.tables import CLIP, LEARNING_RATE, NOISE, PATIENTS, RATE
from polyclinic.ehr.encoding import feature_slices
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.models.resnet import tabular_resnet
from polyclinic.models.sequences import gru, transformer
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.training import classification
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays

STEPS = 4  # a round
SIDE = 28


def _schema(*columns: dict[str, object]) -> Schema:
    label = {"name": "died", "kind": "binary", "role": "label"}
    return Schema.from_dict({"name": "brought", "unit": "record", "columns": [*columns, label]})


#: 12 numbers and 5 columns of 6 categories; 4 values at 8 visits and 4 that stay.
TABLE = _schema(
    *({"name": f"x{i}", "kind": "continuous", "bounds": [-6.0, 6.0]} for i in range(12)),
    *({"name": f"c{i}", "kind": "categorical", "categories": [*"abcdef"]} for i in range(5)),
)
VISITS = _schema(
    *({"name": f"x{i}", "kind": "continuous", "bounds": [-6.0, 6.0]} for i in range(4)),
    *({"name": f"t{i}", "kind": "trajectory", "steps": 8, "bounds": [-6.0, 6.0]} for i in range(4)),
)


def width(schema: Schema) -> int:
    return max(at.stop for _, at in feature_slices(schema))


def cnn() -> nn.Module:
    """The network of Opacus' own example of pictures, for two classes: 25,746 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip


def wide_mlp() -> nn.Module:
    """A perceptron 64-960-960-2 with ReLU: 986,882 parameters."""
    return nn.Sequential(nn.Linear(64, 960), nn.ReLU(), nn.Linear(960, 960), nn.ReLU(), nn.Linear(960, 2))


#: By name, a function that makes the model, and the numbers of a row.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "tabular-resnet": (partial(tabular_resnet, width(TABLE), 2, TABLE, (32,)), width(TABLE)),
    "gru": (partial(gru, width(VISITS), 2, VISITS, (32,)), width(VISITS)),
    "transformer": (partial(transformer, width(VISITS), 2, VISITS, (32,)), width(VISITS)),
    "cnn": (cnn, SIDE * SIDE),
    "wide-mlp": (wide_mlp, 64),
}


def rows(name: str, site: int) -> Rows:
    """The hospital's patients, one row each."""
    features, rng = MODELS[name][1], generator(0, "brought", site)
    x = rng.normal(size=(PATIENTS, features)).astype(np.float32)
    for column, at in feature_slices(TABLE) if name == "tabular-resnet" else ():
        if column.kind == "categorical":
            x[:, at] = np.eye(at.stop - at.start)[rng.integers(0, at.stop - at.start, PATIENTS)]
    return Rows(x, (x[:, :4].sum(1) > 0).astype(np.int64), np.arange(PATIENTS), PATIENTS)


def trained(name: str, sites: int, rounds: int, dp: bool) -> list[float]:
    """The processor's seconds of each round: every hospital takes its steps from the model, and the models are averaged."""
    build, tables = MODELS[name][0], [rows(name, site) for site in range(sites)]
    settings = TrainSettings(RATE, STEPS, LEARNING_RATE, CLIP, NOISE if dp else None)
    arrays: Arrays = {key: value.numpy() for key, value in initialise(build, 0).items()}
    seconds = []
    for turn in range(rounds):
        began = time.process_time()
        work = [
            SiteWork(table, *(keyed_stream(0, what, site, turn) for what in ("batches", "noise")), float(PATIENTS))
            for site, table in enumerate(tables)
        ]
        updates = classification.train(build, arrays, work, settings)
        arrays = {key: np.mean([update.arrays[key] for update in updates], axis=0) for key in arrays}
        seconds.append(time.process_time() - began)
    return seconds


def command(measured: Callable[[str, int, int, str], list[float]], ways: tuple[str, ...]) -> None:
    """Read the arguments, run ``measured`` and print its seconds as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--way", choices=ways, default=ways[0])
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = measured(given.name, given.sites, given.rounds, given.way)
    sys.stdout.write(json.dumps({"seconds": found}) + "\n")


if __name__ == "__main__":
    command(lambda name, sites, rounds, way: trained(name, sites, rounds, way == "dp"), ("dp", "plain"))
