"""Who is held out: folds partition the patients, a split by time lets nothing of the future in, sides are each patient's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import builtin, load_shards
from polyclinic.ehr.dates import read_moments
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard, check_records, shard_of
from polyclinic.ehr.split import OWN_SPLIT, Split, is_test_patient
from polyclinic.errors import ConfigError

IDS = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=40)
DAYS = st.lists(st.integers(0, 50), min_size=1, max_size=40)


def held_out(split: Split, ids: list[str], moments: list[object] | None = None) -> set[str]:
    rows = split.test_rows(ids, moments)
    patients = {patient for patient, held in zip(ids, rows, strict=True) if held}
    assert not patients & {patient for patient, held in zip(ids, rows, strict=True) if not held}, (
        "a patient is on one side"
    )
    return patients


@given(IDS, st.integers(2, 12), st.sampled_from(["", "0", "7"]))
def test_each_patient_is_held_out_in_exactly_one_fold(ids: list[str], folds: int, seed: str) -> None:
    groups = [held_out(Split(seed=seed, folds=folds, fold=fold), ids) for fold in range(folds)]
    assert set.union(*groups) == set(ids) and sum(map(len, groups)) == len(set(ids))


@given(IDS, st.text(min_size=1, max_size=4), st.sampled_from([Split(0.3), Split(seed="5"), Split(folds=3, fold=1)]))
def test_a_side_depends_on_the_patient_alone(ids: list[str], another: str, split: Split) -> None:
    assert held_out(split, [*ids, another]) - {another} == held_out(split, ids) - {another}


def test_seeds_and_folds_hold_out_the_share_that_they_say() -> None:
    ids = [str(number) for number in range(20_000)]
    own = held_out(OWN_SPLIT, ids)
    assert own == {patient for patient in ids if is_test_patient(patient, 0.25)}
    other = held_out(Split(seed="1"), ids)
    assert len(other) == pytest.approx(5_000, rel=0.05)
    assert len(own & other) == pytest.approx(1_250, rel=0.15), "two seeds agree by chance alone"
    assert len(held_out(Split(folds=5, fold=3), ids)) == pytest.approx(4_000, rel=0.05)
    assert not held_out(Split(0.0), ids)


@given(st.data())
def test_a_split_by_time_trains_on_no_record_of_the_future(data: st.DataObject) -> None:
    days = data.draw(DAYS)
    ids = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=len(days), max_size=len(days)))
    moments = [(pd.Timestamp("2024-01-01") + pd.Timedelta(days=day)).strftime("%Y-%m-%d %H:%M") for day in days]
    late = held_out(Split(time="seen:2024-01-21"), ids, list(moments))
    assert late == {patient for patient, day in zip(ids, days, strict=True) if day >= 20}
    assert late == held_out(Split(time="day:20"), ids, list(days)), "numbers and dates are split alike"


def test_what_a_date_is_read_as_does_not_depend_on_other_patients_dates() -> None:
    """The first date that nanoseconds hold is of 1677, the last of 2262; a placeholder's year is often 9999."""
    cells = [
        "2024-01-01T00:00:00.123456789",
        "9999-12-31",
        "1600-01-01",
        "2024-03-01T10:00:00+02:00",
        "now",
        "31.12.2023",
    ]
    together = read_moments(cells, False)
    np.testing.assert_array_equal(together, [read_moments([cell], False)[0] for cell in cells])
    assert np.argsort(together).tolist() == [2, 5, 0, 3, 1, 4] and np.isnan(together[4])
    assert together[5] == pd.Timestamp("2023-12-31").timestamp() * 1e6
    assert read_moments([10**400, "5", None, "soon"], True).tolist()[1] == 5


def test_no_record_moves_others_where_each_is_a_unit_of_its_own() -> None:
    """A late record would take all of its patient's to the other side: forty units for one."""
    columns = [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120]},
        {"name": "seen", "kind": "integer", "role": "time"},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    table = pd.DataFrame({"id": 1, "age": 50, "seen": [2010] * 40 + [2020], "died": [0, 1] * 20 + [0]})

    def shard(unit: str, late: Split, columns: list[dict[str, Any]] = columns) -> Shard:
        schema = Schema.from_dict({"name": "ward", "unit": unit, "columns": columns})
        return shard_of(check_records(table, schema, "ward"), schema, "north", "ward", late)

    late = Split(time="seen:2015")
    with pytest.raises(ConfigError, match="one record more would move others; set unit to 'patient'"):
        shard("record", late)
    assert shard("patient", late).test.patients == 1
    assert shard("record", late, columns[1:]).test.patients == 1, "without patients each record is by itself"
    assert shard("record", Split(fraction=0.5, seed="3")).patients == 41


def test_a_record_without_a_moment_may_be_of_the_future() -> None:
    moments = ["2024-01-01", None, "soon", pd.Timestamp("2023-05-01"), "2024-01-01T00:00:00+02:00"]
    assert held_out(Split(time="seen:2024-01-01"), list("abcde"), moments) == set("abc")
    dotted = ["31.12.2023", "2.1.2024 08:00", "01.02.2023", "1/2/2023", "20231231"]
    assert held_out(Split(time="seen:2024-01-01"), list("abcde"), dotted) == set("bd")
    assert held_out(Split(time="hour:24"), list("abc"), [23.9, "24", ""]) == set("bc")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"time": "2024-07-01"}, "'2024-07-01': it must be a column and a moment"),
        ({"time": "seen:soon"}, "must be a column and a moment"),
        ({"folds": 1}, "folds are 2 or more"),
        ({"folds": 3, "fold": 3}, "split.fold is 3 and split.folds 3"),
        ({"fold": 1}, "split.fold is 1 and split.folds 0"),
        ({"folds": 3, "time": "a:1"}, "are both given"),
        ({"fraction": 1.0}, "'split.fraction' has the value 1.0"),
        ({"seed": "one"}, "must be a whole number"),
        ({"fraction": 0}, "split.fraction is 0 but evaluation.metrics is 'exact'"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.build({"split": split})


def test_folds_of_simulated_hospitals_hold_out_every_record_once() -> None:
    dataset, rows = builtin()["breast-cancer"], []
    for fold in range(5):
        shards = load_shards(dataset, 4, "iid", 0, 1.0, split=Split(folds=5, fold=fold))
        rows += [shard.is_test for shard in shards]
    assert all(np.sum(rows[site::4], axis=0).tolist() == [1] * len(rows[site]) for site in range(4))


def test_another_seed_splits_otherwise_and_the_own_split_stays() -> None:
    dataset = builtin()["breast-cancer"]
    own, same, other = (
        load_shards(dataset, 2, "iid", 0, 1.0, split=split) for split in (OWN_SPLIT, Split(), Split(seed="3"))
    )
    assert [shard.digest for shard in own] == [shard.digest for shard in same]
    assert all((a.is_test != b.is_test).any() and (a.x == b.x).all() for a, b in zip(own, other, strict=True))


def test_a_run_splits_by_a_column_of_its_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"mrn": np.arange(300) // 2, "age": rng.integers(30, 90, 300)})
    table["seen"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 100, 300), unit="D")
    table["died"] = (table.age + rng.normal(0, 10, 300) > 60).astype(int)
    federation = Federation.from_tables(
        {"north": table[:150], "south": table[150:]}, label="died", patient="mrn", rounds=1, out=str(tmp_path),
        privacy={"dp": False}, split={"time": "seen:2024-03-01"},
    )  # fmt: skip
    result = federation.run(pictures=False)
    late = table[table.seen >= "2024-03-01"].mrn
    shards = result.folder.simulation("").shards
    assert [int(shard.is_test.sum()) for shard in shards.values()] == [
        late[part].nunique() for part in (late.index < 150, late.index >= 150)
    ]
    with pytest.raises(ConfigError, match="names the column 'admitted', which holds no moments"):
        federation.run(split={"time": "admitted:2024-03-01"})


def test_with_nobody_held_out_every_patient_trains(tmp_path: Path) -> None:
    result = Federation.from_dataset("breast-cancer", sites=2, rounds=1, out=str(tmp_path)).run(
        split={"fraction": 0}, evaluation={"metrics": "none"}, pictures=False
    )
    shards = result.folder.simulation("").shards.values()
    assert sum(shard.train.patients for shard in shards) == 569 and not any(shard.is_test.any() for shard in shards)
    assert result.pooled["auroc"] is None and result.privacy["epsilon"] > 0


def test_a_published_split_holds_unless_another_is_asked_for(heart_disease: None) -> None:
    dataset = builtin()["heart-disease"]
    published, other = (
        load_shards(dataset, 4, "natural", 0, 1.0, split=split) for split in (OWN_SPLIT, Split(seed="0"))
    )
    assert sum(int(shard.is_test.sum()) for shard in published) == 254
    assert any((a.is_test != b.is_test).any() for a, b in zip(published, other, strict=True))
