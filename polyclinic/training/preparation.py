"""Preparation that looks at records: the sums a site pays for, and the standardisation that follows from them.

The sums go through the ledger; applying the standardiser is a pure function of public numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.ehr.encoding import nullable_mask, standardised_mask
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.privacy.statistics import Moments, moments, patient_count, sensitivity, standardiser

Standardiser = tuple[np.ndarray, np.ndarray]


def contributions(shard: Shard) -> Moments:
    """The training patients' summed contributions and their sensitivity (add/remove one patient)."""
    numeric, rows = standardised_mask(shard.schema), shard.train
    return moments(rows.x[:, numeric], rows.patient, rows.patients, nullable_mask(shard.schema)[numeric])


def combine(
    totals: list[np.ndarray], schema: Schema, noise_multiplier: float | None
) -> tuple[Standardiser, list[float]]:
    """The standardiser of all encoded columns (identity where they are not numeric), and each site's patient count.

    noise_multiplier: of each total's noise; None for exact sums.
    """
    numeric = standardised_mask(schema)
    nullable = nullable_mask(schema)[numeric]
    noise = noise_multiplier and noise_multiplier * sensitivity(nullable) * len(totals) ** 0.5
    mean, std = np.zeros(len(numeric)), np.ones(len(numeric))
    mean[numeric], std[numeric] = standardiser(np.sum(totals, axis=0), nullable, noise)
    return (mean, std), [patient_count(total, nullable) for total in totals]


def standardised(rows: Rows, by: Standardiser | None) -> Rows:
    """The rows with every numeric column centred and scaled; missing cells stay NaN."""
    return rows if by is None else replace(rows, x=(rows.x - by[0]) / by[1])
