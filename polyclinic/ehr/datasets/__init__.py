"""The built-in datasets, and any of them as the shards of simulated or natural hospitals.

A dataset's own module is loaded when it is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.partition import Dealer, check_partitioner, measure, partition_rows
from polyclinic.ehr.shard import Checked, Shard, check_records, divide, split_shard
from polyclinic.ehr.split import OWN_SPLIT, Split
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools

__all__ = ["BUILT_IN", "Dataset", "builtin", "hash_split", "load_shards"]

#: Where each dataset that comes with Polyclinic is, by name; loaded when it is asked for.
BUILT_IN = {
    name: f"polyclinic.ehr.datasets.{place}"
    for name, place in {
        "breast-cancer": "breast_cancer:DATASET",
        "heart-disease": "heart_disease:DATASET",
        "heart-disease-920": "heart_disease:DATASET_920",
        "ist": "ist:DATASET",
        "ist-death-14": "ist:DATASET_DEATH_14",
        "ist-survival": "ist:DATASET_SURVIVAL",
        "eicu-demo": "eicu:DATASET",
        "diabetes-130": "diabetes:DATASET",
        "diabetes-130-first": "diabetes:DATASET_FIRST",
        "diabetes-130-all": "diabetes:DATASET_ALL",
        "mimic-demo": "mimic:DATASET",
        "mimic-demo-vitals": "mimic:DATASET_VITALS",
        "trial": "trial:DATASET",
        "icu": "icu:DATASET",
    }.items()
}


def builtin() -> dict[str, Dataset]:
    """The datasets that come with Polyclinic, by name."""
    places = {name: place.partition(":") for name, place in BUILT_IN.items()}
    return {name: getattr(import_module(module), attribute) for name, (module, _, attribute) in places.items()}


def load_shards(
    dataset: Dataset, sites: int, partitioner: str, seed: int, alpha: float, dealer: Dealer | None = None,
    split: Split = OWN_SPLIT,
) -> list[Shard]:  # fmt: skip
    """Return one shard for each site, sorted by site name; the same for the same arguments.

    A fixed split of the dataset holds with its natural sites unless ``split`` asks for another. Where a share of the
    patients is held out, a small site may be left without a test patient, or without a class in train. The patient
    nearest to the threshold then changes sides. A site that is in the data may have one class only, or one patient, who
    then trains. With folds and by time a site may have nobody held out. Each patient is then on the side that the rule
    says.

    Args:
        dataset: A built-in or simulated dataset.
        sites: For partitioners "natural" and "column:NAME" the first so many in the data, for the others any number. 0
            means the dataset's default number or, for "column:NAME" and where small sites are pooled, all.
        partitioner: The partitioner's name, as in ``polyclinic.ehr.partition``.
        seed: Of the partitioner and of simulated records.
        alpha: The partitioner's parameter, as for ``partition_rows``.
        dealer: What the name of the partitioner stands for where it is not ours.
        split: The rule by which patients are held out.

    Raises:
        ConfigError: For an unknown partitioner, an impossible number of sites, alpha, or a column that the split lacks.
        DataError: For absent files, for a site that is left without training patients, and for a time by which nobody
            is held out.
    """
    plan = check_partitioner(partitioner)
    natural = plan.base == "natural"
    if sites < 0:
        raise ConfigError(f"sites is {sites}; it must be 1 or more, or 0 for the dataset's own number.")
    if natural and not dataset.natural_sites:
        raise ConfigError(
            f"Dataset {dataset.name!r} has no natural sites; choose another partitioner, such as "
            f"{dataset.default_partitioner!r}."
        )
    if natural and not plan.pool and dataset.generate is None and sites > len(dataset.natural_sites):
        raise ConfigError(f"sites is {sites}, but dataset {dataset.name!r} has {len(dataset.natural_sites)} hospitals.")
    if dataset.generate is not None:
        number = (sites or dataset.default_sites) if natural else dataset.default_sites
        records = dataset.generate(number, number * dataset.patients // dataset.default_sites, seed)
    else:
        records = dataset.load()
    asked = sites
    if not plan.pool and plan.base != "column":
        sites = sites or dataset.default_sites
    schema = dataset.schema
    rows_of = partition_rows(records, schema, partitioner, sites, seed, alpha, dealer)
    if plan.others and asked not in (0, len(rows_of)):
        raise ConfigError(f"sites is {asked}, but partitioner {partitioner!r} gives {len(rows_of)}; leave sites at 0.")
    records = measure(records, schema, partitioner, rows_of, seed, alpha)
    # All at once: checking and encoding a table takes about as long for one row as for a thousand.
    checked = check_records(records, schema, dataset.name)
    if split.column in records:
        checked = replace(checked, times={split.column: records[split.column].to_numpy(object)})
    published = natural and dataset.fixed_split and split == OWN_SPLIT
    fixed = (records[dataset.fixed_split] == "test").to_numpy(dtype=bool) if published else None
    shards = []
    for site, rows in rows_of.items():
        own = checked.at(rows)
        if dataset.own_numbers and natural and not plan.pool and own.ids is not None:
            own = replace(own, ids=np.array([patient.removeprefix(f"{site}/") for patient in own.ids], dtype=object))
        if fixed is None and not split.by_share:
            shards.append(divide(own, schema, site, own.test_rows(split, schema, dataset.name)))
            if not shards[-1].train.patients:
                raise DataError(
                    f"{site}: the split leaves no patient to train on; pool small sites, or split otherwise."
                )
            continue
        test_rows = hash_split(own, split) if fixed is None else fixed[rows]
        # FLamby's split leaves Switzerland (1 of 46 patients without disease) one class in train.
        shards.append(split_shard(own, schema, site, site, test_rows, allow_small=plan.may_lack_classes))
    if split.time and not any(shard.test.patients for shard in shards):
        raise DataError(
            f"split.time is {split.time!r}, by which no hospital holds a patient out; name an earlier moment."
        )
    return shards


def hash_split(checked: Checked, split: Split = OWN_SPLIT) -> Bools:
    """(rows,) True for test rows: a share of the patients, repaired where it leaves a tiny site unusable."""
    position = split.positions(checked.patients)
    test = position < split.fraction
    if len(np.unique(position)) == 1:
        return np.zeros(len(position), dtype=bool)
    classes = np.unique(checked.y) if checked.y.dtype == np.int64 else np.zeros(0)  # numbers need not be on both sides
    for label in classes:
        members = checked.y == label
        if test[members].all():
            test = test & (position != position[members].max())
    if not test.any():
        # From the largest class, so that train keeps every class it has.
        largest = checked.y == np.argmax(np.bincount(checked.y)) if len(classes) else np.ones(len(position), dtype=bool)
        test = position == position[largest].min()
    return np.asarray(test, dtype=bool)
