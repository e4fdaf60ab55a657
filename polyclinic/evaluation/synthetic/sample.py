"""A table of patients as every judge of quality needs it: records for people, numbers for machines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import decode, encode, feature_names, feature_slices
from polyclinic.ehr.schema import Schema, label_names
from polyclinic.errors import DataError
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints

MOST, MOST_FULL = 2000, 4000  # patients of a table; where classifiers are asked as well
MOST_FEATURES = 200


@dataclass(frozen=True, eq=False)
class Sample:
    """records: one row a patient, the schema's features and its label.  x: (n, F) as encoded, NaN where missing.  y: (n,)."""

    schema: Schema
    records: pd.DataFrame
    x: Floats
    y: Ints

    @classmethod
    def of(cls, x: Floats, y: Ints, schema: Schema) -> Sample:
        """Of encoded features (n, F) and labels (n,), whoever made them: each cell becomes the nearest that the schema allows.

        Raises DataError where there is no row.
        """
        if not len(y):
            raise DataError("a table of patients to judge has no rows.")
        records = decode(x, schema)
        label = schema.label
        records[label.name] = np.array(label.categories, dtype=object)[y] if label.categories else y
        found = encode(records, schema)
        assert found.y is not None
        return cls(schema, records, found.x, found.y)

    def names(self, kept: Ints) -> tuple[str, ...]:
        """Of ``numbers``: the ``kept`` features as encoded, and the label, by class where there are more than two."""
        label, features = self.schema.label.name, feature_names(self.schema)
        classes = (label,) if self.schema.num_classes == 2 else [f"{label}={name}" for name in label_names(self.schema)]
        return (*(features[i] for i in kept), *classes)

    def numbers(self, kept: Ints) -> Floats:
        """(n, m) by ``names``; NaN where missing."""
        classes = self.schema.num_classes
        label = self.y[:, None] if classes == 2 else np.eye(classes)[self.y]
        return np.concatenate([self.x[:, kept], label.astype(np.float64)], axis=1)

    @property
    def telling(self) -> Ints:
        """Which features are compared and learned from: all, or of very many the 200 that vary most (of codes: the commonest)."""
        if self.x.shape[1] <= MOST_FEATURES:
            return np.arange(self.x.shape[1])
        spread = np.nanvar(np.where(np.isnan(self.x).all(axis=0), 0.0, self.x), axis=0)
        return np.sort(np.argsort(-spread, kind="stable")[:MOST_FEATURES])

    @property
    def plain(self) -> pd.DataFrame:
        """The records without sets of codes: a cell is a number or a category."""
        return self.records.drop(columns=[column.name for column in self.schema.features if column.kind == "code_set"])

    @property
    def categorical(self) -> tuple[str, ...]:
        """The columns of ``plain`` that hold categories; the others hold numbers."""
        columns = (*self.schema.features, self.schema.label)
        return tuple(c.name for c in columns if c.kind in ("binary", "categorical", "ordinal"))

    def codes(self, name: str) -> Bools:
        """(n, J) whether each patient has each code of the set ``name``."""
        at = next(at for column, at in feature_slices(self.schema) if column.name == name)
        return np.asarray(self.x[:, at] > 0.5)


def one_row_each(patient: Ints, patients: int, seed: int, most: int = MOST) -> Ints:
    """(k,) rows, one at random of each of at most ``most`` patients, themselves at random; patient: (n,) of each row, from 0.

    Synthetic rows are a patient each, so that real ones must be too: a patient with many rows would count as many.
    """
    rng = generator(seed, "quality", "rows")
    order = rng.permutation(len(patient))
    first = np.full(patients, -1, dtype=np.int64)
    first[patient[order][::-1]] = order[::-1]
    chosen = first[first >= 0]
    if len(chosen) > most:
        chosen = rng.choice(chosen, most, replace=False)
    return np.sort(chosen)
