"""SIMULATED patients who are followed over years: three measurements by an autoregression that is given here, at irregular
visits.

Unstable patients, whose pressure is high, are seen soon again, and others after months: a regime that no linear
autoregression has. In decliners, three in ten, kidney function falls from visit to visit and visits are closer. No record is
of a real person.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.types import Floats

STEPS = 12
#: Measurement -> mean, standard deviation, bounds.
MEASURED: dict[str, tuple[float, float, tuple[float, float]]] = {
    "pressure": (132.0, 16.0, (40.0, 260.0)),
    "kidney": (72.0, 18.0, (0.0, 200.0)),
    "glucose": (7.2, 1.4, (0.0, 30.0)),
}
#: Of a visit's measurements by those of the visit before, in standard deviations: pressure harms kidneys, and glucose both.
TRANSITION = np.array([[0.7, 0.0, 0.15], [-0.2, 0.75, -0.1], [0.0, 0.0, 0.6]])
#: What decliners' kidney function loses from visit to visit, in standard deviations.
DECLINE = 0.12
_LEFT = 0.55
SCHEMA = Schema(
    name="followed",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="age", kind="integer", unit="years", bounds=(18.0, 100.0)),
        Column(name="female", kind="binary"),
        *(
            Column(name=name, kind="trajectory", steps=STEPS, bounds=bounds, nullable=True, clip=True)
            for name, (_, _, bounds) in MEASURED.items()
        ),
        Column(
            name=BEFORE_LATEST,
            kind="trajectory",
            steps=STEPS,
            unit="days",
            bounds=(0.0, 7300.0),
            nullable=True,
            clip=True,
        ),
        Column(name="declines", kind="binary", role="label"),
    ),
)


def records(patients: int, seed: int) -> pd.DataFrame:
    """One row a patient, its last visit at the last step; three in ten glucose cells are missing."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"followed"]))
    old = rng.standard_normal(patients)
    declines = rng.random(patients) < 1 / (1 + np.exp(1.0 - 0.6 * old))
    visits = 1 + rng.binomial(STEPS - 1, np.where(declines, 0.75, 0.45))
    level = rng.standard_normal((patients, 3))
    level[:, 0] += 0.2 * old
    level[:, 1] -= 0.3 * old
    cells, since = np.empty((patients, STEPS, 3)), np.zeros((patients, STEPS))
    for step in range(STEPS):
        begun = step > STEPS - visits
        unstable = level[:, 0] > 1.0
        days = rng.gamma(2.0, np.where(unstable, 10.0, np.where(declines, 45.0, 90.0)))
        drift = np.stack([0.06 * old, -DECLINE * declines - 0.05 * old, np.zeros(patients)], axis=1)
        after = level @ TRANSITION.T + drift + _LEFT * rng.standard_normal((patients, 3))
        level = np.where(begun[:, None], after, level)
        since[:, step] = np.where(begun, days, 0.0)
        cells[:, step] = level
    times = np.cumsum(since[:, ::-1], axis=1)[:, ::-1] - since
    there = np.arange(STEPS) >= STEPS - visits[:, None]
    table: dict[str, object] = {
        "patient": [f"p{number:05d}" for number in range(patients)],
        "age": np.clip(np.round(62 + 12 * old), 18, 100).astype(int), "female": (rng.random(patients) < 0.5).astype(int),
        "declines": declines.astype(int),
    }  # fmt: skip
    columns: dict[str, Floats] = {}
    for number, (name, (mean, sd, bounds)) in enumerate(MEASURED.items()):
        seen = there & ((rng.random((patients, STEPS)) >= 0.3) if name == "glucose" else True)
        values = np.where(seen, np.clip(mean + sd * cells[:, :, number], *bounds), np.nan)
        columns |= {f"{name}_{step:02d}": values[:, step] for step in range(STEPS)}
    days = np.where(there, np.minimum(np.round(times), 7300.0), np.nan)
    columns |= {f"{BEFORE_LATEST}_{step:02d}": days[:, step] for step in range(STEPS)}
    return pd.DataFrame(table | columns)
