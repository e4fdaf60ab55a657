"""Federated MST and AIM: noisy marginals summed over hospitals, and a graphical model that fits them.

Sources: McKenna, Miklau and Sheldon 2021, "Winning the NIST contest" (MST); McKenna, Mullins, Sheldon and Miklau 2022,
    "AIM". Here every number that a hospital gives is part of a sum with Gaussian noise. Which marginals are asked next
    follows from noisy sums alone, so that the noise of the sums is all there is to account for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.counts import (
    groups,
    indicators,
    map_cells,
    merged_sizes,
    pair_codes,
    pair_sizes,
    parts,
    split,
    sum_parts,
)
from polyclinic.synthesis.marginals.estimation import Clique, Measured, fit, model_cells
from polyclinic.synthesis.marginals.network import NetworkSynthesizer, pair_tables
from polyclinic.synthesis.marginals.posterior import MOST_NUMBERS, Evidence
from polyclinic.synthesis.marginals.selection import all_pairs, dependence, distance, spanning_tree, worth
from polyclinic.synthesis.sums import ANSWERED, HIDDEN
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays, Floats, Ints

_LABEL, _SCREEN, _FIRST = 1, 2, 3
# So that sums without noise have weights too.
_LEAST = 1e-9
# Drawn rows by which a model's own pairs are known; their error is far below a sum's noise.
_POOL = 1 << 15


@dataclass(frozen=True, eq=False)
class Marginals:
    """A SumsMethod whose sums are of marginals.

    Round 1 asks every column's counts within each class of the label, so that the model always has what tells the
    outcome, however rare. Round 2 asks those of every pair of other columns in groups of cells, which shows what
    depends on what beyond the label. Each later round asks pairs that are chosen by then, in full, and those with the
    label again.

    rounds: 3 or more.
    model: how many numbers an aim model's tables may have.
    focus: columns whose pairs count twice where pairs are chosen.
    """

    layout: Layout
    table: Table
    algorithm: str
    bins: int
    rounds: int
    model: int
    focus: tuple[int, ...] = ()
    name: str = "marginals"

    def question(self, round: int, state: Arrays) -> Arrays:
        """Nothing, the groups, or how cells are merged and which pairs are asked."""
        if round == _LABEL:
            return {}
        if round == _SCREEN:
            return {"groups": state["groups"]}
        return {"merged": state["merged"], "pairs": state[f"pairs {round}"]}

    def size(self, round: int, question: Arrays) -> int:
        return int(self._sizes(round, question).sum())

    def _sizes(self, round: int, question: Arrays) -> Ints:
        """(m,) cells of each marginal of a round."""
        merged, pairs = self._merges_and_pairs(round, question)
        return pair_sizes(pairs, merged_sizes(merged, self.table))

    def _merges_and_pairs(self, round: int, question: Arrays) -> tuple[Ints, Ints]:
        """How a round merges cells, and (m, 2) its pairs."""
        if round == _LABEL:
            return np.concatenate([np.arange(size) for size in self.table.sizes]), self._with_label
        return (question["groups"], self._pairs) if round == _SCREEN else (question["merged"], question["pairs"])

    @cached_property
    def _with_label(self) -> Ints:
        """(A, 2) each column with the label, and the label alone."""
        columns = np.arange(len(self.table.sizes))
        return np.stack([columns, np.full(len(columns), len(columns) - 1)], axis=1)

    @cached_property
    def _pairs(self) -> Ints:
        """(P, 2) the pairs of other columns; of a single one its pair with the label."""
        return all_pairs(max(len(self.table.sizes) - 1, 2))

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) one-hot in each of the round's m marginals, over sqrt(m): norm 1, or less for rows that differ.

        Neighbouring relation: add or remove one patient with all rows.

        Args:
            round: The round, from 1 on.
            question: The cells after merging and the pairs that the round asks.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: Whatever the rows, the question's numbers are not of cells and columns: they would write a
                patient's cells into another's vector.
        """
        merged, pairs = self._merges_and_pairs(round, question)
        self._check(merged, pairs)
        cells = map_cells(self.table.cells(z), merged, self.table)
        codes = pair_codes(cells, pairs, merged_sizes(merged, self.table))
        return indicators(codes, self._sizes(round, question), patient, patients)

    def _check(self, merged: Ints, pairs: Ints) -> None:
        cells, columns = int(self.table.sizes.sum()), len(self.table.sizes)
        for name, numbers, shape, most in (
            ("cells", merged, (cells,), cells),
            ("pairs", pairs, (len(pairs), 2), columns),
        ):
            if numbers.dtype.kind not in "iu" or numbers.shape != shape or numbers.min() < 0 or numbers.max() >= most:
                raise ConfigError(
                    f"The question's {name} must be whole numbers from 0 to {most - 1}, of shape {shape}."
                )

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """Adds the round's frequencies and what the next round asks.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        sizes = self._sizes(round, self.question(round, state) if round > _LABEL else {})
        scale = np.sqrt(len(sizes))
        state = {**state, f"measured {round}": mean * scale, f"noise {round}": np.array(max(noise, _LEAST) * scale)}
        if "patients" in state:
            now, before = float(np.ravel(state["patients"])[0]), state.get(ANSWERED, state["patients"])
            state[ANSWERED] = np.array([min(now, *np.ravel(before)), max(now, *np.ravel(before))])
        if round == _LABEL:
            alone = self._alone(state)
            merged = parts(self.table, alone, noise * scale * np.sqrt(self.table.sizes[-1]))
            grouped = groups(self.table, alone, merged)
            return {**state, "merged": merged, "groups": grouped, HIDDEN: np.array(self._hides(state, grouped))}
        if round == self.rounds:
            return state
        return {**state, f"pairs {round + 1}": self._choose(round, state, noise)}

    def _by_class(self, state: Arrays, merged: Ints) -> list[Floats]:
        """For each column but the label (cells, K) frequencies, and the label's own, (1, K); cells after ``merged``."""
        tables = split(state["measured 1"], self._sizes(_LABEL, {}))
        own = [*split(merged, self.table.sizes)[:-1], np.zeros(1, dtype=np.int64)]
        by_class = [np.zeros((int(numbers.max()) + 1, int(self.table.sizes[-1]))) for numbers in own]
        for into, numbers, values in zip(by_class, own, tables, strict=True):
            np.add.at(into, numbers, values.reshape(len(numbers), -1))
        return by_class

    def _hides(self, state: Arrays, grouped: Ints) -> bool:
        """Whether no column's table with the label stands four deviations of its noise out of independence."""
        *others, label = self._by_class(state, grouped)
        positive = np.maximum(label[0], _LEAST)
        shares = positive / positive.sum()
        # A group's row less its sum in the label's shares: the noise of K cells, of which each takes part in every difference.
        spread = float(((1.0 - shares) ** 2 + (len(shares) - 1) * shares**2).sum())
        variance = float(state["noise 1"]) ** 2 * spread
        for table, numbers in zip(others, split(grouped, self.table.sizes), strict=False):
            counts = np.bincount(numbers)
            squares = ((table - np.outer(table.sum(axis=1), shares)) ** 2).sum()
            if squares > variance * (counts.sum() + 4.0 * np.sqrt(2.0 * (counts**2).sum())):
                return False
        return True

    def _alone(self, state: Arrays) -> Floats:
        """(all cells,) frequencies of each column alone."""
        *others, label = self._by_class(state, self._merges_and_pairs(_LABEL, {})[0])
        return np.concatenate([*(table.sum(axis=1) for table in others), label[0]])

    def _choose(self, round: int, state: Arrays, noise: float) -> Ints:
        """(m, 2) pairs of the next round: each column's with the label, and what is worth its noise; where nothing is, what was
        asked so far."""
        if self.algorithm == "mst" and round >= _FIRST:
            return state[f"pairs {round}"]
        errors = self._dependence(state) if round == _SCREEN else self._errors(state)
        errors = errors * (1.0 + np.isin(self._pairs, self.focus).any(axis=1))
        if self.algorithm == "mst":
            chosen = spanning_tree(self._pairs, errors, len(self.table.sizes))
        else:
            cells = pair_sizes(self._pairs, merged_sizes(state["merged"], self.table))
            # AIM, equation 1: what a new measurement would still be wrong by, if it were asked alone.
            costs = np.sqrt(2.0 / np.pi) * cells * noise
            most = min(len(self.table.sizes), len(self._pairs))
            chosen = worth(
                self._pairs, errors, costs, (most, len(self._with_label)), lambda pairs: self._fits(round, state, pairs)
            )
        if not len(chosen):
            chosen = np.array(sorted(self._chosen_pairs(state)), dtype=np.int64).reshape(-1, 2)
        return np.concatenate([self._with_label, chosen])

    def _dependence(self, state: Arrays) -> Floats:
        """(P,) distance of each screened pair from independence within each class."""
        *others, label = self._by_class(state, state["groups"])
        noises = np.asarray(float(state["noise 1"]) ** 2 * self.table.sizes, dtype=np.float64)
        return dependence(
            self._pairs, self._screen_values(state), float(state["noise 2"]), [*others, np.diag(label[0])], noises
        )

    def _errors(self, state: Arrays) -> Floats:
        """(P,) distance of each screened pair from the model of what is measured so far."""
        modelled = pair_tables(self._fit(state), state["groups"], self._pairs, _POOL, generator(0, "marginals", "pool"))
        noise = float(state["noise 2"]) ** 2
        return np.array([
            distance(screened - own, own.size * noise + 1.0 / _POOL)
            for screened, own in zip(self._screen_values(state), modelled, strict=True)
        ])  # fmt: skip

    def _screen_values(self, state: Arrays) -> list[Floats]:
        return split(state["measured 2"], self._sizes(_SCREEN, {"groups": state["groups"]}))

    def _chosen_pairs(self, state: Arrays) -> set[Clique]:
        """The pairs that were asked in full beside those with the label."""
        asked = [state[f"pairs {round}"] for round in range(_FIRST, self.rounds + 1) if f"measured {round}" in state]
        label = len(self.table.sizes) - 1
        return {(int(first), int(second)) for pairs in asked for first, second in pairs if second != label}

    def _fits(self, round: int, state: Arrays, pairs: Sequence[Clique]) -> bool:
        """Whether the model stays as small as at this round it may be: early choices leave room for later ones (AIM)."""
        share = (round - 1) / (self.rounds - _SCREEN)
        cliques = [*self._chosen_pairs(state), *pairs, *map(tuple, self._with_label[:-1].tolist())]
        return model_cells(merged_sizes(state["merged"], self.table), cliques) <= share * self.model

    def _fit(self, state: Arrays) -> NetworkSynthesizer:
        sizes = merged_sizes(state["merged"], self.table)
        model = fit(sizes, self._measurements(state, sizes))
        return NetworkSynthesizer.of(self.table, self.bins, state["merged"], self._alone(state), model)

    def _measurements(self, state: Arrays, sizes: Ints) -> list[Measured]:
        """The label, every column with it, the chosen pairs, and of the screened ones those that were chosen."""
        marginals, classes = [], int(self.table.sizes[-1])
        own = [*split(state["merged"], self.table.sizes)[:-1], np.zeros(1, dtype=np.int64)]
        for pair, values, numbers in zip(
            self._with_label.tolist(), self._by_class(state, state["merged"]), own, strict=True
        ):
            deviation = np.sqrt(sum_parts(np.ones(len(numbers)), numbers)) * float(state["noise 1"])
            marginals.append(Measured(tuple(dict.fromkeys(pair)), values.ravel(), np.repeat(deviation, classes)))
        for round in range(_FIRST, self.rounds + 1):
            if f"measured {round}" in state:
                pairs = state[f"pairs {round}"]
                tables = split(state[f"measured {round}"], pair_sizes(pairs, sizes))
                marginals += [
                    Measured(tuple(dict.fromkeys(pair)), values, np.full(len(values), float(state[f"noise {round}"])))
                    for pair, values in zip(pairs.tolist(), tables, strict=True)
                ]
        return [*_together(marginals), *self._screens(state)]

    def _screens(self, state: Arrays) -> list[Measured]:
        chosen, grouped = self._chosen_pairs(state), []
        for column, numbers in enumerate(split(state["merged"], self.table.sizes)):
            of_part = np.zeros(int(numbers.max()) + 1, dtype=np.int64)
            of_part[numbers] = split(state["groups"], self.table.sizes)[column]
            grouped.append(of_part)
        return [
            Measured(pair, values, np.full(len(values), float(state["noise 2"])), (grouped[pair[0]], grouped[pair[1]]))
            for pair, values in zip(map(tuple, self._pairs.tolist()), self._screen_values(state), strict=True)
            if pair in chosen
        ]

    def evidence(self, state: Arrays) -> Evidence:
        """What the last state's sums released. Raises KeyError for a state that does not say how many patients answered."""
        measured = self._measurements(state, merged_sizes(state["merged"], self.table))
        spread = np.full(int(self.table.sizes.sum()), float(state["noise 1"]) * np.sqrt(self.table.sizes[-1]))
        spread[self.table.starts[-1] :] = float(state["noise 1"])
        return Evidence(float(state[ANSWERED][0]), tuple(measured), self._alone(state), spread)

    def synthesizer(self, state: Arrays) -> Synthesizer:
        """What draws rows, with what was released where models can be drawn anew."""
        fitted = self._fit(state)
        evidence = self.evidence(state) if ANSWERED in state else None
        return replace(fitted, evidence=evidence if evidence and evidence.numbers <= MOST_NUMBERS else None)


def _together(measured: Sequence[Measured]) -> list[Measured]:
    """Each clique once: what was measured repeatedly, weighted by inverse variance."""
    by_clique: dict[Clique, Measured] = {}
    for marginal in measured:
        if before := by_clique.get(marginal.clique):
            weights = before.deviation**-2.0, marginal.deviation**-2.0
            total = weights[0] + weights[1]
            marginal = Measured(
                marginal.clique, (before.values * weights[0] + marginal.values * weights[1]) / total, total**-0.5
            )
        by_clique[marginal.clique] = marginal
    return list(by_clique.values())


def make(
    layout: Layout,
    algorithm: str = "aim",
    bins: int | str = 16,
    rounds: int | str = 0,
    columns: int | str = 60,
    model: int | str = 1 << 17,
    focus: str = "",
) -> Marginals:
    """Marginals with checked options.

    Args:
        layout: The layout of the rows.
        algorithm: "mst" or "aim".
        bins: The most bins of a number, 2 to 64.
        rounds: 3 to 100; 0: 4 for mst, 6 for aim.
        columns: The most columns of cells that the schema may make, 2 to 200.
        model: How many numbers an aim model's tables may have.
        focus: Columns of the schema, joined by "+", whose pairs count twice where pairs are chosen.

    Raises:
        ConfigError: An option is bad, or the schema makes more than ``columns`` columns of cells.
    """
    if algorithm not in ("mst", "aim"):
        raise ConfigError(f"Method option 'algorithm' is {algorithm!r}; allowed are mst and aim.")
    table = Table.of(layout, _whole("bins", bins, 2, 64), _whole("columns", columns, 2, 200))
    asked = _whole("rounds", rounds, 0, 100)
    if asked in (1, 2):
        raise ConfigError(
            f"Method option 'rounds' is {asked}; allowed are 0 (the default of {algorithm}) and 3 to 100."
        )
    total = asked or (4 if algorithm == "mst" else 6)
    most = _whole("model", model, 1 << 10, 1 << 24)
    return Marginals(layout, table, algorithm, int(bins), total, most, _places(table, focus))


def _places(table: Table, focus: str) -> tuple[int, ...]:
    """The columns of cells of the schema's columns that ``focus`` names."""
    places = {column.name: at for column, at in table.layout.columns}
    names = [name.strip() for name in focus.split("+")] if focus else []
    if unknown := [name for name in names if name not in places]:
        raise ConfigError(
            f"Method option 'focus' names {unknown[0]!r}; allowed are {', '.join(places)}, joined by '+'."
        )
    starts = {start for name in names for start in range(places[name].start, places[name].stop)}
    return tuple(place for place, column in enumerate(table.attributes) if not column.label and column.start in starts)


def _whole(name: str, value: int | str, low: int, high: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ConfigError(f"Method option {name!r} is {value!r}; allowed are whole numbers from {low} to {high}.")
    return number
