"""Records dealt to simulated hospitals, whole patients at a time, from a keyed random generator.

For simulation only: partitioners look at labels and features without paying for it. Each public partitioner takes
(records, schema, sites, rng, alpha) and returns one array of row indices for each site: together they cover every row
once. Every site gets at least ``MIN_PATIENTS`` patients and ``MIN_PER_CLASS`` of each class where there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import Floats, Ints, class_numbers, identifiers, require_columns
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import patient_ids
from polyclinic.errors import ConfigError, DataError, nearest

PARTITIONERS = ("natural", "column:NAME", "iid", "dirichlet", "quantity", "label-quantity", "feature-shift")
MIN_PATIENTS = 8
MIN_PER_CLASS = 2
#: The part of every class that label-quantity deals out evenly, so that no site of the demo is degenerate.
EVEN_SHARE = 0.3

Deal = list[Ints]
Partitioner = Callable[[pd.DataFrame, Schema, int, np.random.Generator, float], Deal]


def iid(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0) -> Deal:
    """Sites of equal size (to one patient), patients at random; ``alpha`` is unused."""
    person, labels = _patients(records, schema)
    sizes = _round_shares(np.full(sites, 1.0 / sites), len(labels))
    site_of = rng.permutation(np.repeat(np.arange(sites), sizes))
    return _rows(_repaired(site_of, labels, sites, rng), person, sites)


def quantity(records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0) -> Deal:
    """Sizes from Dirichlet(alpha), patients at random."""
    person, labels = _patients(records, schema)
    sizes = _round_shares(rng.dirichlet(np.full(sites, alpha)), len(labels))
    site_of = rng.permutation(np.repeat(np.arange(sites), sizes))
    return _rows(_repaired(site_of, labels, sites, rng), person, sites)


def dirichlet_label(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Each class is shared between sites by its own Dirichlet(alpha) draw: small alpha, strong label shift.

    Yurochkin et al. 2019, "Bayesian nonparametric federated learning of neural networks".
    """
    person, labels = _patients(records, schema)
    shares = rng.dirichlet(np.full(sites, alpha), size=int(labels.max()) + 1)
    return _rows(_repaired(_dealt_by_class(labels, shares, rng), labels, sites, rng), person, sites)


def label_and_quantity(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Both sizes and class shares differ: 30 % of each class evenly, the rest by size times class Dirichlet(alpha)."""
    person, labels = _patients(records, schema)
    sizes = rng.dirichlet(np.full(sites, alpha))
    weights = rng.dirichlet(np.full(sites, alpha), size=int(labels.max()) + 1) * sizes + 1e-12
    shares = EVEN_SHARE / sites + (1.0 - EVEN_SHARE) * weights / weights.sum(axis=1, keepdims=True)
    return _rows(_repaired(_dealt_by_class(labels, shares, rng), labels, sites, rng), person, sites)


def feature_shift(
    records: pd.DataFrame, schema: Schema, sites: int, rng: np.random.Generator, alpha: float = 1.0
) -> Deal:
    """Sites of equal size along the first principal component; noise of ``alpha`` times its spread mixes them."""
    person, labels = _patients(records, schema)
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
    sizes = _round_shares(np.full(sites, 1.0 / sites), len(labels))
    site_of[np.argsort(score, kind="stable")] = np.repeat(np.arange(sites), sizes)
    return _rows(_repaired(site_of, labels, sites, rng), person, sites)


def by_column(records: pd.DataFrame, schema: Schema, column: str) -> dict[str, Ints]:
    """Row indices for each value of a column, in order of first appearance.

    A patient with rows under several values belongs to the first. Raises DataError if the column or a cell is missing.
    """
    if column not in records.columns:
        raise DataError(f"The records have no column {column!r} to split by; name one of their columns.")
    person, first_row, _ = _people(records, schema)
    names = identifiers(records[column], "records")
    numbers, values = pd.factorize(np.array([names[row] for row in first_row], dtype=object))
    rows = _rows(numbers.astype(np.int64), person, len(values))
    return {str(value): index for value, index in zip(values, rows, strict=True)}


_BY_NAME: dict[str, Partitioner] = {
    "iid": iid,
    "dirichlet": dirichlet_label,
    "quantity": quantity,
    "label-quantity": label_and_quantity,
    "feature-shift": feature_shift,
}


def check_partitioner(name: str) -> None:
    """Raise ConfigError unless ``name`` is one of PARTITIONERS (with a column's name after ``column:``)."""
    known = (*_BY_NAME, "natural")
    if name in known or (name.startswith("column:") and len(name) > len("column:")):
        return
    raise ConfigError(f"Partitioner {name!r} is unknown; allowed are {', '.join(PARTITIONERS)}.{nearest(name, known)}")


def partition(
    records: pd.DataFrame, schema: Schema, name: str, sites: int, seed: int, alpha: float = 1.0
) -> dict[str, pd.DataFrame]:
    """Records of each site: those of its rows (``partition_rows``), renumbered from 0."""
    found = partition_rows(records, schema, name, sites, seed, alpha)
    return {site: records.iloc[rows].reset_index(drop=True) for site, rows in found.items()}


def partition_rows(
    records: pd.DataFrame, schema: Schema, name: str, sites: int, seed: int, alpha: float = 1.0
) -> dict[str, Ints]:
    """Rows of each site, by site name in sorted order; the same for the same arguments, on any machine.

    name: one of PARTITIONERS. sites: number of sites; for "natural" and "column:NAME" the first so many in order of
    appearance, 0 for all. alpha: Dirichlet concentration or, for feature-shift, the overlap.
    Raises ConfigError for an unknown name, too few or too many sites, a negative seed or alpha not positive.
    """
    check_partitioner(name)
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or greater.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha is {alpha!r}; it must be a positive number.")
    fixed = name == "natural" or name.startswith("column:")
    if sites < (0 if fixed else 1):
        raise ConfigError(f"sites is {sites}; it must be 1 or more{' (0 for all)' if fixed else ''}.")
    if fixed:
        if name == "natural" and schema.site is None:
            raise ConfigError(f"Schema {schema.name!r} has no site column, so partitioner 'natural' cannot be used.")
        column = schema.site.name if name == "natural" and schema.site else name.removeprefix("column:")
        groups = by_column(records, schema, column)
        if sites > len(groups):
            raise ConfigError(f"sites is {sites}, but partitioner {name!r} finds {len(groups)}; ask for no more.")
        chosen = dict(list(groups.items())[: sites or None])
    else:
        patients = len(_people(records, schema)[1])
        if sites > patients:
            raise ConfigError(f"sites is {sites}, but there are {patients} patients; ask for no more sites than that.")
        rng = np.random.default_rng(np.random.SeedSequence([seed, *b"partition"]))
        width = max(2, len(str(sites))) if sites > 9 else 1
        deal = _BY_NAME[name](records, schema, sites, rng, alpha)
        chosen = {f"hospital-{i + 1:0{width}d}": rows for i, rows in enumerate(deal)}
    return {site: chosen[site] for site in sorted(chosen)}


def _people(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints, int]:
    """Each row's patient number by first appearance, each patient's first row, and the number of patients."""
    ids = np.array(patient_ids(records, schema, "records"), dtype=object)
    person = pd.factorize(ids)[0].astype(np.int64)
    first_row = np.unique(person, return_index=True)[1].astype(np.int64)
    return person, first_row, len(first_row)


def _patients(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints]:
    """Each row's patient number and each patient's class: the highest class number among the patient's rows."""
    require_columns(records, (schema.label,), "records")
    person, _, patients = _people(records, schema)
    labels = np.zeros(patients, dtype=np.int64)
    np.maximum.at(labels, person, class_numbers(records, schema.label, "records"))
    return person, labels


def _rows(site_of: Ints, person: Ints, sites: int) -> Deal:
    site = site_of[person]
    order = np.argsort(site, kind="stable")
    return np.split(order, np.cumsum(np.bincount(site, minlength=sites))[:-1])


def _round_shares(shares: Floats, total: int) -> Ints:
    """Whole numbers with sum ``total``, nearest to ``shares`` times total (largest remainders)."""
    exact = shares / shares.sum() * total
    out: Ints = np.floor(exact).astype(np.int64)
    out[np.argsort(out - exact, kind="stable")[: total - int(out.sum())]] += 1
    return out


def _dealt_by_class(labels: Ints, shares: Floats, rng: np.random.Generator) -> Ints:
    """(patients,) site numbers; patients of class c go to the sites in proportion to shares[c]."""
    site_of = np.empty(len(labels), dtype=np.int64)
    for label, share in enumerate(shares):
        members = np.flatnonzero(labels == label)
        sizes = _round_shares(share, len(members))
        site_of[members] = rng.permutation(np.repeat(np.arange(len(share)), sizes))
    return site_of


def _repaired(site_of: Ints, labels: Ints, sites: int, rng: np.random.Generator) -> Ints:
    """``site_of`` with as few patients moved as are needed for the least numbers per site and per class."""
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
