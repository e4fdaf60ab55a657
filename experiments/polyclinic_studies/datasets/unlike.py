"""SIMULATED patients of five hospitals that really differ: in size, in how often they see the event, and in whom they treat.

Severity and age drive the measurements and, with two conditions, the event. Each hospital has its own mean severity and age and
its own rate of events, so that none is like all of them together. No record is of a real person.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema

PATIENTS, SITES = 4000, 5
#: Shares of the patients, and what hospitals add to severity, to age in years and to the logit of the event, in any order.
SHARES = (0.3, 0.25, 0.2, 0.15, 0.1)
SEVERITY = (-0.9, -0.4, 0.0, 0.5, 1.0)
AGE = (-14.0, -6.0, 0.0, 6.0, 12.0)
EVENTS = (-1.2, -0.6, 0.0, 0.6, 1.2)
#: Measurement -> mean, standard deviation, decimals, loadings on severity and age, bounds.
_NUMBERS: dict[str, tuple[float, float, int, tuple[float, float], tuple[float, float]]] = {
    "pressure": (122, 19, 0, (-0.5, 0.4), (50, 220)),
    "heart_rate": (86, 16, 0, (0.6, -0.2), (30, 180)),
    "creatinine": (1.1, 0.4, 1, (0.5, 0.4), (0.2, 4.0)),
    "saturation": (95, 2.5, 0, (-0.6, -0.2), (80, 100)),
}
SCHEMA = Schema(
    name="unlike",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="hospital", kind="categorical", role="site"),
        Column(name="age", kind="integer", unit="years", bounds=(18, 100)),
        *(Column(name=name, kind="continuous", bounds=bounds) for name, (*_, bounds) in _NUMBERS.items()),
        Column(name="female", kind="binary"),
        Column(name="diabetes", kind="binary"),
        Column(name="died", kind="binary", role="label"),
    ),
)


def records(seed: int) -> pd.DataFrame:
    """All hospitals' patients; the same table for the same seed."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"unlike"]))
    site = rng.permutation(np.repeat(np.arange(SITES), np.round(np.array(SHARES) * PATIENTS).astype(int)))
    severity, age, events = (np.array(rng.permutation(part))[site] for part in (SEVERITY, AGE, EVENTS))
    severity = severity + rng.standard_normal(PATIENTS)
    years = np.clip(np.round(62 + age + 13 * rng.standard_normal(PATIENTS)), 18, 100)
    old = (years - 62) / 16
    diabetes = rng.random(PATIENTS) < 1 / (1 + np.exp(1.4 - 0.6 * old))
    table: dict[str, object] = {"patient": [f"p{number:05d}" for number in range(PATIENTS)],
                                "hospital": [_name(number) for number in site], "age": years.astype(int)}  # fmt: skip
    for name, (mean, sd, decimals, (ill, aged), bounds) in _NUMBERS.items():
        own = np.sqrt(max(0.1, 1 - ill**2 - aged**2)) * rng.standard_normal(PATIENTS)
        table[name] = np.clip(np.round(mean + sd * (ill * severity + aged * old + own), decimals), *bounds)
    logit = -1.4 + 1.1 * severity + 0.7 * old + 0.7 * diabetes + events
    return pd.DataFrame(table | {
        "female": (rng.random(PATIENTS) < 0.45).astype(int), "diabetes": diabetes.astype(int),
        "died": (rng.random(PATIENTS) < 1 / (1 + np.exp(-logit))).astype(int),
    })  # fmt: skip


def _name(number: int) -> str:
    return f"hospital-{number + 1}"


def __getattr__(name: str) -> Dataset:
    """``draw_3``: the hospitals of a seed; ``draw_3_2``: the second of them alone. So that configurations can name them."""
    draw, *numbers = name.split("_")
    if draw != "draw" or len(numbers) not in (1, 2) or not all(number.isdigit() for number in numbers):
        raise AttributeError(
            f"There is no {name!r} here; take draw_ with a seed, and _ with a hospital from 1 to {SITES}."
        )
    seed, *alone = map(int, numbers)
    names = tuple(_name(number) for number in range(SITES) if not alone or number + 1 == alone[0])

    def load() -> pd.DataFrame:
        table = records(seed)
        return table[table["hospital"].isin(names)].reset_index(drop=True)

    return Dataset(
        name="unlike", title="Hospitals that differ", description=__doc__ or "", schema=SCHEMA,
        licence="Apache-2.0 (simulated, no real person)", citation=__name__, patients=PATIENTS, rows=PATIENTS,
        default_sites=len(names), default_partitioner="natural", natural_sites=names, simulated=True, load=load,
        available=lambda: True,
    )  # fmt: skip
