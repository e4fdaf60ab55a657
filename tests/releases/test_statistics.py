"""Questions and answers: right on made-up records, bounded per patient by brute force, and refused before any record."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.streams import keyed_stream, system_stream
from polyclinic.releases.question import Pricing
from polyclinic.releases.statistics import (
    MECHANISMS,
    STATISTICS,
    Plan,
    Statistic,
    candidates,
    cell_numbers,
    patient_values,
    quantile_scores,
    totals,
)  # fmt: skip

Question = partial(Statistic, epsilon=1.0)

SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
            {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "unit": "mmHg", "nullable": True},
            {"name": "pain", "kind": "categorical", "categories": ["none", "mild", "bad"], "nullable": True},
            {"name": "grade", "kind": "ordinal", "categories": ["I", "II", "III"]},
            {"name": "male", "kind": "binary"},
            {"name": "codes", "kind": "code_set", "categories": ["a", "b"]},
            {"name": "died", "kind": "binary", "role": "label", "categories": ["no", "yes"]},
        ],
    }
)
QUESTIONS = [
    Question("count"),
    Question("count", "sbp"),
    Question("count", where=("age >= 50", "male == 1")),
    Question("count", where=("died == 'yes'",)),
    Question("mean", "age"),
    Question("mean", "sbp", where=("pain != 'bad'",)),
    Question("mean", "male"),
    Question("mean", "died"),
    Question("histogram", "pain"),
    Question("histogram", "grade", where=("grade in ['II', 'III']",)),
    Question("histogram", "sbp", bins=7),
    Question("histogram", "died"),
    Question("quantile", "age", bins=30, quantile=0.25),
    Question("quantile", "sbp", bins=50),
]


def shard_of(records: pd.DataFrame) -> Shard:
    """As ``build_shard``, without its demand for patients on both sides of the split."""
    encoded = encode(records, SCHEMA)
    patient = pd.factorize(records["id"])[0].astype(np.int64)
    assert encoded.y is not None
    return Shard("here", SCHEMA, encoded.x, encoded.y, patient, np.arange(records["id"].nunique()) % 4 == 0)


def made_up(patients: int, rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(patients), rng.integers(0, patients, rows - patients)])
    return pd.DataFrame({
        "id": ids,
        "age": rng.integers(0, 121, rows),
        "sbp": np.where(rng.random(rows) < 0.3, np.nan, rng.uniform(60, 260, rows).round(1)),
        "pain": rng.choice(["none", "mild", "bad", None], rows),
        "grade": rng.choice(["I", "II", "III"], rows),
        "male": rng.integers(0, 2, rows),
        "codes": rng.choice(["", "a", "a;b"], rows),
        "died": rng.choice(["no", "yes"], rows),
    })  # fmt: skip


def exact(question: Statistic, shard: Shard) -> object:
    cells = totals(question, shard, 2**32) / 2**32
    return question.estimate(SCHEMA, cells, np.zeros(len(cells)))[0]


def plan(
    question: Statistic, mechanism: str, epsilon: float, delta: float = 1e-4, relation: Any = "add-remove"
) -> tuple[Statistic, Plan]:
    asked = replace(question, mechanism=mechanism, epsilon=epsilon)
    return asked, asked.plan(SCHEMA, Pricing(delta, "pld", relation))


def test_without_noise_answers_are_the_records_own() -> None:
    records = made_up(300, 300)
    shard = shard_of(records)
    assert exact(Question("count"), shard) == 300
    assert exact(Question("count", "sbp"), shard) == records.sbp.notna().sum()
    chosen = records[(records.age >= 50) & (records.male == 1) & (records.died == "yes")]
    assert exact(Question("count", where=("age >= 50 and male == 1", "died == 'yes'")), shard) == len(chosen)
    assert exact(Question("mean", "age"), shard) == pytest.approx(records.age.mean(), abs=1e-6)
    assert exact(Question("mean", "sbp"), shard) == pytest.approx(records.sbp.mean(), abs=1e-6)
    assert exact(Question("mean", "died"), shard) == pytest.approx((records.died == "yes").mean(), abs=1e-6)
    found = exact(Question("histogram", "pain"), shard)
    assert found == {**records.pain.value_counts()[["none", "mild", "bad"]], "missing": records.pain.isna().sum()}
    bins = exact(Question("histogram", "sbp", bins=4), shard)
    wanted = np.histogram(records.sbp.dropna(), [60, 110, 160, 210, 260])[0]
    assert list(bins.values()) == [*wanted, records.sbp.isna().sum()] and list(bins)[0] == "60 to 110"
    assert exact(Question("quantile", "age", bins=120), shard) == pytest.approx(records.age.median(), abs=1.1)


def test_a_missing_cell_fulfils_no_condition() -> None:
    records = made_up(200, 200)
    shard, known = shard_of(records), records.sbp.notna()
    under, over = (exact(Question("count", where=(f"sbp {sign} 150",)), shard) for sign in ("<", ">="))
    assert under + over == known.sum()
    assert (
        exact(Question("count", where=("pain != 'bad'",)), shard)
        == (records.pain.notna() & (records.pain != "bad")).sum()
    )


def test_a_condition_reads_numbers_categories_and_what_is_missing() -> None:
    records = made_up(200, 200)
    shard = shard_of(records)
    for where, chosen in (
        ("sbp > 2 * age or missing(sbp)", (records.sbp > 2 * records.age) | records.sbp.isna()),
        ("not pain in ['none', 'mild']", ~records.pain.isin(["none", "mild"])),
        ("30 <= age < 60 and male == '1'", (records.age >= 30) & (records.age < 60) & (records.male == 1)),
        ("abs(age - 60) <= 10 and male > 0", ((records.age - 60).abs() <= 10) & (records.male == 1)),
    ):
        assert exact(Question("count", where=(where,)), shard) == chosen.sum(), where


@pytest.mark.parametrize(("grades", "readable"), [(["1", "2.5"], True), (["1", "1_000"], False), (["1", "nan"], False)])
def test_categories_are_compared_as_numbers_only_where_all_of_them_are(grades: list[str], readable: bool) -> None:
    """What is refused is refused by the public names, so that no failure after the charge depends on a record."""
    columns = [c | ({"categories": grades} if c["name"] == "grade" else {}) for c in SCHEMA.as_dict()["columns"]]
    schema, question = (
        Schema.from_dict({**SCHEMA.as_dict(), "columns": columns}),
        Question("count", where=("grade <= 1",)),
    )
    if readable:
        question.check(schema)
        with pytest.raises(ConfigError, match="one of 1, 2.5"):
            replace(question, where=("grade == 2",)).check(schema)
    else:
        with pytest.raises(ConfigError, match="reads column 'grade' as a number.*one of 1, "):
            question.check(schema)


def test_a_patients_rows_are_one_value() -> None:
    records = (
        made_up(2, 2)
        .loc[[0, 0, 0, 1]]
        .assign(
            age=[10, 20, 60, 80],
            sbp=[100.0, np.nan, 200.0, np.nan],
            pain=["bad", "mild", "mild", None],
            male=[0, 1, 0, 1],
        )
    )
    shard = shard_of(records)
    assert patient_values(shard, "age").tolist() == [30, 80]
    assert patient_values(shard, "pain")[0] == 1 and np.isnan(patient_values(shard, "pain")[1])
    assert patient_values(shard, "male").tolist() == [0, 1]
    assert exact(Question("count"), shard) == 2
    assert exact(Question("mean", "sbp"), shard) == pytest.approx(150, abs=1e-6)
    repeated = shard_of(pd.concat([records] * 5))
    for question in QUESTIONS:
        assert exact(question, repeated) == exact(question, shard)


RECORDS = st.builds(made_up, st.integers(2, 5), st.integers(6, 12), st.integers(0, 10_000))


@settings(max_examples=25)
@given(RECORDS, RECORDS, st.integers(0, 10))
def test_one_patient_changes_an_answer_by_at_most_what_is_declared(
    records: pd.DataFrame, others: pd.DataFrame, turn: int
) -> None:
    ids = records["id"].unique()
    kept = records[records["id"] != ids[turn % len(ids)]]
    replacement = others[others["id"] == others["id"].iloc[0]].assign(id=99)
    whole, less, swapped = (shard_of(part) for part in (records, kept, pd.concat([kept, replacement])))
    for question in QUESTIONS:
        for points in (1, 1024, 2**32):
            one, other, third = (totals(question, shard, points) for shard in (whole, less, swapped))
            assert np.abs(one - other).sum() <= points and np.abs(one - third).sum() <= 2 * points
            assert np.linalg.norm(one - other) <= points
        entries = 1 if question.statistic != "mean" else 2
        assert np.count_nonzero(one - other) <= entries
        if question.statistic == "quantile":
            sensitivity = max(question.level.numerator, question.level.denominator - question.level.numerator)
            for neighbour, most in ((less, sensitivity), (swapped, 2 * sensitivity)):
                change = quantile_scores(question, whole) - quantile_scores(question, neighbour)
                assert np.abs(change).max() <= most


def asks(question: Statistic) -> list[str]:
    names = {"quantile": ["exponential"], "count": ["randomised-response"], "histogram": ["randomised-response"]}
    more = [] if question.statistic == "histogram" and question.where else names.get(question.statistic, [])
    return ["laplace", "gaussian", "discrete-gaussian", *more]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.statistic}-{q.column}{len(q.where)}")
def test_a_plan_costs_what_was_asked_and_its_answer_lies_near_the_truth(question: Statistic, relation: str) -> None:
    shard = shard_of(made_up(400, 600, seed=1))
    for name in asks(question):
        if name == "randomised-response" and relation == "add-remove":
            continue
        asked, planned = plan(question, name, 1.5, 1e-4, relation)
        assert 1.4 < epsilon(planned.event, 1e-4, "pld", relation) <= 1.5
        found = asked.answer(planned, shard, keyed_stream(0, "answer", name)).arrays
        if name == "exponential":
            assert found["cells"][0] in candidates(question, SCHEMA)
            rank = quantile_scores(question, shard)[list(candidates(question, SCHEMA)).index(found["cells"][0])]
            assert rank > quantile_scores(question, shard).max() - 80
            continue
        truth = totals(question, shard, 1) if question.statistic != "mean" else totals(question, shard, 2**32) / 2**32
        assert (np.abs(found["cells"] - truth) <= 6 * found["errors"]).all(), name


def test_standard_errors_are_those_of_repeated_answers() -> None:
    shard = shard_of(made_up(400, 400, seed=2))
    for question, name, relation in (
        (Question("mean", "age"), "laplace", "add-remove"),
        (Question("histogram", "pain"), "randomised-response", "replace-one"),
        (Question("count", where=("age >= 60",)), "discrete-gaussian", "replace-one"),
    ):
        asked, planned = plan(question, name, 1.0, 1e-4, relation)
        found = [asked.answer(planned, shard, keyed_stream(turn, "again")).arrays for turn in range(300)]
        values, errors = zip(*(asked.estimate(SCHEMA, a["cells"], a["errors"]) for a in found), strict=True)
        if question.statistic == "histogram":
            values, errors = ([v["bad"] for v in values], [e["bad"] for e in errors])
        assert np.std(values) == pytest.approx(np.mean(errors), rel=0.15)


def test_answers_of_hospitals_add_up() -> None:
    parts = [shard_of(made_up(150, 200, seed)) for seed in (1, 2, 3)]
    for question in QUESTIONS[:12]:
        asked, planned = plan(question, "gaussian", 90.0)
        answers = [asked.answer(planned, part, keyed_stream(0, i)).arrays for i, part in enumerate(parts)]
        together = sum((a["cells"] for a in answers), np.zeros(1))
        truth = sum((totals(question, part, 2**32) for part in parts), np.zeros(1)) / 2**32
        assert np.allclose(together, truth, atol=6 * math.sqrt(3) * answers[0]["errors"][0])


def test_an_answer_is_usable_however_few_the_patients() -> None:
    shard = shard_of(made_up(1, 1))
    for question in QUESTIONS:
        for name in ("laplace", "discrete-gaussian"):
            asked, planned = plan(question, name, 0.05)
            found = asked.answer(planned, shard, keyed_stream(0, name)).arrays
            value, _ = asked.estimate(SCHEMA, found["cells"], found["errors"])
            assert np.isfinite(list(value.values()) if isinstance(value, dict) else value).all()
            if question.statistic in ("mean", "quantile"):
                column = next(c for c in SCHEMA.columns if c.name == question.column)
                low, high = column.bounds or (0, 1)
                assert low <= value <= high


def test_a_real_hospitals_noise_is_the_systems() -> None:
    shard, (asked, planned) = shard_of(made_up(50, 50)), plan(Question("mean", "age"), "laplace", 1.0)
    one, other = (asked.answer(planned, shard, system_stream()).arrays["cells"] for _ in range(2))
    assert not np.array_equal(one, other)


def test_integer_quantiles_are_whole() -> None:
    assert candidates(Question("quantile", "age", bins=1000), SCHEMA).tolist() == list(range(121))
    assert len(candidates(Question("quantile", "sbp", bins=1000), SCHEMA)) == 1001


def test_every_statistic_has_a_mechanism_by_default() -> None:
    for statistic in STATISTICS:
        asked, _ = plan(Question(statistic, "age"), "", 1.0)
        assert asked.mechanism in MECHANISMS


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question("median", "age"), "statistic must be one of"),
        (Question("mean"), "needs a column; askable are age, sbp, pain, grade, male, died"),
        (Question("mean", "agee"), "Did you mean 'age'"),
        (Question("mean", "id"), "no column 'id'"),
        (Question("histogram", "codes"), "no column 'codes'"),
        (Question("mean", "pain"), "kind 'categorical' is not defined"),
        (Question("quantile", "male"), "kind 'binary' is not defined"),
        (Question("histogram", "age", bins=0), "bins must lie"),
        (Question("quantile", "age", quantile=1.0), "quantile must lie"),
        (Question("count", where=("age",)), "age is not a condition; compare it"),
        (Question("count", where=("age >= 'old'",)), "'old' is not a date"),
        (Question("count", where=("age >= 121",)), "public bounds 0 to 120"),
        (Question("count", where=("age <= nan",)), "no column 'nan'"),
        (Question("count", where=("age in [50, 121]",)), "public bounds 0 to 120"),
        (Question("count", where=("age == '50'",)), "with a number in the public bounds 0 to 120"),
        (Question("count", where=("pain == 'badd'",)), "Did you mean 'bad'"),
        (Question("count", where=("pain in ['bad', 'badd']",)), "one of none, mild, bad"),
        (Question("count", where=("pain == 1",)), "one of none, mild, bad"),
        (Question("count", where=("pain >= 'bad'",)), "'bad' is not a date"),
        (Question("count", where=("pain < '2020-01-01'",)), "one of none, mild, bad"),
        (Question("count", where=("pain + 1 > 2",)), "reads column 'pain' as a number.*one of none, mild, bad"),
        (Question("count", where=("years(age, sbp) > 1",)), "reads column '(age|sbp)' as a date"),
        (Question("count", where=("has(pain, 'b*')",)), "reads column 'pain' as a set of codes"),
        (Question("count", where=("codes == 'a'",)), "no column 'codes'"),
    ],
)
def test_questions_that_the_schema_cannot_answer_are_refused(question: Statistic, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(question, "laplace", 1.0)


@pytest.mark.parametrize(
    ("question", "change", "words"),
    [
        (Question("count"), {"mechanism": "laplacian"}, "Did you mean 'laplace'"),
        (Question("count"), {"mechanism": "exponential"}, "chooses a quantile"),
        (Question("count"), {"mechanism": "randomised-response"}, "'replace-one', not 'add-remove'"),
        (
            Question("mean", "age"),
            {"mechanism": "randomised-response", "relation": "replace-one"},
            "count or a histogram",
        ),
        (
            Question("histogram", "pain", ("age >= 9",)),
            {"mechanism": "randomised-response", "relation": "replace-one"},
            "takes no condition",
        ),
        (Question("count"), {"epsilon": 0.0}, "epsilon must lie"),
        (Question("count"), {"epsilon": math.nan}, "epsilon must lie"),
        (Question("count"), {"delta": 1.0}, "delta must lie"),
        (Question("count"), {"epsilon": 101.0}, "epsilon must lie"),
    ],
)
def test_mechanisms_that_do_not_go_with_a_question_are_refused(
    question: Statistic, change: dict[str, Any], words: str
) -> None:
    terms = {"mechanism": "laplace", "epsilon": 1.0, "delta": 1e-4} | change
    with pytest.raises(ConfigError, match=words):
        plan(question, **terms)


def test_the_cell_of_a_bound_is_inside() -> None:
    records = made_up(3, 3).assign(sbp=[60.0, 260.0, 160.0])
    shard = shard_of(records)
    assert cell_numbers(Question("histogram", "sbp", bins=4), shard).tolist() == [0, 3, 2]
    assert replace(Question("histogram", "sbp", bins=4), statistic="count").cells(SCHEMA) == ("patients",)
