"""Shards: every sentence about bad input (never with the cell in it), the split by patient, and its stability."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.ehr import Schema, build_shard
from polyclinic.ehr.shard import Shard
from polyclinic.ehr.split import is_test_patient
from polyclinic.errors import ConfigError, DataError

GOLDEN = "000001001000011110000011"
SPLIT = np.array([False] * 9 + [True] * 3)


def _with_cell(records: pd.DataFrame, column: str, row: int, cell: Any) -> pd.DataFrame:
    changed = records.copy()
    changed[column] = changed[column].astype(object)
    changed.loc[row, column] = cell
    return changed


@pytest.mark.parametrize(
    ("column", "cell", "sentence"),
    [
        ("age", "seventy-seven", "not a number"),
        ("age", ["list-cell"], "not a number"),
        ("age", pd.Timestamp("1987-06-05"), "not a number"),
        ("age", 131, "outside the public bounds 0 to 120 years"),
        ("age", -17, "outside the public bounds"),
        ("age", 61.75, "not a whole number"),
        ("age", None, "not nullable"),
        ("age", float("inf"), "infinite"),
        ("chol", float("-inf"), "infinite"),
        ("chol", "-Infinity", "infinite"),
        ("chol", 98765.4, "outside the public bounds 0 to 700 mg/dl"),
        ("chol", "7e3", "outside the public bounds"),
        ("male", 77, "must be 0 or 1"),
        ("male", "femme", "not a number"),
        ("male", None, "not nullable"),
        ("smoker", "formerly", "the schema allows no, yes"),
        ("pain", "throbbing", "category is unknown; the schema allows none, typical, atypical"),
        ("pain", "", "not nullable"),
        ("stage", "VIII", "category is unknown"),
        ("codes", "I10;Z99", "not in the schema's vocabulary"),
        ("sbp_01", 333, "outside the public bounds 60 to 240 mmHg"),
        ("died", None, "label is missing"),
        ("died", 42, "must be 0 or 1"),
        ("id", None, "identifier is missing"),
        ("id", "  ", "identifier is missing"),
    ],
)
def test_bad_cell_is_named_by_place_and_never_quoted(
    schema: Schema, records: pd.DataFrame, column: str, cell: Any, sentence: str
) -> None:
    changed = records.copy()
    changed[column] = changed[column].astype(object)
    changed.at[4, column] = cell
    with pytest.raises(DataError) as caught:
        build_shard(changed, schema, "north", source="north.csv")
    message = str(caught.value)
    assert sentence in message
    assert message.startswith(f"north.csv: column {column!r}, data row 5:")
    assert message.endswith(".") and "\n" not in message
    if cell not in (None, "", "  "):
        for part in set(str(cell).split(";")) - {"I10"}:
            assert (
                re.search(rf"(?<!\w){re.escape(part)}(?!\w)", message.removeprefix(f"north.csv: column {column!r}"))
                is None
            )
    assert caught.value.__cause__ is None


def test_message_does_not_depend_on_the_cell(schema: Schema, records: pd.DataFrame) -> None:
    messages = set()
    for cell in (121, 999, 12345678):
        with pytest.raises(DataError) as caught:
            build_shard(_with_cell(records, "age", 2, cell), schema, "north")
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize("column", ["age", "sbp_01", "died", "id"])
def test_missing_column_is_named(schema: Schema, records: pd.DataFrame, column: str) -> None:
    with pytest.raises(DataError, match=f"north: column '{column}' is missing; the header"):
        build_shard(records.drop(columns=column), schema, "north")


def test_repeated_column_is_named(schema: Schema, records: pd.DataFrame) -> None:
    twice = pd.concat([records, records[["age"]]], axis=1)
    with pytest.raises(DataError, match="column 'age' appears more than once"):
        build_shard(twice, schema, "north")


def test_headerless_file_does_not_leak_its_first_row(schema: Schema, records: pd.DataFrame) -> None:
    headerless = records.set_axis([f"secret{i}" for i in range(records.shape[1])], axis=1)
    with pytest.raises(DataError) as caught:
        build_shard(headerless, schema, "north")
    assert "secret" not in str(caught.value)


def test_empty_shard_is_refused(schema: Schema, records: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="there are no records"):
        build_shard(records.iloc[:0], schema, "north")


def test_a_side_without_rows_is_refused(schema: Schema, records: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="no rows in test"):
        build_shard(records, schema, "north", split=np.zeros(12, dtype=bool))
    with pytest.raises(DataError, match="no rows in train"):
        build_shard(records, schema, "north", split=np.ones(12, dtype=bool))


def test_one_class_in_train_is_refused_unless_allowed(schema: Schema, records: pd.DataFrame) -> None:
    single = records.assign(died=[0] * 9 + [1] * 3)
    with pytest.raises(DataError, match="same label"):
        build_shard(single, schema, "north", split=SPLIT)
    assert build_shard(single, schema, "north", split=SPLIT, allow_small=True).test.y.tolist() == [1, 1, 1]


def test_patient_on_both_sides_is_refused(schema: Schema, records: pd.DataFrame) -> None:
    twice = records.assign(id=["p0", *records["id"][1:-1], "p0"])
    with pytest.raises(DataError, match="data row 1: this patient has rows both in train and in test") as caught:
        build_shard(twice, schema, "north", split=SPLIT)
    assert "p0" not in str(caught.value)


def test_split_of_wrong_length_is_refused(schema: Schema, records: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="one entry for each row"):
        build_shard(records, schema, "north", split=SPLIT[:5])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_test_fraction_must_lie_inside(schema: Schema, records: pd.DataFrame, fraction: float) -> None:
    with pytest.raises(ConfigError, match="test_fraction"):
        build_shard(records, schema, "north", test_fraction=fraction)


def _many(records: pd.DataFrame, copies: int) -> pd.DataFrame:
    tables = [records.assign(id=[f"p{copy}-{row}" for row in range(12)]) for copy in range(copies)]
    return pd.concat(tables, ignore_index=True)


def test_split_holds_when_rows_are_added_or_reordered(schema: Schema, records: pd.DataFrame) -> None:
    few, many = _many(records, 3), _many(records, 8)
    reordered = many.sample(frac=1.0, random_state=1).reset_index(drop=True)
    sides = []
    for table in (few, many, reordered):
        shard = build_shard(table, schema, "north")
        sides.append(dict(zip(table["id"], shard.is_test[shard.patient].tolist(), strict=True)))
    assert sides[1] == sides[2]
    assert all(sides[1][patient] == side for patient, side in sides[0].items())


def test_rows_of_a_patient_stay_together(schema: Schema, records: pd.DataFrame) -> None:
    table = pd.concat([_many(records, 5), _many(records, 5).iloc[:30]], ignore_index=True)
    shard = build_shard(table, schema, "north")
    assert shard.patients == 60
    assert shard.patient.dtype == np.int64 and shard.patient[60:].tolist() == list(range(30))
    train, test = shard.train, shard.test
    assert train.patients + test.patients == 60
    assert len(train.y) + len(test.y) == 90
    for rows in (train, test):
        assert np.unique(rows.patient).tolist() == list(range(rows.patients))
        assert len(rows.x) == len(rows.y) == len(rows.patient)
    np.testing.assert_array_equal(train.x, shard.x[~shard.is_test[shard.patient]])


def test_patient_ids_read_alike_as_numbers_and_text(schema: Schema, records: pd.DataFrame) -> None:
    table = pd.concat([records] * 4, ignore_index=True)
    shards = [
        build_shard(table.assign(id=pd.Series(range(48)).astype(dtype)), schema, "north")
        for dtype in ("int64", "float64", "str", "Int64")
    ]
    for shard in shards[1:]:
        np.testing.assert_array_equal(shard.is_test, shards[0].is_test)


def test_record_unit_counts_rows_but_splits_by_patient(schema: Schema, records: pd.DataFrame) -> None:
    per_record = Schema(name="r", columns=schema.columns, unit="record")
    table = pd.concat([_many(records, 4)] * 2, ignore_index=True)
    shard = build_shard(table, per_record, "north")
    assert shard.patients == 96
    np.testing.assert_array_equal(shard.is_test[:48], shard.is_test[48:])


def test_record_unit_without_ids_splits_by_row_number(schema: Schema, records: pd.DataFrame) -> None:
    columns = tuple(column for column in schema.columns if column.role != "patient_id")
    shard = build_shard(_many(records, 4), Schema(name="r", columns=columns, unit="record"), "north")
    assert shard.patients == 48 and 0 < shard.is_test.sum() < 48


@given(st.text(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_larger_fraction_only_adds_test_patients(patient: str, a: float, b: float) -> None:
    assert is_test_patient(patient, max(a, b)) or not is_test_patient(patient, min(a, b))


def test_the_split_has_its_fraction_and_never_changes() -> None:
    sides = [is_test_patient(str(patient), 0.25) for patient in range(20_000)]
    assert abs(np.mean(sides) - 0.25) < 0.01
    assert "".join("01"[side] for side in sides[:24]) == GOLDEN
    assert [is_test_patient(str(p), 0.25, salt="other") for p in range(24)] != sides[:24]


def test_contents_are_the_same_in_any_order_and_differ_where_a_patient_does(schema: Schema) -> None:
    """Of patients with several rows: rows in another order, a row that goes to another patient, a side, a cell, a code."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(6), 3)
    x, y, is_test = rng.normal(size=(18, 4)), rng.integers(0, 2, 18), np.arange(6) % 3 == 0
    x[5, 2] = np.nan
    codes = np.array([f"code {number % 4}" for number in range(18)], dtype=object)

    def contents(order: np.ndarray, **changed: np.ndarray) -> str:
        first = list(dict.fromkeys(patient[order]))  # patients are numbered by first appearance
        numbers = np.array([first.index(number) for number in patient[order]])
        parts = {"x": x[order], "y": y[order], "patient": numbers, "is_test": is_test[first], "codes": codes[order]}
        parts |= changed
        return Shard("site", schema, cells={"codes": parts.pop("codes")}, **parts).contents

    same = np.arange(18)
    assert {contents(rng.permutation(18)) for _ in range(5)} == {contents(same)}
    other_cell, other_patient = x.copy(), patient.copy()
    other_cell[0, 0] += 1e-9
    other_patient[3] = 0
    changes = {"x": other_cell, "patient": other_patient, "is_test": ~is_test, "y": 1 - y, "codes": codes[::-1]}
    assert len({contents(same), *(contents(same, **{name: value}) for name, value in changes.items())}) == 6
