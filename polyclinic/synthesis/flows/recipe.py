"""The recipe of a flow of a layout: which flow, behind which coordinates, and whether its arrays are averaged over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from polyclinic.errors import ConfigError, nearest
from polyclinic.models.flows import KINDS, ConditionalFlow, flow
from polyclinic.models.tabular import fill_module
from polyclinic.synthesis.flows.coordinates import Coordinates
from polyclinic.synthesis.flows.fills import Laws, law_of
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats


@dataclass(frozen=True, eq=False)
class Recipe:
    """A flow of the features given the label; ``layers`` of ``hidden`` units in each of its ``transforms``.

    layers: without any, a "maf" of one transform is a normal law of each class.
    ema: what of the average over rounds stays each round, from which rows are drawn; 0 draws from the newest.
    redraw: a row with a number beyond its public bounds is drawn again, where otherwise the number moves to the bound.
    base: (F,) mean and (F, F) lower root of the covariance of the flow's base, public; standard normal where there is none.
    spread: the share of its cell that the noise of a 0 or 1 fills.
    complete: the flow is of patients without missing cells; which cells are missing is not learnt, and none is in what is drawn.
    """

    layout: Layout
    name: str = "maf"
    transforms: int = 3
    hidden: int = 32
    layers: int = 2
    bins: int = 8
    activation: str = "tanh"
    bounded: bool = False
    ema: float = 0.0
    redraw: bool = False
    base: tuple[Floats, Floats] | None = None
    spread: float = 1.0
    complete: bool = False

    @property
    def width(self) -> int:
        """The numbers of a row as the flow sees it, its label included."""
        return self.coordinates.width

    @property
    def lost(self) -> int:
        """How many pairs of features no single transform lets depend on each other.

        Its masks give each unit of a layer one of the features up to which it sees, and fewer units than features leave some
        without (Papamakarios et al. 2017, section 3).
        """
        fewer = max(self.coordinates.features - self.hidden, 0) if self.layers else 0
        return fewer * (fewer + 1) // 2

    def module(self) -> ConditionalFlow:
        """A new flow, (n, width) to (n, 1) minus log-densities."""
        features = self.coordinates.features
        widths = (self.hidden,) * self.layers
        mean, root = (torch.from_numpy(part).float() for part in self.base_or_standard)
        made = flow(self.name, features, self.layout.classes, self.transforms, widths, self.bins, self.activation)
        return made.based_on(mean, root) if self.base else made

    @property
    def base_or_standard(self) -> tuple[Floats, Floats]:
        """The base's mean and root."""
        features = self.coordinates.features
        return self.base or (np.zeros(features), np.eye(features))

    def flow_of(self, arrays: Arrays) -> ConditionalFlow:
        """The flow with ``arrays``. Raises ValueError where names or shapes are those of another."""
        return cast(ConditionalFlow, fill_module(self.module, arrays)).eval()

    @property
    def coordinates(self) -> Coordinates:
        """What stands before the flow."""
        return Coordinates(self.layout, self.bounded, self.spread, self.complete)

    def laws(self, flow: ConditionalFlow, classes: Iterable[int]) -> Laws:
        """Of each of ``classes``, the normal law with the mean and the covariance of ``flow``, in double precision."""
        places = self.coordinates

        def inverse(label: int, base: Floats) -> Floats:
            context = torch.eye(self.layout.classes, dtype=torch.float64)[label].expand(len(base), -1)
            drawn: Floats = flow.draw(torch.from_numpy(base), context).numpy()
            return drawn

        return {k: law_of(partial(inverse, k), places.features, *places.limits) for k in map(int, classes)}

    def options(self) -> dict[str, Any]:
        """What ``make`` needs to make the recipe again, as JSON."""
        return {"name": self.name, **{key: getattr(self, key) for key in OPTIONS}}


def make(layout: Layout, name: str = "maf", **options: Any) -> Recipe:
    """The recipe of a flow ``name``; options may be text. Raises ConfigError for an unknown name or option, or a bad value."""
    if name not in KINDS:
        raise ConfigError(f"The flow {name!r} is unknown; allowed are {', '.join(KINDS)}.{nearest(name, KINDS)}")
    changed = {}
    for key, value in options.items():
        if key not in OPTIONS:
            raise ConfigError(
                f"The flow {name!r} has no option {key!r}; allowed are {', '.join(OPTIONS)}.{nearest(key, tuple(OPTIONS))}"
            )
        read, allowed, words = OPTIONS[key]
        try:
            changed[key] = read(value)
        except (ValueError, OverflowError):
            changed[key] = None
        if changed[key] is None or not allowed(changed[key]):
            raise ConfigError(f"The flow's option {key!r} is {value!r}; it must be {words}.")
    recipe = Recipe(layout, name, **changed)
    with torch.random.fork_rng(devices=[]):
        recipe.module()
    return recipe


def _truth(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError(value)
    return str(value).lower() == "true"


def _whole(value: Any) -> int:
    if float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def _any(value: Any) -> bool:
    return True


# Options by what reads them, what they may be, and how that is said.
OPTIONS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], bool], str]] = {
    "transforms": (_whole, lambda v: 1 <= v <= 50, "a whole number from 1 to 50"),
    "hidden": (_whole, lambda v: 1 <= v <= 4096, "a whole number from 1 to 4096"),
    "layers": (_whole, lambda v: 0 <= v <= 10, "a whole number from 0 to 10"),
    "bins": (_whole, lambda v: 2 <= v <= 64, "a whole number from 2 to 64"),
    "activation": (str, lambda v: v in ("relu", "tanh", "elu"), "relu, tanh or elu"),
    "bounded": (_truth, _any, "true or false"),
    "redraw": (_truth, _any, "true or false"),
    "complete": (_truth, _any, "true or false"),
    "ema": (float, lambda v: 0 <= v < 1, "a number from 0 to below 1"),
    "spread": (float, lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
}
