"""Rows drawn by one generator or several, as the SPRINT paper combines its selected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays, check_finite
from polyclinic.synthesis.games.fakes import fake_rows, generator_of
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints, under


@dataclass(frozen=True, eq=False)
class GeneratedRows:
    """Draws each row by one of ``generators``, of equal chances; labels by ``classes``, (K,) frequencies.

    Beaulieu-Jones et al. 2019 draw from the generators of several selected epochs alike.
    """

    layout: Layout
    game: Game
    generators: tuple[Arrays, ...]
    classes: Floats

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D) drawn rows.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by their frequencies.

        Raises:
            DataError: A generator gives numbers that are not finite.
        """
        if labels is None:
            labels = rng.choice(self.layout.classes, rows, p=self.classes / self.classes.sum()).astype(np.int64)
        by = rng.integers(0, len(self.generators), rows)
        z = np.empty((rows, self.layout.width))
        for number, arrays in enumerate(self.generators):
            mine = np.flatnonzero(by == number)
            module = generator_of(self.game, self.layout, arrays)
            z[mine] = fake_rows(module, self.game, self.layout, labels[mine], rng)
        if not np.isfinite(z).all():
            raise DataError("The generator gives numbers that are not finite: it has diverged.")
        return z

    def arrays(self) -> Arrays:
        many = {f"{i}/{name}": value for i, arrays in enumerate(self.generators) for name, value in arrays.items()}
        return {"classes": self.classes / self.classes.sum(), **many}

    def options(self) -> dict[str, Any]:
        return {**self.game.options, "game": self.game.made_by, "generators": len(self.generators)}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> GeneratedRows:
        """Makes a synthesizer again of what its ``arrays`` and ``options`` gave.

        Args:
            layout: The layout of the rows.
            arrays: The arrays by name.
            options: The game's name, the number of generators, and the game's own options.

        Raises:
            KeyError, TypeError, ValueError, ConfigError, DataError: The arrays or options are another's.
        """
        own = dict(options)
        count, (module, _, name) = int(own.pop("generators")), str(own.pop("game")).partition(":")
        game = attrgetter(name)(import_module(module))(layout, **own)
        if not isinstance(game, Game):
            raise TypeError(f"{module}:{name} makes no Game")
        generators = tuple(under(arrays, f"{number}/") for number in range(count))
        own = {name: values for name, values in arrays.items() if "/" not in name}
        check_arrays(own, {"classes": Numbers((layout.classes,), shares=True)})
        check_finite(arrays)
        for weights in generators:
            generator_of(game, layout, weights)
        return cls(layout, game, generators, np.asarray(arrays["classes"], dtype=np.float64))
