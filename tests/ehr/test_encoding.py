"""Encoding: exact round trips for any valid record, what each kind becomes, and no dependence on the records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from polyclinic.ehr import Column, Schema, decode, encode, feature_names, nullable_mask, standardised_mask
from polyclinic.ehr.encoding import column_values
from polyclinic.errors import DataError

PATIENT = Column(name="id", kind="categorical", role="patient_id")
LABEL = Column(name="y", kind="binary", role="label")
NAMES = st.lists(st.text("abcdefXYZ 0123", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=6, unique=True)


@st.composite
def columns_with_cells(draw: st.DrawFn) -> tuple[Column, list[object]]:
    """A feature column of any kind and six valid cells for it (for a trajectory: of one step)."""
    kind = draw(
        st.sampled_from(["continuous", "integer", "binary", "categorical", "ordinal", "code_set", "trajectory"])
    )
    nullable = kind != "code_set" and draw(st.booleans())
    cell: st.SearchStrategy[object]
    if kind in ("continuous", "integer", "trajectory"):
        low = draw(st.integers(-1000, 1000))
        high = low + draw(st.integers(1, 5000))
        # Measurements are decimal numbers with a few digits.
        tenths = st.integers(low * 1000, high * 1000).map(lambda n: n / 1000)
        cell = st.integers(low, high) if kind == "integer" else tenths
        steps = 1 if kind == "trajectory" else 0
        column = Column.model_validate(
            {"name": "f", "kind": kind, "bounds": (low, high), "nullable": nullable, "steps": steps}
        )
    elif kind == "binary":
        column, cell = Column(name="f", kind="binary", nullable=nullable), st.integers(0, 1)
    elif kind == "code_set":
        vocabulary = tuple(draw(NAMES))
        column = Column(name="f", kind="code_set", categories=vocabulary)
        chosen = st.sets(st.sampled_from(vocabulary))
        cell = chosen.map(lambda s: ";".join(code for code in vocabulary if code in s))
    else:
        values = tuple(draw(NAMES))
        drop = kind == "categorical" and not nullable and draw(st.booleans())
        column = Column.model_validate(
            {"name": "f", "kind": kind, "categories": values, "nullable": nullable, "drop_first": drop}
        )
        cell = st.sampled_from(values)
    cells = draw(st.lists(st.none() | cell if nullable else cell, min_size=6, max_size=6))
    return column, cells


@settings(max_examples=300)
@given(columns_with_cells())
def test_decode_undoes_encode_exactly(example: tuple[Column, list[object]]) -> None:
    column, cells = example
    schema = Schema(name="s", columns=(PATIENT, column, LABEL))
    (name,) = column.record_names
    encoded = encode(pd.DataFrame({name: pd.Series(cells, dtype=object)}), schema)
    assert encoded.x.shape == (6, len(feature_names(schema)))
    assert encoded.x.dtype == np.float64
    assert np.nanmax(np.abs(encoded.x), initial=0.0) <= 1.0
    decoded = decode(encoded.x, schema)[name].tolist()
    assert [None if pd.isna(cell) else cell for cell in decoded] == cells


def test_round_trip_of_a_whole_table(schema: Schema, records: pd.DataFrame) -> None:
    features = [name for column in schema.features for name in column.record_names]
    once = decode(encode(records, schema).x, schema)
    assert list(once.columns) == features
    for name in features:
        found, expected = once[name].tolist(), records[name].tolist()
        assert [None if pd.isna(c) else c for c in found] == [None if pd.isna(c) else c for c in expected]
    assert_frame_equal(decode(encode(once, schema).x, schema), once)


def test_names_and_mask_match_the_encoded_columns(schema: Schema, records: pd.DataFrame) -> None:
    names = feature_names(schema)
    assert names == (
        "age", "chol", "male", "smoker", "pain=typical", "pain=atypical", "ecg=normal", "ecg=abnormal", "stage",
        "codes=I10", "codes=E11", "codes=N18", "sbp_00", "sbp_01", "sbp_02",
    )  # fmt: skip
    numeric = {"age", "chol", "stage", "sbp_00", "sbp_01", "sbp_02"}
    assert standardised_mask(schema).tolist() == [name in numeric for name in names]
    x = encode(records, schema).x
    assert x.shape == (12, len(names))
    may_be_nan = {"chol", "smoker", "stage", "sbp_00", "sbp_01", "sbp_02"}
    assert nullable_mask(schema).tolist() == [name in may_be_nan for name in names]
    assert not np.isnan(x[:, ~nullable_mask(schema)]).any()


def test_each_kind_becomes_what_the_schema_says(schema: Schema, records: pd.DataFrame) -> None:
    x = dict(zip(feature_names(schema), encode(records, schema).x.T, strict=True))
    assert x["age"][0] == pytest.approx(2 * 30 / 120 - 1)
    assert np.isnan(x["chol"][0])
    assert x["smoker"][:2].tolist() == [0.0, 1.0] and np.isnan(x["smoker"][2])
    assert [x["pain=typical"][0], x["pain=typical"][1], x["pain=atypical"][2]] == [0.0, 1.0, 1.0]
    assert x["ecg=normal"][1] == x["ecg=abnormal"][1] == 0.0
    assert x["stage"][:3] == pytest.approx([-1.0, -1 / 3, 1.0]) and np.isnan(x["stage"][3])
    assert [x["codes=E11"][2], x["codes=N18"][2], x["codes=I10"][2]] == [1.0, 1.0, 0.0]


def test_fault_14_encoding_of_a_row_does_not_depend_on_other_rows(schema: Schema, records: pd.DataFrame) -> None:
    together = encode(records, schema).x
    apart = np.concatenate([encode(records.iloc[[row]], schema).x for row in range(len(records))])
    np.testing.assert_array_equal(together, apart)


@pytest.mark.parametrize("dtype", ["object", "string", "category"])
def test_cells_stored_as_text_encode_alike(schema: Schema, records: pd.DataFrame, dtype: str) -> None:
    text = records.map(lambda cell: None if pd.isna(cell) else str(cell)).astype(dtype)
    np.testing.assert_array_equal(encode(text, schema).x, encode(records, schema).x)


def test_booleans_and_whole_floats_are_accepted(schema: Schema, records: pd.DataFrame) -> None:
    changed = records.assign(male=records["male"] == 1, died=records["died"].astype(float))
    np.testing.assert_array_equal(encode(changed, schema).x, encode(records, schema).x)
    changed["male"] = changed["male"].map({True: "True", False: "false"})
    np.testing.assert_array_equal(encode(changed, schema).x, encode(records, schema).x)


def test_label_may_be_absent(schema: Schema, records: pd.DataFrame) -> None:
    assert encode(records.drop(columns="died"), schema).y is None
    y = encode(records, schema).y
    assert y is not None and y.dtype == np.int64 and y.tolist() == records["died"].tolist()


def test_decode_of_any_tensor_gives_valid_records(schema: Schema) -> None:
    wild = np.random.default_rng(0).normal(0.0, 3.0, (50, len(feature_names(schema))))
    decoded = decode(wild, schema)
    assert_frame_equal(decode(encode(decoded, schema).x, schema), decoded)


def test_a_columns_values_are_its_cells_as_numbers(schema: Schema, records: pd.DataFrame) -> None:
    x, decoded = encode(records, schema).x, decode(encode(records, schema).x, schema)
    for column in schema.features:
        if column.kind in ("code_set", "trajectory"):
            with pytest.raises(DataError, match="one cell in a row"):
                column_values(x, schema, column.name)
            continue
        cells = decoded[column.name]
        if column.categories:
            cells = cells.map({category: number for number, category in enumerate(column.categories)})
        np.testing.assert_array_equal(column_values(x, schema, column.name), cells.astype(float))


def test_decode_refuses_a_wrong_width(schema: Schema) -> None:
    with pytest.raises(DataError, match="needs \\(rows, 15\\)"):
        decode(np.zeros((2, 3)), schema)


WEIRD = st.one_of(
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.binary(max_size=4),
    st.booleans(),
    st.dates(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["9" * 400, 10**400, "1e999", "-inf", "0x10", "1_0", "\u0661\u0662", "nan", "True", 1j, object()]),
)


@settings(max_examples=300)
@given(st.sampled_from(["age", "chol", "male", "smoker", "pain", "stage", "codes", "sbp_01"]), WEIRD, st.booleans())
def test_any_cell_is_encoded_within_bounds_or_refused_in_one_sentence(column: str, cell: object, alone: bool) -> None:
    schema, records = _clinic()
    cells = pd.Series([cell] if alone else [cell, records[column].iloc[1]], dtype=object)
    table = records.iloc[: len(cells)].reset_index(drop=True).assign(**{column: cells})
    try:
        x = encode(table, schema).x
    except DataError as error:
        assert f"column {column!r}, data row 1:" in str(error)
        assert error.__cause__ is None
    else:
        assert np.nanmax(np.abs(x)) <= 1.0


def _clinic() -> tuple[Schema, pd.DataFrame]:
    columns = (
        Column(name="age", kind="integer", bounds=(0, 240), nullable=True),
        Column(name="chol", kind="continuous", bounds=(0, 240), nullable=True),
        Column(name="sbp", kind="trajectory", steps=2, bounds=(0, 240), nullable=True),
        Column(name="pain", kind="categorical", categories=("a", "b"), nullable=True),
        Column(name="stage", kind="ordinal", categories=("a", "b"), nullable=True),
        Column(name="codes", kind="code_set", categories=("a", "b")),
        Column(name="male", kind="binary"),
        Column(name="smoker", kind="binary", categories=("no", "yes"), nullable=True),
    )
    table = {"age": 40, "chol": 1.5, "sbp_00": 120.0, "sbp_01": 90.0, "pain": "a", "stage": "b", "codes": "a;b"}
    records = pd.DataFrame([table | {"male": 1, "smoker": "yes"}] * 2)
    return Schema(name="clinic", columns=(PATIENT, *columns, LABEL)), records
