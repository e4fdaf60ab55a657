"""Patients of a distribution over 240 cells, whose truth is exact: its columns depend on one another in pairs, or not only so."""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np

from polyclinic.ehr.schema import Column, Schema
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.types import Floats

SCHEMA = Schema(
    name="ward",
    unit="record",
    columns=(
        Column(name="decade", kind="integer", bounds=(0.0, 9.0)),
        Column(name="diabetes", kind="binary"),
        Column(name="smokes", kind="binary"),
        Column(name="stage", kind="ordinal", categories=("I", "II", "III")),
        Column(name="died", kind="binary", role="label"),
    ),
)
LAYOUT = Layout.of(SCHEMA)
TABLE = Table.of(LAYOUT, bins=16, columns=60)
SIZES = (10, 2, 2, 3, 2)
#: Every cell: its values of all columns, the label last.
CELLS = np.array(list(product(*map(range, SIZES))), dtype=np.int64)
#: Quantities of an analysis, in its order.
MEANS = ("mean decade", "share with diabetes", "share who died", "risk difference by smoking")
SLOPES = ("intercept", "decade", "diabetes", "smokes", "stage")
INTERACTION = "diabetes and smokes"


class Population:
    """Columns depend on one another in pairs, in the logarithm of a cell's share; ``interaction`` adds what no pair shows."""

    def __init__(self, interaction: float = 0.0) -> None:
        decade, diabetes, smokes, stage, died = CELLS.T.astype(np.float64)
        logs = (
            -0.08 * (decade - 5.0) ** 2 + 0.25 * (decade - 5.0) * diabetes - 1.0 * diabetes - 0.5 * smokes - 0.4 * stage
            + 0.5 * smokes * stage + 0.7 * diabetes * smokes
            + died * (-2.4 + 0.25 * (decade - 5.0) + 0.6 * diabetes + 0.5 * smokes + 0.7 * stage)
            + interaction * died * (diabetes - 0.5) * (smokes - 0.5)
        )  # fmt: skip
        shares = np.exp(logs)
        self.shares: Floats = shares / shares.sum()
        self.interaction = bool(interaction)

    @cached_property
    def truth(self) -> Floats:
        """(k,) the quantities of ``analysed``."""
        return analysed(self.shares * 1e12, self.interaction)[0]

    def patients(self, count: int, rng: np.random.Generator) -> Floats:
        """(count, D) rows of the layout."""
        return TABLE.rows(CELLS[rng.choice(len(CELLS), count, p=self.shares)], rng)


def counted(z: Floats) -> Floats:
    """(240,) how many of (n, D) rows each cell has."""
    places = np.ravel_multi_index(tuple(TABLE.cells(z).T), SIZES)
    return np.bincount(places, minlength=len(CELLS)).astype(np.float64)


def analysed(counts: Floats, interaction: bool = False) -> tuple[Floats, Floats]:
    """(k,) estimates and their variances, as of real rows, from (240,) counts of rows: means, a difference, and the coefficients
    of a logistic regression."""
    decade, diabetes, smokes, stage, died = CELLS.T.astype(np.float64)
    rows = counts.sum()
    found = []
    for values in (decade, diabetes, died):
        mean = counts @ values / rows
        found.append((mean, counts @ (values - mean) ** 2 / (rows - 1) / rows))
    of = [(counts * (smokes == arm)).sum() for arm in (1, 0)]
    risks = [(counts * (smokes == arm)) @ died / max(size, 1) for arm, size in zip((1, 0), of, strict=True)]
    spread = sum(risk * (1 - risk) / max(size, 1) for risk, size in zip(risks, of, strict=True))
    found.append((risks[0] - risks[1], spread))
    columns = [np.ones(len(CELLS)), decade, diabetes, smokes, stage] + [diabetes * smokes] * interaction
    slopes, variances = logistic(np.column_stack(columns), died, counts)
    estimates, spreads = (np.array(part) for part in zip(*found, strict=True))
    return np.concatenate([estimates, slopes]), np.concatenate([spreads, variances])


def logistic(x: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """(p,) coefficients of largest likelihood and their variances, of (n, p) rows with weights; a trace of ridge keeps
    them finite."""
    slopes = np.zeros(x.shape[1])
    ridge = 1e-6 * weights.sum() / len(weights) * np.eye(len(slopes))
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-np.clip(x @ slopes, -30, 30)))
        information = (x.T * (weights * chance * (1 - chance))) @ x + ridge
        step = np.linalg.solve(information, x.T @ (weights * (y - chance)) - ridge @ slopes)
        slopes = slopes + step
        if np.abs(step).max() < 1e-9:
            break
    return slopes, np.diag(np.linalg.inv(information))
