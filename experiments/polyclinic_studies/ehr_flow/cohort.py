"""SIMULATED patients after a catheter in the right heart, in the form of Su, Wang, Schiavazzi and Liu 2023; no record is real.

Theirs are 84 patients with 26 attributes, of which 7 were dropped for being missing in 63 to 100 %; their records are not
public. Here every patient is a circulation of CVSim-6 with parameters of its own, its outputs measured with noise, and cells
that go missing together. From publications: the number of patients, the 26 names and which 19 stay, and the noise of each
(the code of Harrod et al. 2020's supplement, which names and measures the same outputs); bounds of LVEF, dPAP, sPAP and wedge
pressure (the code of Su et al.). Chosen here: the law of the parameters, how often each kept cell is missing, all other bounds,
centres and spreads, and three echocardiographic times and ratios that a model without atria does not have. Table 1 of Su et al.
has more missing cells and other ranges than these (docs/flows/ehr.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, site_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats
from polyclinic_studies.cvsim6 import NAMES, OUTPUTS, PARAMETERS, measured, parameters

PATIENTS, TRAINING = 84, 64
#: Mean pulmonary pressure in mmHg above which a patient counts as hypertensive.
HYPERTENSIVE = 20.0


@dataclass(frozen=True)
class Attribute:
    """One column of the records. output: of CVSim-6, or none.  noise: standard deviation of a measurement.

    bounds, centre, spread: public, in ``unit``.  missing: share of patients without it.  by: who measures it.
    """

    name: str
    output: str
    unit: str
    noise: float
    bounds: tuple[float, float]
    centre: float
    spread: float
    missing: float
    by: str


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("heart_rate", "hr", "1/min", 3.0, (30, 160), 75, 12, 0.0, "bedside"),
    Attribute("systolic_bp", "sbp", "mmHg", 1.5, (50, 220), 120, 20, 0.02, "bedside"),
    Attribute("diastolic_bp", "dbp", "mmHg", 1.5, (30, 150), 80, 12, 0.02, "bedside"),
    Attribute("cardiac_output", "co", "L/min", 0.2, (1, 12), 4.5, 1, 0.08, "catheter"),
    Attribute("systemic_resistance", "svr", "dyn s/cm^5", 50.0, (300, 4000), 1550, 350, 0.12, "catheter"),
    Attribute("pulmonary_resistance", "pvr", "dyn s/cm^5", 5.0, (0, 1000), 160, 60, 0.12, "catheter"),
    Attribute("rv_diastolic", "rv_diastolic", "mmHg", 1.0, (-10, 30), 0, 3, 0.10, "catheter"),
    Attribute("rv_systolic", "rv_systolic", "mmHg", 1.0, (0, 100), 35, 13, 0.10, "catheter"),
    Attribute("rvedp", "rvedp", "mmHg", 1.0, (-10, 40), 3, 3, 0.20, "catheter"),
    Attribute("aortic_peak_gradient", "aov_peak_pg", "mmHg", 0.5, (0, 40), 4, 2, 0.30, "echo"),
    Attribute("mitral_deceleration", "", "ms", 6.0, (50, 400), 180, 40, 0.35, "echo"),
    Attribute("mitral_e_a", "", "", 0.2, (0.2, 6), 1.5, 0.6, 0.40, "echo"),
    Attribute("pulmonary_acceleration", "", "ms", 6.0, (30, 220), 110, 25, 0.55, "echo"),
    Attribute("pulmonary_peak_gradient", "pv_peak_pg", "mmHg", 0.5, (0, 20), 2, 1, 0.50, "echo"),
    Attribute("ra_pressure", "cvp", "mmHg", 0.5, (-5, 40), 8, 3, 0.08, "catheter"),
    Attribute("lvef", "lvef", "%", 2.0, (0, 100), 50, 8, 0.15, "echo"),
    Attribute("dpap", "dpap", "mmHg", 1.0, (0, 80), 20, 9, 0.0, "catheter"),
    Attribute("spap", "spap", "mmHg", 1.0, (0, 80), 35, 13, 0.0, "catheter"),
    Attribute("wedge", "wedge", "mmHg", 1.0, (0, 80), 17, 8, 0.05, "catheter"),
)  # fmt: skip
#: Of the 26, those that the paper leaves out for being missing in 63 to 100 % of its patients; they are not simulated.
DROPPED = ("cvp", "aov_mean_pg", "ra_vol_a4c", "la_vol_a4c", "lv_esv", "lv_vol_a4c", "lvot_max_flow")
COLUMNS: tuple[str, ...] = tuple(attribute.name for attribute in ATTRIBUTES)

#: Share that are ill; mean and spread of a patient's illness, 0 healthy and 1 severe, without and with disease.
ILL, ILLNESS = 0.5, ((0.0, 0.12), (0.85, 0.25))
#: What an illness of 1 adds to the logarithm of a parameter: a stiff left ventricle that fills against pressure, the lung's
#: vessels after it, and blood that is moved out of the veins.
DISEASE = {"c_l_dia": -1.1, "c_l_sys": 0.25, "r_pv": 0.9, "c_pa": -0.5, "c_pv": -0.2, "r_a": 0.25, "c_a": -0.3, "v_0_v": -0.14,
           "c_r_dia": -0.3}  # fmt: skip
#: Spread of a parameter's logarithm between patients, of unstressed volumes and of all others; of the thorax in mmHg.
SCATTER_VOLUME, SCATTER, THORAX = 0.02, 0.10, 0.5
#: What CVSim-6 has no atria for: value at a wedge pressure of 10 mmHg (mean pulmonary pressure of 14 for the last), what one
#: mmHg more adds to its logarithm, and the spread of that.
_ECHO = {"mitral_deceleration": (205.0, -0.018, 0.10), "mitral_e_a": (1.0, 0.045, 0.15),
         "pulmonary_acceleration": (135.0, -0.02, 0.08)}  # fmt: skip
#: Correlation of going missing between cells that the same examination would have given.
TOGETHER = 0.6
STEPS = 200

SCHEMA = Schema(
    name="pulmonary",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="site", kind="categorical", role="site"),
        *(
            Column(
                name=a.name, kind="continuous", unit=a.unit, bounds=a.bounds, centre=a.centre, spread=a.spread, clip=True,
                nullable=a.missing > 0,
            )
            for a in ATTRIBUTES
        ),
        Column(name="hypertensive", kind="binary", role="label", description="2/3 dPAP + 1/3 sPAP above 20 mmHg"),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Cohort:
    """records: one row a patient under ``SCHEMA``, in random order, missing cells NaN.

    measured: (n, 19) the same without missing cells; exact: (n, 19) without measurement noise either, in ``COLUMNS``' order and
    units.  parameters: (n, 23) of CVSim-6, in the order of ``NAMES``.
    """

    records: pd.DataFrame
    measured: Floats
    exact: Floats
    parameters: Floats


def mean_pressure(dpap: Floats, spap: Floats) -> Floats:
    """The mean pulmonary arterial pressure by the paper's rule, 2/3 dPAP + 1/3 sPAP, mmHg."""
    found: Floats = 2 / 3 * np.asarray(dpap) + np.asarray(spap) / 3
    return found


def cohort(patients: int = PATIENTS, sites: int = 1, seed: int = 0) -> Cohort:
    """Patients by a seed, the same for the same arguments. Raises ConfigError unless 1 <= sites <= patients and seed >= 0."""
    check_size("a cohort", sites, patients, seed)
    rng = generator(seed, "ehr cohort")
    drawn = circulations(patients, rng)
    exact = _exact(drawn, rng)
    low, high = (np.array([a.bounds[end] for a in ATTRIBUTES]) for end in (0, 1))
    noise = np.array([a.noise for a in ATTRIBUTES]) * rng.standard_normal(exact.shape)
    complete = np.clip(exact + noise, low, high)
    kept = np.where(_missing(patients, rng), np.nan, complete)
    pressure = mean_pressure(*(complete[:, COLUMNS.index(name)] for name in ("dpap", "spap")))
    records = pd.DataFrame(
        {
            "patient": patient_names("patient", patients),
            "site": site_names(sites)[rng.permutation(enrolment(sites, patients, rng))],
            **dict(zip(COLUMNS, kept.T, strict=True)),
            "hypertensive": (pressure > HYPERTENSIVE).astype(np.int64),
        }
    )
    return Cohort(records, complete, exact, drawn)


def circulations(patients: int, rng: np.random.Generator) -> Floats:
    """(patients, 23) parameters of CVSim-6 in mmHg, mL and seconds, in random order."""
    ill = rng.permutation(patients) < round(patients * ILL)
    illness = np.where(ill, *(mean + spread * rng.standard_normal(patients) for mean, spread in ILLNESS[::-1]))
    columns = []
    for parameter in PARAMETERS:
        scatter = rng.standard_normal(patients)
        if parameter.name == "p_th":
            columns.append(parameter.default + THORAX * scatter)
            continue
        width = SCATTER_VOLUME if parameter.name.startswith("v_0_") else SCATTER
        columns.append(parameter.default * np.exp(DISEASE.get(parameter.name, 0.0) * illness + width * scatter))
    return np.stack(columns, axis=1)


def _exact(drawn: Floats, rng: np.random.Generator) -> Floats:
    values = {name: torch.from_numpy(column.copy()) for name, column in zip(NAMES, drawn.T, strict=True)}
    with torch.no_grad():
        found = dict(zip(OUTPUTS, measured(parameters(values), steps=STEPS).numpy().T, strict=True))
    above = {name: found["wedge"] - 10 for name in _ECHO}
    above["pulmonary_acceleration"] = mean_pressure(found["dpap"], found["spap"]) - 14
    for name, (value, slope, spread) in _ECHO.items():
        found[name] = value * np.exp(slope * above[name] + spread * rng.standard_normal(len(drawn)))
    return np.stack([found[a.output or a.name] for a in ATTRIBUTES], axis=1)


def _missing(patients: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(patients, 19) missing cells at their rates, correlated within an examination."""
    examinations = {by: rng.standard_normal(patients) for by in ("bedside", "catheter", "echo")}
    shared = np.stack([examinations[a.by] for a in ATTRIBUTES], axis=1)
    level = np.sqrt(TOGETHER) * shared + np.sqrt(1 - TOGETHER) * rng.standard_normal(shared.shape)
    return np.asarray(level < norm.ppf([a.missing for a in ATTRIBUTES]))
