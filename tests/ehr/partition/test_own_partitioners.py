"""Partitioners of one's own, and Flower's: what they deal, and what is refused of them."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    PathologicalPartitioner,
    SizePartitioner,
    VerticalEvenPartitioner,
)

from polyclinic import Federation
from polyclinic.ehr import Column, Schema
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.datasets.heart_disease import DATASET
from polyclinic.ehr.partition import check_partitioner, partition_rows
from polyclinic.ehr.partition.flower import deal_by
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.types import Ints

Quick = Callable[..., RunResult]
HERE = __name__
SCHEMA = Schema(
    name="s",
    columns=(
        Column(name="id", kind="categorical", role="patient_id"),
        Column(name="ward", kind="categorical", categories=("a", "b", "c")),
        Column(name="y", kind="binary", role="label"),
    ),
)


def table(patients: int = 90) -> pd.DataFrame:
    """Two rows for each patient, the second of whom tells the class."""
    owner = np.repeat(np.arange(patients), 2)
    return pd.DataFrame(
        {
            "id": [f"p{one}" for one in owner],
            "ward": [("a", "b", "c")[one % 3] for one in owner],
            "y": np.where(np.arange(2 * patients) % 2, owner % 2, 0),
        }
    ).sample(frac=1.0, random_state=1, ignore_index=True)


def halves(records: pd.DataFrame, schema: Schema, sites: int, rng: Any, alpha: float, first: float = 0.5) -> list[Ints]:
    """Whole patients: the first so many of them to one site."""
    number = pd.factorize(records[schema.patient_id.name if schema.patient_id else "id"])[0]
    small = number < first * (number.max() + 1)
    return [np.flatnonzero(small), np.flatnonzero(~small)]


def named(records: pd.DataFrame, *_: Any) -> dict[str, Ints]:
    return {ward: np.flatnonzero(records["ward"] == ward) for ward in ("c", "a")}


def test_ones_own_function_deals_by_rows_or_by_names() -> None:
    records = table()
    dealt = partition_rows(records, SCHEMA, f"{HERE}:halves", 2, 0, 1.0, halves)
    assert list(dealt) == ["hospital-1", "hospital-2"] and [len(rows) for rows in dealt.values()] == [90, 90]
    by_name = partition_rows(records, SCHEMA, f"{HERE}:named+units", 2, 0, 1.0, named)
    assert list(by_name) == ["a", "c"], "in sorted order, and b's patients are in none"
    assert set(records["ward"].iloc[by_name["c"]]) == {"c"}


def split(records: pd.DataFrame, *_: Any) -> Any:
    return [np.arange(0, len(records), 2), np.arange(1, len(records), 2)]


def test_a_function_gets_a_copy_of_the_records() -> None:
    records = table()

    def changes(given: pd.DataFrame, *_: Any) -> list[Ints]:
        given["ward"] = "z"
        return [np.flatnonzero(records["y"] >= 0)]

    partition_rows(records, SCHEMA, "mine:deal", 1, 0, 1.0, changes)
    assert set(records["ward"]) == {"a", "b", "c"}


BAD: dict[str, tuple[Any, str]] = {
    "splits a patient": (split, "splits a patient between two sites; give all rows of a patient to one."),
    "a row twice": (lambda *_: [[0, 1], [1, 2]], "gives a row to two sites, or twice to one."),
    "beyond the table": (lambda records, *_: [[len(records)]], "gives a row that there is not; rows are 0 to 179."),
    "fractions": (lambda *_: [[0.5]], "must give each site's rows as a list of whole numbers."),
    "an empty site": (lambda *_: [np.arange(0), np.arange(3)], "leaves a site without a row."),
    "no rows at all": (lambda *_: [[], [1]], "leaves a site without a row."),
    "two names that are one": (lambda *_: {1: [0], "1": [1]}, "gives two sites the same name."),
    "no name": (lambda *_: {"..": [0], "a": [1]}, "gives a site the name '..'"),
    "no site": (lambda *_: [], "gives no site."),
    "raises": (lambda *_: 1 / 0, "failed: ZeroDivisionError: division by zero."),
    "nothing": (lambda *_: None, "failed: TypeError:"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_function_that_deals_wrongly_is_refused_in_a_sentence(name: str) -> None:
    dealer, words = BAD[name]
    with pytest.raises(ConfigError) as refused:
        partition_rows(table(), SCHEMA, "mine:deal", 2, 0, 1.0, dealer)
    assert str(refused.value).startswith("Partitioner 'mine:deal' ") and words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dirichlett", "is unknown; allowed are natural, .* Did you mean 'dirichlet'"),
        ("mine:", "is unknown"),
        ("mine:deal+pool:5", "must not pool"),
        ("classes:deal", "is unknown"),
    ],
)
def test_names_that_are_nobodys_are_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_partitioner(name)
    assert check_partitioner("mine.own:Deal+bias").others == "mine.own:Deal"


def test_a_run_deals_by_ones_own_function_with_its_options(quick: Quick) -> None:
    result = quick(partitioner=halves, partitioner_options={"first": 0.25}, rounds=1, privacy={"dp": False})
    assert result.config.partitioner == f"{HERE}:halves" and result.config.partitioner_options == "first=0.25"
    patients = result.sites["patients"]
    assert len(patients) == 2 and 2 < patients["hospital-2"] / patients["hospital-1"] < 4
    assert quick(
        partitioner=partial(halves, first=0.25), rounds=1, privacy={"dp": False}
    ).summary["model_sha256"] == result.summary["model_sha256"]  # fmt: skip
    again = Federation.from_config(result.config).run(workers=2, pictures=False)
    assert again.summary["model_sha256"] == result.summary["model_sha256"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitioner": halves, "sites": 5}, "sites is 5, but partitioner .* gives 2; leave sites at 0."),
        ({"partitioner": halves, "partitioner_options": {"last": 1}}, "failed: TypeError: .*'last'"),
        (
            {"partitioner": "iid", "partitioner_options": {"last": 1}},
            "has an effect only with a partitioner that another",
        ),
        ({"partitioner": "there.is.none:deal"}, "Configuration key 'partitioner' .* does not load"),
        ({"partitioner": f"{HERE}:HERE"}, "is not callable"),
        ({"partitioner": partial(halves, 1)}, "unnamed arguments; give them by name"),
        (
            {"partitioner": IidPartitioner(3)},
            "no name leads to; give its class, and its arguments as partitioner_options",
        ),
    ],
)
def test_a_run_that_cannot_be_dealt_is_refused_before_it_has_a_folder(
    quick: Quick, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        quick(**options)
    assert not list(tmp_path.iterdir())


def test_flowers_partitioners_deal_whole_patients() -> None:
    records = table()
    rng = np.random.default_rng(0)
    dealt = deal_by(IidPartitioner, {}, records, SCHEMA, 4, rng, 1.0)
    owners = [set(records["id"].iloc[rows]) for rows in dealt]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 90
    assert sorted(np.concatenate(dealt).tolist()) == list(range(180))
    # A patient's class is the highest of its rows, as for partitioners of ours.
    one_class = deal_by(PathologicalPartitioner, {"num_classes_per_partition": 1}, records, SCHEMA, 2, rng, 1.0)
    sick = [records.iloc[rows].groupby("id")["y"].max().unique().tolist() for rows in one_class]
    assert sorted(map(tuple, sick)) == [(0,), (1,)]
    wards = deal_by(NaturalIdPartitioner, {"partition_by": "ward"}, records, SCHEMA, 1, rng, 1.0)
    assert [records["ward"].iloc[rows].unique().tolist() for rows in wards] == [["a"], ["b"], ["c"]]
    with pytest.raises(ValueError, match="deals columns"):
        deal_by(VerticalEvenPartitioner, {}, records, SCHEMA, 2, rng, 1.0)


def test_flowers_dirichlet_is_as_flower_deals_it_and_follows_the_runs_seed(quick: Quick, heart_disease: None) -> None:
    """Against the partitioner by hand, with the seed that the adapter draws."""
    from datasets import Dataset as Rows

    records = DATASET.load()
    name = "flwr_datasets.partitioner:DirichletPartitioner"
    dealer = partial(deal_by, DirichletPartitioner, {"min_partition_size": 5})
    rows = partition_rows(records, DATASET.schema, name, 3, 7, 0.5, dealer)
    drawn = int(np.random.default_rng(np.random.SeedSequence([7, *b"partition"])).integers(2**31))
    label = DATASET.schema.label.name
    alone = DirichletPartitioner(3, label, alpha=0.5, min_partition_size=5, seed=drawn)
    alone.dataset = Rows.from_pandas(records[[label]].assign(row=np.arange(len(records))), preserve_index=False)
    for site, own in enumerate(rows.values()):
        assert sorted(alone.load_partition(site)["row"]) == own.tolist()
    sizes = [len(one) for one in partition_rows(records, DATASET.schema, name, 3, 8, 0.5, dealer).values()]
    assert sizes != [len(one) for one in rows.values()]
    # What the options give stands in place of the run's.
    own = partial(deal_by, DirichletPartitioner, {"min_partition_size": 5, "alpha": 0.5, "seed": drawn})
    again = partition_rows(records, DATASET.schema, name, 3, 8, 1.0, own)
    assert [one.tolist() for one in again.values()] == [one.tolist() for one in rows.values()]
    sized = quick(partitioner=SizePartitioner, partitioner_options={"partition_sizes": [300, 200]}, rounds=1)
    assert sized.sites["patients"].tolist() == [300, 200]
    result = quick(
        dataset=DATASET.name, partitioner=DirichletPartitioner, partitioner_options={"min_partition_size": 5},
        sites=3, alpha=0.5, seed=7, rounds=1, privacy={"dp": False},
    )  # fmt: skip
    assert len(result.sites) == 3
    shards = load_shards(DATASET, 3, name, 7, 0.5, dealer)
    assert result.sites["patients"].tolist() == [shard.patients for shard in shards]


def test_the_package_is_imported_only_where_it_is_named() -> None:
    code = "import polyclinic.plugins, sys; print({'datasets', 'flwr_datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
