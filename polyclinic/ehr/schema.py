"""The public description of records: each column's kind, role, unit and public bounds or categories.

Nothing here is ever computed from records: bounds and categories are declared, so that encoding leaks nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import model_validator

from polyclinic.errors import ConfigError, DataError, nearest, several
from polyclinic.toml import Declared, build_model, read_toml

Kind = Literal["continuous", "integer", "binary", "categorical", "ordinal", "code_set", "trajectory"]
Role = Literal[
    "feature", "label", "duration", "event", "patient_id", "site", "time", "quasi_identifier", "sensitive", "ignore"
]

#: Kinds mapped affinely from public bounds (for ordinal: from the ranks of its categories) to [-1, 1].
NUMERIC_KINDS = ("continuous", "integer", "ordinal", "trajectory")
#: Kinds with public bounds.
BOUNDED_KINDS = ("continuous", "integer", "trajectory")
_LISTED = ("categorical", "ordinal", "code_set")
_IDENTIFIERS = ("patient_id", "site", "time", "ignore")
#: Roles of what is predicted: one label, several binary ones, or a duration until an event, and whether that came.
LABEL_ROLES = ("label", "duration", "event")
#: Roles of columns that records of patients have, beside those that say whose they are.
RECORDED_ROLES = ("feature", *LABEL_ROLES)
#: Kinds of a label that has classes.
CLASS_KINDS = ("binary", "categorical", "ordinal")
_LABEL_KINDS = (*CLASS_KINDS, "continuous", "integer", "code_set")
#: The trajectory of how long before a patient's latest visit each visit was.
BEFORE_LATEST = "before latest"


class Column(Declared):
    """One column of a schema; raises DataError if bounds or categories do not suit its kind.

    Args:
        name: The column's name in the records.
        role: A ``duration`` is a number of the time until an event or until a patient was last seen. An ``event`` is
            whether that was the event; together they are the label. A ``time`` is the date of a row, by which patients
            may be split.
        unit: The unit of the cells.
        bounds: Public (low, high) of continuous, integer and trajectory columns, in ``unit``.
        categories: Public values of categorical, ordinal (in order) and code_set (the vocabulary) columns. For a binary
            column optionally the names of 0 and 1. Identifier columns (patient_id, site, time, ignore) need neither
            these nor bounds.
        nullable: Whether a cell may be missing.
        drop_first: The one-hot encoding leaves the first category out.
        steps: A trajectory ``name`` is read from the columns ``name_00``, ``name_01``, ... one for each step.
        whole: The cells of a trajectory are whole numbers, and decode to such.
        clip: A number beyond the bounds is moved to the nearer one instead of being refused.
        other: The category, one of ``categories``, of every value that is not among them. A column with no other
            category is open (``is_open``).
        fill: A public value, in ``unit`` or a category, that imputation by constants puts in place of a missing cell.
        indicator: Beside each cell that may be missing (NaN) a 0/1 feature says whether it is.
        centre, spread: Public or paid mean and standard deviation of the cells in ``unit``, which standardise the
            column.
        description: A sentence for readers.
    """

    name: str
    kind: Kind
    role: Role = "feature"
    unit: str = ""
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] = ()
    nullable: bool = False
    drop_first: bool = False
    steps: int = 0
    whole: bool = False
    clip: bool = False
    other: str = ""
    fill: float | str | None = None
    indicator: bool = False
    centre: float | None = None
    spread: float | None = None
    description: str = ""

    @property
    def record_names(self) -> tuple[str, ...]:
        """The names of the columns of a table of records that hold this column."""
        if self.kind == "trajectory":
            return tuple(f"{self.name}_{step:02d}" for step in range(self.steps))
        return (self.name,)

    @property
    def is_read(self) -> bool:
        """Whether a source must hold this column."""
        return self.role != "ignore"

    @property
    def is_label(self) -> bool:
        """Whether the column is predicted, or part of what is."""
        return self.role in LABEL_ROLES

    @property
    def is_open(self) -> bool:
        """Whether the vocabulary is still to be found: every value there is counts as ``other``."""
        return self.categories == (self.other,)

    @model_validator(mode="after")
    def _check(self) -> Self:
        def refuse(text: str) -> DataError:
            return DataError(f"Schema column {self.name!r}: {text}.")

        if not self.name:
            raise DataError("Schema column '': every column needs a name of one or more characters.")
        if self.role in _IDENTIFIERS:
            return self
        if self.kind in BOUNDED_KINDS:
            low, high = self.bounds or (math.nan, math.nan)
            if not (low < high and math.isfinite(high - low)):
                raise refuse(f"kind {self.kind!r} needs public bounds, two finite numbers [low, high] with low < high")
        elif self.bounds is not None:
            raise refuse(f"kind {self.kind!r} takes no bounds; only {', '.join(BOUNDED_KINDS)} do")
        if self.kind in _LISTED and len(self.categories) < (1 if self.kind == "code_set" or self.other else 2):
            raise refuse(f"kind {self.kind!r} needs its public categories, at least two of them (one for a code_set)")
        if self.kind == "binary" and len(self.categories) not in (0, 2):
            raise refuse(f"kind 'binary' takes no categories or two, not {len(self.categories)}")
        if self.kind in BOUNDED_KINDS and self.categories:
            raise refuse(f"kind {self.kind!r} takes no categories")
        if len(set(self.categories)) < len(self.categories) or any(not c or c != c.strip() for c in self.categories):
            raise refuse("categories must be distinct, not empty and without spaces at their ends")
        if self.kind == "code_set" and any(";" in code or code != code.strip() for code in self.categories):
            raise refuse("codes of a code_set must not contain ';', which separates them in a cell")
        if self.drop_first and (self.kind != "categorical" or self.nullable):
            raise refuse("drop_first needs kind 'categorical' and nullable = false, or missing would read as the first")
        if self.clip and (self.kind not in BOUNDED_KINDS or (self.kind == "integer" and not self._has_whole_bounds)):
            raise refuse(f"clip needs a column with bounds ({', '.join(BOUNDED_KINDS)}), whole ones for kind 'integer'")
        if self.whole and (self.kind != "trajectory" or not self._has_whole_bounds):
            raise refuse("whole is for kind 'trajectory' with whole bounds; kind 'integer' is whole by itself")
        if self.other and self.kind != "code_set" and (self.kind != "categorical" or self.is_label):
            raise refuse("other needs kind 'code_set', or kind 'categorical' and a column that is not the label")
        if self.other and self.other not in self.categories:
            raise refuse(f"other is {self.other!r}, which must be one of the categories")
        if self.indicator and (not self.nullable or self.kind in ("categorical", "code_set")):
            raise refuse("indicator needs nullable = true and a kind other than 'categorical' and 'code_set'")
        self._check_numbers(refuse)
        if (self.steps > 0) != (self.kind == "trajectory") or self.steps < 0:
            raise refuse("steps must be 1 or more for kind 'trajectory' and is not allowed for other kinds")
        if self.is_label and (self.kind not in _LABEL_KINDS or self.nullable):
            raise refuse(f"a label must be of kind {', '.join(_LABEL_KINDS)} and not nullable")
        if (self.role == "duration" and self.kind not in BOUNDED_KINDS) or (
            self.role == "event" and self.kind != "binary"
        ):
            raise refuse("a duration must be of kind continuous or integer, and an event of kind binary")
        if self.role == "duration" and self.clip:
            raise refuse("a duration takes no clip, by which an event beyond the bounds would count as one at them")
        return self

    @property
    def _has_whole_bounds(self) -> bool:
        return self.bounds is not None and all(bound.is_integer() for bound in self.bounds)

    def _check_numbers(self, refuse: Callable[[str], DataError]) -> None:
        low, high = self.bounds or (0.0, 1.0)
        if self.fill is not None:
            number = isinstance(self.fill, float) and not self.categories and low <= self.fill <= high
            if self.kind == "code_set" or not (number or self.fill in self.categories):
                what = (
                    f"one of the categories {', '.join(self.categories)}" if self.categories else f"{low:g} to {high:g}"
                )
                raise refuse(f"fill is {self.fill!r}, which must be {what}; a code_set is never missing and takes none")
        if (self.centre is None) != (self.spread is None) or (
            self.centre is not None and self.kind not in BOUNDED_KINDS
        ):
            raise refuse(f"centre and spread belong together, in a column with bounds ({', '.join(BOUNDED_KINDS)})")
        if self.centre is not None and self.spread is not None and not (low <= self.centre <= high and self.spread > 0):
            raise refuse("centre must lie within the bounds and spread be above 0")


class Schema(Declared):
    """The columns of a table of records and the unit of privacy.

    Args:
        name: The schema's name.
        columns: With unique names; one label (or several binary ones, or a time and an event), at most one patient_id
            and site.
        unit: "patient" (needs a patient_id column: all rows of a patient are one unit) or "record" (each row is a
            unit).
        rules: Conditions that no record should break, as ``dbp < sbp`` (``polyclinic.ehr.rules``). They refuse nothing:
            how often they are broken is counted where synthetic records are judged.

    Raises:
        DataError: Unless the columns are as above and the rules can be read.
    """

    name: str
    columns: tuple[Column, ...]
    unit: Literal["patient", "record"] = "patient"
    rules: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = Counter(name for column in self.columns for name in column.record_names)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise DataError(f"Schema {self.name!r}: column {repeated[0]!r} is declared twice; names must be unique.")
        if not (labels := self.labels):
            raise DataError(f"Schema {self.name!r} has no label column; one must have role 'label'.")
        roles = sorted(column.role for column in labels)
        if {"duration", "event"} & {*roles} and roles != ["duration", "event"]:
            raise DataError(
                f"Schema {self.name!r} has label columns of the roles {', '.join(roles)}; one duration and one event belong "
                "together, without another label beside them."
            )
        kinds = Counter("number" if column.kind in BOUNDED_KINDS else column.kind for column in labels)
        if len(labels) > 1 and kinds not in (Counter(binary=len(labels)), Counter(number=1, binary=1)):
            raise DataError(
                f"Schema {self.name!r} has {len(labels)} label columns; several must all be of kind 'binary', or a time of kind "
                "'continuous' or 'integer' and a 'binary' event."
            )
        if not self.features:
            raise DataError(f"Schema {self.name!r} has no feature column; at least one must have role 'feature'.")
        for role in ("patient_id", "site"):
            if len(self._with_role(role)) > 1:
                raise DataError(f"Schema {self.name!r} has several {role} columns; at most one is allowed.")
        if self.unit == "patient" and self.patient_id is None:
            raise DataError(
                f"Schema {self.name!r}: unit 'patient' needs a column with role 'patient_id'; declare one, or set "
                'unit = "record" if each row is a unit of its own.'
            )
        if self.rules:
            from polyclinic.ehr.rules import check_rules  # which reads columns

            check_rules(self.rules, self.columns)
        return self

    def __copy__(self) -> Self:
        """Without what follows from the columns, of which ``model_copy`` may make others."""
        copied = super().__copy__()
        for name in ("features", "labels", "_digest"):
            copied.__dict__.pop(name, None)
        return copied

    def _with_role(self, role: str) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == role)

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The feature columns in declared order: the order of the encoded tensor."""
        return self._with_role("feature")

    @cached_property
    def labels(self) -> tuple[Column, ...]:
        """The label columns in declared order: one, several binary ones, or a time and an event."""
        return tuple(column for column in self.columns if column.is_label)

    @property
    def label(self) -> Column:
        """The one label column. Raises ConfigError where there are several."""
        if len(self.labels) > 1:
            names = ", ".join(column.name for column in self.labels)
            raise ConfigError(f"Schema {self.name!r} has the labels {names}; what was asked for takes one label only.")
        return self.labels[0]

    @property
    def has_classes(self) -> bool:
        """Whether there is one label, and it has classes."""
        return len(self.labels) == 1 and self.label.kind in CLASS_KINDS

    @property
    def patient_id(self) -> Column | None:
        """The patient_id column, or None if each row is a unit of its own."""
        return next(iter(self._with_role("patient_id")), None)

    @property
    def site(self) -> Column | None:
        """The column that names the hospital, or None."""
        return next(iter(self._with_role("site")), None)

    @property
    def num_classes(self) -> int:
        """The number of label classes, from the schema alone: 2 for a binary label.

        Raises ConfigError for a label that has no classes.
        """
        if self.label.kind not in CLASS_KINDS:
            raise ConfigError(
                f"The label {self.label.name!r} is of kind {self.label.kind!r}; what was asked for takes a label with classes "
                f"({', '.join(CLASS_KINDS)})."
            )
        return max(2, len(self.label.categories))

    def with_labels(self, names: Sequence[str]) -> Schema:
        """The schema with these columns as its labels; the former ones are left out.

        Raises ConfigError for a name that is not a column, DataError for columns that no label can be.

        Examples:
            >>> columns = [Column(name="age", kind="integer", bounds=(0, 99)), Column(name="sex", kind="binary")]
            >>> schema = Schema(name="x", unit="record", columns=(*columns, Column(name="died", kind="binary", role="label")))
            >>> [(column.name, column.role) for column in schema.with_labels(["age"]).columns]
            [('age', 'label'), ('sex', 'feature'), ('died', 'ignore')]
        """
        allowed = [column.name for column in self.columns]
        if strange := [name for name in names if name not in allowed]:
            raise ConfigError(
                f"Configuration key 'data.label' names {strange[0]!r}, which is not a column of schema {self.name!r}."
                f"{nearest(strange[0], allowed)}"
            )
        given: dict[str, Any] = {"role": "label", "nullable": False, "indicator": False}
        columns = [
            column.model_dump() | (given if column.name in names else {"role": "ignore"} if column.is_label else {})
            for column in self.columns
        ]
        return Schema.from_dict(self.model_dump() | {"columns": columns}, source="data.label")

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, without what is at its default; ``from_dict`` reads it back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "schema") -> Schema:
        """The schema that ``as_dict`` gave; raises DataError naming ``source`` and the field."""
        return build_model(cls, values, source, DataError)

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """The schema in a TOML file (``name``, ``unit`` and one ``[[columns]]`` table each); raises DataError.

        Columns that are drafts of ``polyclinic schema draft`` are refused: a person has to confirm them first.
        """
        values = read_toml(path, "schema file", DataError)
        if drafts := _drafts(values):
            count = sum(map(len, drafts.values()))
            needs = [f"{what} of {several(map(repr, names), most=40)}" for what, names in drafts.items()]
            raise DataError(
                f"{path}: {f'{count} columns are drafts' if count > 1 else '1 column is a draft'}; give public "
                f"{', and '.join(needs)}, and delete each line 'draft'."
            )
        return cls.from_dict(values, source=str(path))

    def to_toml(self, path: str | Path) -> None:
        """Write the schema so that ``from_toml`` gives an equal one."""
        Path(path).write_text(tomli_w.dumps(self.as_dict()), encoding="utf-8")

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON: equal at all sites exactly if the schemas are equal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        stated = self.model_dump(mode="json", exclude=None if self.rules else {"rules"})
        canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _drafts(values: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the columns that are drafts, by what a person must find in public."""
    columns, drafts = values.get("columns", []), dict[str, list[str]]()
    for column in columns if isinstance(columns, list) else []:
        if isinstance(column, dict) and "draft" in column:
            drafts.setdefault(str(column["draft"]), []).append(str(column.get("name", "")))
    return drafts


def label_names(schema: Schema) -> tuple[str, ...]:
    """The names of the label's classes, in the order of their numbers."""
    return schema.label.categories or ("0", "1")


__all__ = [
    "BEFORE_LATEST",
    "BOUNDED_KINDS",
    "CLASS_KINDS",
    "LABEL_ROLES",
    "NUMERIC_KINDS",
    "RECORDED_ROLES",
    "Column",
    "Kind",
    "Role",
    "Schema",
    "label_names",
]
