"""What stands before a flow: rows of a layout as numbers with a density, and back.

0/1 and whole numbers are spread over their cell by uniform noise (Theis et al. 2016). A missing cell is drawn from what
a public law says of it given the record's others (``fills``), beside an indicator that says so. All of this is a
function of the public schema, of that law and of noise, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.synthesis.flows.fills import Law, Laws, fill_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats

# How far the logistic map of bounds stays from its ends, as a share of the range.
_MARGIN = 0.01


@dataclass(frozen=True, eq=False)
class Coordinates:
    """(n, D) rows z to (n, V) numbers v: 0/1 become -2..0 or 0..2, numbers stay as they are, the label stays one-hot.

    bounded: numbers go through the logistic map of their public bounds, whose slope is 1 at the schema's centre. What
        is drawn so keeps within them.
    spread: the share of its cell, around the middle, that the noise of a 0 or 1 fills.
    complete: v has no indicators, and rows that v stands for have no missing cells; V is then D less the indicators,
        otherwise D.
    """

    layout: Layout
    bounded: bool = False
    spread: float = 1.0
    complete: bool = False

    @property
    def width(self) -> int:
        """V."""
        return self.features + self.layout.classes

    @property
    def features(self) -> int:
        """The numbers of v before its label."""
        return self.layout.features if self.complete else self._last

    def draw(self, z: Floats, rng: np.random.Generator, laws: Laws | None = None) -> tuple[Floats, Floats]:
        """(n, V) v of rows ``z``, and (n,) the log-density of the noise less the log of the change of volume.

        The mean over draws of density(v) / exp(second) is the density of z, with ``complete`` of its cells that are
        there. That is a density for numbers and a chance for the rest.

        Args:
            z: (n, D) rows of the layout.
            rng: The source of the noise.
            laws: Of the classes of rows with missing cells, of v before its label; standard normal if there are none.
        """
        n = len(z)
        uniform, normal = rng.random((n, self._last)), rng.standard_normal((n, self._last))
        features = np.asarray(z[:, : self._last], dtype=np.float64)
        numbers, absent = self._numbers, self._absent(z)
        step = self._steps + 2.0 * self.spread * ~numbers  # how wide the noise is; 0 for numbers without cells
        spread = np.where(numbers, features, 2 * features - 1) + step * (uniform - 0.5) * numbers
        spread = spread + np.where(numbers, 0.0, self.spread * (2 * uniform - 1))
        log_noise = -np.log(np.where(step > 0, step, 1.0)) * np.ones((n, 1))
        mapped, log_slope = self._forth(spread)
        v, log_noise = np.where(absent, 0.0, mapped), np.where(absent, 0.0, log_noise - log_slope)
        free, (low, high) = self.features, self.limits
        labels, absent = self.layout.labels(z), absent[:, :free]
        if laws is None:
            standard = Law(np.zeros(free), np.eye(free))
            laws = {int(label): standard for label in np.unique(labels)}
        v, log_fill = fill_rows(v[:, :free], absent, labels, laws, normal[:, :free], low, high)
        return np.concatenate([v, z[:, self._last :]], axis=1), log_noise[:, :free].sum(1) + log_fill

    def missing(self, z: Floats) -> Bools:
        """(n,) whether a row has a cell that is missing and is no category."""
        return np.asarray(self._absent(z).any(axis=1))

    @cached_property
    def limits(self) -> tuple[Floats, Floats]:
        """(features,) the least and the largest number that a record's v may have: its public bounds, and the ends of a cell."""
        low, high = (bound[None, : self._last] for bound in self.layout.bounds)
        ends = (np.where(self._numbers, self._forth(bound)[0], end)[0] for bound, end in ((low, -2.0), (high, 2.0)))
        first, last = (end[: self.features] for end in ends)
        return first, last

    def rows(self, v: Floats) -> Floats:
        """(n, D) rows z that numbers v stand for: each bit and whole number the one in whose cell it lies."""
        v = self._with_indicators(v)
        z = np.array(v, dtype=np.float64)
        last, numbers = self._last, self._numbers
        low, high = (bound[:last] for bound in self.layout.bounds)
        numeric = np.clip(self._back(z[:, :last]), low, high)
        with np.errstate(invalid="ignore", divide="ignore"):
            whole = low + np.round((numeric - low) / self._steps) * self._steps
        numeric = np.where(self._steps > 0, np.clip(whole, low, high), numeric)
        z[:, :last] = np.where(numbers, numeric, z[:, :last] > 0)
        for column, at in self.layout.columns:
            if column.kind == "categorical":
                best = np.argmax(v[:, at], axis=1)
                none = (v[:, at].max(axis=1) <= 0) & (column.nullable or column.drop_first)
                z[:, at] = np.where(none[:, None], 0.0, np.eye(at.stop - at.start)[best])
        z[:, : self.layout.features][self._absent(z)[:, : self.layout.features]] = 0.0
        return z

    def inside(self, v: Floats) -> Bools:
        """(n,) whether all numbers of ``v`` are within their public bounds, a whole number's cell included."""
        v = self._with_indicators(v)
        z = self._back(np.asarray(v[:, : self._last], dtype=np.float64))
        low, high = (bound[: self._last] for bound in self.layout.bounds)
        room = self._steps / 2
        within = ~self._numbers | ((z >= low - room) & (z <= high + room)) | self._absent((v > 0).astype(np.float64))
        return np.asarray(within.all(axis=1), dtype=bool)

    def _with_indicators(self, v: Floats) -> Floats:
        """(n, D): ``complete`` numbers beside indicators that are off."""
        off = np.full((len(v), self._last - self.features), -1.0)
        return np.concatenate([v[:, : self.features], off, v[:, self.features :]], axis=1)

    @cached_property
    def _last(self) -> int:
        return int(self.layout.label.start)

    @cached_property
    def _numbers(self) -> Bools:
        return np.array(self.layout.numeric[: self._last])

    @cached_property
    def _steps(self) -> Floats:
        """(features and indicators,) the distance of neighbouring whole numbers in z; 0 where there are none."""
        distances = np.zeros(self._last)
        for column, at in self.layout.columns:
            if column.kind in ("integer", "ordinal"):
                values = len(column.categories) - 1 if column.categories else column.bounds[1] - column.bounds[0]  # type: ignore[index]
                distances[at] = 2.0 / (max(values, 1.0) * self.layout.std[at])
        return distances

    def _absent(self, z: Floats) -> Bools:
        absent = np.zeros((len(z), self._last), dtype=bool)
        absent[:, : self.layout.features][:, self.layout.nullable] = z[:, self.layout.missing] > 0.5
        return absent

    @cached_property
    def _map(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Of v = scale (logit((z - low) / width) - zero): low and width with room for a cell's noise, scale, zero."""
        low, high = (bound[: self._last] for bound in self.layout.bounds)
        room = _MARGIN * (high - low) + self._steps / 2
        low, width = low - room, high - low + 2 * room
        centre = np.clip(-low / width, 2 * _MARGIN, 1 - 2 * _MARGIN)
        return low, width, width * centre * (1 - centre), np.log(centre / (1 - centre))

    def _forth(self, z: Floats) -> tuple[Floats, Floats]:
        if not self.bounded:
            return z, np.zeros(z.shape)
        low, width, scale, zero = self._map
        share = np.clip((z - low) / width, 1e-9, 1 - 1e-9)
        v, slope = scale * (np.log(share / (1 - share)) - zero), np.log(scale / (width * share * (1 - share)))
        return np.where(self._numbers, v, z), np.where(self._numbers, slope, 0.0)

    def _back(self, v: Floats) -> Floats:
        if not self.bounded:
            return v
        low, width, scale, zero = self._map
        return np.asarray(low + width / (1 + np.exp(-np.clip(v / scale + zero, -40, 40))))
