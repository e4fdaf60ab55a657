"""Real patients of simulated hospitals, and synthetic ones of a finished run, in the same encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_of
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer, load
from polyclinic.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Table:
    """x: (n, F) encoded features, a missing cell at its column's centre (0).  y: (n,) classes."""

    x: Floats
    y: Ints


@dataclass(frozen=True, eq=False)
class Patients:
    """What hospitals train on, and who is held out of it: their rows one below the other."""

    layout: Layout
    train: Table
    test: Table


def hospitals_of(options: Mapping[str, Any]) -> list[Shard]:
    """The simulated hospitals of a run with these configuration keys, with the patients that it trains on."""
    config = RunConfig.build(dict(options))
    dataset = dataset_of(config)
    partitioner = config.partitioner or dataset.default_partitioner
    return load_shards(dataset, config.sites, partitioner, config.seed, config.alpha)


def real_patients(shards: Sequence[Shard]) -> Patients:
    """The patients of all the hospitals."""
    train, test = ([shard.train for shard in shards], [shard.test for shard in shards])
    return Patients(Layout.of(shards[0].schema), table_of(train), table_of(test))


def table_of(sides: Sequence[Rows]) -> Table:
    """The rows of several hospitals, one below the other."""
    x = np.concatenate([rows.x for rows in sides])
    return Table(np.nan_to_num(x, nan=0.0), np.concatenate([rows.y for rows in sides]))


def synthesizer_of(result: RunResult, layout: Layout) -> Synthesizer:
    """What the run draws rows by."""
    return load(result.folder.synthesizer_file, layout)


def synthetic(synthesizer: Synthesizer, rows: int, seed: int) -> tuple[pd.DataFrame, Table]:
    """``rows`` records as ``polyclinic synthesize`` would write them, and as a hospital would encode them."""
    layout = synthesizer.layout
    records = layout.decode(synthesizer.sample(rows, generator(seed, "reproduce")))
    encoded = encode(records, layout.schema)
    assert encoded.y is not None
    return records, Table(np.nan_to_num(encoded.x, nan=0.0), encoded.y)
