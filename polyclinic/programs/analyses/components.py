"""Principal components by one noisy sum of products: eigenvalues, loadings, and what the noise does to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError, nearest, several
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.programs.analyses import Analysis, Cell, Result, Table
from polyclinic.programs.program import State
from polyclinic.synthesis.layout import Layout
from polyclinic.training.posterior import number_scale
from polyclinic.training.synthesis import LEAST
from polyclinic.types import Arrays, Bools, Floats, Ints

_DRAWS, _SHOWN = 300, 5
# Lengths of the parts of a patient's vector: that they are there, their numbers, and the products of these.
_ONE, _NUMBERS, _PRODUCTS = 0.3, 0.4, 0.75**0.5
SCALINGS = {"public": "in the schema's spreads", "measured": "each by its measured standard deviation"}


@dataclass(frozen=True, eq=False)
class Numbers:
    """Some of a record's numbers. places: (d,) where they are in a row of ``layout``; absent: (d,) where it is said that one is
    missing, -1 where it never is."""

    layout: Layout
    places: Ints
    absent: Ints

    @classmethod
    def of(cls, schema: Schema, text: str, scaling: str) -> Numbers:
        """The features that ``text`` names; without any, those of numbers.

        Args:
            schema: Whose features they are.
            text: Names of features, separated by commas.
            scaling: As the option of that name; it is only checked.

        Raises:
            ConfigError: for other names, fewer than two numbers, or an unknown ``scaling``.
        """
        if scaling not in SCALINGS:
            raise ConfigError(
                f"Configuration key 'task-options': scaling is {scaling!r}; allowed: {', '.join(SCALINGS)}."
            )
        layout = Layout.of(schema, label_may_be_number=True)
        places_of = {column.name: list(range(at.start, at.stop)) for column, at in layout.columns}
        names = list(dict.fromkeys(part.strip() for part in text.split(","))) if text.strip() else []
        if strange := [name for name in names if name not in places_of]:
            raise ConfigError(
                f"Configuration key 'task-options': columns names no feature as {strange[0]!r}; features are "
                f"{', '.join(places_of)}.{nearest(strange[0], places_of)}"
            )
        places = [place for name in names or places_of for place in places_of[name] if names or layout.numeric[place]]
        if len(places) < 2:
            raise ConfigError(
                f"Configuration key 'task-options': columns has fewer than two numbers; name {several(places_of)}."
            )
        indicators = np.where(layout.nullable, layout.features + np.cumsum(layout.nullable) - 1, -1)
        return cls(layout, np.array(places), indicators[places])

    @property
    def names(self) -> list[str]:
        return [self.layout.names[place] for place in self.places]

    def present(self, z: Floats) -> Bools:
        """(n, d) which numbers of each row are there."""
        return np.asarray((self.absent < 0) | (z[:, self.absent] < 0.5))

    def refusal(self, parts: Bools, patient: Ints) -> str:
        """Why a hospital keeps exact sums, to which (n, m) ``parts`` its rows add; empty where it does not."""
        few = any(0 < len(np.unique(patient[part])) < LEAST for part in parts.T)
        return (
            f"Exact sums would tell of fewer than {LEAST} patients here, as those nearest to a centre." if few else ""
        )

    def scale_of(self, state: Arrays) -> Arrays:
        """The (d,) ``middle`` and ``spread`` of the scale that a question is in: what ``measure`` made, or the schema's."""
        begun = {"middle": np.zeros(len(self.places)), "spread": np.ones(len(self.places))}
        return {name: state.get(name, first) for name, first in begun.items()}

    def rescale(self, z: Floats, question: Arrays) -> Floats:
        """(n, d) the numbers in the question's scale. Raises ConfigError for a scale that is none."""
        for name, value in self.scale_of({}).items():
            given = question.get(name, np.zeros(0))
            if given.shape != value.shape or (name == "spread" and not (given > 0).all()):
                raise ConfigError(f"The question's {name!r} must be {len(value)} numbers, spreads positive ones.")
        scaled: Floats = (z[:, self.places] - question["middle"]) / question["spread"]
        return scaled

    def moments(self, z: Floats) -> Floats:
        """(n, 3 d) of each number that it is there, it and its square, of length 1 one public spread out in each."""
        x, there = z[:, self.places], self.present(z)
        return np.concatenate([there, there * x, there * x**2], axis=1) / float((3 * len(self.places)) ** 0.5)

    def measure(self, mean: Floats, noise: float) -> Arrays:
        """Each number's mean and standard deviation (of divisor n), the public ones where noise hides that it is there."""
        times = (3 * len(self.places)) ** 0.5
        (there, total, square), error = mean.reshape(3, -1) * times, 2 * noise * times
        number = np.where(there > error, there, np.nan)
        middle = np.nan_to_num(total / number)
        variance = np.maximum(square / number - middle**2, np.maximum(error / number, 1e-6))
        return {"middle": middle, "spread": np.sqrt(np.nan_to_num(variance, nan=1.0))}

    def scales(self) -> list[dict[str, Any]]:
        """Each number's ``centre``, ``scale`` and ``unit``, by which the schema's scale stands for cells."""
        return [number_scale(self.layout, int(place)) for place in self.places]


@dataclass(frozen=True, eq=False)
class Products:
    """``synthesis.sums.SumsMethod`` of the numbers' products, over rows of which no number is missing.

    measures: Whether a first sum is of the numbers and their squares, by which they are scaled.
    """

    numbers: Numbers
    measures: bool
    name: str = "components"

    @property
    def rounds(self) -> int:
        return 1 + self.measures

    @property
    def layout(self) -> Layout:
        return self.numbers.layout

    @property
    def reach(self) -> float:
        """Rows that are longer, in the question's scale, weigh less where there is noise."""
        return float((2 * len(self.numbers.places)) ** 0.5)

    def question(self, round: int, state: Arrays) -> Arrays:
        """The scale of the products; nothing in a round that measures it."""
        return self.numbers.scale_of(state) if round == self.rounds else {}

    def size(self, round: int, question: Arrays) -> int:
        """Three for each number in a round that measures; else one, the numbers, and the upper triangle of their products."""
        d = len(self.numbers.places)
        return 1 + d + d * (d + 1) // 2 if round == self.rounds else 3 * d

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) means of the rows' vectors.

        Products beside the diagonal are multiplied by sqrt(2), so that their length is that of the matrix (Dwork, Talwar,
        Thakurta and Zhang 2014, "Analyze Gauss", Algorithm 1).

        Args:
            round: The number of the round, from 1 on.
            question: As the method ``question`` gives it.
            z: (n, D) rows of the layout.
            patient: (n,) index below ``patients`` of each row.
            patients: Number of patients.
        """
        if round < self.rounds:
            return mean_of_rows(self.numbers.moments(z), patient, patients)
        x = self.numbers.rescale(z, question) / self.reach
        row, column, weight = self._triangle
        vectors = np.concatenate(
            [np.full((len(x), 1), _ONE), _NUMBERS * x, _PRODUCTS * weight * x[:, row] * x[:, column]], axis=1
        )
        vectors[~self.numbers.present(z).all(axis=1)] = 0.0
        return mean_of_rows(vectors, patient, patients)

    def refusal(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> str:
        """The reason why a hospital does not answer without privacy; empty where it does.

        Args:
            round: The number of the round, from 1 on.
            question: Not used.
            z: (n, D) rows of the layout.
            patient: (n,) whose each row is.
            patients: Not used.
        """
        there = self.numbers.present(z)
        parts = there if round < self.rounds else np.asarray(there.all(axis=1, keepdims=True))
        return self.numbers.refusal(parts, patient)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The state with the scale, or with the sum and its noise.

        Args:
            round: The number of the round, from 1 on.
            state: Before the round.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation of the noise in each entry of ``mean``.
        """
        measured = (
            self.numbers.measure(mean, noise) if round < self.rounds else {"sum": mean, "noise": np.array([noise])}
        )
        return state | measured

    def covariance(self, total: Floats) -> tuple[float, Floats]:
        """The share of patients who count, and their numbers' covariance (of divisor n), from the mean over all patients."""
        d, share = len(self.numbers.places), float(total[0]) / _ONE
        row, column, weight = self._triangle
        square = np.zeros((d, d))
        square[row, column] = square[column, row] = total[1 + d :] / weight * self.reach**2 / _PRODUCTS / share
        mean = total[1 : 1 + d] * self.reach / _NUMBERS / share
        return share, square - np.outer(mean, mean)

    @property
    def _triangle(self) -> tuple[Ints, Ints, Floats]:
        row, column = np.triu_indices(len(self.numbers.places))
        return row, column, np.where(row == column, 1.0, np.sqrt(2.0))


def spectrum(matrix: Floats) -> tuple[Floats, Floats]:
    """(d,) eigenvalues, the largest first, and (d, d) eigenvectors as columns, the largest entry of each positive."""
    values, vectors = np.linalg.eigh(matrix)
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))]
    return values[::-1], np.asarray((vectors * np.sign(largest))[:, ::-1])


@dataclass(frozen=True)
class Components(Analysis):
    """Principal components of all hospitals' patients.

    columns: Features, separated by commas; empty takes those that are numbers.
    scaling: ``measured`` takes the correlation matrix, and a first round for deviations; ``public`` the covariance in the
    schema's spreads, in one round.
    """

    columns: str = ""
    scaling: str = "measured"

    def method(self, schema: Schema) -> Products:
        return Products(Numbers.of(schema, self.columns, self.scaling), self.scaling == "measured")

    def result(self, method: Products, state: State) -> Result:
        """Eigenvalues with the interval of Weyl's inequality, loadings with how far redrawn noise moves them."""
        if "sum" not in state["arrays"]:
            raise DataError("no hospital answered in the round of products.")
        total, noise = state["arrays"]["sum"], float(state["arrays"]["noise"][0])
        count = float(total[0]) / _ONE * float(state["patients"])
        if not (total[0] > 3 * noise and count > 1.5):
            raise DataError("the noise hides how many patients have all of the columns; name fewer, or spend more.")
        self._check_variances(method, total, noise)
        matrix = self._scaled_matrix(method, total, count)
        values, vectors = spectrum(matrix)
        floor, spread = self._noise(method, total, noise, count)
        names, shown, private = method.numbers.names, min(_SHOWN, len(values)), self.noisy(noise)
        explained = np.maximum(values, 0.0) / np.trace(matrix)
        ends = np.maximum(np.stack([values, values - floor, values + floor]), 0.0)[: 3 if private else 1]
        columns = np.concatenate([ends, 100 * explained[None], 100 * np.cumsum(explained)[None]]).T.tolist()
        beyond = int((values > floor).sum())
        notes = [f"Of {count:,.0f} patients with all of the columns, scaled {SCALINGS[self.scaling]}."]
        if private:
            notes.append(
                f"In 95 % of releases the noise moves no eigenvalue by more than {floor:.3g}, the noise level: {beyond} of "
                f"{len(values)} components are beyond it, and the others may be noise alone. After ±: 95 % of redrawn "
                "noise. Patients far out weigh less."
            )
        heads = [head for k in range(shown) for head in (f"PC{k + 1}", *[f"±{k + 1}"] * private)]
        cells = np.stack([vectors, spread], axis=2)[:, :shown, : 1 + private].reshape(len(names), -1).tolist()
        headings = ("Component", "Eigenvalue", *("From", "To") * private, "Explained, %", "Together, %")
        formats = dict.fromkeys(headings, ".3f") | {"Explained, %": ".1f", "Together, %": ".1f"}
        rows = tuple((f"PC{k + 1}", *row) for k, row in enumerate(columns))
        loadings: tuple[tuple[Cell, ...], ...] = tuple((name, *row) for name, row in zip(names, cells, strict=True))
        return Result(
            "Principal components",
            (Table("components", "Components", headings, rows, formats),
             Table("loadings", "Loadings", ("Number", *heads), loadings, dict.fromkeys(heads, ".3f"))),
            {"scree": {"eigenvalues": ends[0].tolist(), "floor": floor, "explained": explained.tolist()},
             "loadings": {"names": names, "values": vectors[:, :shown].tolist(), "spread": spread[:, :shown].tolist(),
                          "explained": explained[:shown].tolist()}},
            tuple(notes),
        )  # fmt: skip

    def _check_variances(self, method: Products, total: Floats, noise: float) -> None:
        """Raises DataError where the noise hides how much a number varies, by which it is to be divided."""
        share, matrix = method.covariance(total)
        least = max(2 * noise * method.reach**2 / _PRODUCTS / share, 1e-12) if self.scaling == "measured" else -np.inf
        hidden = [
            name for name, variance in zip(method.numbers.names, np.diag(matrix), strict=True) if variance <= least
        ]
        if hidden:
            raise DataError(
                f"the noise hides how much {', '.join(hidden)} varies; leave it out, or take scaling 'public'."
            )

    def _scaled_matrix(self, method: Products, total: Floats, count: float) -> Floats:
        """The covariance matrix (of divisor n - 1), or the correlation matrix."""
        matrix = method.covariance(total)[1]
        deviations = np.sqrt(np.maximum(np.diag(matrix), 1e-12))
        scaled = matrix * count / (count - 1) if self.scaling == "public" else matrix / np.outer(deviations, deviations)
        return np.asarray(scaled)

    def _noise(self, method: Products, total: Floats, noise: float, count: float) -> tuple[float, Floats]:
        """The 95 % quantiles of what noise like that of the sum does again: to the matrix, in its spectral norm, and to the
        (d, d) loadings."""
        matrix, rng, moved, shifted = (
            self._scaled_matrix(method, total, count),
            generator(self.config.seed, "components"),
            [],
            [],
        )
        vectors = spectrum(matrix)[1]
        for _ in range(_DRAWS if noise else 1):
            again = self._scaled_matrix(method, total + noise * rng.standard_normal(len(total)), count)
            moved.append(float(np.abs(np.linalg.eigvalsh(again - matrix)).max()))
            others = spectrum(again)[1]
            shifted.append(np.abs(others * np.sign((others * vectors).sum(axis=0)) - vectors))
        return float(np.quantile(moved, 0.95)), np.asarray(np.quantile(shifted, 0.95, axis=0))
