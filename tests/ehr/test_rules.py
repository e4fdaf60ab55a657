"""Rules of a schema: where they are asked, how often they are broken, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr import Column, Schema
from polyclinic.ehr.datasets import trial
from polyclinic.ehr.rules import Violations, kept_rules, violations
from polyclinic.errors import DataError
from polyclinic_studies.datasets import sprint

COLUMNS = (
    Column(name="id", kind="categorical", role="patient_id"),
    Column(name="sbp", kind="trajectory", steps=2, bounds=(60, 240), nullable=True),
    Column(name="dbp", kind="trajectory", steps=2, bounds=(30, 150), nullable=True),
    Column(name="weight", kind="trajectory", steps=3, bounds=(30, 150), nullable=True),
    Column(name="sex", kind="binary", categories=("F", "M"), nullable=True),
    Column(name="codes", kind="code_set", categories=("630", "I10")),
    Column(name="died", kind="binary", role="label"),
)
RECORDS = pd.DataFrame(
    {
        "sbp_00": [120.0, 80, np.nan, 100],
        "sbp_01": [110.0, 90, 90, np.nan],
        "dbp_00": [80.0, 90, 95, 100],
        "dbp_01": [70.0, 60, 95, 50],
        "sex": ["F", "M", None, "M"],
        "codes": ["630", "", "630", "630;I10"],
        "died": [0, 1, 0, 1],
    }
)


def schema(*rules: str) -> Schema:
    return Schema(name="s", columns=COLUMNS, rules=rules)


@pytest.mark.parametrize(
    ("rule", "asked", "broken"),
    [
        ("dbp < sbp", 6, 3),  # at each visit where both are there: rows 1 and 3 at the first, row 2 at the second
        ("dbp_00 < sbp_00", 3, 2),
        ("abs(sbp_01 - sbp_00) < 20", 2, 0),
        (
            "sex == 'F' or not has(codes, '63*')",
            3,
            1,
        ),  # an empty set of codes is no missing cell, an unknown sex is one
        ("died == 0 or sbp < 100", 6, 1),
        ("weight > 0", 0, 0),
    ],
)
def test_a_rule_is_asked_where_all_is_recorded(rule: str, asked: int, broken: int) -> None:
    records = RECORDS.assign(weight_00=np.nan, weight_01=np.nan, weight_02=np.nan)
    found = violations(records, schema(rule).rules, COLUMNS)
    assert found == (Violations(rule, asked, broken),)
    assert found[0].share == (broken / asked if asked else None)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("dpb < sbp", "no column 'dpb'. Did you mean"),
        ("id == 'a'", "no column 'id'"),
        ("weight < sbp", r"\[2, 3\] visits"),
        ("missing(sbp) or sbp > 0", "leave missing"),
        ("1 < 2", "names no column"),
        ("sbp", "is not a condition"),
        ("__import__('os')", "not allowed|is not a condition"),
    ],
)
def test_a_rule_that_cannot_be_asked_is_refused_when_the_schema_is_read(rule: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        schema(rule)
    assert "Schema rule" in str(refused.value)


def test_rules_travel_and_leave_the_digest_of_schemas_without_any(tmp_path: Path) -> None:
    plain, ruled = schema(), schema("dbp < sbp")
    ruled.to_toml(tmp_path / "s.toml")
    assert Schema.from_toml(tmp_path / "s.toml") == ruled
    assert plain.digest() != ruled.digest() == Schema.from_dict(ruled.as_dict()).digest()
    assert "rules" not in plain.as_dict()
    assert kept_rules(ruled.rules, [column for column in COLUMNS if column.name != "sbp"]) == ()


def test_simulated_trials_keep_their_own_rule() -> None:
    for own in (sprint, trial):
        table = own.generate_sprint(2, 60, 0) if own is sprint else own.generate_trial(2, 60, 0)
        (found,) = violations(table, own.SCHEMA.rules, own.SCHEMA.columns)
        assert found.asked > 60 and found.broken == 0
