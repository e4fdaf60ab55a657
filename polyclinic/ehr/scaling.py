"""How encoded features are scaled by the public schema alone; no record is looked at."""

from __future__ import annotations

import numpy as np

from polyclinic.ehr.encoding import feature_slices, standardised_mask
from polyclinic.ehr.schema import Schema

#: Mean and std of all encoded columns, (features,) float64 each.
Standardiser = tuple[np.ndarray, np.ndarray]
# Of a numeric column in [-1, 1]: as much as a binary column can have. docs/privacy/choosing.md
_PUBLIC_STD = 0.5


def public_standardiser(schema: Schema) -> Standardiser:
    """Mean and std of all encoded columns, from the schema alone: numeric ones vary as its ``centre`` and ``spread`` say, or by
    half of their scale around its middle.
    """
    numeric = standardised_mask(schema)
    mean, std = np.zeros(len(numeric)), np.where(numeric, _PUBLIC_STD, 1.0)
    for column, at in feature_slices(schema):
        if column.centre is not None and column.spread is not None and column.bounds is not None:
            half = (column.bounds[1] - column.bounds[0]) / 2
            mean[at], std[at] = (column.centre - column.bounds[0]) / half - 1, column.spread / half
    return mean, std
