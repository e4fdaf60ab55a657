"""Simulated datasets: what a user asks for before training on one, and who is enrolled where under which name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.types import Ints


def check_size(what: str, sites: int, patients: int, seed: int) -> None:
    """Raise an error unless 1 <= sites <= patients and seed >= 0.

    Args:
        what: What is simulated, for the message.
        sites: The number of hospitals.
        patients: The number of patients in all.
        seed: Of the simulation.

    Raises:
        ConfigError: For sites or a seed outside these limits.
    """
    if sites < 1 or sites > patients:
        raise ConfigError(f"sites is {sites}; {what} of {patients} patients needs 1 to {patients} sites.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or greater.")


def enrolment(sites: int, patients: int, rng: np.random.Generator) -> Ints:
    """Return each patient's hospital, in order.

    Half of the patients are spread evenly, the others in proportion to hospitals' sizes.

    Args:
        sites: The number of hospitals.
        patients: The number of patients in all, at least ``sites``.
        rng: Draws the hospitals' sizes and the patients of the second half.

    Returns:
        (patients,) int64 in 0..sites-1, rising.
    """
    even = np.tile(np.arange(sites), patients // 2 // sites + 1)[: max(sites, patients // 2)]
    others = rng.choice(sites, size=patients - len(even), p=rng.dirichlet(np.full(sites, 2.0)))
    return np.sort(np.concatenate([even, others])).astype(np.int64)


def patient_names(prefix: str, patients: int) -> list[str]:
    """``prefix-1``, ``prefix-2``, ... of equal length."""
    width = len(str(patients))
    return [f"{prefix}-{row + 1:0{width}d}" for row in range(patients)]


def site_names(sites: int) -> NDArray[np.object_]:
    """``hospital-1``, ``hospital-2``, ... of equal length."""
    width = len(str(sites))
    return np.array([f"hospital-{i + 1:0{width}d}" for i in range(sites)], dtype=object)


def simulated_dataset(
    title: str, description: str, schema: Schema, generate: Callable[[int, int, int], pd.DataFrame], sites: int,
    patients: int, after: str = "",
) -> Dataset:  # fmt: skip
    """Return the dataset, of the schema's name, that ``generate`` makes, by default with seed 0.

    Args:
        title: A short name for readers.
        description: A sentence about the records.
        schema: The schema of the records.
        generate: From (sites, patients, seed) to records.
        sites: The default number of hospitals.
        patients: The default number of patients, each with one row.
        after: The publication whose form it has.
    """
    form = f"; form after {after}" if after else ""
    return Dataset(
        name=schema.name, title=title, description=description, schema=schema, licence="Apache-2.0 (simulated, no real person)",
        citation=f"Polyclinic's own generator ({generate.__module__}){form}", patients=patients, rows=patients,
        default_sites=sites, default_partitioner="natural", natural_sites=tuple(f"hospital-{i + 1}" for i in range(sites)),
        load=lambda: generate(sites, patients, 0), available=lambda: True, simulated=True, generate=generate,
    )  # fmt: skip
