"""Rows drawn by a flow, and their log-density under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyclinic.ehr.checks import Floats, Ints
from polyclinic.errors import DataError
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Arrays

_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False)
class FlowRows:
    """Draws labels by ``classes``, (K,) frequencies, and features by the flow of ``flow``'s arrays given the label."""

    recipe: Recipe
    flow: Arrays
    classes: Floats

    @property
    def layout(self) -> Layout:
        return self.recipe.layout

    @property
    def kind(self) -> str:
        return f"{type(self).__module__}:{type(self).__name__}"

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D). Raises DataError where the flow gives numbers that are not finite."""
        layout = self.layout
        if labels is None:
            labels = rng.choice(layout.classes, rows, p=self.classes / self.classes.sum()).astype(np.int64)
        context = np.eye(layout.classes)[labels]
        module = self.recipe.filled(self.flow).double()
        base = rng.standard_normal((rows, layout.width - layout.classes))
        pieces = [
            module.drawn(
                torch.from_numpy(base[i : i + _AT_ONCE]), torch.from_numpy(context[i : i + _AT_ONCE])
            ).numpy()
            for i in range(0, rows, _AT_ONCE)
        ]  # fmt: skip
        v = np.concatenate([np.concatenate(pieces) if pieces else base, context], axis=1)
        if not np.isfinite(v).all():
            raise DataError("The flow gives numbers that are not finite: it has diverged.")
        return self.recipe.coordinates.rows(v)

    def log_density(self, z: Floats, rng: np.random.Generator, draws: int = 16) -> Floats:
        """(n,) log of the density of rows ``z``, label included: per unit of z for numbers, a chance for 0/1 and whole numbers.

        What the flow says of a cell or of a missing number is a mean over ``draws``, exact without such places and otherwise
        rather low than high.
        """
        module = self.recipe.filled(self.flow).double()
        found = np.empty((draws, len(z)))
        for draw in range(draws):
            v, log_noise = self.recipe.coordinates.drawn(z, rng)
            with torch.no_grad():
                found[draw] = -module(torch.from_numpy(v))[:, 0].numpy() - log_noise
        chances = self.classes / self.classes.sum()
        with np.errstate(divide="ignore"):
            label = np.log(chances)[self.layout.labels(z)]
        mean: Floats = np.logaddexp.reduce(found, axis=0) - np.log(draws) + label
        return mean

    def arrays(self) -> Arrays:
        return {"classes": self.classes, **{f"flow/{name}": value for name, value in self.flow.items()}}

    def options(self) -> dict[str, Any]:
        return self.recipe.options()

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> FlowRows:
        """What ``arrays`` and ``options`` gave. Raises KeyError, ValueError or ConfigError for others'."""
        recipe = make(layout, **options)
        flow = {name.removeprefix("flow/"): np.asarray(a) for name, a in arrays.items() if name.startswith("flow/")}
        recipe.filled(flow)
        return cls(recipe, flow, np.asarray(arrays["classes"], dtype=np.float64))
