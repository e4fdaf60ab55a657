"""A record becomes a row of numbers and comes back; what the schema cannot generate is refused."""

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.synthesis.layout import Layout

SCHEMA = Schema(
    name="ward",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(0.0, 100.0), centre=60.0, spread=15.0),
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="male", kind="binary", nullable=True),
        Column(name="ward", kind="categorical", categories=("icu", "med", "surg")),
        Column(name="codes", kind="code_set", categories=("250", "401", "428")),
        Column(name="sbp", kind="trajectory", steps=3, bounds=(60.0, 240.0)),
        Column(name="stage", kind="ordinal", categories=("I", "II", "III")),
        Column(name="died", kind="categorical", role="label", categories=("no", "yes", "unknown")),
    ),
)
RECORDS = pd.DataFrame(
    {
        "age": [40, 61], "lactate": [1.5, None], "male": [1, None], "ward": ["med", "icu"], "codes": ["250;428", ""],
        "sbp_00": [120.0, 90.5], "sbp_01": [121.0, 240.0], "sbp_02": [122.0, 60.0], "stage": ["II", "III"],
        "died": ["unknown", "no"],
    }
)  # fmt: skip


def test_records_come_back() -> None:
    layout = Layout.of(SCHEMA)
    encoded = encode(RECORDS, SCHEMA)
    assert encoded.y is not None
    z = layout.rows(encoded.x, encoded.y)
    assert z.shape == (2, layout.width) == (2, len(layout.names))
    assert np.isfinite(z).all()
    found = layout.decode(z)
    pd.testing.assert_frame_equal(found[RECORDS.columns], RECORDS, check_dtype=False)
    x, y = layout.features_and_labels(z)
    np.testing.assert_allclose(x, encoded.x, atol=1e-12)
    np.testing.assert_array_equal(y, encoded.y)


def test_numbers_are_scaled_by_what_the_schema_says() -> None:
    layout = Layout.of(SCHEMA)
    z = layout.rows(*(part if part is not None else np.zeros(0) for part in _encoded()))  # type: ignore[arg-type]
    np.testing.assert_allclose(z[:, 0], [(40 - 60) / 15, (61 - 60) / 15])
    low, high = layout.bounds
    assert ((z >= low - 1e-9) & (z <= high + 1e-9)).all()
    assert layout.groups[-1] == layout.label
    assert [layout.names[at] for at in range(*layout.trajectories[0].indices(99))] == ["sbp_00", "sbp_01", "sbp_02"]


def test_any_row_of_numbers_decodes_to_a_record_that_the_schema_allows() -> None:
    layout = Layout.of(SCHEMA)
    z = np.random.default_rng(0).normal(0, 5, (200, layout.width))
    found = layout.decode(z)
    assert encode(found, SCHEMA).y is not None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_row_is_refused(value: float) -> None:
    layout = Layout.of(SCHEMA)
    with pytest.raises(DataError, match="diverged"):
        layout.decode(np.full((1, layout.width), value))
    with pytest.raises(DataError, match="shape"):
        layout.decode(np.zeros((1, 3)))


def test_an_open_vocabulary_is_refused() -> None:
    open_column = Column(name="word", kind="categorical", categories=("other",), other="other")
    with pytest.raises(ConfigError, match="'word' has an open vocabulary"):
        Layout.of(SCHEMA.model_copy(update={"columns": (open_column, *SCHEMA.columns)}))


def _encoded() -> tuple[object, object]:
    found = encode(RECORDS, SCHEMA)
    return found.x, found.y
