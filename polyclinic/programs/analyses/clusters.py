"""k-means by rounds of noisy sums: how many patients are nearest to each public centre, and where they lie from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.programs.analyses import Analysis, Result, Table
from polyclinic.programs.analyses.components import Numbers
from polyclinic.programs.program import State
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints

# Lengths of the parts of a patient's vector: that they are there, where they lie from the centre, and how far squared.
_ONE, _WHERE, _SQUARE = 0.6, 0.75, 0.0775**0.5
# Deviations of the noise that a count must be beyond, and those within which 95 % lie.
_LEAST, _CERTAIN = 2.0, 1.96
_BOX, _TRIES = 1.5, 100  # spreads around the middle in which centres begin, and tries for each


@dataclass(frozen=True, eq=False)
class Lloyd:
    """``synthesis.sums.SumsMethod`` of Lloyd's steps. A missing number lies at the centre (Chi, Chi and Baraniuk 2016).

    start: (k, d) the first centres, in spreads from the middle. measures: Whether the first sum is of the numbers and their
    squares, by which they are scaled.
    """

    numbers: Numbers
    start: Floats
    rounds: int
    measures: bool
    name: str = "clusters"

    @property
    def layout(self) -> Layout:
        return self.numbers.layout

    def question(self, round: int, state: Arrays) -> Arrays:
        """The (k, d) ``centres``, the (d,) ``middle`` and ``spread`` of their scale; nothing in a round that measures."""
        if self.measures and round == 1:
            return {}
        return {"centres": state.get("centres", self.start), **self.numbers.scale_of(state)}

    def size(self, round: int, question: Arrays) -> int:
        """Of each number that it is there, it and its square; then of each cluster one, where its patients lie, and how far."""
        k, d = self.start.shape
        return int(3 * d if self.measures and round == 1 else k * (d + 2))

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) means of the rows' vectors.

        Args:
            round: The number of the round, from 1 on.
            question: As the method ``question`` gives it.
            z: (n, D) rows of the layout.
            patient: (n,) index below ``patients`` of each row.
            patients: Number of patients.

        Raises:
            ConfigError: for centres that are none.
        """
        if self.measures and round == 1:
            return mean_of_rows(self.numbers.moments(z), patient, patients)
        scaled, there, (k, d) = self.numbers.rescale(z, question), self.numbers.present(z), self.start.shape
        if question.get("centres", np.zeros(0)).shape != (k, d):
            raise ConfigError(f"The question's 'centres' must be {k} times {d} numbers.")
        away = np.stack([np.where(there, scaled - centre, 0.0) for centre in question["centres"]])
        mine = np.arange(len(z)), (away**2).sum(axis=2).argmin(axis=0)
        from_centre = away[mine[::-1]] / self.reach
        vectors = np.zeros((len(z), k, d + 2))
        vectors[mine] = np.hstack([
            np.full((len(z), 1), _ONE), _WHERE * from_centre, _SQUARE * (from_centre**2).sum(axis=1, keepdims=True),
        ])  # fmt: skip
        return mean_of_rows(vectors.reshape(len(z), -1), patient, patients)

    def refusal(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> str:
        """The reason why a hospital does not answer without privacy; empty where it does.

        Args:
            round: The number of the round, from 1 on.
            question: As the method ``question`` gives it.
            z: (n, D) rows of the layout.
            patient: (n,) whose each row is.
            patients: Not used.
        """
        if self.measures and round == 1:
            return self.numbers.refusal(self.numbers.present(z), patient)
        vectors = self.contributions(round, question, z, np.arange(len(z)), len(z))
        return self.numbers.refusal(vectors.reshape(len(z), len(self.start), -1)[:, :, 0] > 0, patient)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The state with the scale, or with the centres moved to their patients' means; an empty cluster's stays.

        Args:
            round: The number of the round, from 1 on.
            state: Before the round.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation of the noise in each entry of ``mean``.
        """
        if self.measures and round == 1:
            return state | self.numbers.measure(mean, noise)
        asked, parts = self.question(round, state), mean.reshape(len(self.start), -1)
        filled = parts[:, 0] > _LEAST * noise
        share = np.where(filled, parts[:, 0] / _ONE, np.nan)
        shift = parts[:, 1:-1] * self.reach / _WHERE / share[:, None]
        squared = parts[:, -1] * self.reach**2 / _SQUARE / share - (shift**2).sum(axis=1)
        low, high = ((bound[self.numbers.places] - asked["middle"]) / asked["spread"] for bound in self.layout.bounds)
        centres = asked["centres"] + np.nan_to_num(shift)
        return {
            **state, **asked, "centres": np.clip(centres, low, high) if noise else centres, "share": np.nan_to_num(share),
            "squared": np.maximum(np.nan_to_num(squared), 0.0), "noise": np.array([noise]),
        }  # fmt: skip

    @property
    def reach(self) -> float:
        """Rows that lie farther from their centre weigh less where there is noise."""
        return float(len(self.numbers.places) ** 0.5)


@lru_cache(maxsize=16)
def packed_centres(clusters: int, numbers: int, seed: int) -> Floats:
    """(k, d) public centres as far from each other and from the walls of a box as random tries reach.

    Su, Cao, Li, Bertino and Jin 2016, Section 4.2, "sphere packing".

    Args:
        clusters: k, the number of centres.
        numbers: d, the numbers of each.
        seed: Of the tries.
    """
    rng, radius = generator(seed, "clusters"), _BOX
    while True:
        left, centres = rng.uniform(radius - _BOX, _BOX - radius, (_TRIES * clusters, numbers)), list[Floats]()
        while len(left) >= clusters - len(centres) > 0:
            centres.append(left[0])
            left = left[np.linalg.norm(left - left[0], axis=1) >= 2 * radius]
        if len(centres) == clusters:
            return np.stack(centres)
        radius *= 0.9


@dataclass(frozen=True)
class Clusters(Analysis):
    """k-means of all hospitals' patients, from public centres that the run's seed draws far from each other.

    k: Clusters. columns: Features, separated by commas; empty takes those that are numbers. scaling: ``measured`` spends the
    first round on the numbers' means and deviations, ``public`` takes the schema's.
    """

    k: int = 4
    columns: str = ""
    scaling: str = "measured"

    def method(self, schema: Schema) -> Lloyd:
        if not (isinstance(self.k, int) and 2 <= self.k <= 100):
            raise ConfigError(f"Configuration key 'task-options': k is {self.k!r}; it must lie between 2 and 100.")
        numbers, measures = Numbers.of(schema, self.columns, self.scaling), self.scaling == "measured"
        if self.config.rounds <= measures:
            raise ConfigError(
                "Configuration key 'rounds' is 1, which scaling 'measured' spends on scales; set it to 2 or more."
            )
        centres = packed_centres(self.k, len(numbers.places), self.config.seed)
        return Lloyd(numbers, centres, self.config.rounds, measures)

    def result(self, method: Lloyd, state: State) -> Result:
        """Centres in the columns' units, how many patients are nearest to each, and how far these lie from it."""
        ended, patients = state["arrays"], float(state["patients"])
        if "noise" not in ended:
            raise DataError("no hospital answered in a round of centres.")
        noise, everyone = float(ended["noise"][0]), ended["share"]
        order: Ints = np.argsort(-everyone, kind="stable")[: int((everyone > 0).sum())]
        if not len(order):
            raise DataError("the noise hides how many patients any cluster has; ask for fewer clusters, or spend more.")
        share, squared, private = everyone[order], ended["squared"][order], self.noisy(noise)
        heads = [f"Cluster {place + 1}" for place in range(len(order))]
        error = _CERTAIN * noise / _ONE
        counts = patients * np.stack([share, np.maximum(share - error, 0.0), share + error])[: 3 if private else 1]
        sizes = np.concatenate([counts, [100 * share / share.sum(), squared]]).T.tolist()
        scales = method.numbers.scales()
        centre, scale = (np.array([column[name] for column in scales]) for name in ("centre", "scale"))
        names = zip(method.numbers.names, (column["unit"] for column in scales), strict=True)
        units = [f"{name}, {unit}" if unit else name for name, unit in names]
        cells = centre + scale * (ended["middle"] + ended["spread"] * ended["centres"][order])
        half = _CERTAIN * noise * method.reach / _WHERE / share.min() * ended["spread"] * scale
        moved = ", ".join(f"{name} {value:.3g}" for name, value in zip(units, half.tolist(), strict=True))
        within, empty = float(share @ squared / share.sum()), len(everyone) - len(order)
        notes = [
            f"Of {patients:,.0f} patients; distances are in {self.scaling} standard deviations. A missing number lies at the "
            f"centre. Within clusters the squared distance of a patient from the centre is {within:.4g} on average."
        ]
        if empty:
            notes.append(
                f"{empty} of {len(everyone)} clusters are empty{', as far as noise shows' if private else ''}."
            )
        headings = ("Cluster", "Patients", *("From", "To") * private, "Share, %", "Variance within")
        formats = dict.fromkeys(headings, ",.0f") | {"Share, %": ".1f", "Variance within": ".3f"}
        return Result(
            f"{len(order)} clusters",
            (Table("clusters", "Clusters", headings, tuple((head, *row) for head, row in zip(heads, sizes, strict=True)),
                   formats),
             Table("centres", "Centres", ("Number", *heads),
                   tuple((name, *row) for name, row in zip(units, cells.T.tolist(), strict=True)), dict.fromkeys(heads, ".4g"),
                   f"In 95 % of releases the last round's noise moves each by at most: {moved}." if private else "")),
            {"centres": {"names": method.numbers.names, "clusters": heads, "shares": (share / share.sum()).tolist(),
                         "values": ended["centres"][order].tolist()}},
            tuple(notes),
        )  # fmt: skip
