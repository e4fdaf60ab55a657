"""Whole patients: which rows are whose, shares in whole numbers, and the least numbers of a site."""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import class_numbers, require_columns
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import patient_ids
from polyclinic.types import Floats, Ints

MIN_PATIENTS = 8
MIN_PER_CLASS = 2

Deal = list[Ints]


def people(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints, int]:
    """Each row's patient number by first appearance, each patient's first row, and the number of patients."""
    ids = np.array(patient_ids(records, schema, "records"), dtype=object)
    person = pd.factorize(ids)[0].astype(np.int64)
    first_row = np.unique(person, return_index=True)[1].astype(np.int64)
    return person, first_row, len(first_row)


def patients_and_labels(records: pd.DataFrame, schema: Schema) -> tuple[Ints, Ints]:
    """Each row's patient number and each patient's class: the highest class number among the patient's rows."""
    require_columns(records, (schema.label,), "records")
    person, _, patients = people(records, schema)
    labels = np.zeros(patients, dtype=np.int64)
    np.maximum.at(labels, person, class_numbers(records, schema.label, "records"))
    return person, labels


def site_rows(site_of: Ints, person: Ints, sites: int) -> Deal:
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
    """(patients,) site numbers; patients of class c go to the sites in proportion to shares[c]."""
    site_of = np.empty(len(labels), dtype=np.int64)
    for label, share in enumerate(shares):
        members = np.flatnonzero(labels == label)
        sizes = round_shares(share, len(members))
        site_of[members] = rng.permutation(np.repeat(np.arange(len(share)), sizes))
    return site_of


def repaired(site_of: Ints, labels: Ints, sites: int, rng: np.random.Generator) -> Ints:
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
