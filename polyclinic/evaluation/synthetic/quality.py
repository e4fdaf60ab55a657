"""All that judges synthetic patients beside held-out real ones, as JSON (docs/synthesis/quality.md).

Every measure is computed twice: of the synthetic patients, and of as many training patients, who are real and other people than
the held-out ones. The second is what a perfect generator would reach, and so says what a number means.

Nothing here is private: what is told are exact functions of real records, which stay where those are or are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import decode, encode, feature_names, feature_slices
from polyclinic.ehr.rules import violations
from polyclinic.ehr.schema import Column, Schema, label_names
from polyclinic.errors import DataError
from polyclinic.evaluation.synthetic import codes
from polyclinic.evaluation.synthetic.classifiers import CLASSIFIERS, JUDGES, cutoff_on, transfer, two_sample
from polyclinic.evaluation.synthetic.codes import predictions
from polyclinic.evaluation.synthetic.columns import Numeric, columns, correlations, pairs, pearson
from polyclinic.evaluation.synthetic.courses import Courses, carried_forward, compare_courses
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats, Ints

SYNTHETIC, TRAINING = "synthetic", "training"
MOST_PAIRED = 150  # columns whose pairs are compared
RESAMPLES = 500
MOST_CORRELATED, MOST_DRAWN, MOST_ARMS, MOST_TRAJECTORIES = 40, 8, 4, 6
BINS = 24
QUANTILES = (0.25, 0.5, 0.75)
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
        """Return a sample of encoded records, whoever made them: each cell becomes the nearest that the schema allows.

        Args:
            x: (n, F) encoded features.
            y: (n,) class numbers.
            schema: The schema by which they were encoded.

        Raises:
            DataError: Where there is no row.
        """
        if not len(y):
            raise DataError("a table of patients to judge has no rows.")
        records = decode(x, schema)
        label = schema.label
        records[label.name] = np.array(label.categories, dtype=object)[y] if label.categories else y
        encoded = encode(records, schema)
        assert encoded.y is not None
        return cls(schema, records, encoded.x, encoded.y)

    def names(self, chosen: Ints) -> tuple[str, ...]:
        """Of ``numbers``: the ``chosen`` features as encoded, and the label, by class where there are more than two."""
        label, features = self.schema.label.name, feature_names(self.schema)
        classes = (label,) if self.schema.num_classes == 2 else [f"{label}={name}" for name in label_names(self.schema)]
        return (*(features[i] for i in chosen), *classes)

    def numbers(self, chosen: Ints) -> Floats:
        """(n, m) by ``names``; NaN where missing."""
        classes = self.schema.num_classes
        label = self.y[:, None] if classes == 2 else np.eye(classes)[self.y]
        return np.concatenate([self.x[:, chosen], label.astype(np.float64)], axis=1)

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
    """Return (k,) rows, one at random of each of at most ``most`` patients, themselves at random.

    Synthetic rows are a patient each, so that real ones must be too: a patient with many rows would count as many.

    Args:
        patient: (n,) number of each row's patient, from 0.
        patients: The number of patients.
        seed: Of the rows and patients drawn.
        most: The most patients.
    """
    rng = generator(seed, "quality", "rows")
    order = rng.permutation(len(patient))
    first = np.full(patients, -1, dtype=np.int64)
    first[patient[order][::-1]] = order[::-1]
    chosen = first[first >= 0]
    if len(chosen) > most:
        chosen = rng.choice(chosen, most, replace=False)
    return np.sort(chosen)


def judge(
    held_out: Sample, training: Sample, synthetic: Sample, *, full: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Return the content of ``quality.json``, but for whose patients they are.

    Args:
        held_out: Real patients who trained nothing.
        training: Real patients who trained the generator.
        synthetic: The synthetic patients.
        full: Compute also the two-sample test, transfer, prediction of codes and the cut-off, which take classifiers;
            else they are None.
        seed: Of what is drawn.
    """
    tables = {SYNTHETIC: synthetic, TRAINING: training}
    quality: dict[str, Any] = {
        "full": full,
        "label": held_out.schema.label.name,
        "seed": seed,
        "rows": {"held_out": len(held_out.y)} | {name: len(table.y) for name, table in tables.items()},
        "tables": {name: compare(held_out, table) for name, table in tables.items()},
        "rules": _rules({"held_out": held_out, **tables}),
        "visits": _visits(held_out, tables),
        "two_sample": None, "transfer": None, "prediction": None, "cutoff": None,
    }  # fmt: skip
    judged = quality["tables"][SYNTHETIC]["columns"]
    quality["pictures"] = {
        "columns": histograms(held_out, synthetic, judged),
        "correlations": heat_map(held_out, synthetic),
        "trajectories": course_tables({"held-out": held_out, SYNTHETIC: synthetic}),
    }
    return quality | (_by_classifiers(held_out, tables, seed) if full else {})


def compare(real: Sample, table: Sample) -> dict[str, Any]:
    """Columns, pairs, correlations and codes of ``table`` beside those of ``real``, as JSON: exact, and so not private."""
    judged = columns(real.plain, table.plain, real.categorical)
    spread = real.plain.drop(columns=list(real.categorical)).apply(lambda c: c.astype(float).std(ddof=0))
    values_by_column = {name: asdict(column) for name, column in judged.items()}
    for name, column in judged.items():
        if isinstance(column, Numeric):
            width = float(spread[name])
            values_by_column[name]["wasserstein_sd"] = (
                column.wasserstein / width if column.wasserstein is not None and width > 0 else None
            )
    informative = real.telling
    apart = correlations(real.numbers(informative), table.numbers(informative), real.names(informative))
    return {
        "columns": values_by_column,
        "means": {
            key: _mean([column[key] for column in values_by_column.values() if key in column])
            for key in ("ks", "wasserstein_sd", "tv", "boundary", "category", "missing")
        },
        "pairs": _pairs(real, table),
        "correlations": {"spearman": apart.spearman, "frobenius": apart.frobenius, "largest": apart.largest,
                         "columns": len(apart.columns), "dropped": list(apart.dropped)},
        "codes": {name: _codes(real, table, name) for name in _code_sets(real)},
    }  # fmt: skip


def _pairs(real: Sample, table: Sample) -> float | None:
    """The mean over pairs of different columns."""
    if not 2 <= real.plain.shape[1] <= MOST_PAIRED:
        return None
    matrix = pairs(real.plain, table.plain, real.categorical).to_numpy()
    return float(matrix[np.triu_indices(len(matrix), 1)].mean())


def _code_sets(sample: Sample) -> list[str]:
    return [column.name for column in sample.schema.features if column.kind == "code_set"]


def _codes(real: Sample, table: Sample, name: str) -> dict[str, Any]:
    pair = real.codes(name), table.codes(name)
    share = codes.probabilities(*pair)
    return {
        "rmse": share.rmse, "largest": share.largest, "r2": share.r2,
        "real": share.real.round(6).tolist(), "other": share.synthetic.round(6).tolist(),
        "co_occurrence": asdict(codes.co_occurrence(*pair)),
        "per_patient": asdict(codes.per_patient(*pair)),
    }  # fmt: skip


def _rules(samples: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """By rule and table how often it was asked and broken."""
    schema = next(iter(samples.values())).schema
    by_table = {name: violations(sample.records, schema.rules, schema.columns) for name, sample in samples.items()}
    return [
        {"rule": rule}
        | {
            name: {"asked": each[i].asked, "broken": each[i].broken, "share": each[i].share}
            for name, each in by_table.items()
        }
        for i, rule in enumerate(schema.rules)
    ]


def _visits(held_out: Sample, tables: Mapping[str, Sample]) -> dict[str, Any] | None:
    """By table the likeness of its visits over time, and what carrying the last value forward would predict of the next visit.

    None of a schema without trajectories."""
    real, *others = (Courses.of(sample.x, sample.y, sample.schema) for sample in (held_out, *tables.values()))
    if real is None:
        return None
    carried = [score for score in carried_forward(real).values() if score is not None]
    compared = {
        name: asdict(compare_courses(real, courses))
        for name, courses in zip(tables, others, strict=True)
        if courses is not None
    }
    return {"tables": compared, "carried_forward": _mean([*carried])}


def _by_classifiers(held_out: Sample, tables: Mapping[str, Sample], seed: int) -> dict[str, Any]:
    informative = held_out.telling
    by_judge = {}
    for name, table in tables.items():
        intervals = two_sample(
            held_out.numbers(informative), table.numbers(informative), seed=seed, resamples=RESAMPLES
        )
        by_judge[name] = {JUDGES[judge]: asdict(interval) for judge, interval in intervals.items()}
    learned = {name: (features(table, informative), table.y) for name, table in tables.items()}
    test = features(held_out, informative), held_out.y
    taught = transfer(learned[TRAINING], {SYNTHETIC: learned[SYNTHETIC]}, test, seed=seed, resamples=RESAMPLES)
    return {
        "two_sample": by_judge,
        "transfer": {
            table: {CLASSIFIERS[kind]: asdict(transferred) for kind, transferred in each.items()}
            for table, each in taught.items()
        },
        "prediction": {name: _prediction_scores(held_out, tables, name) for name in _code_sets(held_out)},
        "cutoff": {name: cutoff_on(table, test, seed) for name, table in learned.items()}
        if held_out.schema.num_classes == 2
        else None,
    }


def features(sample: Sample, chosen: Ints) -> Floats:
    """(n, chosen + indicators) scaled by public numbers, missing cells 0 beside an indicator."""
    layout = Layout.of(sample.schema)
    z = layout.rows(sample.x, sample.y)
    return np.concatenate([z[:, chosen], z[:, layout.missing]], axis=1)


def _prediction_scores(held_out: Sample, tables: Mapping[str, Sample], name: str) -> dict[str, Any]:
    predicted = predictions(tables[TRAINING].codes(name), tables[SYNTHETIC].codes(name), held_out.codes(name))
    return {key: getattr(predicted, key) for key in ("mean_real", "mean_synthetic", "mean_absent_zero", "skipped")} | {
        "codes": len(predicted.codes)
    }


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def heat_map(real: Sample, synthetic: Sample) -> dict[str, Any] | None:
    """Pearson matrices over the columns that vary in the real table; of many those that hang together most with others.

    ``columns`` (m,), ``held_out`` and ``synthetic`` (m, m), None where undefined.  None of fewer than two columns.
    """
    telling = real.telling
    numbers, names = real.numbers(telling), real.names(telling)
    with np.errstate(invalid="ignore"):
        varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in numbers.T])
    chosen = np.flatnonzero(varies)
    if len(chosen) < 2:
        return None
    matrix = pearson(numbers[:, chosen])
    strength = np.nansum(np.abs(matrix), axis=0)
    order = np.sort(np.argsort(-strength, kind="stable")[:MOST_CORRELATED])
    return {
        "columns": [names[chosen[i]] for i in order],
        "held_out": _round(matrix[np.ix_(order, order)]),
        "synthetic": _round(pearson(synthetic.numbers(telling)[:, chosen[order]])),
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
    """Return shares by value of the columns that are least alike, at most eight: ``edges`` or ``categories``, and the shares.

    Args:
        real: The held-out patients.
        synthetic: The synthetic patients.
        judged: By column its measures, of which ``ks`` or ``tv`` says how alike it is.
    """
    likeness = {name: column.get("ks", column.get("tv")) for name, column in judged.items()}
    worst = sorted((name for name, value in likeness.items() if value is not None), key=lambda name: likeness[name])
    return [_histogram(name, real, synthetic) | {"likeness": likeness[name]} for name in worst[:MOST_DRAWN]]


def _histogram(name: str, real: Sample, synthetic: Sample) -> dict[str, Any]:
    pair = {"held_out": real.records[name], "synthetic": synthetic.records[name]}
    if name in real.categorical:
        of = next(c for c in (*real.schema.features, real.schema.label) if c.name == name)
        names = of.categories or ("0", "1")
        shares = {key: cells.dropna().astype(str).value_counts(normalize=True) for key, cells in pair.items()}
        counted = {key: [float(share.get(category, 0.0)) for category in names] for key, share in shares.items()}
        return {"column": name, "categories": list(names), **counted}
    values = {key: cells.dropna().to_numpy(dtype=np.float64) for key, cells in pair.items()}
    both = np.unique(np.concatenate([*values.values()]))
    whole = len(both) <= BINS and bool((both == np.round(both)).all())
    if whole or len(both) == 1:
        edges = np.arange(np.floor(both[0]), np.floor(both[-1]) + 2) - 0.5
    else:
        edges = np.linspace(both[0], both[-1], BINS + 1)
    shares_by_table = {
        key: (np.histogram(cells, edges)[0] / len(cells)).round(6).tolist() for key, cells in values.items()
    }
    return {"column": name, "edges": edges.tolist(), **shares_by_table}


def _arms(column: Column) -> bool:
    return column.kind == "binary" or (
        column.kind in ("categorical", "ordinal") and 2 <= len(column.categories) <= MOST_ARMS
    )


def _course(records: pd.DataFrame, column: Column, by: Column, arm: str) -> list[list[float | None]]:
    """Three rows, quartiles over patients of an arm at each visit; None at a visit where nobody has a value."""
    rows = (records[by.name].astype(object).astype(str) == arm).to_numpy(dtype=bool)
    values = records.loc[rows, list(column.record_names)].to_numpy(dtype=np.float64, na_value=np.nan)
    seen = np.isfinite(values).any(axis=0)
    quartiles = np.full((3, values.shape[1]), np.nan)
    if seen.any():
        quartiles[:, seen] = np.nanquantile(values[:, seen], QUANTILES, axis=0)
    return _round(quartiles)


def _round(table: Floats) -> list[list[float | None]]:
    return [[float(round(cell, 4)) if np.isfinite(cell) else None for cell in row] for row in table]
