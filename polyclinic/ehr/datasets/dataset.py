"""What a built-in dataset is: a public schema, a loader, and the facts a user asks for before training on it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.schema import Schema


@dataclass(frozen=True)
class Dataset:
    """A dataset that comes with Polyclinic; none of its fields needs the data to be present.

    patients, rows: published totals. natural_sites: the hospitals in the data (empty: none known).
    load: the records as a new table; raises DataError if the files are absent. available: whether load would work
    without a download. fetch: downloads the files to the user's cache and returns the folder (None: nothing to do).
    generate: (sites, patients, seed) -> records, for simulated datasets. fixed_split: the name of a column of the
    records that holds 'train' or 'test', used with the natural sites. flow: how the published rows came to be these,
    where the loader leaves some out; public, as the data are. notes: sentences that a reader of every run must know.
    """

    name: str
    title: str
    description: str
    schema: Schema
    licence: str
    citation: str
    patients: int
    rows: int
    default_sites: int
    default_partitioner: str
    load: Callable[[], pd.DataFrame]
    available: Callable[[], bool]
    natural_sites: tuple[str, ...] = ()
    simulated: bool = False
    fetch: Callable[[], Path] | None = None
    generate: Callable[[int, int, int], pd.DataFrame] | None = None
    fixed_split: str | None = None
    flow: Flow | None = None
    notes: tuple[str, ...] = ()


def hospital_names(key: str) -> tuple[str, ...]:
    """``hospital-001``, ... of the numbers that ``hospitals.toml`` lists under ``key``."""
    numbers = tomllib.loads(Path(__file__).with_name("hospitals.toml").read_text(encoding="utf-8"))[key]
    return tuple(f"hospital-{number:03d}" for number in numbers)


def simulated_dataset(
    name: str, title: str, description: str, schema: Schema, generate: Callable[[int, int, int], pd.DataFrame],
    sites: int, patients: int, source: str,
) -> Dataset:  # fmt: skip
    """A dataset that ``generate(sites, patients, seed)`` makes, by default with seed 0; ``source``: the generator's module."""
    return Dataset(
        name=name, title=title, description=description, schema=schema, licence="Apache-2.0 (simulated, no real person)",
        citation=f"Polyclinic's own generator {source}", patients=patients, rows=patients, default_sites=sites,
        default_partitioner="natural", natural_sites=tuple(f"hospital-{i + 1}" for i in range(sites)),
        load=lambda: generate(sites, patients, 0), available=lambda: True, simulated=True, generate=generate,
    )  # fmt: skip
