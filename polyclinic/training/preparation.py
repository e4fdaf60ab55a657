"""How features are scaled before training, and the sums over records that a site pays for.

The sums go through the ledger; a public scale looks at no record, and applying any scale is a pure function of public numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.encoding import Standardiser, measured_mask, nullable_mask, public_standardiser
from polyclinic.ehr.imputation import Imputer, check_fills, constants, impute_chained
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.statistics import BINS, PatientTotal, binned_patients, patient_count, sensitivity, standardiser
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.types import Bools, Floats, Reals


@dataclass(frozen=True)
class PatientSums:
    """What is summed over a hospital's training patients before a run, for a price.

    measured: with the bins of numeric columns that the schema gives no centre and spread; otherwise the number of patients is
        all.
    by_class: instead of both, the patients in each class of the label.
    """

    schema: Schema
    measured: bool = False
    by_class: bool = False

    @property
    def columns(self) -> Bools:
        """(features,) True for encoded columns whose bins are paid for."""
        return measured_mask(self.schema) & (self.measured and not self.by_class)

    @property
    def nullable(self) -> Bools:
        """Which of these columns may be missing."""
        return nullable_mask(self.schema)[self.columns]

    @property
    def size(self) -> int:
        """How many numbers are summed."""
        return (
            self.schema.num_classes if self.by_class else 1 + int(self.nullable.sum()) + BINS * int(self.columns.sum())
        )

    def exact(self, shard: Shard) -> PatientTotal:
        """The training patients' summed contributions and their sensitivity (add/remove one patient).

        A patient with rows of several classes counts in parts, which add up to 1.
        """
        rows = shard.train
        if self.by_class:
            share = mean_of_rows(np.eye(self.schema.num_classes)[rows.y], rows.patient, rows.patients)
            return PatientTotal(share.sum(axis=0), 1.0)
        return binned_patients(rows.x[:, self.columns], rows.patient, rows.patients, self.nullable)

    def patients(self, total: Reals) -> float:
        """A site's number of patients, as noisy as its total is."""
        return float(total.sum()) if self.by_class else patient_count(total, self.nullable)

    def standardiser(self, totals: Sequence[Reals], noise_multiplier: float | None) -> Standardiser:
        """Mean and std of all encoded columns, from the sites' totals; where they are not measured, those of the schema.

        noise_multiplier: of each total's noise; None for exact sums.
        """
        noise = (noise_multiplier or 0.0) * sensitivity(self.nullable) * len(totals) ** 0.5
        mean, std = public_standardiser(self.schema)
        mean[self.columns], std[self.columns] = standardiser(np.sum(totals, axis=0), self.nullable, noise)
        return mean, std


def check_imputation(imputation: str, schema: Schema, imputer: Imputer | None) -> None:
    """Checks that the schema and the imputer have what ``imputed`` needs.

    Args:
        imputation: How missing cells are filled.
        schema: The public schema.
        imputer: What "chained" fills cells by; None where there is none.

    Raises:
        ConfigError: Something is missing.
    """
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

    Every way but "mice" makes of a row what is a function of that row and of public or paid numbers. Way "mice" is
    fitted to the training rows, and what is trained on its rows has no epsilon.

    Args:
        shard: The hospital's rows.
        imputation: How missing cells are filled.
        imputer: What "chained" fills cells by.
        seed: The seed of "mice".
    """
    train, test, schema = shard.train, shard.test, shard.schema
    if imputation == "mice":
        own, others = impute_chained(train.x, schema, seed, [test.x])
        return replace(train, x=own), replace(test, x=others)
    if imputation in ("constant", "chained"):
        train, test = (replace(rows, x=filled(rows.x, schema, imputation, imputer)) for rows in (train, test))
    return train, test


def filled(x: Floats, schema: Schema, imputation: str, imputer: Imputer | None) -> Floats:
    """(rows, features) encoded rows with missing cells as ``imputation`` says, of each row by itself; not "mice".

    Args:
        x: (rows, features) encoded rows, NaN where missing.
        schema: The public schema.
        imputation: How missing cells are filled.
        imputer: What "chained" fills cells by; None where there is none.
    """
    if imputation == "constant":
        return constants(x, schema)
    return imputer.fill(x, schema) if imputation == "chained" and imputer is not None else x


def standardised(rows: Rows, by: Standardiser | None) -> Rows:
    """The rows with every numeric column centred and scaled; missing cells stay NaN."""
    if by is None:
        return rows
    x = rows.x - by[0]
    x /= by[1]  # in place: the rows may be a million
    return replace(rows, x=x)
