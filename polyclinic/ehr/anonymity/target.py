"""What a release must reach, and which rows must go so that it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.ehr.anonymity.classes import Classes, patients_of
from polyclinic.ehr.anonymity.measures import Spread, l_by_class, overall_shares, spread_of, t_by_class
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Floats, Ints


@dataclass(frozen=True)
class Target:
    """k: patients in every class. l: distinct values of each sensitive column in every class. t: its distance to the table.

    suppression: the share of patients who may lose a row. Raises ConfigError for what is out of range.
    """

    k: int
    l: int = 1  # noqa: E741
    t: float | None = None
    suppression: float = 0.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}; it must be 1 or greater.")
        if self.l < 1:
            raise ConfigError(f"l is {self.l}; it must be 1 or greater.")
        if self.t is not None and not 0.0 <= self.t <= 1.0:
            raise ConfigError(f"t is {self.t:g}; it must lie between 0 and 1.")
        if not 0.0 <= self.suppression < 1.0:
            raise ConfigError(f"suppression is {self.suppression:g}; it must lie between 0 and 1, the latter excluded.")


@dataclass(frozen=True, eq=False)
class Sensitive:
    """A sensitive column: value (rows,) int64 numbers of its cells, in order where ``ordered``."""

    value: Ints
    ordered: bool


@dataclass(frozen=True, eq=False)
class Demand:
    """The target for one table: its patients ((rows,) int64, or None where each row is one) and sensitive columns."""

    target: Target
    rows: int
    patient: Ints | None
    sensitive: tuple[Sensitive, ...]

    @property
    def patients(self) -> int:
        """The number of patients."""
        return self.rows if self.patient is None else int(self.patient.max(initial=-1)) + 1

    @property
    def is_monotone(self) -> bool:
        """Whether coarser classes never need more suppression: so for k; where each patient has one row for l, and for t
        if nothing may be suppressed.
        """
        by_row = self.patient is None
        for_l = self.target.l == 1 or by_row
        for_t = self.target.t is None or (by_row and self.target.suppression == 0)
        return not self.sensitive or (for_l and for_t)

    def too_many(self, kept: Bools) -> bool:
        """Whether more patients lose a row than the target allows, or no row is left."""
        lost = self.rows - int(kept.sum()) if self.patient is None else len(np.unique(self.patient[~kept]))
        return lost > math.floor(self.target.suppression * self.patients + 1e-9) or not kept.any()

    def kept(self, of_row: Ints) -> Bools:
        """(rows,) bool: the rows that stay when every class that misses the target goes.

        t is measured against the table that stays, so classes go until none is too far from it.
        """
        classes = Classes(of_row, patients_of(of_row, self.patient))
        good: Bools = classes.patients >= self.target.k
        if self.target.l > 1 or self.target.t is not None:
            spreads = [spread_of(classes, one.value, one.ordered, self.patient) for one in self.sensitive]
            for found in spreads:
                good &= l_by_class(found) >= self.target.l
            while self.target.t is not None and (far := self._far(good, of_row, spreads)).any():
                good &= ~far
        staying: Bools = good[of_row]
        return staying

    def _far(self, good: Bools, of_row: Ints, spreads: Sequence[Spread]) -> Bools:
        """(classes,) bool: the good classes that are too far from the table of good classes."""
        far = np.zeros(len(good), dtype=np.bool_)
        kept = good[of_row]
        patient = None if self.patient is None else self.patient[kept]
        for one, found in zip(self.sensitive, spreads, strict=True) if kept.any() else ():
            overall = overall_shares(one.value[kept], patient, len(found.overall))
            far |= good & (t_by_class(found, overall) > (self.target.t or 0.0) + 1e-12)
        return far

    def is_enough(self, rows: Ints) -> bool:
        """Whether these rows may be a class of the whole table, nothing of which goes."""
        patient = None if self.patient is None else self.patient[rows]
        patients = len(rows) if patient is None else len(np.unique(patient))
        if patients < self.target.k:
            return False
        if not self.sensitive or (self.target.l == 1 and self.target.t is None):
            return True
        held = Classes(np.zeros(len(rows), dtype=np.int64), np.array([patients], dtype=np.int64))
        for column, overall in zip(self.sensitive, self._overall, strict=True):
            found = spread_of(held, column.value[rows], column.ordered, patient)
            if l_by_class(found)[0] < self.target.l:
                return False
            if self.target.t is not None and t_by_class(found, overall)[0] > self.target.t + 1e-12:
                return False
        return True

    @cached_property
    def _overall(self) -> tuple[Floats, ...]:
        return tuple(overall_shares(one.value, self.patient, int(one.value.max()) + 1) for one in self.sensitive)

    def hopeless(self) -> DataError:
        """What to raise where not even one class of all rows reaches the target."""
        target = self.target
        wanted = [f"k = {target.k}", *([f"l = {target.l}"] if target.l > 1 else []),
                  *([f"t = {target.t:g}"] if target.t is not None else [])]  # fmt: skip
        return DataError(
            f"{', '.join(wanted)} cannot be reached: {self.patients:,} patients in one class miss it; ask for less, or "
            "name other sensitive columns."
        )
