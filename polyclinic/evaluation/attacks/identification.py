"""What a synthetic table gives away: closest records, and the risks that data offices name: singling out, linking, inferring.

Each attack is made with the synthetic table on patients who took part. It is also made on patients who did not (the
control, which shows what the population tells of anybody), and without the table (the naive guess). Giomi, Boenisch,
Wehmeyer and Tasnádi 2023 ("A unified framework for quantifying privacy risk in synthetic data"), after WP29's Opinion
05/2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.encoding import column_cells
from polyclinic.ehr.schema import NUMERIC_KINDS, Column, Schema
from polyclinic.errors import DataError
from polyclinic.evaluation.intervals import Interval, bootstrap, difference, excess, percentiles, ratio, wilson
from polyclinic.privacy.streams import generator
from polyclinic.types import Bools, Floats, Ints

ATTACKS, MOST_ROWS, LONGEST_PREDICATE, TRIES = 500, 2000, 4, 60
RESAMPLES = 1000
TOLERANCE = 0.05  # of a number's bounds, within which it is guessed rightly
_PIECE = 4_000_000


@dataclass(frozen=True, eq=False)
class Table:
    """values: (n, C), in each column's unit or the numbers of its categories, NaN where missing.  spans: (C,) the width of a
    number's public bounds, 0 of a category."""

    names: tuple[str, ...]
    values: Floats
    spans: Floats

    @classmethod
    def of(cls, x: Floats, y: Ints, schema: Schema) -> Table:
        """Return the table of encoded records: a trajectory's visits are columns of their own, and so is each code of a set.

        Args:
            x: (n, F) features as encoded, without scaling.
            y: (n,) labels.
            schema: The schema of the records.

        Raises:
            DataError: Where there is no row.
        """
        if not len(y):
            raise DataError("a table to attack has no rows.")
        names: list[str] = []
        cells, spans = [], []
        for column in schema.features:
            column_values = column_cells(x, schema, column.name)
            own = column.record_names if len(column.record_names) == column_values.shape[1] else column.categories
            names += own
            cells.append(column_values)
            spans += [_span(column)] * column_values.shape[1]
        return cls(
            (*names, schema.label.name), np.concatenate([*cells, y[:, None].astype(np.float64)], axis=1),
            np.array([*spans, 0.0]),
        )  # fmt: skip

    def at(self, rows: Ints) -> Table:
        return replace(self, values=self.values[rows])

    def __len__(self) -> int:
        return len(self.values)


def _span(column: Column) -> float:
    if column.kind not in NUMERIC_KINDS:
        return 0.0
    low, high = column.bounds or (0.0, float(len(column.categories) - 1))
    return high - low


def first_rows(patient: Ints, patients: int) -> Ints:
    """(patients,) the first row of each patient, of (n,) patients from 0: one row stands for each."""
    first_row = np.full(patients, -1, dtype=np.int64)
    first_row[patient[::-1]] = np.arange(len(patient))[::-1]
    return first_row[first_row >= 0]


def distances(a: Table, b: Table, columns: Sequence[int]) -> Floats:
    """Return (n, m) sums over ``columns`` of how far apart cells are. Gower 1971.

    Numbers differ by the share of their bounds. Categories and missing cells differ by 0 where they are the same, else
    by 1.

    Args:
        a, b: Tables of n and m rows with the same columns.
        columns: Numbers of columns.
    """
    total = np.zeros((len(a), len(b)))
    for column in columns:
        total += apart(a, b, column)
    return total


def apart(a: Table, b: Table, column: int) -> Floats:
    """Return the (n, m) distances of cells in one column, as ``distances`` adds them up.

    Args:
        a, b: Tables of n and m rows with the same columns.
        column: The column's number.
    """
    mine, theirs, span = a.values[:, column][:, None], b.values[:, column][None], a.spans[column]
    cells = np.minimum(np.abs(mine - theirs) / span, 1.0) if span else (mine != theirs).astype(np.float64)
    missing = np.isnan(mine), np.isnan(theirs)
    if missing[0].any() or missing[1].any():
        cells = np.where(missing[0] | missing[1], missing[0] != missing[1], cells)
    return np.asarray(cells)


def nearest(a: Table, b: Table, columns: Sequence[int]) -> tuple[Ints, Floats]:
    """Return for each row of ``a`` (n,) the row of ``b`` nearest to it, the first of several, and its distance.

    Args:
        a, b: Tables of n and m rows with the same columns.
        columns: Numbers of the columns that count.
    """
    piece = max(1, _PIECE // max(len(b), 1))
    places, lengths = [], []
    for begin in range(0, len(a), piece):
        far = distances(a.at(np.arange(begin, min(begin + piece, len(a)))), b, columns)
        places.append(far.argmin(axis=1))
        lengths.append(far.min(axis=1))
    return np.concatenate(places), np.concatenate(lengths)


@dataclass(frozen=True)
class Risk:
    """attack, control, naive: shares of successes on patients who took part, on others, and without the synthetic table.
    risk: (attack - control) / (1 - control).  column: the one that is inferred.  weak: the attack is not surely better than the
    naive guess, so that it tells nothing of the risk."""

    name: str
    attempts: int
    attack: Interval
    control: Interval
    naive: Interval
    risk: Interval
    column: str | None = None

    @property
    def weak(self) -> bool:
        gain = difference(self.attack, self.naive)
        return gain.low is None or gain.low <= 0


@dataclass(frozen=True, eq=False)
class Predicates:
    """P conjunctions, each (P, C): in columns chosen, cells must be at least the value (sign 1), at most (-1) or equal (0)."""

    chosen: Bools
    sign: Ints
    value: Floats

    def holds(self, table: Table) -> Bools:
        """(P, n) which rows satisfy each."""
        satisfied = np.ones((len(self.chosen), len(table)), dtype=bool)
        for column in range(self.chosen.shape[1]):
            mine = np.flatnonzero(self.chosen[:, column])
            cells, value = table.values[None, :, column], self.value[mine, column][:, None]
            sign = self.sign[mine, column][:, None]
            equal = (cells == value) | (np.isnan(cells) & np.isnan(value))
            satisfied[mine] &= np.where(sign > 0, cells >= value, np.where(sign < 0, cells <= value, equal))
        return satisfied

    def at(self, some: Ints | Bools) -> Predicates:
        return Predicates(self.chosen[some], self.sign[some], self.value[some])


def singling_out(synthetic: Table, members: Table, non_members: Table, seed: int = 0) -> Risk:
    """Return the risk of singling out: how often one patient alone satisfies a predicate of one synthetic row alone.

    Of as many synthetic rows as patients of either side, since few rows are easier to tell apart. A predicate is of two
    to four columns of a random row: a category as it is, a number at least or at most its value, whichever is rarer.
    Naive: values drawn at random.

    Args:
        synthetic: The synthetic table.
        members: Patients who took part, a row each.
        non_members: Patients who did not.
        seed: Of the rows and predicates drawn.
    """
    rng, count = generator(seed, "attacks", "singling out"), min(len(members), len(non_members))
    sides = [table.at(rng.permutation(len(table))[:count]) for table in (members, non_members)]
    table = synthetic.at(rng.permutation(len(synthetic))[: min(count, MOST_ROWS)])
    predicates, aimless = single_outs(table, rng), _random(table, ATTACKS, rng)
    attack, control = (_share(predicates.holds(side).sum(axis=1) == 1) for side in sides)
    return _risk(
        "singling out", attack, control, _share(aimless.holds(sides[0]).sum(axis=1) == 1), len(predicates.chosen)
    )


def single_outs(table: Table, rng: np.random.Generator) -> Predicates:
    """Up to ``ATTACKS`` predicates that one row of the table alone satisfies."""
    parts: list[Predicates] = []
    missing = ATTACKS
    for _ in range(TRIES):
        tried = _of_rows(table, ATTACKS, rng)
        parts.append(tried.at(np.flatnonzero(tried.holds(table).sum(axis=1) == 1)[:missing]))
        missing -= len(parts[-1].chosen)
        if not missing:
            break
    return Predicates(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("chosen", "sign", "value"))
    )


def _of_rows(table: Table, count: int, rng: np.random.Generator) -> Predicates:
    value = table.values[rng.integers(len(table), size=count)]
    with np.errstate(all="ignore"):
        middle = np.array(
            [np.median(cells[~np.isnan(cells)]) if (~np.isnan(cells)).any() else 0.0 for cells in table.values.T]
        )
    sign = np.where((table.spans == 0) | np.isnan(value), 0, np.where(value > middle, 1, -1))
    return Predicates(_columns(count, value.shape[1], rng), sign, value)


def _random(table: Table, count: int, rng: np.random.Generator) -> Predicates:
    """Values drawn between each column's least and largest, or of its categories, whatever their frequency."""
    columns = table.values.shape[1]
    value = np.empty((count, columns))
    for column in range(columns):
        cells = np.unique(table.values[:, column])
        real = cells[~np.isnan(cells)]
        low, high = (real.min(), real.max()) if real.size else (0.0, 0.0)
        value[:, column] = rng.uniform(low, high, count) if table.spans[column] else rng.choice(cells, count)
    sign = np.where(table.spans == 0, 0, rng.choice([-1, 1], (count, columns)))
    return Predicates(_columns(count, columns, rng), sign, value)


def _columns(count: int, columns: int, rng: np.random.Generator) -> Bools:
    most = min(LONGEST_PREDICATE, columns)
    wanted = rng.integers(min(2, most), most + 1, size=count)
    return np.asarray(rng.uniform(size=(count, columns)).argsort(axis=1).argsort(axis=1) < wanted[:, None])


def linkability(synthetic: Table, members: Table, non_members: Table, seed: int = 0) -> Risk:
    """Return the risk of linking: does the synthetic table say that two halves of a patient's columns belong together?

    The attacker knows both halves and not that they belong together. The table says so where the synthetic rows nearest
    to either half are the same. Naive: rows at random.

    Args:
        synthetic: The synthetic table.
        members: Patients who took part, a row each.
        non_members: Patients who did not.
        seed: Of the halves, rows and patients drawn.
    """
    rng = generator(seed, "attacks", "linkability")
    table = synthetic.at(rng.permutation(len(synthetic))[:MOST_ROWS])
    first = rng.permutation(len(table.names))
    halves = first[: len(first) // 2], first[len(first) // 2 :]

    def link(side: Table) -> Interval:
        nearest, other = (_nearest(distances(side, table, half.tolist()), rng) for half in halves)
        return _share(nearest == other)

    attacked, control = _draw(members, non_members, rng)
    guesses = rng.integers(len(table), size=(2, len(attacked)))
    return _risk("linkability", link(attacked), link(control), _share(guesses[0] == guesses[1]), len(attacked))


def inference(synthetic: Table, members: Table, non_members: Table, seed: int = 0) -> list[Risk]:
    """Return the risk of inferring each column: is a patient's cell as in the nearest synthetic row?

    The attacker knows all other columns of the patient. A category counts where it is the same, a number within 5 % of
    its bounds. Naive: a synthetic row at random.

    Args:
        synthetic: The synthetic table.
        members: Patients who took part, a row each.
        non_members: Patients who did not.
        seed: Of the rows and patients drawn.
    """
    rng = generator(seed, "attacks", "inference")
    table = synthetic.at(rng.permutation(len(synthetic))[:MOST_ROWS])
    sides = _draw(members, non_members, rng)
    every = range(len(table.names))
    all_columns = [distances(side, table, every) for side in sides]
    risks = []
    for column, name in enumerate(table.names):
        attack, control = (
            _share(right(side, table, _nearest(far - apart(side, table, column), rng), column))
            for side, far in zip(sides, all_columns, strict=True)
        )
        naive = _share(right(sides[0], table, rng.integers(len(table), size=len(sides[0])), column))
        risks.append(_risk("inference", attack, control, naive, len(sides[0]), name))
    return risks


def right(side: Table, table: Table, rows: Ints, column: int) -> Bools:
    """Return (n,) whether each patient's cell is that of its row of ``table``, a number up to 5 % of its bounds.

    Args:
        side: The n patients.
        table: The table that is guessed from.
        rows: (n,) rows of ``table``, one for each patient.
        column: The column's number.
    """
    mine, guess, span = side.values[:, column], table.values[rows, column], side.spans[column]
    return np.asarray(np.where(np.isnan(mine), np.isnan(guess), np.abs(mine - guess) <= TOLERANCE * span))


def _nearest(far: Floats, rng: np.random.Generator) -> Ints:
    """(n,) the nearest row of each, one of several by chance: the first would tie two halves together that nothing links."""
    near = far <= far.min(axis=1, keepdims=True) + 1e-12
    return np.asarray((near * rng.uniform(0.5, 1.0, size=far.shape)).argmax(axis=1))


def _draw(members: Table, non_members: Table, rng: np.random.Generator) -> list[Table]:
    return [table.at(rng.permutation(len(table))[:ATTACKS]) for table in (members, non_members)]


def _share(successes: Bools) -> Interval:
    return wilson(int(successes.sum()), len(successes))


def _risk(
    name: str, attack: Interval, control: Interval, naive: Interval, attempts: int, column: str | None = None
) -> Risk:
    return Risk(name, attempts, attack, control, naive, excess(attack, control), column)


@dataclass(frozen=True)
class Closest:
    """How close synthetic rows are to the records of patients who took part, and of as many who did not.

    Attributes:
        nearer_to_members: Share of synthetic rows whose closest record is of a patient who took part; 0.5 where neither
            side is nearer.
        median_members, median_non_members: Median distance to the closest record, in columns.
        near_members, near_non_members: The 5th percentile of that distance.
        copies_members, copies_non_members: Share of synthetic rows that are equal to a record.
    """

    rows: int
    records: int
    nearer_to_members: Interval
    median_members: float
    median_non_members: float
    near_members: float
    near_non_members: float
    copies_members: float
    copies_non_members: float


def closest(synthetic: Table, members: Table, non_members: Table, seed: int = 0) -> Closest:
    """Compare how close synthetic rows are to the records of both sides, of which as many are drawn as the smaller has.

    A tie between the sides counts half. The interval is the bootstrap's over records: whose copies rows are, not how
    many rows were drawn, is what is uncertain.

    Args:
        synthetic: The synthetic table.
        members: Patients who took part, a row each.
        non_members: Patients who did not.
        seed: Of the records drawn and the resamples.
    """
    rng, count = generator(seed, "attacks", "closest"), min(len(members), len(non_members))
    sides = [table.at(rng.permutation(len(table))[:count]) for table in (members, non_members)]
    columns = range(len(synthetic.names))
    (whose, far), (other, away) = (nearest(synthetic, side, columns) for side in sides)
    hits, inside = closest_to(whose, far, other, away, count), np.repeat([1.0, 0.0], count)
    value, draws = bootstrap(
        lambda weights: ratio(weights @ (hits * inside), weights @ hits), 2 * count, rng, RESAMPLES
    )
    return Closest(
        len(synthetic), count, percentiles(float(value), draws), float(np.median(far)), float(np.median(away)),
        float(np.quantile(far, 0.05)), float(np.quantile(away, 0.05)), float(np.mean(far == 0)), float(np.mean(away == 0)),
    )  # fmt: skip


def closest_to(whose: Ints, far: Floats, other: Ints, away: Floats, count: int) -> Floats:
    """Return (2 count,) how many synthetic rows each record is the closest of, members first; of a tie half.

    Args:
        whose: (rows,) the closest member of each synthetic row.
        far: (rows,) its distance.
        other: (rows,) the closest non-member of each synthetic row.
        away: (rows,) its distance.
        count: The number of records of each side.
    """
    win = np.where(far < away, 1.0, np.where(far == away, 0.5, 0.0))
    return np.concatenate([np.bincount(whose, win, count), np.bincount(other, 1 - win, count)])


def proximity(patients: Table, synthetic: Table) -> Floats:
    """(n,) minus the distance of each patient to the closest synthetic row: higher for those whom rows were copied from."""
    return -nearest(patients, synthetic, range(len(patients.names)))[1]
