"""The draft of a schema from tables as they come, and their records as the draft reads them.

It looks at the records, so no epsilon covers it: a simulation of tables that one holds may do so (``hospital_draft`` is for a
real hospital). What is read otherwise than it stands, and what is left out, is a note; no note quotes a cell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from polyclinic.ehr.dates import iso_dates, share_of_dates
from polyclinic.ehr.sources.cells import (
    code_separator,
    missing_codes,
    one_identifier,
    same_spelling,
    seen_order,
    yes_or_no,
)  # fmt: skip
from polyclinic.ehr.sources.columns import unit_spelling
from polyclinic.ehr.sources.draft_numbers import (
    BEYOND,
    FEWEST_ROWS,
    IDENTIFIERS,
    MOST_CATEGORIES,
    MOST_CELLS,
    convert_units,
    decimal_commas,
    draft_bounds,
    has_few_values,
    missing_marks,
    number_of_cells,
    read_column,
    repeated_far,
    substance_of,
    unit_of,
    why_no_feature,
)
from polyclinic.ehr.sources.joining import Roles
from polyclinic.errors import DataError, count_text, several

_PLACES = re.compile(r"zip|postal|postcode|\bplz\b", re.IGNORECASE)
#: How many different words may stand among the numbers of a column.
_MOST_WORDS = 10
_MOST_MARKS = 3  # where half of the cells, and many numbers, are enough
_OFTEN = 0.1  # of rows, for a word that other hospitals' words may stand for
_MOST_CLASSES = 10  # of a label of numbers; with more different ones it is itself a number
# What needs a number for a label, and what else helps.
_NUMBER_BY = {
    "number": ("The objective predicts", ", or take another objective, as by -c objective=classification"),
    "time": ("--time takes", ""),
}
_NUMBERS = ("integer", "continuous", "trajectory")


@dataclass
class Draft:
    """A draft: ``columns`` as ``Schema.from_dict`` takes them, the ``records`` by them, and notes.

    Attributes:
        rules: For each column whose cells need more than their name, the keys of a hospital's mapping that read them.
        notes: What may make a result wrong.
        label: How the label was read.
        left_out: Columns by reason.
        readings: Columns by how their cells were read otherwise than they stand.
    """

    columns: list[dict[str, Any]] = field(default_factory=list)
    records: dict[str, pd.Series] = field(default_factory=dict)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    label: str = ""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    readings: dict[str, list[str]] = field(default_factory=dict)

    def add(self, values: pd.Series, rules: Mapping[str, Any] | None = None, **column: Any) -> None:
        """Add a column and its records."""
        self.columns.append(column)
        self.records[column["name"]] = values
        if rules:
            self.rules[column["name"]] = dict(rules)

    def leave_out(self, name: str, why: str) -> None:
        """Leave a column out."""
        self.left_out.setdefault(why, []).append(name)

    def reads(self, how: str, *what: str) -> None:
        """Cells are read otherwise than they stand."""
        self.readings.setdefault(how, []).extend(what)

    @property
    def doubts(self) -> list[str]:
        """The notes of what may make a result wrong, and one of the columns that were left out."""
        reasons = [f"as {why}: {several(names, most=8)}" for why, names in self.left_out.items()]
        return self.notes + ([f"Left out {'; '.join(reasons)}."] if reasons else [])

    @property
    def all_readings(self) -> list[str]:
        """A sentence for each way in which cells were read otherwise than they stand."""
        return [f"{how}: {several(what, most=8)}." for how, what in self.readings.items()]


def draft_tables(
    cells: pd.DataFrame, hospitals: pd.Series, roles: Roles, label: Literal["", "ordered", "number", "time"] = ""
) -> Draft:
    """The draft of a table of trimmed text (``cells.trim``), "" where missing.

    Args:
        cells: The rows of all hospitals.
        hospitals: (rows,) the hospital of each row: numbers may be written otherwise at each, and what is the same for all of
            a hospital is not a feature.
        roles: Columns that are no features.
        label: Whether the label must be categories in an order, a number, or a time, which is a number too; by default its
            cells decide.

    Raises:
        DataError: for a label that cannot be one.
    """
    draft, decimals = Draft(), decimal_commas(cells, hospitals)
    several_hospitals = hospitals.nunique() > 1
    contents: set[int] = set()
    for name in cells.columns:
        if name in roles.leave_out:
            draft.leave_out(name, "asked for")
        elif name == roles.label:
            if _PLACES.search(name):
                draft.notes.append(
                    f"The label {name!r} is a place of residence by its name; name the column of the outcome by --label."
                )
            if label == "ordered":
                _add_ordered_label(draft, name, cells[name])
            elif not _add_number_label(
                draft, name, cells[name], hospitals, decimals.get(name, {}), must=_NUMBER_BY.get(label, ("", ""))
            ):
                _add_label(draft, name, cells[name], hospitals)
        elif name == roles.patient:
            patients = one_identifier(cells[name])
            if merged := cells[name].nunique() - patients.nunique():
                draft.notes.append(
                    f"{merged:,} values of {name!r} are another's in other spelling, and taken for the same patient."
                )
            draft.add(patients, name=name, kind="categorical", role="patient_id")
        elif name == roles.site:
            draft.add(cells[name], name=name, kind="categorical", role="site")
        elif several_hospitals and _names_hospitals(cells[name], hospitals):
            draft.leave_out(name, "the same for all of a hospital")
        else:
            _add(draft, name, cells[name], hospitals, decimals.get(name, {}), contents)
    if times := [column["name"] for column in draft.columns if column.get("role") == "time"]:
        draft.reads("Dates, which are no features but may split patients (split.time)", *times)
    if commas := {name: decimals[name] for name in draft.rules if "decimal" in draft.rules[name]}:
        at = sorted({hospital for hospitals in commas.values() for hospital in hospitals})
        where = "" if len(at) == hospitals.nunique() else f" at {several(at)}"
        draft.reads(f"Read with decimal commas{where}", *commas)
    return draft


def _names_hospitals(cells: pd.Series, hospitals: pd.Series) -> bool:
    first = cells[hospitals == hospitals.iloc[0]]
    if (first != first.iloc[0]).any():
        return False
    return cells.nunique() > 1 and bool((cells.groupby(hospitals).nunique() == 1).all())


def _add(
    draft: Draft, name: str, cells: pd.Series, hospitals: pd.Series, commas: Mapping[str, str], contents: set[int]
) -> None:
    """Draft one column and add its records, or leave it out and say why. contents: hashes of the columns before."""
    given, content = cells[cells != ""], hash(tuple(cells))
    if given.empty or (given == given.iloc[0]).all():
        draft.leave_out(name, "constant")
    elif content in contents:
        draft.leave_out(name, "the same as another column")
    elif _PLACES.search(name):
        draft.leave_out(name, "a place of residence")
    elif not _add_numbers(draft, name, cells, hospitals, commas):
        if share_of_dates(given) >= MOST_CELLS:
            if (dates := iso_dates(cells)) is None:
                draft.leave_out(name, "a date or a time")
            else:
                draft.add(dates, name=name, kind="categorical", role="time")
        elif separator := code_separator(given):
            _add_codes(draft, name, cells, separator)
        else:
            _add_categories(draft, name, cells, hospitals)
    contents.add(content)


def _add_number_label(
    draft: Draft, name: str, cells: pd.Series, hospitals: pd.Series, commas: Mapping[str, str], must: tuple[str, str]
) -> bool:
    """Add a label that is a number in one unit, with bounds around all cells; False where it has few values, or others.

    must: what needs a number, of few values too, and what else helps; empty where nothing does. Raises DataError where the label
    then is none.
    """
    read, (needs, otherwise) = read_column(cells, hospitals, commas), must
    units, none = sorted(set(read.units) - {""}), int(read.values.isna().sum())
    if needs and (none or len(units) > 1 or read.values.nunique() < 2):
        what = (
            f"{count_text(none, 'cell')} without a number"
            if none
            else "several units"
            if units[1:]
            else "a single value"
        )
        raise DataError(
            f"{needs} a number, but column {name!r}{', the label,' if otherwise else ''} has {what}: write it as a number in one "
            f"unit (name texts of missing cells by --missing){otherwise}."
        )
    if none or len(units) > 1 or (read.values.nunique() <= _MOST_CLASSES and not needs):
        return False
    low, high = float(np.floor(read.values.min())), float(np.ceil(read.values.max()))
    written = units[0] if units else unit_of(name)
    unit, decimal = {"unit": written} if written else {}, {"decimal": ","} if commas else {}
    draft.label = f"The label {name!r} is a number, from {low:g} to {high:g}."
    values, column = draft_bounds(read.values, low, high)
    draft.add(values, unit | decimal, name=name, role="label", **unit, **column)
    return True


def _add_ordered_label(draft: Draft, name: str, cells: pd.Series) -> None:
    """Add a label whose categories have an order that their texts show. Raises DataError where they have none."""
    values = cells.map(same_spelling(cells))
    categories = seen_order(_label_categories(name, values))
    if categories is None:
        raise DataError(
            f"The objective predicts ordered categories, but column {name!r}, the label, has no order that can be seen: write it "
            "as 1, 2, 3 or the like, or give a schema by --schema, with kind = 'ordinal' and the categories in order."
        )
    draft.label = f"The label {name!r} has {len(categories)} categories in the order that they name."
    draft.add(values, name=name, kind="ordinal", categories=categories, role="label")


def _add_label(draft: Draft, name: str, cells: pd.Series, hospitals: pd.Series) -> None:
    if (truth := yes_or_no(cells)) is not None and truth.nunique() > 1:
        if set(cells.unique()) - {"0", "1"}:
            draft.label = f"The label {name!r} is read as 1 for yes, true, dead or the like, and 0 for the others."
        draft.add(pd.to_numeric(truth).astype("int64"), name=name, kind="binary", role="label")
        return
    values = cells.map(same_spelling(cells))
    categories = _label_categories(name, values)
    if len(categories) == 2:
        draft.label = f"The event of the label {name!r} is its second category, {categories[1]!r}."
    else:
        ordered = ", and their order counts with -c objective=ordinal alone" if seen_order(categories) else ""
        draft.label = f"The label {name!r} has {len(categories)} categories, each a class of its own{ordered}."
    if apart := _with_own_words(values, hospitals):
        draft.notes.append(
            f"Words of the label {name!r} at {several(apart)} occur at no other hospital. If hospitals write the same outcome "
            "in other words, the model takes it for other classes: write it alike, as 0 and 1, in all files."
        )
    draft.add(values, name=name, kind="categorical", categories=categories, role="label")


def _label_categories(name: str, values: pd.Series) -> list[str]:
    """The categories of a label. Raises DataError where they are too many, or rare."""
    counts = values.value_counts()
    if not 2 <= (counts >= FEWEST_ROWS).sum() <= len(counts) <= 10 * MOST_CATEGORIES or (
        (counts >= FEWEST_ROWS).sum() > MOST_CATEGORIES
    ):
        dated = " It holds dates: write 1 where there is one and 0 elsewhere." if share_of_dates(values) > 0.5 else ""
        raise DataError(
            f"Column {name!r} cannot be the label: it must hold 0 and 1, 2 to {MOST_CATEGORIES} categories of {FEWEST_ROWS} "
            f"or more rows each, or more than {_MOST_CLASSES} numbers and nothing else.{dated}"
        )
    if rare := int(counts[counts < FEWEST_ROWS].sum()):
        raise DataError(
            f"Column {name!r}, the label, has {rare:,} rows of categories that fewer than {FEWEST_ROWS} rows have. Name their "
            "texts by --missing where they stand for no outcome, or leave these rows out of the table."
        )
    return sorted(counts.index)


def _with_own_words(values: pd.Series, hospitals: pd.Series) -> list[str]:
    """Of several hospitals those that write no word of another, or own words and lack a common one."""
    if hospitals.nunique() < 2:
        return []
    counts = pd.crosstab(hospitals, values)
    holders = (counts > 0).sum()
    own = counts.loc[:, holders == 1].sum(axis=1) / counts.sum(axis=1)
    is_common = (holders > (len(counts) - 1) / 2) & (counts.sum() >= _OFTEN * len(values))
    lacks = (counts.loc[:, is_common] == 0).any(axis=1)
    return sorted(map(str, counts.index[(own == 1) | ((own >= _OFTEN) & lacks)]))


def _add_categories(draft: Draft, name: str, cells: pd.Series, hospitals: pd.Series) -> None:
    """A column of categories; those of few rows, and those beyond the commonest, are ``other``.

    Where hospitals say yes and no in different words, these are 1 and 0.
    """
    spelling = same_spelling(cells)
    if len(set(spelling.values()) - {""}) > 2 and hospitals.nunique() > 1 and (truth := yes_or_no(cells)) is not None:
        draft.reads("Read as 1 for yes, true or the like, and 0 for no", name)
        cells, spelling = truth, {}
    values = cells.map(lambda cell: spelling.get(cell, cell))
    counts = values[values != ""].value_counts()
    common = counts[counts >= FEWEST_ROWS].head(MOST_CATEGORIES)
    rules = {"values": changed} if (changed := {old: new for old, new in spelling.items() if old != new}) else {}
    if set(counts.index) == {"0", "1"}:
        draft.add(pd.to_numeric(values).astype("Int64"), name=name, kind="binary", nullable=bool((values == "").any()))
    elif len(common) < 2 and common.sum() >= MOST_CELLS * counts.sum():
        draft.leave_out(name, "nearly constant")
    elif len(common) < 2 or common.sum() < counts.sum() / 2:
        draft.leave_out(name, "free text or too many categories")
    else:
        if apart := _with_own_words(values[values != ""], hospitals[values != ""]):
            draft.notes.append(
                f"Words of column {name!r} at {several(apart)} occur at no other hospital. If hospitals write the same in "
                "other words, write it alike in all files."
            )
        rest = len(counts) > len(common)
        categories = sorted(common.index)
        other = next((category for category in categories if category.casefold() == "other"), "other")
        if len(common) == MOST_CATEGORIES and rest:
            draft.reads(f"Only the {len(common)} commonest categories are read, all others together", name)
        draft.add(
            values.where(values != "", None), rules, name=name, kind="categorical", nullable=bool((values == "").any()),
            **{"categories": list(dict.fromkeys([*categories, other])), "other": other} if rest else {"categories": categories},
        )  # fmt: skip


def _add_codes(draft: Draft, name: str, cells: pd.Series, separator: str) -> None:
    """A column of lists of codes, separated by semicolons in its records; codes of few rows are ``other``."""
    codes = cells.str.split(separator).map(lambda parts: sorted({part.strip() for part in parts} - {""}))
    rows = Counter(code for several_codes in codes for code in several_codes)
    common = sorted(code for code, number in rows.most_common(100) if number >= FEWEST_ROWS)
    if not common:
        draft.leave_out(name, "free text or too many categories")
        return
    categories = list(dict.fromkeys([*common, "other"]))
    rules = {} if separator == ";" else {"separator": separator}
    draft.add(codes.map(";".join), rules, name=name, kind="code_set", categories=categories, other="other")


def _add_numbers(draft: Draft, name: str, cells: pd.Series, hospitals: pd.Series, commas: Mapping[str, str]) -> bool:
    """Add a column of numbers, or leave it out as an identifier or a date; False where it holds no numbers, or 0 and 1 alone.

    Cells beyond a limit of measurement get a flag, and there is a note for everything that is read otherwise.
    """
    read = read_column(cells, hospitals, commas)
    values, is_given = read.values, cells != ""
    words, given = cells[is_given & values.isna()], int(is_given.sum())
    measured = (
        values.nunique() > MOST_CATEGORIES and words.nunique() <= _MOST_MARKS
    )  # "not done" among laboratory values
    if values.count() < (0.5 if measured else MOST_CELLS) * given or words.nunique() > _MOST_WORDS:
        return False
    readings: list[tuple[str, str]] = []
    beyond = read.beyond
    if (unit := convert_units(name, read, readings)) is None:
        if not unit_spelling(read.units[read.units != ""].mode().iloc[0]):
            return False
        draft.leave_out(name, "in units that do not convert into each other")
        return True
    codes = missing_codes(values)
    for code in codes:
        readings.append(("Read as a code for missing", f"{code:g} in {number_of_cells(values == code, name)}"))
    values = values.where(~values.isin(codes)) if codes else values
    numeric = values.dropna()
    if (far := repeated_far(numeric)) is not None:
        draft.notes.append(
            f"The value {far:g} of {name!r} is repeated, and far from all others; if it stands for a missing cell, give "
            f"`--missing {far:g}`."
        )
    if len(words):
        readings.append(("No numbers, and so missing", f"{count_text(len(words), 'cell')} of {name!r}"))
    if numeric.isin([0.0, 1.0]).all():
        for reading in readings:
            draft.reads(*reading)
        if numeric.nunique() < 2:
            draft.leave_out(name, "constant")
        else:
            nullable = bool(values.isna().any())
            draft.add(values.astype("Int64"), missing_marks(codes, words), name=name, kind="binary", nullable=nullable)
        return True
    if reason := why_no_feature(name, numeric, values, hospitals):
        draft.leave_out(name, reason)
        return True
    if IDENTIFIERS.search(name) and has_few_values(numeric.nunique(), len(numeric)):
        _add_categories(draft, name, cells.where(~cells.isin([f"{code:g}" for code in codes]), ""), hospitals)
        return True
    for reading in readings:
        draft.reads(*reading)
    unit = unit or unit_of(name)
    substance = substance_of(name) if unit else ""
    keys = {"decimal": "," if commas else "", "limits": bool(beyond.any()), "unit": unit, "substance": substance}
    rules = missing_marks(codes, words) | {key: value for key, value in keys.items() if value}
    if beyond.sum() >= FEWEST_ROWS:
        flag = f"{name}{BEYOND}"
        how = "Beyond a limit of measurement, read as the limit, and a column 'NAME beyond limit' says which they are"
        draft.reads(how, number_of_cells(beyond, name))
        draft.add(beyond.astype("Int64"), {"from": name, "limits": True}, name=flag, kind="binary")
    whole = bool((numeric % 1 == 0).all())
    numbers = numeric.to_numpy()
    low, high = (float(np.quantile(numbers, share)) for share in (0.005, 0.995))
    if low == high:
        low, high = float(numbers.min()), float(numbers.max())
    if whole:
        low, high = float(np.floor(low)), float(np.ceil(high))
    if (far := (values < low) | (values > high)).any():
        draft.reads("Beyond the 0.5 % and 99.5 % quantiles of a feature, moved to these", number_of_cells(far, name))
    values, column = draft_bounds(values, low, high)
    units = {"unit": unit} if unit else {}
    draft.add(values, rules, name=name, **units, **column, nullable=bool(values.isna().any()))
    return True


def leaks(draft: Draft, label_name: str) -> list[str]:
    """Features that alone tell nine in ten of the labels that the commonest class gets wrong: perhaps written after it.

    Of a label that is a number, those by which rows are ordered nearly as by the label. Of a trajectory the last step counts.
    """
    label = draft.records[label_name]
    is_number = next(column["kind"] for column in draft.columns if column["name"] == label_name) in _NUMBERS
    if len(label) < 50 or (not is_number and label.nunique() > MOST_CATEGORIES):
        return []
    wrong = len(label) - int(label.value_counts().iloc[0])

    classes = pd.factorize(label)[0]

    def mistakes(groups: np.ndarray) -> int:
        counts = np.bincount(groups * (classes.max() + 1) + classes, minlength=(groups.max() + 1) * (classes.max() + 1))
        return len(label) - int(counts.reshape(groups.max() + 1, -1).max(axis=1).sum())

    suspects = []
    for column in draft.columns:
        if "role" in column or column["kind"] == "code_set":
            continue
        steps = column.get("steps", 0)
        values = draft.records[f"{column['name']}_{steps - 1:02d}" if steps else column["name"]]
        if is_number:
            if column["kind"] in _NUMBERS and abs(values.astype(float).corr(label.astype(float), "spearman")) > 0.95:
                suspects.append(column["name"])
            continue
        if column["kind"] in _NUMBERS:
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
            edges = np.unique(np.nanquantile(numbers, np.linspace(0.1, 0.9, 9)))
            groups = np.where(np.isnan(numbers), 0, 1 + np.searchsorted(edges, numbers))
        else:
            groups = pd.factorize(values)[0] + 1
        if min(mistakes(groups), mistakes(np.minimum(groups, 1))) <= 0.1 * wrong:
            suspects.append(column["name"])
    return suspects
