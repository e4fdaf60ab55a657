"""Descriptions: exact numbers are those of pandas, intervals hold what they should, small counts are not shown."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr import running
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard, build_shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import keyed_stream
from polyclinic.releases import description
from polyclinic.releases.description import Cells, Description, add_cells, count, standardised_difference
from polyclinic.releases.kinds import question_as_key, question_of_key, read_question, write_question
from polyclinic.releases.question import Conclusion, HospitalAnswer, Pricing
from polyclinic.releases.statistics import patient_values

SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
            {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "nullable": True},
            {"name": "grade", "kind": "categorical", "categories": ["I", "II", "III", "rare"], "nullable": True},
            {"name": "arm", "kind": "categorical", "categories": ["drug", "placebo"], "nullable": True},
            {"name": "codes", "kind": "code_set", "categories": ["a", "b"]},
            {"name": "died", "kind": "binary", "role": "label"},
        ],
    }
)
PRICING = Pricing(1e-4)
COLUMNS = ("age", "sbp", "grade", "died")


def records(patients: int, seed: int = 0, rows: int = 1) -> pd.DataFrame:
    rng, size = np.random.default_rng(seed), patients * rows
    grades = np.array(["I", "II", "III"], dtype=object)
    arm, nothing = rng.choice(np.array(["drug", "placebo"], dtype=object), patients), np.array([None])
    return pd.DataFrame({
        "id": np.repeat(np.arange(patients), rows),
        "age": np.clip(np.rint(rng.normal(60, 12, size) + 4 * np.repeat(arm == "drug", rows)), 0, 120).astype(int),
        "sbp": np.where(rng.random(size) < 0.1, np.nan, np.round(np.clip(rng.normal(135, 18, size), 60, 260), 1)),
        "grade": np.where(rng.random(size) < 0.05, nothing, rng.choice(grades, size, p=[0.5, 0.3, 0.2])),
        "arm": np.repeat(np.where(rng.random(patients) < 0.03, nothing, arm), rows), "codes": "a",
        "died": np.repeat(rng.integers(0, 2, patients), rows),
    })  # fmt: skip


def shard_of(frame: pd.DataFrame, site: str = "here") -> Shard:
    return build_shard(frame, SCHEMA, site, split=frame["id"].to_numpy() % 5 == 0, allow_small=True)


def asked(question: Description, *shards: Shard, seed: int = 0, pricing: Pricing = PRICING) -> Conclusion:
    plan, answers = question.plan(SCHEMA, pricing), []
    for number, shard in enumerate(shards):
        answer = question.answer(plan, shard, keyed_stream(seed, "description", number))
        answers.append(HospitalAnswer(shard.site, answer, pricing, plan.event, 0.0, None))
    return question.conclude(SCHEMA, answers)


def value(figure: dict[str, Any]) -> float:
    return float(figure["value"])


def test_exact_numbers_are_those_of_pandas_overall_and_in_every_group() -> None:
    frames = [records(300, 1), records(200, 2).assign(id=lambda frame: frame["id"] + 1000)]
    question = Description(COLUMNS, "arm", epsilon=None, fewest=0)
    figures = asked(question, *(shard_of(frame, f"h{k}") for k, frame in enumerate(frames))).figures
    together = pd.concat(frames)
    groups = {name: together[together["arm"] == name] for name in ("drug", "placebo")}
    assert value(figures["patients"]) == 500 and list(figures["groups"]) == ["drug", "placebo"]
    for name, part in groups.items():
        assert value(figures["groups"][name]) == len(part)
    for column in ("age", "sbp"):
        cases = [(figures["columns"][column]["overall"], together)]
        cases += [(figures["columns"][column]["groups"][name], part) for name, part in groups.items()]
        for shown, frame in cases:
            cells = frame[column]
            assert value(shown["mean"]) == pytest.approx(cells.mean(), rel=1e-12)
            assert value(shown["sd"]) == pytest.approx(cells.std(), rel=1e-12)
            for label, at in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
                assert value(shown[label]) == pytest.approx(cells.quantile(at), rel=1e-12)
            assert value(shown["missing"]) == cells.isna().sum()
    for name, part in groups.items():
        shown = figures["columns"]["grade"]["groups"][name]
        shares = part["grade"].value_counts(normalize=True).reindex(["I", "II", "III", "rare"]).fillna(0)
        for level in ("I", "II", "III", "rare"):
            assert value(shown["levels"][level]["count"]) == (part["grade"] == level).sum()
            assert value(shown["levels"][level]["share"]) == pytest.approx(shares[level], rel=1e-12)
        assert value(shown["missing"]) == part["grade"].isna().sum()


def test_standardised_differences_are_those_of_austin_and_of_yang_and_dalton() -> None:
    frame = records(400, 3)
    figures = asked(Description(COLUMNS, "arm", epsilon=None), shard_of(frame)).figures["columns"]
    one, other = (frame[frame["arm"] == name] for name in ("drug", "placebo"))
    difference = other["age"].mean() - one["age"].mean()
    assert value(figures["age"]["difference"]) == pytest.approx(
        difference / math.sqrt((one["age"].var() + other["age"].var()) / 2)
    )
    p, q = one["died"].mean(), other["died"].mean()
    assert value(figures["died"]["difference"]) == pytest.approx(
        abs(p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / 2)
    )
    shares = [part["grade"].value_counts(normalize=True).reindex(["II", "III"]).to_numpy() for part in (one, other)]
    spread = sum(np.diag(share) - np.outer(share, share) for share in shares) / 2
    expected = math.sqrt((shares[0] - shares[1]) @ np.linalg.solve(spread, shares[0] - shares[1]))
    assert value(figures["grade"]["difference"]) == pytest.approx(expected)
    assert figures["age"]["difference"]["groups"] == ["drug", "placebo"]


def test_a_patient_with_several_rows_counts_once() -> None:
    frame = records(120, 4, rows=3)
    figures = asked(Description(("age", "died"), epsilon=None), shard_of(frame)).figures
    means = frame.groupby("id")["age"].mean()
    assert value(figures["patients"]) == 120
    assert value(figures["columns"]["age"]["overall"]["mean"]) == pytest.approx(means.mean())
    assert value(figures["columns"]["age"]["overall"]["sd"]) == pytest.approx(means.std())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(2, 40))
def test_a_patient_moves_what_noise_is_added_to_by_at_most_one_whole(seed: int, rows: int, bins: int) -> None:
    frame = records(12, seed, rows)
    question = Description(COLUMNS, "arm", bins=bins, epsilon=1.0)
    names = question.groups(SCHEMA)

    def noised(part: pd.DataFrame) -> list[np.ndarray]:
        shard, shown = shard_of(part), []
        group = np.nan_to_num(patient_values(shard, "arm"), nan=len(names) - 1).astype(np.int64)
        for column in question.parts(SCHEMA):
            cells = description._values(column, bins)
            counts = description._count_cells(column, patient_values(shard, column.name), cells, group, len(names))
            if column.kind in ("integer", "continuous"):
                points = math.floor(FINE / running.norm(len(cells)) * (1 - 1e-12))
                shown.append(description.mix_cells(counts, len(cells), points).reshape(-1).astype(float))
            else:
                shown.append(counts.reshape(-1).astype(float) * FINE)
        return shown

    for whole, less in zip(noised(frame), noised(frame[frame["id"] != 5]), strict=True):
        assert 0 < np.linalg.norm(whole - less) <= FINE


def test_the_price_is_the_epsilon_that_was_asked_for_whatever_the_columns() -> None:
    for columns in (("age",), COLUMNS):
        plan = Description(columns, "arm", epsilon=1.5).plan(SCHEMA, PRICING)
        assert 1.49 < epsilon(plan.event, PRICING.delta) <= 1.5
        noise = Description(columns, "arm", epsilon=1.5).noise(SCHEMA, plan)
        assert noise == pytest.approx((plan.policy_noise or 0.0) * len(columns) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1.0, 3.0])
def test_intervals_hold_the_numbers_without_noise_in_95_percent_of_releases(budget: float) -> None:
    """Over 200 releases; every kind of figure is covered by itself."""
    frame = records(1500, 5)
    shard = shard_of(frame)
    truth = asked(Description(COLUMNS, "arm", epsilon=None, fewest=0), shard).figures
    held: dict[str, list[bool]] = {}

    def compare(kind: str, exact: Any, noisy: Any) -> None:
        if exact is not None and noisy is not None and noisy["value"] is not None:
            held.setdefault(kind, []).append(noisy["low"] - 1e-9 <= exact["value"] <= noisy["high"] + 1e-9)

    for seed in range(200):
        shown = asked(Description(COLUMNS, "arm", epsilon=budget, fewest=0), shard, seed=seed).figures
        compare("patients", truth["patients"], shown["patients"])
        for column, exact in truth["columns"].items():
            noisy = shown["columns"][column]
            compare("difference", exact["difference"], noisy["difference"])
            for one, other in [
                (exact["overall"], noisy["overall"]),
                *((exact["groups"][name], noisy["groups"][name]) for name in exact["groups"]),
            ]:
                for kind in ("mean", "sd", "median", "lower quartile", "upper quartile", "missing"):
                    compare(kind, one.get(kind), other.get(kind))
                for level in one.get("levels", {}):
                    for kind in ("count", "share"):
                        compare(kind, one["levels"][level][kind], other["levels"][level][kind])
    rates = {kind: float(np.mean(each)) for kind, each in held.items()}
    print({kind: (round(rate, 3), len(held[kind])) for kind, rate in rates.items()})
    assert len(rates) == 10 and min(rates.values()) > 0.95 - 3 * (0.95 * 0.05 / 200) ** 0.5, rates


def test_nothing_shown_is_negative_and_shares_add_up() -> None:
    figures = asked(Description(("grade", "died"), "arm", epsilon=0.3, fewest=0), shard_of(records(80, 6))).figures
    for column in figures["columns"].values():
        for part in (column["overall"], *column["groups"].values()):
            levels = part["levels"].values()
            assert all(level["count"]["value"] is None or level["count"]["value"] > 0 for level in levels)
            if all(level["share"] for level in levels):
                assert sum(value(level["share"]) for level in levels) == pytest.approx(1.0)
    sizes = [figures["patients"], *figures["groups"].values()]
    assert all(size["value"] is None or size["low"] >= 0 for size in sizes)


def test_a_group_is_as_large_in_every_column() -> None:
    """The group's size is known better from all columns than from one, and categories add up to it."""
    figures = asked(Description(("grade", "died", "age"), epsilon=1.0, fewest=0), shard_of(records(900, 7))).figures
    size = figures["patients"]
    assert abs(value(size) - 900) < 5 * (size["high"] - size["low"])
    for column in ("grade", "died"):
        part = figures["columns"][column]["overall"]
        counts = [level["count"]["value"] for level in part["levels"].values()]
        if None not in counts and part["missing"]["value"] is not None:
            assert sum(counts) + part["missing"]["value"] == pytest.approx(value(size))


def test_small_counts_and_what_may_be_noise_are_not_shown() -> None:
    assert count(3.0, 0.0, 5) == {"value": None, "low": None, "high": None, "below": 5.0}
    assert count(0.0, 0.0, 5)["value"] == 0.0 and count(5.0, 0.0, 5)["value"] == 5.0
    assert count(7.0, 4.0, 5) == {"value": None, "low": None, "high": None, "below": 8.0}
    assert count(30.0, 4.0, 5)["value"] == 30.0 and count(-3.0, 1.0, 0)["value"] is None
    frame = records(60, 8).assign(grade="I")
    frame.loc[:2, "grade"] = "rare"
    levels = asked(Description(("grade",), epsilon=None), shard_of(frame)).figures["columns"]["grade"]["overall"][
        "levels"
    ]
    assert levels["rare"] == {"count": count(3.0, 0.0, 5), "share": None} and value(levels["I"]["count"]) == 57


def test_hospitals_are_compared_from_the_same_answers() -> None:
    frames = {
        "north": records(300, 9),
        "south": records(300, 10).assign(age=lambda frame: np.clip(frame["age"] + 9, 0, 120)),
    }
    concluded = asked(Description(("age",), epsilon=2.0), *(shard_of(frame, site) for site, frame in frames.items()))
    shown = concluded.figures["between_hospitals"]["age"]
    assert shown["groups"] == ["north", "south"] and 0 < shown["low"] < shown["value"] < shown["high"]
    assert all(value(site["columns"]["age"]["overall"]["mean"]) for site in concluded.by_site)


def test_what_may_be_anything_is_a_dash() -> None:
    """Noise of 30 beside one patient of each age: the median may be at any age."""
    age, died = (next(column for column in SCHEMA.columns if column.name == name) for name in ("age", "died"))
    ages = Cells(age, np.arange(0.5, 120.0), np.full(120, 1.0), 0.0, 30.0, 0.0, 1.0)
    assert ages.observed[0] > 1.96 * ages.observed[1]  # how many patients there are is known
    figures = ages.figures(120.0, 5)
    assert figures["median"] is figures["sd"] is None and figures["mean"] is not None
    shares = Cells(died, np.arange(2.0), np.array([45.0, 50.0]), 0.0, 20.0, 0.0, 0.0)
    assert shares.figures(95.0, 5)["levels"]["1"]["share"] is not None
    most = dataclasses.replace(shares, error=40.0, patients=np.array([100.0, 1.0])).figures(101.0, 5)["levels"]
    assert most["0"]["count"]["value"] == 100.0 and most["0"]["share"] is None


def test_a_difference_of_one_hidden_group_is_undefined() -> None:
    column = next(column for column in SCHEMA.columns if column.name == "died")
    large = Cells(column, np.arange(2.0), np.array([40.0, 60.0]), 0.0, 1.0, 0.0, 0.0)
    tiny = Cells(column, np.arange(2.0), np.array([1.0, 0.5]), 0.0, 1.0, 0.0, 0.0)
    assert standardised_difference(large, tiny) is None and standardised_difference(large, large) is not None
    assert add_cells([large, large]).error == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (Description(("height",), epsilon=1.0), "There is no column 'height'"),
        (Description(("codes",), epsilon=1.0), "There is no column 'codes'"),
        (Description(("age", "age"), epsilon=1.0), "'age' stands twice"),
        (Description(("arm",), "arm", epsilon=1.0), "'arm' stands twice"),
        (Description((), "age", epsilon=1.0), "by is 'age', of kind 'integer'"),
        (Description((), epsilon=1e9), "epsilon must lie between"),
        (Description((), bins=1, epsilon=1.0), "bins must lie between 2 and"),
    ],
)
def test_what_cannot_be_described_is_refused_before_any_record(question: Description, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        question.plan(SCHEMA, PRICING)


def test_a_description_travels_without_the_rule_of_its_table() -> None:
    question = Description(("age", "sbp"), "arm", bins=32, fewest=11, epsilon=0.5)
    assert "fewest" not in write_question(question)
    assert read_question(write_question(question)) == Description(("age", "sbp"), "arm", bins=32, epsilon=0.5)
    assert question_of_key(question_as_key(question)) == question
