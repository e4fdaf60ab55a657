"""What must be true of every record, stated in a schema (``rules = ["dbp < sbp"]``), and how often it is not.

A rule is a condition over features and the label (``polyclinic.ehr.expressions``). One that names trajectories is asked at each
visit. It is asked only where all that it names is recorded; a code set always is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import texts
from polyclinic.ehr.expressions import Expression, parse
from polyclinic.ehr.schema import RECORDED_ROLES, Column
from polyclinic.errors import ConfigError, DataError

_MISSING = re.compile(r"\bmissing\s*\(")


@dataclass(frozen=True)
class Violations:
    """How often a rule was asked (rows, or rows times visits) and how often it was broken."""

    rule: str
    asked: int
    broken: int

    @property
    def share(self) -> float | None:
        """Of those asked; None where it was never asked."""
        return self.broken / self.asked if self.asked else None

    def __add__(self, other: Violations) -> Violations:
        return Violations(self.rule, self.asked + other.asked, self.broken + other.broken)


def check_rules(rules: Sequence[str], columns: Sequence[Column]) -> None:
    """Raises DataError, naming the rule, for one that cannot be read over the features and the label among ``columns``."""
    for rule in rules:
        _read(rule, columns)


def kept_rules(rules: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """The rules that can be read over ``columns`` alone."""

    def readable(rule: str) -> bool:
        try:
            _read(rule, columns)
        except DataError:
            return False
        return True

    return tuple(rule for rule in rules if readable(rule))


def violations(records: pd.DataFrame, rules: Sequence[str], columns: Sequence[Column]) -> tuple[Violations, ...]:
    """Return each rule's violations among ``records``.

    Args:
        records: The table, which has the features and the label among ``columns``.
        rules: Conditions that each record should meet.
        columns: The columns of the schema.
    """
    return tuple(_violations(records, rule, columns) for rule in rules)


def _violations(records: pd.DataFrame, rule: str, columns: Sequence[Column]) -> Violations:
    expression = _read(rule, columns)
    cells = [name for name in expression.names if _column(name, columns).kind != "code_set"]
    asked = broken = 0
    for table in _visits(records, expression, columns):
        present = np.ones(len(table), dtype=bool)
        for name in cells:
            present &= np.array([cell != "" for cell in texts(table[name])], dtype=bool)
        asked += int(present.sum())
        broken += int((present & ~expression.holds(table)).sum())
    return Violations(rule, asked, broken)


def _visits(records: pd.DataFrame, expression: Expression, columns: Sequence[Column]) -> Iterator[pd.DataFrame]:
    """The columns that the rule names, once; or once for each visit of the trajectories that it names whole."""
    whole = {name: of for name in expression.names if (of := _column(name, columns)).steps and of.name == name}
    for step in range(next(iter(whole.values())).steps if whole else 1):
        places = {name: whole[name].record_names[step] if name in whole else name for name in expression.names}
        yield pd.DataFrame({name: records[place].reset_index(drop=True) for name, place in places.items()})


def _read(rule: str, columns: Sequence[Column]) -> Expression:
    allowed = [column for column in columns if column.role in RECORDED_ROLES]
    names = {name for column in allowed for name in (column.name, *column.record_names)}
    if _MISSING.search(rule):
        raise DataError(f"Schema rule {rule!r}: it is asked only where all is recorded; leave missing() out.")
    try:
        parsed = parse(rule, names, f"Schema rule {rule!r}")
    except ConfigError as error:
        raise DataError(str(error)) from None
    if not parsed.names:
        raise DataError(f"Schema rule {rule!r}: it names no column; write a condition such as: dbp < sbp.")
    steps = {column.steps for name in parsed.names if (column := _column(name, allowed)).steps and column.name == name}
    if len(steps) > 1:
        raise DataError(
            f"Schema rule {rule!r}: its trajectories have {sorted(steps)} visits; they need the same number."
        )
    return parsed


def _column(name: str, columns: Sequence[Column]) -> Column:
    return next(column for column in columns if name in (column.name, *column.record_names))
