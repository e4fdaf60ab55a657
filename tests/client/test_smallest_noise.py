"""``smallest-noise-multiplier`` binds every request that is charged, whatever the mechanism and the budget."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.releases.kinds import write_question
from polyclinic.releases.question import Question
from polyclinic.releases.relations import Relations
from polyclinic.releases.statistics import Statistic
from polyclinic.releases.survey import Survey
from polyclinic.wire.messages import (
    ASK,
    QUESTION,
    REFUSED,
    SELECT,
    STATISTICS,
    AskRequest,
    SelectRequest,
    StatisticsRequest,
    TrainRequest,
)
from tests.client.test_hospital import SCHEMA, context, ledger, make_hospital, message, model, train

# The budget never refuses here: only the smallest noise multiplier, which is the default of 0.3, can.
POLICY = """budget = 1000.0
delta = 1e-3
allowed-models = ["logistic", "dpgan"]
allowed-tasks = ["classification", "statistics", "query", "survey", "synthesis", "output-perturbation",
                 "objective-perturbation", "exponential-mechanism"]
"""
RUN = {"run": "r", "site": 0}


def select(hospital: Path, epsilon: float) -> Message:
    config = RunConfig.build({"task": "synthesis", "model": "dpgan", "synthesis.candidates": 3, "rounds": 5})
    shape = (3, 2, len(feature_names(Schema.from_dict(SCHEMA))))
    asked = message(SelectRequest(**RUN, round=5, selected=2, epsilon=epsilon), SELECT)
    asked.content[QUESTION] = ArrayRecord({"weight": Array(np.ones(shape)), "bias": Array(np.zeros(shape[:2]))})
    return app(asked, context(hospital, config))


def query(mechanism: str, statistic: str = "count") -> Any:
    def ask(hospital: Path, epsilon: float) -> Message:
        column = "" if statistic == "count" else "age"
        return put(hospital, Statistic(statistic, column, mechanism=mechanism, epsilon=epsilon))

    return ask


def put(hospital: Path, question: Question) -> Message:
    return app(message(AskRequest(**RUN, question=write_question(question)), ASK), context(hospital))


def survey(hospital: Path, epsilon: float) -> Message:
    return put(hospital, Survey(("age",), epsilon))


def relations(hospital: Path, epsilon: float) -> Message:
    return put(hospital, Relations(epsilon))


def statistics(hospital: Path, noise_multiplier: float) -> Message:
    return app(message(StatisticsRequest(**RUN, noise_multiplier=noise_multiplier), STATISTICS), context(hospital))


def steps(hospital: Path, noise_multiplier: float) -> Message:
    return train(hospital, noise_multiplier=noise_multiplier)


@pytest.mark.parametrize(
    ("ask", "refused", "answered"),
    [
        (select, 40.0, 3.0),
        (query("laplace"), 5.0, 3.0),
        (query("laplace", "mean"), 5.0, 3.0),
        (query("exponential", "quantile"), 5.0, 3.0),
        (query("gaussian"), 30.0, 5.0),
        (query("discrete-gaussian"), 60.0, 5.0),
        (survey, 30.0, 3.0),
        (relations, 30.0, 3.0),
        (statistics, 0.29, 0.31),
        (steps, 0.29, 0.31),
    ],
)
def test_fault_35_less_noise_is_refused_whatever_the_mechanism_and_the_budget(
    tmp_path: Path, ask: Any, refused: float, answered: float
) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    reply = ask(hospital, refused)
    assert reply.error.code == REFUSED
    assert "below the policy's smallest-noise-multiplier 0.3" in reply.error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    reply = ask(hospital, answered)
    assert not reply.has_error(), reply.error.reason
    assert len(ledger(hospital).events()) == 1


@pytest.mark.parametrize("perturbation", ["gaussian", "gamma"])
@pytest.mark.parametrize("task", ["output-perturbation", "objective-perturbation", "exponential-mechanism"])
def test_fault_35_convex_releases_are_bound_too(tmp_path: Path, task: str, perturbation: str) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    config = RunConfig.build({"task": task, "convex.perturbation": perturbation})

    def release(noise_multiplier: float) -> Message:
        values = {"public_patients": 150.0, "learning_rate": 0.5, "noise_multiplier": noise_multiplier}
        return app(message(TrainRequest(**RUN, round=1, **values), "train", model()), context(hospital, config))

    reply = release(0.29)
    assert reply.error.code == REFUSED
    assert "noise_multiplier 0.29 is below the policy's smallest-noise-multiplier 0.3" in reply.error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert not release(1.0).has_error()
