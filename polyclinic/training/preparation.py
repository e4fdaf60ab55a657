"""How features are scaled before training, and the sums over records that a site pays for.

The sums go through the ledger; a public scale looks at no record, and applying any scale is a pure function of public numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.ehr.encoding import Standardiser, nullable_mask, standardised_mask
from polyclinic.ehr.imputation import Imputer, chained, check_fills, constants
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.statistics import Moments, moments, patient_count, sensitivity, standardiser
from polyclinic.synthesis.sums import mean_of_rows


def contributions(shard: Shard, measured: bool) -> Moments:
    """The training patients' summed contributions and their sensitivity (add/remove one patient).

    measured: with the numeric columns' moments; otherwise the number of patients is all that is paid for.
    """
    columns, rows = _columns(shard.schema, measured), shard.train
    return moments(rows.x[:, columns], rows.patient, rows.patients, nullable_mask(shard.schema)[columns])


def class_contributions(shard: Shard) -> Moments:
    """(K,) training patients in each class of the label; one with rows of several counts in parts, which add up to 1."""
    rows = shard.train
    share = mean_of_rows(np.eye(shard.schema.num_classes)[rows.y], rows.patient, rows.patients)
    return Moments(share.sum(axis=0), 1.0)


def measured_standardiser(totals: list[np.ndarray], schema: Schema, noise_multiplier: float | None) -> Standardiser:
    """Mean and std of all encoded columns (0 and 1 where they are not numeric), from the sites' totals.

    noise_multiplier: of each total's noise; None for exact sums.
    """
    numeric = standardised_mask(schema)
    nullable = nullable_mask(schema)[numeric]
    noise = noise_multiplier and noise_multiplier * sensitivity(nullable) * len(totals) ** 0.5
    mean, std = np.zeros(len(numeric)), np.ones(len(numeric))
    mean[numeric], std[numeric] = standardiser(np.sum(totals, axis=0), nullable, noise)
    return mean, std


def patient_counts(totals: list[np.ndarray], schema: Schema, measured: bool) -> list[float]:
    """Each site's number of patients, as noisy as its total is."""
    nullable = nullable_mask(schema)[_columns(schema, measured)]
    return [patient_count(total, nullable) for total in totals]


def contribution_size(schema: Schema, measured: bool) -> int:
    """How many numbers ``contributions`` sums."""
    columns = _columns(schema, measured)
    return 1 + int(nullable_mask(schema)[columns].sum()) + 2 * int(columns.sum())


def _columns(schema: Schema, measured: bool) -> np.ndarray:
    """(features,) True for encoded columns whose moments are paid for."""
    return standardised_mask(schema) & measured


def check_imputation(imputation: str, schema: Schema, imputer: Imputer | None) -> None:
    """Raises ConfigError where a schema, or an imputer, has not what ``imputed`` needs."""
    if imputation == "constant":
        check_fills(schema)
    if imputation == "chained":
        if imputer is None:
            raise ConfigError(
                "imputation is 'chained', but there is no imputer; real hospitals name one in hospital.toml."
            )
        imputer.check(schema)


def imputed(shard: Shard, imputation: str, imputer: Imputer | None = None, seed: int = 0) -> tuple[Rows, Rows]:
    """The training and the held-out rows with missing cells as ``imputation`` says; NaN stays where it means the mean.

    Every way but "mice" makes of a row what is a function of that row and of public or paid numbers; "mice" is fitted to the
    training rows, and what is trained on its rows has no epsilon.
    """
    train, test, schema = shard.train, shard.test, shard.schema
    if imputation == "constant":
        return replace(train, x=constants(train.x, schema)), replace(test, x=constants(test.x, schema))
    if imputation == "chained" and imputer is not None:
        return replace(train, x=imputer.fill(train.x, schema)), replace(test, x=imputer.fill(test.x, schema))
    if imputation == "mice":
        own, others = chained(train.x, schema, seed, [test.x])
        return replace(train, x=own), replace(test, x=others)
    return train, test


def standardised(rows: Rows, by: Standardiser | None) -> Rows:
    """The rows with every numeric column centred and scaled; missing cells stay NaN."""
    if by is None:
        return rows
    x = rows.x - by[0]
    x /= by[1]  # in place: the rows may be a million
    return replace(rows, x=x)
