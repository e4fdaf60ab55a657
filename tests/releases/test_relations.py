"""Relations: products bounded per patient by brute force, charged once, and an imputer of them as good as of the records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.encoding import encode, feature_names
from polyclinic.ehr.imputation import missing, with_indicators
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard, build_shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import Stream, keyed_stream
from polyclinic.releases.question import Pricing
from polyclinic.releases.relations import Plan, Relations, imputer_of, layout, totals
from polyclinic.training.preparation import impute

SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 100]},
            {"name": "sbp", "kind": "trajectory", "steps": 2, "bounds": [60, 260], "nullable": True},
            {"name": "pain", "kind": "categorical", "categories": ["none", "mild", "bad"], "nullable": True},
            {"name": "ward", "kind": "categorical", "categories": ["a", "b"], "drop_first": True},
            {"name": "codes", "kind": "code_set", "categories": ["x", "y"]},
            {"name": "male", "kind": "binary", "nullable": True},
            {"name": "died", "kind": "binary", "role": "label"},
        ],
    }
)


def records(patients: int, seed: int = 0, rows: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size = patients * rows
    age = rng.integers(0, 101, size)
    sbp = np.clip(90 + age + rng.normal(0, 10, size), 60, 260)
    return pd.DataFrame({
        "id": np.repeat(np.arange(patients), rows), "age": age,
        "sbp_00": np.where(rng.random(size) < 0.3, np.nan, sbp),
        "sbp_01": np.where(rng.random(size) < 0.3, np.nan, np.clip(sbp + rng.normal(0, 5, size), 60, 260)),
        "pain": rng.choice(["none", "mild", "bad", ""], size), "ward": rng.choice(["a", "b"], size),
        "codes": rng.choice(["", "x", "x;y"], size), "male": rng.choice(np.array(["0", "1", None], dtype=object), size),
        "died": np.repeat(rng.integers(0, 2, patients), rows),
    })  # fmt: skip


def shard_of(frame: pd.DataFrame, schema: Schema = SCHEMA) -> Shard:
    """The patient numbered 0 is held out."""
    return build_shard(frame, schema, "here", split=frame["id"].to_numpy() == 0, allow_small=True)


def plan(schema: Schema, asked: float | None, delta: float, relation: Any = "add-remove") -> Plan:
    return Relations(asked).plan(schema, Pricing(delta, "pld", relation))


def answer(planned: Plan, shard: Shard, stream: Stream) -> np.ndarray:
    return Relations(1.0).answer(planned, shard, stream).arrays["products"]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans())
def test_a_patient_moves_the_products_by_at_most_one_whole_in_l2(seed: int, rows: int, indicators: bool) -> None:
    schema = with_indicators(SCHEMA) if indicators else SCHEMA
    frame = records(4, seed, rows)
    # At the corners of the encoding, where rows are longest.
    frame = frame.assign(age=np.where(frame["age"] > 50, 100, 0), sbp_00=260.0, pain="bad", male="1", ward="b")
    both, one, alone = (totals(shard_of(frame[frame["id"] < n], schema)).astype(float) for n in (4, 3, 2))
    assert np.linalg.norm(both - one) <= FINE and 0.5 * FINE < np.linalg.norm(alone) <= FINE


def test_the_layout_knows_the_longest_row() -> None:
    how = layout(SCHEMA)
    # One; 4 features that may be missing (two steps, pain, male); age, two steps, pain, ward, male.
    assert how.square == 1 + 4 + 6 and how.flags == 4
    assert [feature_names(SCHEMA)[number] for number in how.shown] == [
        name for name in feature_names(SCHEMA) if not name.startswith("codes")
    ]


def test_exact_products_give_the_moments_of_the_records() -> None:
    frame = records(4000)
    shard = shard_of(frame)
    imputer = imputer_of([answer(plan(SCHEMA, None, 1e-3), shard, keyed_stream(0))], [None], SCHEMA)
    x = shard.train.x
    names = list(feature_names(SCHEMA))
    age, first = names.index("age"), names.index("sbp_00")
    seen = ~np.isnan(x[:, first])
    assert imputer.mean[age] == pytest.approx(x[:, age].mean(), abs=1e-6)
    assert imputer.mean[first] == pytest.approx(x[seen, first].mean(), abs=1e-6)
    assert imputer.covariance[age, first] == pytest.approx(np.cov(x[seen, age], x[seen, first])[0, 1], abs=2e-3)
    assert imputer.covariance[names.index("codes=x")].tolist() == [float(name == "codes=x") for name in names]


def test_a_noisy_imputer_of_several_hospitals_finds_what_is_missing() -> None:
    frame = records(6000, 1)
    whole = frame.assign(sbp_00=np.clip(90 + frame["age"], 60, 260))
    plans = [plan(SCHEMA, 1.0, 1e-4)] * 2
    halves = [shard_of(frame[(frame["id"] % 2 == half) | (frame["id"] == 0)]) for half in (0, 1)]
    answers = [answer(p, s, keyed_stream(n)) for n, (p, s) in enumerate(zip(plans, halves, strict=True))]
    imputer = imputer_of(answers, [p.policy_noise for p in plans], SCHEMA)
    x, truth = encode(frame, SCHEMA).x, encode(whole, SCHEMA).x
    gone = missing(x, SCHEMA)[:, 1]
    found = imputer.fill(x, SCHEMA)
    assert np.abs(found - truth)[gone, 1].mean() < 0.5 * np.abs(truth[gone, 1] - truth[:, 1].mean()).mean()


def test_relations_cost_what_was_asked() -> None:
    for relation in ("add-remove", "replace-one"):
        planned = plan(SCHEMA, 0.5, 1e-4, relation)
        assert 0.49 < epsilon(planned.event, 1e-4, "pld", relation) <= 0.5
    with pytest.raises(ConfigError, match="epsilon must lie"):
        plan(SCHEMA, 1e-9, 1e-4)


@pytest.mark.parametrize("imputation", ["mean", "constant", "indicator", "chained"])
def test_no_patient_moves_another_patients_row_where_privacy_is_promised(imputation: str) -> None:
    """The sensitivity of DP-SGD rests on it: with one patient's records changed, all other rows are what they were."""
    fills = {"sbp": 120.0, "pain": "none", "male": 1.0}
    schema = Schema.from_dict({
        **SCHEMA.as_dict(),
        "columns": [c | ({"fill": fills[c["name"]]} if c["name"] in fills else {}) for c in SCHEMA.as_dict()["columns"]],
    })  # fmt: skip
    schema = with_indicators(schema) if imputation == "indicator" else schema
    imputer = imputer_of(
        [answer(plan(schema, 1.0, 1e-3), shard_of(records(500, 3), schema), keyed_stream(0))], [1.0], schema
    )
    frame = records(60, 2, rows=2)
    changed = frame.copy()
    changed.loc[changed["id"] == 7, ["age", "sbp_00", "sbp_01"]] = [100, 260.0, 60.0]
    changed.loc[changed["id"] == 7, ["pain", "male"]] = ["", None]
    one, other = (impute(shard_of(part, schema), imputation, imputer)[0] for part in (frame, changed))
    others = one.patient != 6  # patient 7 among the training patients, of whom the first is held out
    assert np.array_equal(one.x[others], other.x[others], equal_nan=True)
    assert not np.array_equal(one.x[~others], other.x[~others], equal_nan=True)


def test_a_hospitals_own_equations_do_let_a_patient_move_others() -> None:
    """Why "mice" is refused under privacy."""
    frame = records(60, 2)
    changed = frame.copy()
    changed.loc[changed["id"] == 7, ["age", "sbp_00", "sbp_01"]] = [100, 60.0, 260.0]
    one, other = (impute(shard_of(part), "mice")[0] for part in (frame, changed))
    assert not np.array_equal(one.x[one.patient != 6], other.x[one.patient != 6])
