"""A regression at a real hospital: its noisy sums, and what a lying coordinator is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.programs import program_of
from polyclinic.programs.analyses.regression import RegressionHalf
from polyclinic.training.synthesis import ROUND
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, ledger, make_hospital, message

POLICY = 'budget = 5.0\ndelta = 1e-3\nallowed-tasks = ["regression"]\nallow-without-privacy = true\n'


def asked(folder: Path, changed: Any = None, dp: bool = False, formula: str = "died ~ age + sbp") -> Message:
    """The hospital's answer to the first round, of whose question ``changed`` makes another."""
    hospital = folder / "hospital.toml"
    config = RunConfig.build(
        {"task": "regression", "task-options": {"formula": formula, "family": "logistic"}, "privacy.dp": dp}
        | {"split.fraction": 0.25}  # a hospital's own split, which it holds for life
    )
    program, values = program_of(config), {"public_patients": 200.0, "learning_rate": 1.0, "noise_multiplier": None}
    try:
        half = program.half(Schema.from_dict(SCHEMA), [1.0], 1.0)
    except Exception:  # a formula that no coordinator of ours would send
        sound = program_of(config.with_values({"task-options": "formula='died ~ age', family='logistic'"}))
        half = sound.half(Schema.from_dict(SCHEMA), [1.0], 1.0)
    assert isinstance(half, RegressionHalf)
    question = half.question(1, half.first())
    question = changed(question) if changed else question
    if dp:
        event = program.price(program.settings(20.0))
        values |= {"noise_multiplier": 20.0, "plan": plan_text([(event, config.rounds)])}
    request = message(TrainRequest(run="r", site=0, round=1, **values), "train", {})
    request.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in question.items()})
    return app(request, context(hospital, config))


def test_with_noise_it_charges_the_ledger_and_computes_each_patient_apart(tmp_path: Path) -> None:
    make_hospital(tmp_path, POLICY)
    reply = asked(tmp_path, dp=True)
    (arrays,) = [from_record(part) for part in reply.content.array_records.values()]
    assert np.isfinite(arrays["sum"]).all() and ledger(tmp_path / "hospital.toml").epsilon() > 0


def test_exact_sums_are_beyond_every_budget(tmp_path: Path) -> None:
    make_hospital(tmp_path, POLICY)
    assert "it would become inf, allowed is 5" in asked(tmp_path).error.reason


@pytest.mark.parametrize(("changed", "formula"), [
    (None, "died ~ age + __import__('os').system('touch run')"), (None, "died ~ age + smoker"), (None, "died ~ log(age)"),
    (lambda asked: asked | {"estimate": np.zeros((1, 7))}, ""), (lambda asked: asked | {"basis": np.full((1, 3, 3), np.nan)}, ""),
    (lambda asked: {name: value for name, value in asked.items() if name != "bound"}, ""),
    (lambda asked: asked | {ROUND: np.array([99])}, ""),
])  # fmt: skip
def test_a_lying_coordinator_is_refused_before_anything_is_charged(tmp_path: Path, changed: Any, formula: str) -> None:
    make_hospital(tmp_path, POLICY)
    reply = asked(tmp_path, changed, dp=True, formula=formula or "died ~ age + sbp")
    assert "formula" in reply.error.reason or "question" in reply.error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert not list(tmp_path.rglob("run"))
