"""SIMULATED patients after a catheter in the right heart, in the form of Su, Wang, Schiavazzi and Liu 2023; no record is real.

Theirs are 84 patients with 26 attributes, of which 7 were left out for being missing in 63 to 100 %; their records are not
public. Here every patient is a circulation of CVSim-6 with parameters of its own, its outputs measured with noise, and cells
that go missing together. From Table 1 of the paper: the 26 names and which 19 stay, how many of 82 patients have each, and the
noise of each measurement. Its ranges are what the law of the parameters was fitted to, by hand and on seeds that no experiment
uses: they agree as far as docs/flows/ehr.md shows. Bounds of LVEF, dPAP, sPAP and wedge pressure: the code of Su et al. Chosen
here: that half are ill, all other bounds, centres and spreads, and three echocardiographic times and ratios that a model without
atria does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
#: The patients of the paper's Table 1.
TABLED = 82
#: Mean pulmonary pressure in mmHg above which a patient counts as hypertensive.
HYPERTENSIVE = 20.0


@dataclass(frozen=True)
class Attribute:
    """One column of the records. output: of CVSim-6, or none.  noise: standard deviation of a measurement.

    bounds, centre, spread: public, in ``unit``.  observed: how many of ``TABLED`` patients have it, and ``least`` and ``most`` of
    what they have, in Table 1 of the paper.  by: who measures it.
    """

    name: str
    output: str
    unit: str
    noise: float
    bounds: tuple[float, float]
    centre: float
    spread: float
    observed: float
    least: float
    most: float
    by: str

    @property
    def missing(self) -> float:
        """The share of patients without it."""
        return 1 - self.observed / TABLED


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("heart_rate", "hr", "1/min", 3.0, (30, 160), 80, 10, 81, 69, 105, "bedside"),
    Attribute("systolic_bp", "sbp", "mmHg", 1.5, (50, 220), 130, 22, 81, 83, 180, "bedside"),
    Attribute("diastolic_bp", "dbp", "mmHg", 1.5, (30, 150), 75, 15, 81, 49, 102, "bedside"),
    Attribute("cardiac_output", "co", "L/min", 0.2, (1, 12), 6, 1.3, 65, 3.3, 10.9, "catheter"),
    Attribute("systemic_resistance", "svr", "dyn s/cm^5", 50.0, (300, 4000), 1200, 250, 64, 668.6, 2046.8, "catheter"),
    Attribute("pulmonary_resistance", "pvr", "dyn s/cm^5", 5.0, (0, 1000), 110, 50, 50, 5, 245.8, "catheter"),
    Attribute("rv_diastolic", "rv_diastolic", "mmHg", 1.0, (-10, 30), 4, 2, 11, 2, 10, "catheter"),
    Attribute("rv_systolic", "rv_systolic", "mmHg", 1.0, (0, 100), 30, 9, 46, 12, 45, "catheter"),
    Attribute("rvedp", "rvedp", "mmHg", 1.0, (-10, 40), 8, 3, 46, 1, 20, "catheter"),
    Attribute("aortic_peak_gradient", "aov_peak_pg", "mmHg", 0.5, (0, 40), 7, 3, 37, 3, 18, "echo"),
    Attribute("mitral_deceleration", "", "ms", 6.0, (50, 400), 190, 45, 41, 88, 289, "echo"),
    Attribute("mitral_e_a", "", "", 0.2, (0.2, 25), 1.5, 0.8, 39, 0.7, 20.9, "echo"),
    Attribute("pulmonary_acceleration", "", "ms", 6.0, (30, 220), 115, 27, 18, 53, 190, "echo"),
    Attribute("pulmonary_peak_gradient", "pv_peak_pg", "mmHg", 0.5, (0, 20), 4, 2, 31, 1, 18, "echo"),
    Attribute("ra_pressure", "cvp", "mmHg", 0.5, (-5, 40), 12, 3, 50, 3, 15, "catheter"),
    Attribute("lvef", "lvef", "%", 2.0, (0, 100), 52, 8, 53, 12.5, 75, "echo"),
    Attribute("dpap", "dpap", "mmHg", 1.0, (0, 80), 17, 7, 65, 5, 36, "catheter"),
    Attribute("spap", "spap", "mmHg", 1.0, (0, 80), 29, 9, 65, 10, 60, "catheter"),
    Attribute("wedge", "wedge", "mmHg", 1.0, (0, 80), 14, 6, 50, 2, 26, "catheter"),
)  # fmt: skip
#: Of the 26, those that the paper leaves out for being missing in 63 to 100 % of its patients; they are not simulated.
DROPPED = ("cvp", "aov_mean_pg", "ra_vol_a4c", "la_vol_a4c", "lv_esv", "lv_vol_a4c", "lvot_max_flow")
COLUMNS: tuple[str, ...] = tuple(attribute.name for attribute in ATTRIBUTES)

#: Correlation of going missing between cells that the same examination would have given.
TOGETHER = 0.6
STEPS = 200
ILL = 0.5  # the share that are ill


@dataclass(frozen=True)
class Law:
    """How patients differ, and what is measured of them.

    parameters: of the logarithm of each of CVSim-6's, how far its mean is from the default in a healthy patient, what an illness
    of 1 adds (a stiff left ventricle that fills against pressure, the lung's vessels after it, blood that is moved out of the
    veins), and its spread; volumes without pressure that are not named have a spread of .02, others of .1. thorax: mean and
    spread of its pressure, mmHg. illness: mean and spread of a patient's, without and with disease. echo: what CVSim-6 has no
    atria for: value at a wedge pressure of 10 mmHg (mean pulmonary pressure of 14 for pulmonary_acceleration), what one mmHg more
    adds to its logarithm, and the spread of that.
    """

    attributes: tuple[Attribute, ...]
    parameters: Mapping[str, tuple[float, float, float]]
    thorax: tuple[float, float]
    illness: tuple[tuple[float, float], tuple[float, float]]
    echo: Mapping[str, tuple[float, float, float]]

    def of(self, parameter: str) -> tuple[float, float, float]:
        """Of one parameter's logarithm."""
        return self.parameters.get(parameter, (0.0, 0.0, 0.02 if parameter.startswith("v_0_") else 0.1))

    def schema(self) -> Schema:
        """Of its records."""
        return Schema(
            name="pulmonary",
            columns=(
                Column(name="patient", kind="categorical", role="patient_id"),
                Column(name="site", kind="categorical", role="site"),
                *(
                    Column(
                        name=a.name, kind="continuous", unit=a.unit, bounds=a.bounds, centre=a.centre, spread=a.spread,
                        clip=True, nullable=a.missing > 0,
                    )
                    for a in self.attributes
                ),
                Column(name="hypertensive", kind="binary", role="label", description="2/3 dPAP + 1/3 sPAP above 20 mmHg"),
            ),
        )  # fmt: skip


#: The law whose records have the missing cells and, nearly, the ranges of Table 1.
TABLE_1 = Law(
    ATTRIBUTES,
    {
        "hr": (0.14, 0.0, 0.09), "r_lo": (0.56, 0.0, 0.3), "r_a": (-0.22, 0.2, 0.15), "r_ri": (-0.5, 0.0, 0.1),
        "r_ro": (0.8, 0.0, 0.5), "r_pv": (-0.4, 0.6, 0.35), "c_a": (-0.5, -0.3, 0.08), "c_v": (-0.4, 0.0, 0.15),
        "c_pa": (0.1, -0.55, 0.15), "c_pv": (0.45, -0.2, 0.15), "c_l_sys": (-0.1, 0.25, 0.3), "c_l_dia": (0.6, -1.1, 0.08),
        "c_r_sys": (0.55, 0.0, 0.1), "c_r_dia": (-0.25, -0.3, 0.15), "v_0_v": (-0.025, -0.11, 0.015),
    },
    thorax=(-1.0, 0.5),
    illness=((0.0, 0.1), (1.2, 0.15)),
    echo={
        "mitral_deceleration": (205.0, -0.018, 0.18), "mitral_e_a": (1.2, 0.045, 0.45),
        "pulmonary_acceleration": (130.0, -0.02, 0.15),
    },
)  # fmt: skip
SCHEMA = TABLE_1.schema()


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


def cohort(patients: int = PATIENTS, sites: int = 1, seed: int = 0, law: Law = TABLE_1) -> Cohort:
    """Patients by a seed, the same for the same arguments. Raises ConfigError unless 1 <= sites <= patients and seed >= 0."""
    check_size("a cohort", sites, patients, seed)
    rng = generator(seed, "ehr cohort")
    drawn = circulations(patients, rng, law)
    exact = _exact(drawn, rng, law)
    low, high = (np.array([a.bounds[end] for a in law.attributes]) for end in (0, 1))
    noise = np.array([a.noise for a in law.attributes]) * rng.standard_normal(exact.shape)
    complete = np.clip(exact + noise, low, high)
    kept = np.where(_missing(patients, rng, law.attributes), np.nan, complete)
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


def circulations(patients: int, rng: np.random.Generator, law: Law = TABLE_1) -> Floats:
    """(patients, 23) parameters of CVSim-6 in mmHg, mL and seconds, in random order."""
    ill = rng.permutation(patients) < round(patients * ILL)
    illness = np.where(ill, *(mean + spread * rng.standard_normal(patients) for mean, spread in law.illness[::-1]))
    columns = []
    for parameter in PARAMETERS:
        scatter = rng.standard_normal(patients)
        if parameter.name == "p_th":
            columns.append(law.thorax[0] + law.thorax[1] * scatter)
            continue
        apart, disease, spread = law.of(parameter.name)
        columns.append(parameter.default * np.exp(apart + disease * illness + spread * scatter))
    return np.stack(columns, axis=1)


def _exact(drawn: Floats, rng: np.random.Generator, law: Law) -> Floats:
    values = {name: torch.from_numpy(column.copy()) for name, column in zip(NAMES, drawn.T, strict=True)}
    with torch.no_grad():
        found = dict(zip(OUTPUTS, measured(parameters(values), steps=STEPS).numpy().T, strict=True))
    above = {name: found["wedge"] - 10 for name in law.echo}
    above["pulmonary_acceleration"] = mean_pressure(found["dpap"], found["spap"]) - 14
    for name, (value, slope, spread) in law.echo.items():
        found[name] = value * np.exp(slope * above[name] + spread * rng.standard_normal(len(drawn)))
    return np.stack([found[a.output or a.name] for a in law.attributes], axis=1)


def _missing(patients: int, rng: np.random.Generator, attributes: Sequence[Attribute]) -> NDArray[np.bool_]:
    """(patients, 19) missing cells at their rates, correlated within an examination."""
    examinations = {by: rng.standard_normal(patients) for by in ("bedside", "catheter", "echo")}
    shared = np.stack([examinations[a.by] for a in attributes], axis=1)
    level = np.sqrt(TOGETHER) * shared + np.sqrt(1 - TOGETHER) * rng.standard_normal(shared.shape)
    return np.asarray(level < norm.ppf([a.missing for a in attributes]))
