"""Events to one row a patient: every way to take, windows, units, artefacts, texts, and errors without a value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.dates import read_dates
from polyclinic.ehr.events import Measure, one_row_each, steps
from polyclinic.errors import DataError

PATIENTS = pd.DataFrame({"patient": ["a", "b", "c"], "index": pd.to_datetime(["2020-01-02"] * 3)})
EVENTS = pd.DataFrame(
    {
        "patient": ["a", "a", "a", "b", "b", "x"],
        "time": pd.to_datetime(
            ["2020-01-02T05", "2020-01-02T01", "2020-01-01T23", "2020-01-02T03", None, "2020-01-02T00"]
        ),
        "code": ["hr", "hr", "sbp", "hr", "hr", "hr"],
        "value": ["80", "60", "120", "90", "70", "1"],
        "unit": ["bpm", "bpm", "kPa", "bpm", "bps", "bpm"],
    }
)


def taken(**fields: object) -> list[object]:
    found = one_row_each(PATIENTS, EVENTS, [Measure("m", **fields)])["m"]  # type: ignore[arg-type]
    return [None if pd.isna(value) else value for value in found.tolist()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"codes": ("hr",), "take": "first"}, ["60", "90", None]),
        ({"codes": ("hr",), "take": "last"}, ["80", "90", None]),
        ({"codes": ("hr",), "take": "last", "position": 1}, ["60", "70", None]),
        ({"codes": ("h*",), "take": "mean"}, [70.0, 80.0, None]),
        ({"codes": ("hr",), "take": "max"}, [80.0, 90.0, None]),
        ({"take": "min"}, [60.0, 70.0, None]),
        ({"take": "sum", "codes": ("hr",)}, [140.0, 160.0, None]),
        ({"take": "count"}, [3, 2, 0]),
        ({"take": "any", "codes": ("sbp",)}, [1, 0, 0]),
        ({"take": "any", "codes": ("s*", "none")}, [1, 0, 0]),
        ({"take": "codes"}, ["hr;sbp", "hr", ""]),
        ({"take": "codes", "characters": 1}, ["h;s", "h", ""]),
        ({"take": "count", "start": 0.0, "end": 5.0}, [1, 1, 0]),
        ({"take": "count", "start": -2.0}, [3, 1, 0]),
        ({"codes": ("sbp",), "units": {"kPa": (7.5, 0.0)}}, [900.0, None, None]),
        ({"codes": ("hr",), "units": {"bpm": (1.0, 0.0), "bps": (60.0, 1.0)}, "take": "max"}, [80.0, 4201.0, None]),
        ({"codes": ("hr",), "within": (75, 85), "take": "mean"}, [80.0, None, None]),
        ({"codes": ("sbp",), "default": "0"}, ["120", "0", "0"]),
        ({"codes": ("sbp",), "values": {"120": "high"}}, ["high", None, None]),
    ],
)
def test_each_way_to_take(fields: dict[str, object], expected: list[object]) -> None:
    assert taken(**fields) == expected


def test_limits_of_measurement_are_read_as_the_limit() -> None:
    events = EVENTS.assign(value=[f"<{cell}" for cell in EVENTS["value"]])
    plain, limited = (
        one_row_each(PATIENTS, some, [Measure("m", "max", ("hr",), limits=True)]) for some in (EVENTS, events)
    )
    assert limited.equals(plain)
    with pytest.raises(DataError, match="not a finite number"):
        one_row_each(PATIENTS, events, [Measure("m", "max", ("hr",))])


def test_steps_are_windows_or_the_events_in_order() -> None:
    hourly = one_row_each(PATIENTS, EVENTS, steps(Measure("hr", codes=("hr",)), 3, 2.0))
    assert hourly.columns.tolist() == ["hr_00", "hr_01", "hr_02"]
    assert hourly.iloc[0].tolist()[::2] == ["60", "80"] and hourly.iloc[0].isna().tolist() == [False, True, False]
    ordered = one_row_each(PATIENTS, EVENTS, steps(Measure("hr", codes=("hr",)), 2, 0.0))
    assert ordered.iloc[0].tolist() == ["60", "80"] and ordered.iloc[1].tolist() == ["90", "70"]


def test_hours_do_for_dates_and_an_event_of_two_codes_counts_once() -> None:
    patients = PATIENTS.assign(index=0.0)
    events = EVENTS.assign(time=[5.0, 1.0, -1.0, 3.0, None, 0.0], event=[1, 1, 2, 3, 4, 5])
    found = one_row_each(patients, events, [Measure("n", "count"), Measure("w", "count", start=0.0)])
    assert found["n"].tolist() == [2, 2, 0] and found["w"].tolist() == [1, 1, 0]


def test_whole_years_from_a_date_to_the_index() -> None:
    born = pd.DataFrame({"patient": ["a", "b"], "value": ["1950-01-03", "1950"]})
    assert one_row_each(PATIENTS, born, [Measure("age", "years")])["age"].tolist()[:2] == [69.0, 70.0]
    with pytest.raises(DataError, match="'years' needs an index that is a date"):
        one_row_each(PATIENTS[["patient"]], born, [Measure("age", "years")])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"take": "mean"}, "a value is not a finite number"),
        ({"within": (0, 1)}, "a value is not a finite number"),
        ({"codes": ("sbp",), "units": {"mmHg": (1.0, 0.0)}}, "a unit that 'units' does not list"),
    ],
)
def test_what_cannot_be_read_is_refused_without_the_value(fields: dict[str, object], sentence: str) -> None:
    events = EVENTS.assign(value=["canary", *EVENTS["value"][1:]])
    with pytest.raises(DataError, match=sentence) as caught:
        one_row_each(PATIENTS, events, [Measure("m", **fields)], "lab")  # type: ignore[arg-type]
    assert str(caught.value).startswith("lab: column 'm': ")
    assert "canary" not in str(caught.value) and "kPa" not in str(caught.value)


def test_dates_are_read_in_utc_and_others_refused() -> None:
    read = read_dates(pd.Series(["2020-01-01T10:00:00+02:00", "2020", "", None], dtype=object), "t")
    assert read.tolist()[:2] == [pd.Timestamp("2020-01-01 08:00"), pd.Timestamp("2020-01-01")]
    assert read.isna().tolist() == [False, False, True, True]
    with pytest.raises(DataError, match="t: a cell is not a date") as caught:
        read_dates(pd.Series(["canary"]), "t")
    assert "canary" not in str(caught.value)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-5, 30), st.floats(-9, 9), st.sampled_from("uv"))))
def test_the_order_of_events_and_patients_without_any_change_nothing(rows: list[tuple[str, int, float, str]]) -> None:
    columns = ("patient", "time", "value", "code")
    events = pd.DataFrame(rows, columns=columns).astype({"time": float, "value": float})
    events["time"] += np.arange(len(events)) / 1000  # no two at once
    patients = pd.DataFrame({"patient": list("abc"), "index": 0.0})
    wanted = [
        Measure("f"),
        Measure("n", "count", ("u",)),
        Measure("m", "max", start=0.0, end=24.0),
        Measure("c", "codes"),
    ]
    found = one_row_each(patients, events, wanted)
    shuffled = events.sample(frac=1.0, random_state=np.random.default_rng(len(rows)))
    pd.testing.assert_frame_equal(found, one_row_each(patients, shuffled, wanted), check_dtype=False)
    for number, patient in enumerate("abc"):
        own = events[events["patient"] == patient]
        assert found["n"][number] == (own["code"] == "u").sum()
        if len(own):
            assert found["f"][number] == own.sort_values("time")["value"].iloc[0]
