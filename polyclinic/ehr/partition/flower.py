"""Flower's partitioners, of the package ``flwr-datasets`` (which Polyclinic does not need), as partitioners of patients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.partition.dealt import Deal, patients_and_labels, people, site_rows
from polyclinic.ehr.schema import Schema

_PATIENT = "polyclinic-patient"


def is_flowers(partitioner: object) -> bool:
    """Whether it is a class of Flower's partitioners, or made after them; imports nothing."""
    module = sys.modules.get("flwr_datasets.partitioner")
    return module is not None and isinstance(partitioner, type) and issubclass(partitioner, module.Partitioner)


def deal_by(
    kind: Callable[..., Any], options: Mapping[str, Any], records: pd.DataFrame, schema: Schema, sites: int,
    rng: np.random.Generator, alpha: float,
) -> Deal:  # fmt: skip
    """Return the rows of each site, as a partitioner of Flower's deals patients.

    It sees one row a patient, the patient's first, with the highest class among the patient's rows as label. Some
    parameters have values of their own where it takes them and ``options`` do not give them:

    - ``num_partitions`` is ``sites``, and ``alpha`` the run's;
    - ``partition_by`` is the label, or the column of sites for one that takes no number of them;
    - ``seed`` is drawn from ``rng``.

    Args:
        kind: The partitioner's class.
        options: Parameters of the partitioner.
        records: The table, one row for each record.
        schema: The schema of the records.
        sites: The number of sites.
        rng: Draws the partitioner's seed.
        alpha: The run's parameter of partitioners.

    Raises:
        ValueError: Where the partitioner deals columns and not rows. Its own errors pass through.
    """
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    _, labels = patients_and_labels(records, schema)
    person, first_row, patients = people(records, schema)
    table = records.iloc[first_row].reset_index(drop=True)
    table[schema.label.name] = labels
    table[_PATIENT] = np.arange(patients)
    takes = signature(kind).parameters
    # One that is told no number of sites divides by a column that has their names.
    by = schema.site.name if schema.site and "num_partitions" not in takes else schema.label.name
    usual = {
        "num_partitions": sites, "partition_by": by, "alpha": alpha, "seed": int(rng.integers(2**31)),
    }  # fmt: skip
    partitioner = kind(**{name: value for name, value in usual.items() if name in takes} | {**options})
    partitioner.dataset = Dataset.from_pandas(table, preserve_index=False)
    site_of = np.full(patients, -1, dtype=np.int64)
    for site in range(partitioner.num_partitions):
        part = partitioner.load_partition(site)
        if _PATIENT not in part.column_names:
            raise ValueError("it deals columns, where patients must stay whole")
        site_of[np.array(part[_PATIENT], dtype=np.int64)] = site
    dealt_rows = np.flatnonzero(site_of[person] >= 0)
    return [dealt_rows[rows] for rows in site_rows(site_of, person[dealt_rows], partitioner.num_partitions)]
