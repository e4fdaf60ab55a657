"""Do synthetic rows lie nearer to patients who took part than to patients who did not?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.evaluation.attacks.tables import Ints, Table, nearest
from polyclinic.evaluation.synthetic.resampling import Floats, Interval, bootstrap, interval, ratio
from polyclinic.privacy.streams import generator

RESAMPLES = 1000


@dataclass(frozen=True)
class Closest:
    """nearer_to_members: share of synthetic rows whose closest record is of a patient who took part, of as many who did and did
    not; 0.5 where neither is nearer.  median and near (5th percentile) of the distance to the closest record, in columns;
    copies: share of synthetic rows that are equal to a record."""

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
    """Of both sides as many records as the smaller has, drawn at random.

    A tie between the sides counts half. The interval is the bootstrap's over records: whose copies rows are, not how many rows
    were drawn, is what is uncertain.
    """
    rng, count = generator(seed, "attacks", "closest"), min(len(members), len(non_members))
    sides = [table.at(_some(len(table), count, rng)) for table in (members, non_members)]
    columns = range(len(synthetic.names))
    (whose, far), (other, away) = (nearest(synthetic, side, columns) for side in sides)
    hits, inside = closest_to(whose, far, other, away, count), np.repeat([1.0, 0.0], count)
    value, draws = bootstrap(
        lambda weights: ratio(weights @ (hits * inside), weights @ hits), 2 * count, rng, RESAMPLES
    )
    return Closest(
        len(synthetic), count, interval(float(value), draws), float(np.median(far)), float(np.median(away)),
        float(np.quantile(far, 0.05)), float(np.quantile(away, 0.05)), float(np.mean(far == 0)), float(np.mean(away == 0)),
    )  # fmt: skip


def closest_to(whose: Ints, far: Floats, other: Ints, away: Floats, count: int) -> Floats:
    """(2 count,) how many synthetic rows each record is the closest of, members first; of a tie half."""
    win = np.where(far < away, 1.0, np.where(far == away, 0.5, 0.0))
    return np.concatenate([np.bincount(whose, win, count), np.bincount(other, 1 - win, count)])


def proximity(patients: Table, synthetic: Table) -> Floats:
    """(n,) minus the distance of each patient to the closest synthetic row: higher for those whom rows were copied from."""
    return -nearest(patients, synthetic, range(len(patients.names)))[1]


def _some(rows: int, count: int, rng: np.random.Generator) -> Ints:
    return rng.permutation(rows)[:count]
