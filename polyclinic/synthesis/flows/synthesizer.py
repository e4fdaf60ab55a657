"""Rows drawn by a flow, and their log-density under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays, check_finite
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints, under

_AT_ONCE = 1 << 13
# How often a row is drawn again before a flow is said to miss the bounds.
_TRIES = 100
_BASE = ("base/mean", "base/root")


@dataclass(frozen=True, eq=False)
class FlowRows:
    """Draws labels by ``classes``, (K,) frequencies, and features by the flow of ``flow``'s arrays given the label."""

    recipe: Recipe
    flow: Arrays
    classes: Floats

    @property
    def layout(self) -> Layout:
        return self.recipe.layout

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D) drawn rows.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by their frequencies.

        Raises:
            DataError: The flow gives numbers that are not finite, or hardly any within bounds to a recipe that draws
                the others again.
        """
        layout, places = self.layout, self.recipe.coordinates
        if labels is None:
            labels = rng.choice(layout.classes, rows, p=self.classes / self.classes.sum()).astype(np.int64)
        v = self._draw(labels, rng)
        again = np.flatnonzero(~places.inside(v)) if self.recipe.redraw else np.empty(0, dtype=np.int64)
        for _ in range(_TRIES):
            if not len(again):
                return places.rows(v)
            v[again] = self._draw(labels[again], rng)
            again = again[~places.inside(v[again])]
        raise DataError(f"{len(again)} of {rows} rows of the flow are not within public bounds after {_TRIES} draws.")

    def _draw(self, labels: Ints, rng: np.random.Generator) -> Floats:
        """(n, D) in the flow's coordinates, given (n,) labels."""
        layout = self.layout
        context = np.eye(layout.classes)[labels]
        module = self.recipe.flow_of(self.flow).double()
        base = rng.standard_normal((len(labels), self.recipe.coordinates.features))
        pieces = [
            module.draw(
                torch.from_numpy(base[i : i + _AT_ONCE]), torch.from_numpy(context[i : i + _AT_ONCE])
            ).numpy()
            for i in range(0, len(labels), _AT_ONCE)
        ]  # fmt: skip
        v = np.concatenate([np.concatenate(pieces) if pieces else base, context], axis=1)
        if not np.isfinite(v).all():
            raise DataError("The flow gives numbers that are not finite: it has diverged.")
        return v

    def log_density(self, z: Floats, rng: np.random.Generator, draws: int = 16) -> Floats:
        """(n,) log of the density of rows ``z``, label included: per unit of z for numbers, a chance for 0/1 and whole numbers.

        With ``recipe.complete`` it is that of the cells that are there.

        Args:
            z: (n, D) rows of the layout.
            rng: The source of the noise.
            draws: What the flow says of a cell or of a missing number is a mean over so many draws. It is exact without
                such places and otherwise rather low than high.
        """
        module = self.recipe.flow_of(self.flow).double()
        whole = replace(self.recipe.coordinates, spread=1.0)  # what is drawn anywhere in a cell becomes its number
        laws = self.recipe.laws(module, np.unique(self.layout.labels(z[whole.missing(z)])))
        log_densities = np.empty((draws, len(z)))
        for draw in range(draws):
            v, log_noise = whole.draw(z, rng, laws)
            with torch.no_grad():
                log_densities[draw] = -module(torch.from_numpy(v))[:, 0].numpy() - log_noise
        chances = self.classes / self.classes.sum()
        with np.errstate(divide="ignore"):
            label = np.log(chances)[self.layout.labels(z)] - self._log_inside(rng)[self.layout.labels(z)]
        return np.asarray(np.logaddexp.reduce(log_densities, axis=0) - np.log(draws) + label)

    def _log_inside(self, rng: np.random.Generator) -> Floats:
        """(K,) log of the share of draws that are kept, of each class."""
        if not self.recipe.redraw:
            return np.zeros(self.layout.classes)
        return np.log([
            max(self.recipe.coordinates.inside(self._draw(np.full(_AT_ONCE, k), rng)).mean(), 1 / _AT_ONCE)
            for k in range(self.layout.classes)
        ])  # fmt: skip

    def arrays(self) -> Arrays:
        base = dict(zip(_BASE, self.recipe.base, strict=True)) if self.recipe.base else {}
        return {
            "classes": self.classes / self.classes.sum(),
            **base,
            **{f"flow/{name}": value for name, value in self.flow.items()},
        }

    def options(self) -> dict[str, Any]:
        return self.recipe.options()

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> FlowRows:
        """Makes a synthesizer again of what its ``arrays`` and ``options`` gave.

        Args:
            layout: The layout of the rows.
            arrays: The arrays by name.
            options: The options of the recipe.

        Raises:
            ValueError, ConfigError, DataError: The arrays or options are another's.
        """
        recipe = make(layout, **options)
        flow, features = under(arrays, "flow/"), recipe.coordinates.features
        base = {_BASE[0]: Numbers((features,)), _BASE[1]: Numbers((features, features))}
        own = {name: values for name, values in arrays.items() if not name.startswith("flow/")}
        classes = {"classes": Numbers((layout.classes,), shares=True)}
        check_arrays(own, classes | (base if _BASE[0] in arrays else {}))
        check_finite(flow)
        if _BASE[0] in arrays:
            mean, root = (np.asarray(arrays[name], dtype=np.float64) for name in _BASE)
            recipe = replace(recipe, base=(mean, root))
        recipe.flow_of(flow)
        return cls(recipe, flow, np.asarray(arrays["classes"], dtype=np.float64))
