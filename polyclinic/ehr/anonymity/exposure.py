"""A table with the roles of its columns, with or without a schema: what it gives away, and what an outside table makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from polyclinic.ehr.anonymity.classes import (
    Records,
    equivalence_classes,
    measures,
    patient_numbers,
    require,
    spread,
    unique_patients,
    uniqueness,
)
from polyclinic.ehr.anonymity.hierarchies import ZIP_NAME, Hierarchy
from polyclinic.ehr.anonymity.labels import midpoint
from polyclinic.ehr.anonymity.linking import link
from polyclinic.ehr.anonymity.release import Release
from polyclinic.ehr.checks import texts
from polyclinic.ehr.schema import Role, Schema
from polyclinic.ehr.sources import files, read_records
from polyclinic.ehr.split import is_test_patient
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.types import Bools, Floats, Ints

_HELD_OUT = 0.25
_MOST_LABELS = 200
_LEADING_ZERO = re.compile(r"-?0\d")


def table_of(
    path: Path, schema: Path | None, quasi: Sequence[str], sensitive: Sequence[str], unit: str | None
) -> Records:
    """Return the records at ``path``; roles that no argument names follow from the schema, if there is one.

    Args:
        path: The file of the table.
        schema: The schema's file, or None.
        quasi: The quasi-identifiers; empty means the columns with that role in the schema.
        sensitive: The sensitive columns; empty means the columns with that role in the schema.
        unit: The column that tells patients apart; None means the schema's patient_id column.

    Raises:
        ConfigError: Where no quasi-identifier is named or has a role.
        DataError: For columns that are not there and records that cannot be read.
    """
    read = Schema.from_toml(schema) if schema is not None else None
    table = read_table(path) if read is None else _order_categories(read_records(path, read), read)
    if read is not None:
        quasi = list(quasi) or _with_role(read, "quasi_identifier")
        sensitive = list(sensitive) or _with_role(read, "sensitive")
        unit = unit or (read.patient_id.name if read.patient_id is not None else None)
    if not quasi:
        raise ConfigError("Name the columns that an outsider may know, as in --quasi age,sex,zip.")
    require(table, quasi, "quasi")
    require(table, sensitive, "sensitive")
    return Records(table, tuple(quasi), tuple(sensitive), unit, read)


def assess(records: Records, largest_set: int = 4) -> dict[str, Any]:
    """Classes, lone patients, sets of quasi-identifiers, and the measures of each sensitive column.

    Keys: rows, patients, quasi, unit, k, classes, unique, unique_share, highest_risk (1/k), average_risk (mean over patients'
    rows of 1 over the patients of their class), sets, sensitive.
    """
    table, quasi, unit = records.table, records.quasi, records.unit
    classes, patient = equivalence_classes(table, quasi, unit), patient_numbers(table, unit)
    alone = unique_patients(classes, patient)
    return {
        "rows": len(table), "patients": len(alone), "quasi": list(quasi), "unit": unit, "k": classes.k,
        "classes": len(classes.patients), "unique": int(alone.sum()), "unique_share": float(alone.mean()),
        "highest_risk": 1 / classes.k, "average_risk": float((1 / classes.patients[classes.of_row]).mean()),
        "sets": uniqueness(table, quasi, unit, min(largest_set, len(quasi))),
        "sensitive": {name: measures(spread(table, quasi, name, unit)) for name in records.sensitive},
    }  # fmt: skip


def attack(
    records: Records, outside: pd.DataFrame, after: pd.DataFrame | None, hierarchies: Mapping[str, Hierarchy],
    tolerances: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Link an outside table to the records and, if given, to their release.

    Args:
        records: The table, linked by its quasi-identifiers.
        outside: The outside table, one row for each person.
        after: The release of the records, or None.
        hierarchies: By column, the hierarchy of its labels in the release.
        tolerances: By column, how far numbers may differ and still match, as for ``link``.

    Returns:
        ``{"before", "after", "notes"}``: two summaries of ``link``, and sentences about them.

    Raises:
        DataError: For columns that are not there and for a table without rows.
        ConfigError: For a tolerance that ``link`` refuses.
    """
    notes, on, sensitive, unit = [], records.quasi, records.sensitive, records.unit
    before = link(records.table, outside, on, sensitive, unit, tolerances=tolerances)
    summaries: dict[str, Any] = {"before": before.summary(), "after": None}
    if after is not None:
        released_unit = unit if unit in after.columns else None
        if unit != released_unit:
            notes.append(
                f"After: without the column {unit!r} each row counts as a patient, which may hide who is alone."
            )
        summaries["after"] = link(after, outside, on, sensitive, released_unit, hierarchies, tolerances).summary()
    return summaries | {"notes": notes}


def _with_role(schema: Schema, role: Role) -> list[str]:
    return [column.name for column in schema.columns if column.role == role]


def _order_categories(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Ordinal columns as ordered categories, so that distances between their values are those of ranks."""
    kinds = {
        column.name: pd.CategoricalDtype(column.categories, ordered=True)
        for column in schema.columns if column.kind == "ordinal" and column.name in table
    }  # fmt: skip
    return table.astype(kinds)


def check_dropped(records: Records, dropped: Sequence[str], keep: Sequence[str], label: str | None) -> None:
    """Raise unless the columns that a release leaves out can go, and no other column names every row.

    Args:
        records: The table and the roles of its columns.
        dropped: The columns that the release leaves out.
        keep: Columns that stay although they have another value for every patient.
        label: The column to predict, or None.

    Raises:
        ConfigError: For a quasi-identifier, sensitive column or label among ``dropped``.
        ConfigError: For a column with another value for every patient that is not among ``keep``.
        DataError: For a column that is not there.
    """
    table = records.table
    for option, columns in (("drop", dropped), ("keep", keep), ("label", [label] if label else [])):
        require(table, columns, option)
    roles = (*records.quasi, *records.sensitive, *([label] if label else []))
    if wrong := [name for name in dropped if name in roles]:
        raise ConfigError(f"Column {wrong[0]!r} is to be left out, and is a quasi-identifier, sensitive or the label.")
    if unique := identifying(table, [*roles, *dropped, *keep], records.unit):
        raise ConfigError(
            f"Column {unique[0]!r} has another value for every patient, as names have: leave it out with --drop, "
            "count it as --quasi, or let it stay with --keep."
        )


def compare_auroc(
    records: Records, release: Release, label: str, dropped: Sequence[str]
) -> dict[str, float | int | None]:
    """Return ``downstream_auroc`` of the rows that stay, before and after the release.

    Args:
        records: The table before the release.
        release: The release of that table.
        label: The column to predict, of two values.
        dropped: Columns that are no features.

    Raises:
        DataError: As ``downstream_auroc``.
    """
    table = records.table.reset_index(drop=True)
    patients = [str(row) for row in table.index] if records.unit is None else texts(table[records.unit])
    staying = [patient for patient, stays in zip(patients, release.staying.tolist(), strict=True) if stays]
    return downstream_auroc(table[release.staying], release.records, label, staying, dropped)


def downstream_auroc(
    before: pd.DataFrame, after: pd.DataFrame, label: str, patients: Sequence[str], without: Sequence[str] = ()
) -> dict[str, float | int | None]:
    """Return the AUROC on held-out patients of a logistic regression, fitted to the records and to their release.

    Intervals count by their middle; other columns are one-hot. Both models are tested on the same held-out rows, each
    as its table has them. Exact, hence not private.

    Args:
        before, after: The same rows, before and after the release.
        label: The column to predict, of two values.
        patients: (rows,) each row's patient, by whom a quarter is held out (by hash, so that it is always the same).
        without: Columns that are no features.

    Returns:
        ``{"before", "after", "rows", "held_out"}``. An AUROC is None where a side of the split has one class only.

    Raises:
        DataError: Unless the label has two values and none is missing.
    """
    y = pd.factorize(before[label], sort=True)[0]
    if len(np.unique(y)) != 2 or (y < 0).any():
        raise DataError(f"label: column {label!r} must hold two values and no missing cell; give another, or none.")
    held_out = np.array([is_test_patient(patient, _HELD_OUT) for patient in patients], dtype=bool)
    features = [name for name in before.columns if name != label and name not in without]
    return {
        "before": _auroc(before[features], y, held_out), "after": _auroc(after[features], y, held_out),
        "rows": len(y), "held_out": int(held_out.sum()),
    }  # fmt: skip


def _auroc(table: pd.DataFrame, y: Ints, held_out: Bools) -> float | None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if any(len(np.unique(y[side])) < 2 for side in (held_out, ~held_out)):
        return None
    x = np.concatenate([_features(table[name], ~held_out) for name in table.columns], axis=1)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(x[~held_out], y[~held_out])
    return float(roc_auc_score(y[held_out], model.decision_function(x[held_out])))


def _features(values: pd.Series, training: Bools) -> Floats:
    """(rows, m) numbers: a numeric column or one of intervals with what is missing apart, else one-hot."""
    if is_numeric_dtype(values) and not is_bool_dtype(values):
        number = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        place, labels = pd.factorize(values)
        middle = np.array([*(midpoint(str(label)) for label in labels), np.nan])
        if np.isnan(middle).sum() > 1 + ("*" in labels):
            common = pd.Series(place[training]).value_counts().index[:_MOST_LABELS].to_numpy()
            return np.asarray(place[:, None] == common[None, :], dtype=np.float64)
        number = middle[place]
    missing = np.isnan(number)
    mean = number[training & ~missing].mean() if (training & ~missing).any() else 0.0
    return np.stack([np.where(missing, mean, number), missing.astype(np.float64)], axis=1)


def release_notes(records: Records, dropped: Sequence[str]) -> list[str]:
    """What a reader of the release has to know of its patients and of its other columns."""
    notes = []
    if unchanged := [str(name) for name in records.table.columns if name not in (*records.quasi, *dropped)]:
        notes.append(f"Left as they were: {several(unchanged)}; an outsider who knows one of them can tell more.")
    if records.unit is not None and not records.table[records.unit].is_unique:
        notes.append(
            "Some patients have several rows, and the release does not say which belong together: training on it "
            "protects rows, not patients."
        )
    return notes


def identifying(records: pd.DataFrame, besides: Sequence[str], unit: str | None = None) -> list[str]:
    """Return the columns that have another text or whole number for every patient, as names and record numbers have.

    Args:
        records: The table, one row for each record.
        besides: Columns that are not looked at.
        unit: The column that tells patients apart; each row is a patient without it.
    """
    names = []
    for name in (name for name in records.columns if name not in besides):
        cells = records[name].dropna()
        patients = len(cells) if unit is None else records.loc[cells.index, unit].nunique()
        if cells.nunique() >= patients > 1 and not _is_measured(cells):
            names.append(str(name))
    return names


def _is_measured(cells: pd.Series) -> bool:
    return is_numeric_dtype(cells) and not (cells == cells.round()).all()


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a CSV or Parquet file as it is: numbers where every known cell of a column is one, else text.

    Cells such as 02139 and columns named after ZIP or postal codes stay text; dates become ISO text; empty cells, NA, NaN,
    null and ? are missing. Raises DataError, with the file and never a cell, for what cannot be read or has no rows.
    """
    file = Path(path)
    files.check_suffix(file)
    if not file.is_file():
        raise DataError(f"{path}: there is no such file.")
    header = files.column_names(file)
    names = [name.strip() for name in header]
    if "" in names:
        raise DataError(f"{path}: a name of the header is empty.")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns of the header have the same name.")
    frames = list(files.read_table(file, header))
    if not any(map(len, frames)):
        raise DataError(f"{path}: there are no records; give a file with at least one row under its header.")
    table = pd.concat(frames, ignore_index=True).set_axis(names, axis=1)
    typed = pd.DataFrame({name: _infer_type(table[name]) for name in table.columns})
    for name in typed.select_dtypes("number").columns:
        if np.isinf(typed[name].to_numpy(dtype=np.float64, na_value=np.nan)).any():
            raise DataError(f"{path}: column {name!r} holds an infinite number; correct it, or leave the cell empty.")
    return typed


def write_table(records: pd.DataFrame, path: Path) -> None:
    """Write the records by the file's suffix, without their index."""
    if path.name.lower().endswith(".parquet"):
        records.to_parquet(path, index=False)
    else:
        records.to_csv(path, index=False)


def _infer_type(values: pd.Series) -> pd.Series:
    if is_bool_dtype(values) or is_numeric_dtype(values):
        return values
    if is_datetime64_any_dtype(values):
        return values.dt.strftime("%Y-%m-%d").astype(object).where(values.notna(), None)
    text = values.map(lambda cell: str(cell).strip(), na_action="ignore").astype(object)
    present = text.dropna()
    numbers = pd.to_numeric(present, errors="coerce")
    if (
        len(present) == 0 or ZIP_NAME.search(str(values.name)) or numbers.isna().any()
        or numbers.abs().eq(float("inf")).any() or present.str.match(_LEADING_ZERO).any()
    ):  # fmt: skip
        return text.where(values.notna(), None)
    parsed = pd.to_numeric(text)
    return parsed.astype("Int64") if numbers.dtype.kind == "i" and values.isna().any() else parsed
