"""Each hospital its own private moments, mixed by how many patients it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.draws import drawn_classes, pick
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.methods.options import check_number
from polyclinic.synthesis.synthesizer import Synthesizer, describe, made_again
from polyclinic.types import Arrays, Floats, Ints, under


@dataclass(frozen=True, eq=False)
class HospitalMoments(Moments):
    """``Moments`` of each hospital alone, options as there: its sums are never added to another's.

    Who runs it makes a synthesizer of each hospital's state, and of them all ``Mixture.of``.
    """

    name: ClassVar[str] = "mixture"
    separate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # A second round would ask every hospital about a state of its own.
        check_number(self.name, "rounds", self.rounds, 1, 1, whole=True)
        Moments.__post_init__(self)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Draws each row from one of several synthesizers of a layout. weights: (parts,) a distribution."""

    layout: Layout
    parts: tuple[Synthesizer, ...]
    weights: Floats

    @classmethod
    def of(cls, synthesizers: Sequence[Synthesizer], weights: Sequence[float] | Floats) -> Mixture:
        """Weights: a number for each, such as paid counts of patients; negative ones count as 0, and if none is left all as 1.

        Raises DataError for no synthesizer, or for another number of weights.
        """
        if not synthesizers or len(synthesizers) != len(weights):
            raise DataError(
                f"A mixture of {len(synthesizers)} synthesizers has {len(weights)} weights; it needs one for each."
            )
        shares = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
        shares = shares if shares.sum() > 0 else np.ones(len(shares))
        return cls(synthesizers[0].layout, tuple(synthesizers), shares / shares.sum())

    @property
    def classes(self) -> Floats:
        """(K,) frequencies of the classes; of a part that does not tell its own, even ones."""
        return self.weights @ self._classes

    @property
    def _classes(self) -> Floats:
        even = np.full(self.layout.classes, 1.0 / self.layout.classes)
        return np.stack([np.asarray(getattr(part, "classes", even), dtype=np.float64) for part in self.parts])

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Mixture:
        """Makes a mixture again of what its ``arrays`` and ``options`` gave.

        Args:
            layout: The layout of the rows.
            arrays: The weights, and the arrays of each part under its number.
            options: ``parts``, the kind and the options of each.

        Raises:
            ValueError: A part is of any other package.
            DataError: The weights cannot be.
        """
        parts = []
        own = {name: values for name, values in arrays.items() if "." not in name}
        check_arrays(own, {"weights": Numbers((len(options["parts"]),), shares=True)})
        for number, part in enumerate(options["parts"]):
            if not str(part["kind"]).startswith("polyclinic."):
                raise ValueError(f"a part of a mixture is of kind {part['kind']!r}")
            parts.append(made_again(layout, part, under(arrays, f"{number}.")))
        return cls(layout, tuple(parts), np.asarray(arrays["weights"]))

    def arrays(self) -> Arrays:
        """Those of part n are named ``n.name``."""
        arrays = {f"{n}.{name}": value for n, part in enumerate(self.parts) for name, value in part.arrays().items()}
        return {"weights": self.weights, **arrays}

    def options(self) -> dict[str, Any]:
        return {"parts": [describe(part) for part in self.parts]}

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D); a row of a given class comes from a part as likely as such patients are there.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by their frequencies.
        """
        if labels is None:
            labels = drawn_classes(self.classes, rows, rng)
        part = pick((self.weights[:, None] * self._classes).T[labels], rng)
        z = np.zeros((rows, self.layout.width))
        for number in np.unique(part):
            at = np.flatnonzero(part == number)
            z[at] = self.parts[number].sample(len(at), rng, labels[at])
        return z
