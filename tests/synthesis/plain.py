"""A method of one's own, as a researcher would write one: each column's mean, by label."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True, eq=False)
class PlainRows:
    layout: Layout
    means: Floats
    classes: Floats

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        chosen = rng.choice(len(self.classes), rows, p=self.classes) if labels is None else labels
        z = self.means[chosen] + 0.5 * rng.standard_normal((rows, self.layout.width))
        z[:, self.layout.label] = np.eye(self.layout.classes)[chosen]
        return z

    def arrays(self) -> Arrays:
        return {"means": self.means, "classes": self.classes}

    def options(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load(cls, layout: Layout, arrays: Arrays, options: dict[str, Any]) -> "PlainRows":
        return cls(layout, arrays["means"], arrays["classes"])


@dataclass(frozen=True, eq=False)
class Plain:
    """Two rounds: the sums of each class, and the same again, so that the state of a run under way matters."""

    layout: Layout
    scale: float = 20.0
    name: str = "plain"
    rounds: int = 2

    def question(self, round: int, state: Arrays) -> Arrays:
        return {"shift": state.get("means", np.zeros((self.layout.classes, self.layout.width)))}

    def size(self, round: int, question: Arrays) -> int:
        return self.layout.classes * self.layout.width

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        label = z[:, self.layout.label]
        moved = z[:, None] - question["shift"][None]
        return mean_of_rows((label[:, :, None] * moved).reshape(len(z), -1), patient, patients) / self.scale

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        found = self.scale * mean.reshape(self.layout.classes, -1) / state["classes"][:, None]
        return state | {"means": state.get("means", 0.0) + found, "noise": np.array(noise)}

    def synthesizer(self, state: Arrays) -> PlainRows:
        return PlainRows(self.layout, state["means"], state["classes"])


@dataclass(frozen=True, eq=False)
class Apart(Plain):
    """The same, each hospital for itself."""

    separate: bool = True
