"""The numbers behind the pictures of quality: what is drawn is in ``quality.json``, and no record is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import Column, label_names
from polyclinic.evaluation.synthetic.correlations import pearson
from polyclinic.evaluation.synthetic.resampling import Floats
from polyclinic.evaluation.synthetic.sample import Sample

MOST_CORRELATED, MOST_DRAWN, MOST_ARMS, MOST_TRAJECTORIES = 40, 8, 4, 6
BINS = 24
QUANTILES = (0.25, 0.5, 0.75)


def heat_map(real: Sample, synthetic: Sample) -> dict[str, Any] | None:
    """Pearson matrices over the columns that vary in the real table; of many those that hang together most with others.

    ``columns`` (m,), ``held_out`` and ``synthetic`` (m, m), None where undefined.  None of fewer than two columns.
    """
    telling = real.telling
    numbers, names = real.numbers(telling), real.names(telling)
    with np.errstate(invalid="ignore"):
        varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in numbers.T])
    kept = np.flatnonzero(varies)
    if len(kept) < 2:
        return None
    matrix = pearson(numbers[:, kept])
    strength = np.nansum(np.abs(matrix), axis=0)
    order = np.sort(np.argsort(-strength, kind="stable")[:MOST_CORRELATED])
    return {
        "columns": [names[kept[i]] for i in order],
        "held_out": _rounded(matrix[np.ix_(order, order)]),
        "synthetic": _rounded(pearson(synthetic.numbers(telling)[:, kept[order]])),
    }


def course_tables(samples: Mapping[str, Sample]) -> dict[str, Any] | None:
    """Quartiles over visits of each trajectory, by table and arm: ``by``, the column that the arms are of, and ``measures``.

    The arms are of the first feature of two to four categories, else of the label.
    """
    schema = next(iter(samples.values())).schema
    measures = [column for column in schema.features if column.kind == "trajectory"][:MOST_TRAJECTORIES]
    if not measures:
        return None
    by = next((column for column in schema.features if _arms(column)), schema.label)
    names = label_names(schema) if by is schema.label else by.categories or ("0", "1")
    return {
        "by": by.name,
        "measures": [
            {"name": column.name, "unit": column.unit, "tables": {
                name: {arm: _course(sample.records, column, by, arm) for arm in names} for name, sample in samples.items()
            }}
            for column in measures
        ],
    }  # fmt: skip


def histograms(real: Sample, synthetic: Sample, judged: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Shares by value of the columns that are least alike, at most eight: ``edges`` or ``categories``, and the shares."""
    likeness = {name: one.get("ks", one.get("tv")) for name, one in judged.items()}
    worst = sorted((name for name, value in likeness.items() if value is not None), key=lambda name: likeness[name])
    return [_histogram(name, real, synthetic) | {"likeness": likeness[name]} for name in worst[:MOST_DRAWN]]


def _histogram(name: str, real: Sample, synthetic: Sample) -> dict[str, Any]:
    pair = {"held_out": real.records[name], "synthetic": synthetic.records[name]}
    if name in real.categorical:
        of = next(c for c in (*real.schema.features, real.schema.label) if c.name == name)
        names = of.categories or ("0", "1")
        shares = {key: cells.dropna().astype(str).value_counts(normalize=True) for key, cells in pair.items()}
        counted = {key: [float(share.get(one, 0.0)) for one in names] for key, share in shares.items()}
        return {"column": name, "categories": list(names), **counted}
    values = {key: cells.dropna().to_numpy(dtype=np.float64) for key, cells in pair.items()}
    both = np.unique(np.concatenate([*values.values()]))
    whole = len(both) <= BINS and bool((both == np.round(both)).all())
    if whole or len(both) == 1:
        edges = np.arange(np.floor(both[0]), np.floor(both[-1]) + 2) - 0.5
    else:
        edges = np.linspace(both[0], both[-1], BINS + 1)
    found = {key: (np.histogram(cells, edges)[0] / len(cells)).round(6).tolist() for key, cells in values.items()}
    return {"column": name, "edges": edges.tolist(), **found}


def _arms(column: Column) -> bool:
    return column.kind == "binary" or (
        column.kind in ("categorical", "ordinal") and 2 <= len(column.categories) <= MOST_ARMS
    )


def _course(records: pd.DataFrame, column: Column, by: Column, arm: str) -> list[list[float | None]]:
    """Three rows, quartiles over patients of an arm at each visit; None at a visit where nobody has a value."""
    rows = (records[by.name].astype(object).astype(str) == arm).to_numpy(dtype=bool)
    values = records.loc[rows, list(column.record_names)].to_numpy(dtype=np.float64, na_value=np.nan)
    seen = np.isfinite(values).any(axis=0)
    found = np.full((3, values.shape[1]), np.nan)
    if seen.any():
        found[:, seen] = np.nanquantile(values[:, seen], QUANTILES, axis=0)
    return _rounded(found)


def _rounded(table: Floats) -> list[list[float | None]]:
    return [[float(round(cell, 4)) if np.isfinite(cell) else None for cell in row] for row in table]
