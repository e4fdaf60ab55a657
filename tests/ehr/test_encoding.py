"""Encoding: exact round trips for any valid record, what each kind becomes, and no dependence on the records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from polyclinic.ehr import Column, Schema, decode, encode, feature_names, standardised_mask
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
        column = Column(name="f", kind=kind, bounds=(low, high), nullable=nullable, steps=steps)  # type: ignore[arg-type]
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
        column = Column(name="f", kind=kind, categories=values, nullable=nullable, drop_first=drop)  # type: ignore[arg-type]
        cell = st.sampled_from(values)
    cells = draw(st.lists(st.none() | cell if nullable else cell, min_size=6, max_size=6))
    return column, cells


@settings(deadline=None, max_examples=300)
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
    assert encode(records, schema).x.shape == (12, len(names))


def test_each_kind_becomes_what_the_schema_says(schema: Schema, records: pd.DataFrame) -> None:
    x = dict(zip(feature_names(schema), encode(records, schema).x.T, strict=True))
    assert x["age"][0] == pytest.approx(2 * 30 / 120 - 1)
    assert np.isnan(x["chol"][0])
    assert x["smoker"][:2].tolist() == [0.0, 1.0] and np.isnan(x["smoker"][2])
    assert [x["pain=typical"][0], x["pain=typical"][1], x["pain=atypical"][2]] == [0.0, 1.0, 1.0]
    assert x["ecg=normal"][1] == x["ecg=abnormal"][1] == 0.0
    assert x["stage"][:3] == pytest.approx([-1.0, -1 / 3, 1.0]) and np.isnan(x["stage"][3])
    assert [x["codes=E11"][2], x["codes=N18"][2], x["codes=I10"][2]] == [1.0, 1.0, 0.0]


def test_encoding_of_a_row_does_not_depend_on_other_rows(schema: Schema, records: pd.DataFrame) -> None:
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


def test_decode_refuses_a_wrong_width(schema: Schema) -> None:
    with pytest.raises(DataError, match="needs \\(rows, 15\\)"):
        decode(np.zeros((2, 3)), schema)
