"""Surveys: right on made-up records, bounded per patient by brute force, thresholds by their law, refused before any record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.ehr import running
from polyclinic.ehr.encoding import feature_names, public_standardiser
from polyclinic.ehr.prepared import NUMERIC
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Shard, build_shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream
from polyclinic.releases.question import Pricing
from polyclinic.releases.survey import Plan, Survey, totals, value_counts
from polyclinic.training.preparation import standardise

SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 120]},
            {"name": "sbp", "kind": "trajectory", "steps": 2, "bounds": [60, 260], "nullable": True},
            {"name": "pain", "kind": "categorical", "categories": ["none", "mild", "bad"], "nullable": True},
            {"name": "male", "kind": "binary"},
            {"name": "codes", "kind": "code_set", "categories": ["a", "b", "c", "d"]},
            {"name": "ward", "kind": "categorical", "categories": ["other"], "other": "other", "nullable": True},
            {"name": "drugs", "kind": "code_set", "categories": ["other"], "other": "other"},
            {"name": "died", "kind": "binary", "role": "label"},
        ],
    }
)
CLOSED = tuple(column for column in SCHEMA.features if not column.is_open)
ALL = tuple(column.name for column in SCHEMA.features)


def records(patients: int, seed: int = 0, rows: int = 2) -> pd.DataFrame:
    """Several rows a patient, some cells missing."""
    rng = np.random.default_rng(seed)
    size = patients * rows

    def some(values: list[str], most: int) -> list[str]:
        return [";".join(rng.choice(values, rng.integers(0, most + 1), replace=False)) for _ in range(size)]

    return pd.DataFrame({
        "id": np.repeat(np.arange(patients), rows), "age": rng.integers(20, 90, size),
        "sbp_00": np.where(rng.random(size) < 0.3, np.nan, rng.integers(100, 180, size)), "sbp_01": 130.0,
        "pain": rng.choice(["none", "mild", "bad", ""], size), "male": rng.integers(0, 2, size),
        "codes": some(["a", "b", "c", "d"], 4), "ward": rng.choice(["north", "south", ""], size),
        "drugs": some([f"drug {n}" for n in range(6)], 6), "died": np.repeat(rng.integers(0, 2, patients), rows),
    })  # fmt: skip


def shard_of(frame: pd.DataFrame, held_out: int = 1) -> Shard:
    """All patients train but the first ``held_out``, and a few more with the other label so that both are there."""
    split = frame["id"].to_numpy() < held_out
    return build_shard(frame, SCHEMA, "here", split=split, allow_small=True)


def plan(survey: Survey, delta: float, relation: Any = "add-remove") -> Plan:
    return survey.plan(SCHEMA, Pricing(delta, "pld", relation))


def answer(planned: Plan, shard: Shard, stream: Stream) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Each column's counts, and the names that are told."""
    found = planned.survey.answer(planned, shard, stream)
    return np.split(found.arrays["patients"], np.cumsum(found.arrays["cells"])[:-1]), found.names


def test_exact_counts_are_those_of_the_training_patients() -> None:
    frame = records(40, rows=1)
    shard, survey = shard_of(frame, 10), Survey(ALL, None, bins=500, codes=100)
    found = dict(zip(ALL, answer(plan(survey, 1e-3), shard, system_stream())[0], strict=True))
    train = frame[frame["id"] >= 10]
    assert found["age"][:121].tolist() == np.bincount(train["age"], minlength=121).tolist()
    assert found["pain"].tolist() == [sum(train["pain"] == name) for name in ("none", "mild", "bad", "")]
    assert found["male"].tolist() == [sum(train["male"] == number) for number in (0, 1)]
    assert found["codes"] == pytest.approx([sum(code in cell for cell in train["codes"]) for code in "abcd"])
    # Each of two steps is half of a patient; 130 is in one cell.
    assert found["sbp"].sum() == pytest.approx(30) and found["sbp"][-1] == pytest.approx(
        train["sbp_00"].isna().sum() / 2
    )


def test_values_that_only_the_hospital_knows_are_found_by_name() -> None:
    frame = records(60, rows=1)
    shard = shard_of(frame, 10)
    (wards, drugs), names = answer(plan(Survey(("ward", "drugs"), None, codes=100), 1e-3), shard, system_stream())
    train = frame[frame["id"] >= 10]
    assert names[:2] == ("north", "south")
    assert wards.tolist() == [sum(train["ward"] == name) for name in ("north", "south")]
    assert dict(zip(names[2:], drugs, strict=True)) == pytest.approx(
        {f"drug {n}": sum(f"drug {n}" in cell for cell in train["drugs"]) for n in range(6)}
    )


def noised(survey: Survey, column: Column, shard: Shard, seed: int) -> np.ndarray:
    """What noise of deviation ``noise_multiplier * FINE`` is added to."""
    total = totals(survey, column, shard, keyed_stream(seed))
    return (running.mix(total) if column.kind in NUMERIC else total).astype(float)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([1, 2, 3, 7]))
def test_a_patient_moves_a_column_by_at_most_one_whole_in_l2(seed: int, rows: int, codes: int) -> None:
    frame = records(6, seed, rows)
    survey = Survey(ALL, 1.0, bins=9, codes=codes)
    for column in CLOSED:
        # A patient's choice of codes is their own draw: with one patient there, it is the whole sum.
        alone = shard_of(frame[frame["id"] < 2])
        assert np.linalg.norm(noised(survey, column, alone, seed)) <= FINE
        if column.kind != "code_set":
            both, one = (noised(survey, column, shard_of(frame[frame["id"] < n]), seed) for n in (6, 5))
            assert np.linalg.norm(both - one) <= FINE
    for column in (column for column in SCHEMA.features if column.is_open):
        counts = value_counts(survey, column, shard_of(frame[frame["id"] < 2]), keyed_stream(seed))
        assert sum(counts.values()) <= survey.most(column) and set(counts.values()) <= {1}


def test_repeating_a_patients_rows_changes_no_count() -> None:
    frame = records(20)
    twice = pd.concat([frame, frame[frame["id"] == 7]], ignore_index=True)
    survey = Survey(ALL, 1.0, codes=100)
    for column in CLOSED:
        one, other = (totals(survey, column, shard_of(part), keyed_stream(1)) for part in (frame, twice))
        assert np.allclose(one, other, atol=100)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("columns", [("age", "pain"), ALL])
def test_a_survey_costs_what_was_asked_and_not_more(columns: tuple[str, ...], relation: str) -> None:
    planned = plan(Survey(columns, 0.7), 1e-4, relation)
    assert 0.69 < epsilon(planned.event, 1e-4, "pld", relation) <= 0.7  # type: ignore[arg-type]
    assert planned.noise_multiplier is not None and planned.policy_noise == pytest.approx(
        planned.noise_multiplier / math.sqrt(len(columns))
    )


def test_noise_is_what_the_event_says() -> None:
    shard, planned = shard_of(records(40)), plan(Survey(("codes",), 0.5, codes=4), 1e-3)
    drawn = np.concatenate([answer(planned, shard, keyed_stream(0, seed))[0][0] for seed in range(400)])
    spread = (drawn.reshape(400, 4) - drawn.reshape(400, 4).mean(axis=0)).std()
    column = planned.columns[0]
    assert planned.error(column) == pytest.approx(2 * (planned.noise_multiplier or 0), rel=1e-6)
    assert spread == pytest.approx(planned.error(column), rel=0.1)


def test_noise_of_a_numeric_column_is_what_the_event_says() -> None:
    shard, planned = shard_of(records(40)), plan(Survey(("age",), 1.0, bins=20), 1e-3)
    exact = answer(plan(Survey(("age",), None, bins=20), 1e-3), shard, system_stream())[0][0]
    drawn = np.array([answer(planned, shard, keyed_stream(0, seed))[0][0] for seed in range(300)]) - exact
    below = np.tri(20)
    assert np.std(drawn @ below.T, axis=0) == pytest.approx(
        running.errors(below, planned.error(planned.columns[0])), rel=0.2
    )


def test_a_value_of_one_patient_alone_is_told_as_rarely_as_was_paid_for() -> None:
    """The threshold's law: each of ``most`` values stays below it but with the declared probability, here a large one."""
    planned = Plan(Survey(("drugs",), 1.0, codes=3), (SCHEMA.features[-1],), 2.0, 0.2)
    column = planned.columns[0]
    above = stats.norm.sf((planned.threshold(column) - 1) / planned.error(column))
    assert 1 - (1 - above) ** 3 == pytest.approx(0.2, rel=1e-6)
    frame = records(3, rows=1)
    frame["drugs"] = ["", "", "x;y;z"]
    frame["died"] = [0, 1, 0]
    told = [bool(answer(planned, shard_of(frame), keyed_stream(0, seed))[1]) for seed in range(500)]
    assert np.mean(told) == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 500))


def test_thresholds_are_charged_and_shared_between_open_columns() -> None:
    one, both = (plan(Survey(columns, 1.0), 1e-3) for columns in (("ward",), ("ward", "drugs")))
    assert one.threshold_delta == 2 * both.threshold_delta == pytest.approx(1e-5)
    # At a delta that the thresholds alone exceed there is no epsilon.
    assert [math.isinf(epsilon(one.event, delta, "rdp")) for delta in (9e-6, 2e-5)] == [True, False]


def test_common_values_pass_and_rare_ones_do_not() -> None:
    frame = records(400, rows=1)
    frame["ward"] = ["north"] * 397 + ["Mrs Smith", "south", "south"]
    (wards,), names = answer(plan(Survey(("ward",), 2.0), 1e-4), shard_of(frame), system_stream())
    assert names == ("north",) and wards[0] == pytest.approx(396, abs=30)


def test_centres_and_spreads_of_a_schema_standardise_for_nothing() -> None:
    schema = Schema.from_dict({**SCHEMA.as_dict(), "columns": [
        c | ({"centre": 60.0, "spread": 15.0} if c["name"] == "age" else {"centre": 130.0, "spread": 20.0} if c["name"] == "sbp"
             else {}) for c in SCHEMA.as_dict()["columns"]
    ]})  # fmt: skip
    rng = np.random.default_rng(0)
    frame = records(500).assign(
        age=np.clip(rng.normal(60, 15, 1000), 0, 120).round(), sbp_01=rng.normal(130, 20, 1000).clip(60, 260)
    )
    shard = build_shard(frame, schema, "here", allow_small=True)
    x = standardise(shard.train, public_standardiser(schema)).x
    for name in ("age", "sbp_01"):
        column = x[:, feature_names(schema).index(name)]
        assert column.mean() == pytest.approx(0, abs=0.1) and column.std() == pytest.approx(1, rel=0.1)
    plain = standardise(shard.train, public_standardiser(SCHEMA)).x
    assert np.array_equal(x[:, 3:], plain[:, 3:], equal_nan=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": ("agee",)}, "no feature column 'agee'"),
        ({"columns": ()}, "at least one"),
        ({"bins": 1}, "bins must lie"),
        ({"codes": 0}, "codes must lie"),
        ({"epsilon": 1e-6}, "epsilon must lie"),
    ],
)
def test_wrong_surveys_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(replace(Survey(ALL, 1.0), **change), 1e-3)  # type: ignore[arg-type]
