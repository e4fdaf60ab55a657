"""Trajectories as visits: the steps of a patient's visits, a row for each visit, and a row for each pair of successive visits.

Each kind of row has a layout of its own, so that ``Bins`` and ``Moments`` take visits as they take patients. A step is a
visit where any trajectory has a cell, and every step between the first and the last visit is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.errors import ConfigError, nearest, several
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats, Ints

_OWN, _VISIT, _PAIR = "own", "visit", "pair"


@dataclass(frozen=True, eq=False)
class Visits:
    """The visits of n rows.

    x: (n, F) encoded features, NaN where missing.
    label: (n, K) one-hot.
    first, last: (n,) steps of the first and the last visit; 0 and -1 in rows without a visit.
    """

    x: Floats
    label: Floats
    first: Ints
    last: Ints


@dataclass(frozen=True, eq=False)
class Timeline:
    """The trajectories of a layout as visits.

    time: the name of the trajectory that holds the times of visits; empty where steps are evenly apart.

    The layouts of derived rows:

    - ``own``: the columns without steps, and the steps of the first and the last visit;
    - ``ends``: the times of the first and the last visit;
    - ``visit``: the measurements of one visit;
    - ``between``: the step of a visit, and the time since the visit before it;
    - ``begun``: own columns and the first visit;
    - ``step``: own columns, between, and of each measurement the visit before and the visit now.

    Raises ConfigError for a schema without trajectories of the same number of steps, of two or more, or without the time.
    """

    layout: Layout
    time: str

    @classmethod
    def of(cls, layout: Layout, time: str, method: str) -> Timeline:
        """The timeline of a layout's trajectories.

        Args:
            layout: The layout of the rows.
            time: The trajectory with the times of visits; empty for ``before latest`` where the schema has it.
            method: The method's name, for messages.

        Raises:
            ConfigError: The trajectory is none of the schema's, or the schema's trajectories are too few or differ in
                steps.
        """
        schema = layout.schema
        trajectories = {column.name: column.steps for column, _ in layout.columns if column.kind == "trajectory"}
        if time and time not in trajectories:
            raise ConfigError(
                f"Option 'time' of method {method!r} is {time!r}, which is not a trajectory of schema {schema.name!r}; "
                f"allowed are {several(trajectories) or 'none'}.{nearest(time, trajectories)}"
            )
        time = time or (BEFORE_LATEST if BEFORE_LATEST in trajectories else "")
        if len(trajectories) < (2 if time else 1):
            raise ConfigError(
                f"Schema {schema.name!r} has no trajectory of measurements; method {method!r} needs one: take 'moments' or "
                "'latent'. Of a table of visits --time and --steps make trajectories."
            )
        if len({*trajectories.values()}) > 1 or max(trajectories.values()) < 2:
            steps = ", ".join(f"{name} {count}" for name, count in trajectories.items())
            raise ConfigError(
                f"The trajectories of schema {schema.name!r} have these steps: {steps}; method {method!r} needs "
                "the same number in all, two or more."
            )
        return cls(layout, time)

    @cached_property
    def measured(self) -> tuple[tuple[Column, slice], ...]:
        """The trajectories but the time, and where their steps are."""
        return tuple(
            column_at
            for column_at in self.layout.columns
            if column_at[0].kind == "trajectory" and column_at[0].name != self.time
        )

    @cached_property
    def time_at(self) -> slice | None:
        """Where the times are."""
        return next((at for column, at in self.layout.columns if column.name == self.time), None)

    @property
    def steps(self) -> int:
        return self.measured[0][0].steps

    @cached_property
    def always(self) -> bool:
        """Whether every row has a visit at every step."""
        return not all(column.nullable for column, at in self.layout.columns if column.kind == "trajectory")

    @cached_property
    def _static(self) -> tuple[tuple[Column, slice], ...]:
        return tuple(column_at for column_at in self.layout.columns if column_at[0].kind != "trajectory")

    @cached_property
    def own(self) -> Layout:
        return self._layout(self._own_columns)

    @cached_property
    def ends(self) -> Layout:
        return self._layout([_share("ends first"), _share("ends last")])

    @cached_property
    def visit(self) -> Layout:
        return self._layout(self._visit_columns)

    @cached_property
    def between(self) -> Layout:
        return self._layout(self._between_columns)

    @cached_property
    def begun(self) -> Layout:
        return self._layout([*self._own_columns, *self._visit_columns])

    @cached_property
    def step(self) -> Layout:
        # A trajectory of two steps, so that noise hurts the difference of two visits less than their sum (``Basis``).
        pairs = [_add_prefix(column.model_copy(update={"steps": 2}), _PAIR) for column, _ in self.measured]
        return self._layout([*self._own_columns, *self._between_columns, *pairs])

    @cached_property
    def _own_columns(self) -> list[Column]:
        span = [
            Column(name=f"span {name}", kind="integer", bounds=(low, self.steps - 1))
            for name, low in (("first", 0.0), ("last", -1.0))
        ]
        return [*(_add_prefix(column, _OWN) for column, _ in self._static), *span]

    @cached_property
    def _between_columns(self) -> list[Column]:
        step = Column(name="between step", kind="integer", bounds=(0.0, self.steps - 1))
        return [step, _share("between gap")] if self.time else [step]

    @cached_property
    def _visit_columns(self) -> list[Column]:
        plain = {"steps": 0, "whole": False}
        return [
            _add_prefix(
                column.model_copy(update={**plain, "kind": "integer" if column.whole else "continuous"}), _VISIT
            )
            for column, _ in self.measured
        ]

    def _layout(self, columns: list[Column]) -> Layout:
        label = self.layout.schema.label
        schema = Schema(name=self.layout.schema.name, unit="record", columns=(*columns, label))
        return Layout.of(schema, self.layout.hospitals)

    def visits(self, z: Floats) -> Visits:
        """The visits of (n, D) rows."""
        x, _ = self.layout.features_and_labels(z)
        seen = np.zeros((len(x), self.steps), dtype=bool)
        for at in self.layout.trajectories:
            seen |= ~np.isnan(x[:, at])
        any_visit = seen.any(axis=1)
        first = np.where(any_visit, seen.argmax(axis=1), 0)
        last = np.where(any_visit, self.steps - 1 - seen[:, ::-1].argmax(axis=1), -1)
        return Visits(x, np.eye(self.layout.classes)[self.layout.labels(z)], first, last)

    def own_x(self, visits: Visits) -> Floats:
        """(n, features of ``own``) encoded."""
        static = [visits.x[:, at] for _, at in self._static]
        span = [_whole(visits.first, 0, self.steps - 1), _whole(visits.last, -1, self.steps - 1)]
        return np.concatenate([*static, *span], axis=1)

    def ends_x(self, visits: Visits) -> Floats:
        """(n, 2) encoded; of a row without a visit, or without its time, the beginning of the bounds."""
        assert self.time_at is not None
        times, rows = visits.x[:, self.time_at], np.arange(len(visits.x))
        shares = [_root((np.nan_to_num(times[rows, at], nan=-1.0) + 1) / 2) for at in (visits.first, visits.last)]
        return 2.0 * np.stack(shares, axis=1) - 1.0

    def visit_x(self, visits: Visits, step: Ints) -> Floats:
        """(n, measured) encoded cells of each row at its ``step``, (n,)."""
        rows = np.arange(len(visits.x))
        return np.stack([visits.x[rows, at.start + step] for _, at in self.measured], axis=1)

    def between_x(self, visits: Visits, step: Ints) -> Floats:
        """(n, features of ``between``) encoded, of each row's ``step`` and the one before it."""
        place = _whole(step, 0, self.steps - 1)
        if self.time_at is None:
            return place
        times, rows = visits.x[:, self.time_at], np.arange(len(visits.x))
        since = np.abs(times[rows, step] - times[rows, step - 1]) / 2
        return np.concatenate([place, (2.0 * _root(np.nan_to_num(since)) - 1.0)[:, None]], axis=1)

    def each_visit(self, visits: Visits) -> Iterator[tuple[Bools, Floats]]:
        """By step which rows have a visit there, (n,), and their encoded cells."""
        for step in range(self.steps):
            here = (visits.first <= step) & (step <= visits.last)
            yield here, self.visit_x(visits, np.full(len(here), step))[here]

    def each_step(self, visits: Visits) -> Iterator[tuple[Bools, Floats]]:
        """By step but the first which rows have a visit there and one before it, (n,), and their encoded rows of ``step``."""
        own = self.own_x(visits)
        for step in range(1, self.steps):
            here, at = self.goes_on(visits, step), np.full(len(own), step)
            both = np.stack([self.visit_x(visits, at - 1), self.visit_x(visits, at)], axis=2)
            pairs = both.reshape(len(own), 2 * len(self.measured))
            yield here, np.concatenate([own, self.between_x(visits, at), pairs], axis=1)[here]

    @staticmethod
    def goes_on(visits: Visits, step: int) -> Bools:
        """(n,) which rows have a visit at ``step`` and one before it."""
        return np.asarray((visits.first < step) & (step <= visits.last))


def rows_of(layout: Layout, x: Floats, label: Floats) -> Floats:
    """(n, D) rows of a derived layout.

    Args:
        layout: The derived layout.
        x: (n, F) encoded features, NaN where missing.
        label: (n, K) one-hot.
    """
    z = layout.rows(x, np.zeros(len(x), dtype=np.int64))
    z[:, layout.label] = label
    return z


def _add_prefix(column: Column, prefix: str) -> Column:
    return column.model_copy(update={"name": f"{prefix} {column.name}"})


def _share(name: str) -> Column:
    """The root of a share of the time's bounds: short times stand apart, as most are short."""
    return Column(name=name, kind="continuous", bounds=(0.0, 1.0))


def _root(shares: Floats) -> Floats:
    return np.sqrt(np.clip(shares, 0.0, 1.0))


def _whole(values: Ints, low: int, high: int) -> Floats:
    return (2.0 * (values - low) / (high - low) - 1.0)[:, None]
