"""Simulated falls at three wards, with a visit or two of each patient. No record of it is of a real person."""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema

WARDS = ("acute", "rehabilitation", "memory")
_AGES = {"acute": (50, 90), "rehabilitation": (60, 95), "memory": (70, 100)}
_PATIENTS = 150  # of each ward

SCHEMA = Schema(
    name="falls",
    columns=(
        Column(name="patient", kind="integer", role="patient_id"),
        Column(name="ward", kind="categorical", role="site", categories=WARDS),
        Column(name="age", kind="integer", unit="years", bounds=(0, 120)),
        Column(name="speed", kind="continuous", unit="m/s", bounds=(0, 3), nullable=True),
        Column(name="sedatives", kind="integer", bounds=(0, 10)),
        Column(name="fell", kind="binary", role="label"),
    ),
)


def load() -> pd.DataFrame:
    """One row a visit; the same records at every call."""
    return pd.concat([_ward(number, ward) for number, ward in enumerate(WARDS)], ignore_index=True)


def _ward(number: int, ward: str) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    patient = np.repeat(np.arange(_PATIENTS), rng.integers(1, 3, _PATIENTS)) + number * _PATIENTS
    rows = len(patient)
    age, speed, sedatives = rng.integers(*_AGES[ward], rows), rng.uniform(0.2, 1.8, rows), rng.poisson(1.5, rows)
    odds = np.exp(age / 20 - 4 * speed + 0.8 * sedatives - 1.5)
    return pd.DataFrame(
        {
            "patient": patient,
            "ward": ward,
            "age": age,
            "speed": np.where(rng.random(rows) < 0.05, np.nan, speed.round(2)),
            "sedatives": sedatives.clip(0, 10),
            "fell": (rng.random(rows) < odds / (1 + odds)).astype(int),
        }
    )


FALLS = Dataset(
    name="falls",
    title="Simulated falls at three wards",
    description="SIMULATED: falls by age, walking speed and sedatives; wards differ in age.",
    schema=SCHEMA,
    licence="Apache-2.0",
    citation="none",
    patients=_PATIENTS * len(WARDS),
    rows=len(load()),
    default_sites=len(WARDS),
    default_partitioner="natural",
    natural_sites=WARDS,
    load=load,
    available=lambda: True,
    simulated=True,
)
