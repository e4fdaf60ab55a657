"""Made-up cohorts of unlike hospitals with skewed laboratory values, of which no published model was chosen.

A patient's risk is logistic in standard normal traits, in the logarithm of half of the laboratory values and in the others as
they are. Hospitals differ in size, in the means of every measurement and in the rate of events. Public bounds are wide, as a
data dictionary has them. No record is of a real person.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema

_VITALS = {"bmi": (27.0, 5.0, (10.0, 80.0)), "pressure": (125.0, 20.0, (40.0, 260.0)), "heart_rate": (82.0, 16.0, (20.0, 220.0)),
           "temperature": (36.9, 0.6, (28.0, 43.0))}  # fmt: skip
#: Laboratory value: median, spread of its logarithm, upper bound, and share of patients without it.
_LABS = {"creatinine": (1.0, 0.45, 25.0, 0.05), "lactate": (1.4, 0.6, 30.0, 0.35), "crp": (12.0, 1.2, 600.0, 0.2),
         "bilirubin": (0.7, 0.7, 50.0, 0.2), "white_cells": (9.0, 0.4, 200.0, 0.05), "troponin": (0.03, 1.4, 50.0, 0.4),
         "sodium": (139.0, 0.03, 200.0, 0.05), "glucose": (115.0, 0.35, 1500.0, 0.1)}  # fmt: skip
_CONDITIONS = {
    "diabetes": 0.25,
    "heart_failure": 0.15,
    "copd": 0.12,
    "cancer": 0.08,
    "dementia": 0.05,
    "cirrhosis": 0.03,
}
_UNITS = ("medical", "surgical", "cardiac", "neurological")


@dataclass(frozen=True)
class Cohort:
    """patients at sites, of whom about ``rate`` have the event; ``signal``: standard deviation of the logit between patients."""

    patients: int
    sites: int
    rate: float
    signal: float

    @property
    def schema(self) -> Schema:
        """The public description of the records."""
        columns = [
            Column(name="patient", kind="categorical", role="patient_id"),
            Column(name="hospital", kind="categorical", role="site"),
            Column(name="died", kind="binary", role="label"),
            Column(name="age", kind="integer", unit="years", bounds=(18.0, 110.0)),
            Column(name="female", kind="binary"),
            Column(name="unit", kind="categorical", categories=_UNITS),
        ]
        columns += [
            Column(name=name, kind="continuous", bounds=bounds, clip=True) for name, (_, _, bounds) in _VITALS.items()
        ]
        columns += [
            Column(name=name, kind="continuous", bounds=(0.0, high), clip=True, nullable=True)
            for name, (_, _, high, _) in _LABS.items()
        ]
        columns += [Column(name=name, kind="binary") for name in _CONDITIONS]
        return Schema(name="cohort", columns=tuple(columns))

    def records(self, seed: int) -> pd.DataFrame:
        """All hospitals' records."""
        rng = np.random.default_rng(seed)
        shares = rng.lognormal(0.0, 0.6, self.sites)
        site = rng.choice(self.sites, self.patients, p=shares / shares.sum())
        count = 1 + len(_VITALS) + len(_LABS)
        common = rng.standard_normal((self.patients, 3)) @ rng.normal(0.0, 0.35, (3, count))
        z = 0.85 * rng.standard_normal((self.patients, count)) + common
        z += (0.35 * rng.standard_normal((self.sites, count)))[site]
        conditions = {name: rng.random(self.patients) < share for name, share in _CONDITIONS.items()}
        female, unit = rng.random(self.patients) < 0.48, rng.integers(0, len(_UNITS), self.patients)
        labs = {
            name: median * np.exp(spread * z[:, 5 + at])
            for at, (name, (median, spread, _, _)) in enumerate(_LABS.items())
        }
        weights = rng.normal(0.0, 1.0, count)
        weights[0] = 1.2
        driving = z.copy()
        for at, (name, (_, spread, _, _)) in enumerate(_LABS.items()):
            if at % 2:  # the risk follows the value itself, up to a ceiling
                value = np.minimum(labs[name] / _LABS[name][0], np.exp(2.5 * spread))
                driving[:, 5 + at] = (value - value.mean()) / value.std()
        logit = driving @ weights + np.stack(list(conditions.values()), axis=1) @ rng.normal(0.8, 0.5, len(conditions))
        logit += 0.2 * female + rng.normal(0.0, 0.4, len(_UNITS))[unit]
        logit = self.signal * (logit - logit.mean()) / logit.std() + (0.45 * rng.standard_normal(self.sites))[site]
        logit += _intercept(logit, self.rate)
        died = rng.random(self.patients) < 1 / (1 + np.exp(-logit))
        table: dict[str, object] = {
            "patient": [f"p{number:06d}" for number in range(self.patients)],
            "hospital": [f"hospital-{number + 1:02d}" for number in site], "died": died.astype(int),
            "age": np.clip(np.round(63 + 16 * z[:, 0]), 18, 110).astype(int), "female": female.astype(int),
            "unit": np.array(_UNITS, dtype=object)[unit],
        }  # fmt: skip
        table |= {name: mean + sd * z[:, 1 + at] for at, (name, (mean, sd, _)) in enumerate(_VITALS.items())}
        for name, (_, _, high, missing) in _LABS.items():
            table[name] = np.where(rng.random(self.patients) < missing, np.nan, np.clip(labs[name], 0.0, high))
        return pd.DataFrame(table | {name: values.astype(int) for name, values in conditions.items()})


def _intercept(logit: np.ndarray, rate: float) -> float:
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logit - middle))).mean() < rate else (low, middle)
    return low


#: Rare events at sixteen hospitals, and common ones at eight.
RARE = Cohort(40_000, 16, 0.07, 1.5)
COMMON = Cohort(9_000, 8, 0.26, 2.2)


def dataset(cohort: Cohort, seed: int) -> Dataset:
    """One draw of the cohort as a dataset."""
    names = tuple(f"hospital-{number + 1:02d}" for number in range(cohort.sites))
    return Dataset(
        name=f"cohort-{cohort.patients}", title="Made-up cohort", description=__doc__ or "", schema=cohort.schema,
        licence="Apache-2.0 (simulated, no real person)", citation=__name__, patients=cohort.patients, rows=cohort.patients,
        default_sites=cohort.sites, default_partitioner="natural", natural_sites=names, simulated=True,
        load=lambda: cohort.records(seed), available=lambda: True,
    )  # fmt: skip


def __getattr__(name: str) -> Dataset:
    """``rare_3``, ``common_3``: a draw of a cohort by its seed, so that configurations can name it."""
    cohort, _, seed = name.partition("_")
    if cohort not in _COHORTS or not seed.isdigit():
        raise AttributeError(f"There is no cohort {name!r} here; take {', '.join(_COHORTS)} with _ and a seed.")
    return dataset(_COHORTS[cohort], int(seed))


_COHORTS = {"rare": RARE, "common": COMMON}
