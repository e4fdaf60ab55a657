"""No dataset has an outcome or a column of what came later among its features: the traps that its page lists."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr.datasets import Dataset, builtin, load_shards
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.partition import partition_rows

PAGES = Path(__file__).resolve().parents[3] / "docs" / "datasets"
PAGE_OF = {"heart-disease-920": "heart-disease", "ist-death-14": "ist", "ist-survival": "ist",
           "diabetes-130-first": "diabetes-130", "diabetes-130-all": "diabetes-130",
           "mimic-demo-vitals": "mimic-demo"}  # fmt: skip
DATASETS = list(builtin().values())
IDS = [dataset.name for dataset in DATASETS]


def page(dataset: Dataset) -> str:
    return (PAGES / f"{PAGE_OF.get(dataset.name, dataset.name)}.md").read_text(encoding="utf-8")


def traps(dataset: Dataset) -> set[str]:
    """The columns in the tables of the dataset's page that are headed "never a feature"."""
    tables = re.findall(r"^\| never a feature \|.*\n\|[-|]+\n((?:\|.*\n)+)", page(dataset), re.M)
    rows = [row for table in tables for row in table.splitlines()]
    return {name.lower() for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def records(dataset: Dataset) -> pd.DataFrame:
    if not dataset.available():
        pytest.skip(f"the files of {dataset.name} are not in the folder that POLYCLINIC_DATA names")
    return dataset.load()


@pytest.mark.parametrize("dataset", DATASETS, ids=IDS)
def test_no_trap_is_a_feature(dataset: Dataset) -> None:
    listed = traps(dataset)
    assert listed, "the page lists what is never a feature"
    read = {name.lower() for column in dataset.schema.features for name in (column.name, *column.record_names)}
    read |= {name.lower() for name in feature_names(dataset.schema)}
    assert not listed & read
    assert not {label.name for label in dataset.schema.labels} & read


@pytest.mark.parametrize("dataset", DATASETS, ids=IDS)
def test_the_page_says_where_bounds_and_licence_are_from(dataset: Dataset) -> None:
    text = page(dataset).lower()
    assert "**bounds" in text and "**licence" in text and "split:**" in text


@pytest.mark.parametrize("dataset", DATASETS, ids=IDS)
def test_records_hold_the_schemas_columns_and_nothing_else(dataset: Dataset) -> None:
    expected = {name for column in dataset.schema.columns for name in column.record_names}
    assert set(records(dataset).columns) == expected | ({dataset.fixed_split} if dataset.fixed_split else set())


#: A column that knows the outcome stands out alone: AUROC above what the best honest one reaches.
KNOWN_BEST = {"heart-disease": 0.85, "heart-disease-920": 0.85, "ist": 0.72, "ist-death-14": 0.74, "eicu-demo": 0.74,
              "diabetes-130": 0.64, "diabetes-130-first": 0.64, "diabetes-130-all": 0.64, "icu": 0.80}  # fmt: skip


@pytest.mark.parametrize("dataset", [d for d in DATASETS if d.name in KNOWN_BEST], ids=list(KNOWN_BEST))
def test_no_single_column_tells_the_outcome(dataset: Dataset) -> None:
    from polyclinic.ehr.encoding import encode
    from polyclinic.evaluation.metrics import auroc

    encoded = encode(records(dataset), dataset.schema)
    assert encoded.y is not None
    ill = encoded.y == 1
    alone = []
    for column in encoded.x.T:
        known = ~np.isnan(column)
        found = [auroc(ill[known], column[known]), auroc(ill, known.astype(float))]
        alone += [max(value, 1 - value) for value in found if value is not None]
    assert max(alone) < KNOWN_BEST[dataset.name], "also not by being missing"


@pytest.mark.parametrize("dataset", DATASETS, ids=IDS)
def test_no_patient_stands_on_both_sides(dataset: Dataset) -> None:
    table, partitioner = records(dataset), dataset.default_partitioner
    sites = 0 if partitioner.startswith("column:") else dataset.default_sites
    rows = partition_rows(table, dataset.schema, partitioner, sites, 0)
    sides: dict[str, set[tuple[str, bool]]] = defaultdict(set)
    for shard in load_shards(dataset, sites, partitioner, 0, 1.0):
        owners = table["patient"].to_numpy()[rows[shard.site]]
        for owner, side in zip(owners, shard.is_test[shard.patient].tolist(), strict=True):
            sides[str(owner)].add((shard.site, side))
    assert sides and all(len(places) == 1 for places in sides.values()), "one site and one side each"


def test_the_stroke_trials_page_lists_every_other_column() -> None:
    declared = Path(os.environ.get("POLYCLINIC_DATA", "")) / "ist" / "IST.csv.gz"
    if not declared.is_file():
        pytest.skip("POLYCLINIC_DATA names no folder with ist/IST.csv.gz")
    columns = {name.lower() for name in pd.read_csv(declared, nrows=0, encoding="latin-1").columns}
    ist = builtin()["ist"]
    assert columns - traps(ist) == {column.name for column in ist.schema.features}
