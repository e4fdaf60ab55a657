"""Patients dealt to simulated hospitals: at random, each partitioner with a shift of its own, or as the records say.

A random one takes (records, schema, sites, rng, strength) and returns one array of row indices for each site: together they
cover every row once. But for ``classes``, every site gets at least ``MIN_PATIENTS`` patients and ``MIN_PER_CLASS`` of each
class where there are enough.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import identifiers, require_columns
from polyclinic.ehr.dates import read_moments
from polyclinic.ehr.encoding import encode, encode_labels
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import patient_ids
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Floats, Ints

MIN_PATIENTS = 8
MIN_PER_CLASS = 2
#: The part of every class that label-quantity deals out evenly, so that no site of the demo is degenerate.
EVEN_SHARE = 0.3
#: The name of the site of pooled sites.
OTHER = "other"

Deal = list[Ints]


def people(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints, int]:
    """Each row's patient number by first appearance, each patient's first row, and the number of patients."""
    ids = np.array(patient_ids(records, schema, "records"), dtype=object)
    person = pd.factorize(ids)[0].astype(np.int64)
    first_row = np.unique(person, return_index=True)[1].astype(np.int64)
    return person, first_row, len(first_row)


def patients_and_labels(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints]:
    """Each row's patient number and each patient's class: the highest class number among the patient's rows.

    Of labels without classes it is the quarter of all patients that the patient's largest label, or sum of labels, is in.
    """
    require_columns(records, schema.labels, "records")
    person, _, patients = people(records, schema)
    rows = encode_labels(records, schema)
    if schema.has_classes:
        labels = np.zeros(patients, dtype=np.int64)
        np.maximum.at(labels, person, rows)
        return person, labels
    numbers = np.full(patients, -np.inf)
    np.maximum.at(numbers, person, rows.reshape(len(rows), -1).sum(axis=1))
    return person, np.searchsorted(np.quantile(numbers, (0.25, 0.5, 0.75)), numbers).astype(np.int64)


def site_rows(site_of: Ints, person: Ints, sites: int) -> Deal:
    """The row numbers of each site, in the order of the rows.

    Args:
        site_of: (patients,) site numbers.
        person: (rows,) patient numbers.
        sites: The number of sites, of which one may have no row.
    """
    site = site_of[person]
    order = np.argsort(site, kind="stable")
    return np.split(order, np.cumsum(np.bincount(site, minlength=sites))[:-1])


def round_shares(shares: Floats, total: int) -> Ints:
    """Whole numbers with sum ``total``, nearest to ``shares`` times total (largest remainders)."""
    exact = shares / shares.sum() * total
    out: Ints = np.floor(exact).astype(np.int64)
    out[np.argsort(out - exact, kind="stable")[: total - int(out.sum())]] += 1
    return out


def dealt_by_class(labels: Ints, shares: Floats, rng: np.random.Generator) -> Ints:
    """Return (patients,) site numbers; patients of class c go to the sites in proportion to shares[c].

    Args:
        labels: (patients,) class numbers.
        shares: (classes, sites) shares, each row summing to 1.
        rng: Draws which patients of a class go where.
    """
    site_of = np.empty(len(labels), dtype=np.int64)
    for label, share in enumerate(shares):
        members = np.flatnonzero(labels == label)
        sizes = round_shares(share, len(members))
        site_of[members] = rng.permutation(np.repeat(np.arange(len(share)), sizes))
    return site_of


def repair(site_of: Ints, labels: Ints, sites: int, rng: np.random.Generator) -> Ints:
    """Return ``site_of`` with as few patients moved as are needed for the least numbers per site and per class.

    Args:
        site_of: (patients,) site numbers.
        labels: (patients,) class numbers.
        sites: The number of sites.
        rng: Draws the patients who move.
    """
    site_of = site_of.astype(np.int64)
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        _top_up(site_of, members, min(MIN_PER_CLASS, len(members) // sites), sites, rng)
    counts = np.zeros((int(labels.max()) + 1, sites), dtype=np.int64)
    np.add.at(counts, (labels, site_of), 1)
    # Only patients beyond the least number of their class may move now, or the first repair would be undone.
    spare = np.ones(len(labels), dtype=bool)
    for label, row in enumerate(counts):
        least = min(MIN_PER_CLASS, int(row.sum()) // sites)
        for site in range(sites):
            spare[np.flatnonzero((labels == label) & (site_of == site))[:least]] = False
    _top_up(site_of, np.arange(len(labels)), min(MIN_PATIENTS, len(labels) // sites), sites, rng, spare)
    return site_of


def _top_up(
    site_of: Ints, members: Ints, least: int, sites: int, rng: np.random.Generator, spare: np.ndarray | None = None
) -> None:
    """Move members, in place, from the largest sites until every site holds at least ``least`` of them."""
    counts = np.bincount(site_of[members], minlength=sites)
    for poor in np.flatnonzero(counts < least).tolist():
        while counts[poor] < least:
            rich = int(np.argmax(counts))
            candidates = members[site_of[members] == rich]
            if spare is not None:
                candidates = candidates[spare[candidates]]
            if not len(candidates):
                return
            site_of[rng.choice(candidates)] = poor
            counts[rich] -= 1
            counts[poor] += 1


def iid(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0) -> Deal:
    """Return sites of equal size (to one patient), patients at random.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the patients of each site.
        alpha: Unused.
    """
    person, labels = patients_and_labels(records, schema)
    sizes = round_shares(np.full(sites, 1.0 / sites), len(labels))
    site_of = rng.permutation(np.repeat(np.arange(sites), sizes))
    return site_rows(repair(site_of, labels, sites, rng), person, sites)


def quantity(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0) -> Deal:
    """Return sites with sizes from Dirichlet(alpha), patients at random.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the sizes and the patients of each site.
        alpha: The Dirichlet concentration: a small one gives unequal sizes.
    """
    person, labels = patients_and_labels(records, schema)
    sizes = round_shares(rng.dirichlet(np.full(sites, alpha)), len(labels))
    site_of = rng.permutation(np.repeat(np.arange(sites), sizes))
    return site_rows(repair(site_of, labels, sites, rng), person, sites)


def dirichlet_label(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Share each class between sites by its own Dirichlet(alpha) draw: small alpha, strong label shift.

    Yurochkin et al. 2019, "Bayesian nonparametric federated learning of neural networks".

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the shares and the patients of each site.
        alpha: The Dirichlet concentration.
    """
    person, labels = patients_and_labels(records, schema)
    shares = rng.dirichlet(np.full(sites, alpha), size=int(labels.max()) + 1)
    return site_rows(repair(dealt_by_class(labels, shares, rng), labels, sites, rng), person, sites)


def label_and_quantity(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Deal patients so that both sizes and class shares differ between sites.

    30 % of each class are dealt evenly, the rest by size times class Dirichlet(alpha).

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the sizes, the shares and the patients of each site.
        alpha: The concentration of both Dirichlet distributions.
    """
    person, labels = patients_and_labels(records, schema)
    sizes = rng.dirichlet(np.full(sites, alpha))
    weights = rng.dirichlet(np.full(sites, alpha), size=int(labels.max()) + 1) * sizes + 1e-12
    shares = EVEN_SHARE / sites + (1.0 - EVEN_SHARE) * weights / weights.sum(axis=1, keepdims=True)
    return site_rows(repair(dealt_by_class(labels, shares, rng), labels, sites, rng), person, sites)


def feature_shift(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Return sites of equal size along the first principal component of the features.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the noise that mixes the sites.
        alpha: The noise's standard deviation, in units of the component's spread: a large one mixes the sites more.
    """
    person, labels = patients_and_labels(records, schema)
    x = np.nan_to_num(encode(records, schema).x)
    totals = np.zeros((len(labels), x.shape[1]))
    np.add.at(totals, person, x)
    means = totals / np.bincount(person)[:, None]
    centred = means - means.mean(axis=0)
    direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    # An eigenvector's sign is arbitrary: fix it, or the order of sites would hang on the linear algebra library.
    score = centred @ (direction * np.sign(direction[np.argmax(np.abs(direction))]))
    score = score + alpha * score.std() * rng.standard_normal(len(score))
    site_of = np.empty(len(labels), dtype=np.int64)
    sizes = round_shares(np.full(sites, 1.0 / sites), len(labels))
    site_of[np.argsort(score, kind="stable")] = np.repeat(np.arange(sites), sizes)
    return site_rows(repair(site_of, labels, sites, rng), person, sites)


def power_law(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0) -> Deal:
    """Return a few large sites and many small ones: sizes in proportion to rank^-alpha (Zipf), ranks and patients at random.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the ranks and the patients of each site.
        alpha: The power law's exponent.
    """
    person, labels = patients_and_labels(records, schema)
    sizes = round_shares(rng.permutation(np.arange(1.0, sites + 1.0) ** -alpha), len(labels))
    site_of = rng.permutation(np.repeat(np.arange(sites), sizes))
    return site_rows(repair(site_of, labels, sites, rng), person, sites)


def classes(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, each: int) -> Deal:
    """Give each site ``each`` pieces of about equal size, each of one class: at most so many classes at a site.

    McMahan et al. 2017, section 3 (the pathological partition), with pieces that never span two classes.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the patients of each piece and the pieces of each site.
        each: The number of pieces of a site.

    Raises:
        ConfigError: Where there are fewer pieces than classes or fewer patients than pieces.
    """
    person, labels = patients_and_labels(records, schema)
    pieces, present = sites * each, np.unique(labels)
    if not len(present) <= pieces <= len(labels):
        raise ConfigError(
            f"partitioner 'classes:{each}' makes {pieces} pieces for {sites} sites; it must make {len(present)} (one a "
            f"class) to {len(labels)} (one a patient)."
        )
    counts = np.array([np.count_nonzero(labels == label) for label in present])
    share = 1 + round_shares(counts.astype(np.float64), pieces - len(present))
    cut = [
        piece
        for label, number in zip(present, np.minimum(share, counts), strict=True)
        for piece in np.array_split(rng.permutation(np.flatnonzero(labels == label)), int(number))
    ]
    site_of = np.empty(len(labels), dtype=np.int64)
    for place, piece in enumerate(rng.permutation(len(cut)).tolist()):
        site_of[cut[piece]] = place % sites
    return site_rows(site_of, person, sites)


def by_column(records: pd.DataFrame, schema: Schema, column: str) -> dict[str, Ints]:
    """Return row indices for each value of a column, in order of first appearance.

    A patient with rows under several values belongs to the first.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        column: The column whose values are the sites.

    Raises:
        DataError: If the column or a cell is missing.
    """
    if column not in records.columns:
        raise DataError(f"The records have no column {column!r} to split by; name one of their columns.")
    person, first_row, _ = people(records, schema)
    names = identifiers(records[column], "records")
    numbers, values = pd.factorize(np.array([names[row] for row in first_row], dtype=object))
    rows = site_rows(numbers.astype(np.int64), person, len(values))
    return {str(value): index for value, index in zip(values, rows, strict=True)}


def pool_groups(groups: dict[str, Ints], records: pd.DataFrame, schema: Schema, smallest: int) -> dict[str, Ints]:
    """Return the groups with ``smallest`` patients or more, and those of all the others as one group "other", last.

    A group that is itself named "other" is among the pooled.

    Args:
        groups: Each group's row indices, by its name.
        records: The table, one row for each record.
        schema: The schema of the records.
        smallest: The number of patients from which a group stays by itself.
    """
    person, _, _ = people(records, schema)
    large = {
        name: index for name, index in groups.items() if name != OTHER and len(np.unique(person[index])) >= smallest
    }
    small = [index for name, index in groups.items() if name not in large]
    return large | ({OTHER: np.sort(np.concatenate(small))} if small else {})


def by_time(records: pd.DataFrame, schema: Schema, column: str, sites: int) -> Deal:
    """Return sites of equal size, from the earliest patients to the latest by their first cell of ``column``.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        column: Numbers, or dates as ``read_moments`` reads them.
        sites: The number of sites.

    Raises:
        DataError: If the column or a cell is missing or is neither.
    """
    if column not in records.columns:
        raise DataError(f"The records have no column {column!r} to order by; name one of their columns.")
    is_number = bool(pd.to_numeric(records[column], errors="coerce").notna().all())
    moment = read_moments(records[column].to_list(), is_number)
    if np.isnan(moment).any():
        row = int(np.isnan(moment).argmax()) + 1
        raise DataError(f"records: column {column!r}, data row {row}: the cell is neither a number nor a date.")
    person, _, count = people(records, schema)
    first = np.full(count, np.inf)
    np.minimum.at(first, person, moment)
    site_of = np.empty(count, dtype=np.int64)
    site_of[np.argsort(first, kind="stable")] = np.repeat(np.arange(sites), round_shares(np.ones(sites), count))
    return site_rows(site_of, person, sites)
