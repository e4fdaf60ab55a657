"""What all synthesizers of sums have in common: rows of each class by released numbers, within the schema's bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints

# Above every option of every method; a larger one would ask for more memory than there is.
_MOST_OPTION = 10_000


@dataclass(frozen=True, eq=False)
class RowsByClass(ABC):
    """Draws rows by ``numbers``, of which ``classes`` are (K,) frequencies; further fields are whole numbers, its options."""

    layout: Layout
    numbers: Arrays

    @property
    def classes(self) -> Floats:
        """(K,) frequencies of the classes."""
        return self.numbers["classes"]

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Self:
        """Makes a synthesizer again of what its ``arrays`` and ``options`` gave.

        Args:
            layout: The layout of the rows.
            arrays: The arrays by name.
            options: Whole numbers, one for each further field.

        Raises:
            KeyError: An option is missing.
            DataError: The class does not have such options and numbers.
        """
        given = {field.name: int(options[field.name]) for field in fields(cls)[2:]}
        for name, value in given.items():
            if value > _MOST_OPTION:
                raise DataError(f"the option {name!r} is {value}; allowed are whole numbers up to {_MOST_OPTION}")
        synthesizer = cls(layout, dict(arrays), **given)
        check_arrays(arrays, {"classes": Numbers((layout.classes,), shares=True), **synthesizer.allowed_numbers()})
        return synthesizer

    @abstractmethod
    def allowed_numbers(self) -> dict[str, Numbers]:
        """What ``numbers`` must be beside ``classes``."""

    def arrays(self) -> Arrays:
        return self.numbers

    def options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D), within the schema's bounds; numbers of cells that are drawn as missing are 0.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by their frequencies.
        """
        y = drawn_classes(self.classes, rows, rng) if labels is None else labels
        z = np.zeros((rows, self.layout.width))
        self._fill(z, y, rng)
        z[:, self.layout.label] = np.eye(self.layout.classes)[y]
        low, high = self.layout.bounds
        z = np.clip(z, low, high)
        z[:, np.flatnonzero(self.layout.nullable)] *= z[:, self.layout.missing] <= 0.5
        return z

    @abstractmethod
    def _fill(self, z: Floats, y: Ints, rng: np.random.Generator) -> None:
        """Write the numbers before the label into the zeros of (n, D) ``z``, given (n,) classes ``y``."""


def drawn_classes(frequencies: Floats, rows: int, rng: np.random.Generator) -> Ints:
    """(rows,) classes, each by its frequency.

    Args:
        frequencies: (K,) frequency of each class.
        rows: How many classes to draw.
        rng: The source of random numbers.
    """
    return pick(np.broadcast_to(frequencies, (rows, len(frequencies))), rng)


def pick(weights: Floats, rng: np.random.Generator) -> Ints:
    """(n,) a number for each row of (n, m) ``weights``, which are at least 0 and not all 0."""
    upto = np.cumsum(weights, axis=1)
    at = rng.random(len(weights)) * upto[:, -1]
    return np.asarray(np.minimum((upto <= at[:, None]).sum(axis=1), weights.shape[1] - 1).astype(np.int64))
