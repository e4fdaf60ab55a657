"""What stands before a flow: rows of a layout as numbers with a density, and back.

0/1 and whole numbers are spread over their cell by uniform noise (Theis et al. 2016), and a missing number is drawn from the
standard normal, beside an indicator that says so: a function of the public schema and of noise, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats

_LOG_ROOT = 0.5 * np.log(2 * np.pi)
# How far the logistic map of bounds stays from its ends, as a share of the range.
_MARGIN = 0.01


@dataclass(frozen=True, eq=False)
class Coordinates:
    """(n, D) rows z to (n, D) numbers v: 0/1 become -2..0 or 0..2, numbers stay as they are, the label stays one-hot.

    bounded: numbers go through the logistic map of their public bounds, whose slope is 1 at the schema's centre, so that what is
    drawn keeps within them. spread: the share of its cell, around the middle, that the noise of a 0 or 1 fills.
    """

    layout: Layout
    bounded: bool = False
    spread: float = 1.0

    def drawn(self, z: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(n, D) v of rows ``z``, and (n,) the log-density of the noise less the log of the change of volume.

        The mean over draws of density(v) / exp(second) is the density of z: of a density for numbers and a chance for the rest.
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
        # The noise of a missing number is normal where the flow sees it; that of a missing bit is uniform over both cells.
        v = np.where(absent & numbers, normal, np.where(absent, 4 * uniform - 2, mapped))
        log_noise = np.where(absent & numbers, -0.5 * normal**2 - _LOG_ROOT, log_noise - log_slope)
        log_noise = np.where(absent & ~numbers, -np.log(4.0), log_noise)
        return np.concatenate([v, z[:, self._last :]], axis=1), log_noise.sum(1)

    def rows(self, v: Floats) -> Floats:
        """(n, D) rows z that numbers v stand for: each bit and whole number the one in whose cell it lies."""
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
        z = self._back(np.asarray(v[:, : self._last], dtype=np.float64))
        low, high = (bound[: self._last] for bound in self.layout.bounds)
        room = self._steps / 2
        within = ~self._numbers | ((z >= low - room) & (z <= high + room)) | self._absent(self.rows(v))
        return np.asarray(within.all(axis=1), dtype=bool)

    @cached_property
    def _last(self) -> int:
        return int(self.layout.label.start)

    @cached_property
    def _numbers(self) -> Bools:
        return np.array(self.layout.numeric[: self._last])

    @cached_property
    def _steps(self) -> Floats:
        """(features and indicators,) the distance of neighbouring whole numbers in z; 0 where there are none."""
        found = np.zeros(self._last)
        for column, at in self.layout.columns:
            if column.kind in ("integer", "ordinal"):
                values = len(column.categories) - 1 if column.categories else column.bounds[1] - column.bounds[0]  # type: ignore[index]
                found[at] = 2.0 / (max(values, 1.0) * self.layout.std[at])
        return found

    def _absent(self, z: Floats) -> Bools:
        found = np.zeros((len(z), self._last), dtype=bool)
        found[:, : self.layout.features][:, self.layout.nullable] = z[:, self.layout.missing] > 0.5
        return found

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
