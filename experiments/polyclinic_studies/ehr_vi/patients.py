"""Table 5 of Su, Wang, Schiavazzi and Liu 2023 on SIMULATED patients: two parameters given private synthetic patients.

Of the 64 patients of training those with pulmonary hypertension count, at most 43, by eight columns, as the paper's code has
it. The generators see these eight columns and the label of all 64. Each release is mu-GDP for one patient added or removed,
exactly for ``moments`` (two sums), by the limit theorem for the flow, as the paper states its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.accounting.composition import clt_mu
from polyclinic.privacy.streams import generator, keyed_stream, torch_seed
from polyclinic.synthesis.flows.recipe import make
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import class_frequencies, fit_centrally
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training.density import DensityTask
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Floats
from polyclinic_studies.cvsim6 import NAMES, TARGETS
from polyclinic_studies.ehr_flow.cohort import (
    HYPERTENSIVE,
    TABLE_1,
    TABLED,
    TRAINING,
    Cohort,
    Law,
    cohort,
    mean_pressure,
)

#: Bounds, centre and spread of each column, and the share of patients without it.
_COLUMNS_HERE = {
    "heart_rate": ((30, 160), 75, 12, 0.0), "systolic_bp": ((50, 220), 120, 20, 0.02),
    "diastolic_bp": ((30, 150), 80, 12, 0.02), "cardiac_output": ((1, 12), 4.5, 1, 0.08),
    "systemic_resistance": ((300, 4000), 1550, 350, 0.12), "pulmonary_resistance": ((0, 1000), 160, 60, 0.12),
    "rv_diastolic": ((-10, 30), 0, 3, 0.10), "rv_systolic": ((0, 100), 35, 13, 0.10),
    "rvedp": ((-10, 40), 3, 3, 0.20), "aortic_peak_gradient": ((0, 40), 4, 2, 0.30),
    "mitral_deceleration": ((50, 400), 180, 40, 0.35), "mitral_e_a": ((0.2, 6), 1.5, 0.6, 0.40),
    "pulmonary_acceleration": ((30, 220), 110, 25, 0.55), "pulmonary_peak_gradient": ((0, 20), 2, 1, 0.50),
    "ra_pressure": ((-5, 40), 8, 3, 0.08), "lvef": ((0, 100), 50, 8, 0.15),
    "dpap": ((0, 80), 20, 9, 0.0), "spap": ((0, 80), 35, 13, 0.0),
    "wedge": ((0, 80), 17, 8, 0.05),
}  # fmt: skip
#: Patients near CVSim-6's defaults, around which the paper's priors lie; Table 1's ranges (``TABLE_1``) are not.
NEAR_DEFAULTS = Law(
    tuple(
        replace(a, bounds=bounds, centre=centre, spread=spread, observed=(1 - missing) * TABLED)
        for a, (bounds, centre, spread, missing) in zip(TABLE_1.attributes, _COLUMNS_HERE.values(), strict=True)
    ),
    {
        "c_l_dia": (0.0, -1.1, 0.1), "c_l_sys": (0.0, 0.25, 0.1), "r_pv": (0.0, 0.9, 0.1), "c_pa": (0.0, -0.5, 0.1),
        "c_pv": (0.0, -0.2, 0.1), "r_a": (0.0, 0.25, 0.1), "c_a": (0.0, -0.3, 0.1), "v_0_v": (0.0, -0.14, 0.02),
        "c_r_dia": (0.0, -0.3, 0.1),
    },
    thorax=(-4.0, 0.5),
    illness=((0.0, 0.12), (0.85, 0.25)),
    echo={
        "mitral_deceleration": (205.0, -0.018, 0.10), "mitral_e_a": (1.0, 0.045, 0.15),
        "pulmonary_acceleration": (135.0, -0.02, 0.08),
    },
)  # fmt: skip
SCHEMA = NEAR_DEFAULTS.schema()
MUS: tuple[float | None, ...] = (None, 6.10, 3.92, 2.45, 1.49)
MOST = 43
#: Of a flow's mu squared, what the frequencies of the label have.
_LABEL = 0.02
_COLUMNS = tuple(next(a for a in NEAR_DEFAULTS.attributes if a.output == target) for target in TARGETS)
EIGHT = Schema(
    name="pulmonary-eight",
    columns=tuple(
        c for c in SCHEMA.columns if c.role == "label" or c.name in ("patient", "site", *(a.name for a in _COLUMNS))
    ),
)
#: Public standard deviations of the eight columns: the schema's.
PUBLIC = torch.tensor([a.spread for a in _COLUMNS], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Measured:
    """The cohort as this experiment sees it. records: the chosen patients' (m, 8).  truth: (23,) mean of their parameters."""

    whole: Cohort

    @cached_property
    def z(self) -> Floats:
        """(64, D) training rows under ``EIGHT``'s layout."""
        encoded = encode(self.whole.records.iloc[:TRAINING][[c.name for c in EIGHT.columns]], EIGHT)
        assert encoded.y is not None
        return self.layout.rows(encoded.x, encoded.y)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(EIGHT)

    @cached_property
    def records(self) -> Tensor:
        return self._chosen(self.whole.records.iloc[:TRAINING])[0]

    @cached_property
    def truth(self) -> dict[str, float]:
        """Each of CVSim-6's parameters, mean over the chosen patients."""
        rows = self._chosen(self.whole.records.iloc[:TRAINING])[1]
        return dict(zip(NAMES, self.whole.parameters[rows].mean(0).tolist(), strict=True))

    def synthetic(self, synthesizer: Synthesizer, rng: np.random.Generator) -> Tensor:
        """The (m, 8) chosen of as many synthetic patients as there were real ones."""
        return self._chosen(self.layout.decode(synthesizer.sample(TRAINING, rng)))[0]

    def _chosen(self, table: pd.DataFrame) -> tuple[Tensor, NDArray[np.intp]]:
        pressure = mean_pressure(table["dpap"].to_numpy(), table["spap"].to_numpy())
        rows = np.flatnonzero(pressure > HYPERTENSIVE)[:MOST]
        values = table[[a.name for a in _COLUMNS]].to_numpy(dtype=np.float64, na_value=np.nan)[rows]
        return torch.from_numpy(np.ascontiguousarray(values)), rows


def patients() -> Measured:
    """The simulated cohort of 84 patients, by its first seed."""
    return Measured(cohort(law=NEAR_DEFAULTS))


def moments(given: Measured, mu: float | None, seed: int) -> Synthesizer:
    """By one sum of first and second moments, and the frequencies of the label with the same noise."""
    noise = 0.0 if mu is None else math.sqrt(2) / mu
    rng = generator(seed, "table 5, moments", str(mu))
    return fit_centrally(Moments(given.layout), given.z, np.arange(TRAINING), TRAINING, noise, rng)


def flow(given: Measured, mu: float | None, seed: int, steps: int = 400, rate: float = 0.5) -> Synthesizer:
    """By private steps of a masked autoregressive flow without batch norm."""
    recipe = make(given.layout, "maf", transforms=3, hidden=16, layers=1)
    noise, label = None, 0.0
    if mu is not None:
        wanted = mu * math.sqrt(1 - _LABEL)
        noise = float(brentq(lambda s: clt_mu(rate, s, steps) - wanted, 0.3, 1e4))
        label = 1 / (mu * math.sqrt(_LABEL))
    settings = TrainSettings(rate, steps, 5e-3, 1.0, noise, optimizer="adam")
    arrays = initialise(recipe.module, torch_seed(seed, "table 5, flow"))
    x, y = given.layout.features_and_labels(given.z)
    site = SiteWork(
        Rows(x, y, np.arange(TRAINING), TRAINING), keyed_stream(seed, "table 5, batches", str(mu)),
        keyed_stream(seed, "table 5, noise", str(mu)), float(TRAINING), layers=keyed_stream(seed, "table 5, layers", str(mu)),
    )  # fmt: skip
    start = {name: value.numpy() for name, value in arrays.items()}
    trained = DensityTask(recipe).train(recipe.module, start, [site], settings)[0].arrays
    rng = generator(seed, "table 5, label", str(mu))
    counts = given.z[:, given.layout.label].sum(0)
    return FlowRows(recipe, trained, class_frequencies(counts + label * rng.standard_normal(len(counts))))


GENERATORS: dict[str, Callable[[Measured, float | None, int], Synthesizer]] = {"moments": moments, "maf": flow}
