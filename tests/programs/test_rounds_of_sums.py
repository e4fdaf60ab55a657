"""Rounds of sums: what a hospital is sent and what it answers, in the clear and in a secure sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from polyclinic import Federation
from polyclinic.client.app import app
from polyclinic.client.home.hospital import filled_rows, open_hospital
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.programs import program_of
from polyclinic.programs.program import Collected, State
from polyclinic.programs.sums import Sums, SumsHalf
from polyclinic.runs.simulation import simulated_shards
from polyclinic.server.federate import Outcome, Places, federate
from polyclinic.synthesis.sums import clipped_total
from polyclinic.training.synthesis import ROUND
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import LOCAL, QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, make_hospital, message
from tests.secure.test_runs import Recorder

POLICY = """
budget = 2.0
delta = 1e-3
allowed-tasks = ["synthesis", "posterior"]
allowed-models = ["moments", "logistic"]
"""
PROGRAMS: dict[str, dict[str, Any]] = {
    "synthesis": {"task": "synthesis", "rounds": 2, "synthesis.options": "rounds=2"},
    "posterior": {"task": "posterior", "rounds": 2},
}
PUBLIC = 150.0
REQUEST = TrainRequest(run="r", site=0, round=1, noise_multiplier=4.0, public_patients=PUBLIC, learning_rate=1.0)


def question_of(config: RunConfig, schema: Schema) -> Arrays:
    half = program_of(config).half(schema, [], 1.0)
    assert half is not None
    return half.question(1, half.first())


def mean_of(config: RunConfig, schema: Schema, rows: Rows) -> np.ndarray:
    """A hospital's sum of round 1 by its number of patients, without noise."""
    program, question = program_of(config), question_of(config, schema)
    assert isinstance(program, Sums)
    del question[ROUND]
    method = program.method(schema)
    z = method.layout.rows(rows.x, rows.y)
    return clipped_total(method, 1, question, z, rows.patient, rows.patients) / rows.patients


def asked(hospital: Path, config: RunConfig, records: dict[str, Arrays], request: TrainRequest = REQUEST) -> Message:
    sent = message(request, "train", {})
    for name, record in records.items():
        sent.content[name] = ArrayRecord({label: Array(value) for label, value in record.items()})
    return app(sent, context(hospital, config))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hospital_is_sent_a_question_and_answers_with_its_sum(tmp_path: Path, name: str) -> None:
    config, schema = RunConfig.build(PROGRAMS[name]), Schema.from_dict(SCHEMA)
    # So much is allowed that next to no noise hides what the answer is.
    hospital = make_hospital(tmp_path, POLICY.replace("2.0", "1e9") + "smallest-noise-multiplier = 1e-3\n")
    request = REQUEST.model_copy(update={"noise_multiplier": 1e-3})
    reply = asked(hospital, config, {QUESTION: question_of(config, schema)}, request)
    assert not reply.has_error(), reply.error
    rows = filled_rows(open_hospital(context(hospital, config), request, config), config.data.imputation)
    answer = from_record(reply.content.array_records["arrays"])
    assert answer.keys() == {"sum"}
    total = mean_of(config, schema, rows) * rows.patients
    assert 0 < np.abs(PUBLIC * answer["sum"] - total).max() < 0.01 < np.abs(total).max()
    assert reply.content.metric_records["metrics"]["num-examples"] == PUBLIC


def test_a_sum_that_is_larger_than_the_policy_allows_is_refused_before_a_charge(tmp_path: Path) -> None:
    config, schema = RunConfig.build(PROGRAMS["posterior"]), Schema.from_dict(SCHEMA)
    question = question_of(config, schema)
    size = sum(value.size for value in question.values())
    hospital = make_hospital(tmp_path, f"{POLICY}most-parameters = {size}\n")
    assert f"above the policy's most-parameters {size}" in asked(hospital, config, {QUESTION: question}).error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("form", ["uint8", "int32", "float16", ">i8"])
def test_a_question_whose_numbers_could_wrap_round_is_refused_before_a_charge(tmp_path: Path, form: str) -> None:
    """What it then failed by could be whether one patient is there."""
    config, hospital = RunConfig.build(PROGRAMS["synthesis"]), make_hospital(tmp_path, POLICY)
    question = question_of(config, Schema.from_dict(SCHEMA))
    assert all(value.dtype in ("int64", "float32", "float64") for value in question.values())
    narrow = question | {ROUND: question[ROUND].astype(form)}
    reply = asked(hospital, config, {QUESTION: narrow})
    assert f"array 'round' of the question is of {np.dtype(form)}; it must be of int64" in reply.error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("record", ["arrays", LOCAL])
def test_a_coordinator_that_sends_a_model_is_refused_before_a_charge(tmp_path: Path, name: str, record: str) -> None:
    config, hospital = RunConfig.build(PROGRAMS[name]), make_hospital(tmp_path, POLICY)
    question = {QUESTION: question_of(config, Schema.from_dict(SCHEMA))}
    for array in (np.zeros(10), np.ones((2, 3))):
        reply = asked(hospital, config, question | {record: {"sum": array}})
        assert "A round of sums has no model, but the message holds sum." in reply.error.reason
        assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert not asked(hospital, config, question).has_error()


def ran(folder: Path, name: str, **options: Any) -> tuple[Recorder, Outcome, RunConfig]:
    """A run of three hospitals, and every message of it."""
    own = {"posterior.columns": "intensive, age, male, controlled"} if name == "posterior" else {"synthesis.rows": 100}
    usual = {"dataset": "trial", "sites": 3, "privacy.patients-per-site": 100, "privacy.epsilon": 50.0}
    config = RunConfig.build(PROGRAMS[name] | own | usual | options)
    folder.mkdir()
    with Federation._grid(config) as grid:
        recorder = Recorder(grid)
        return recorder, federate(recorder, config, "run", Places(folder)), config


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_message_of_a_run_holds_a_model_and_the_sums_are_of_the_patients(tmp_path: Path, name: str) -> None:
    grid, outcome, config = ran(tmp_path / "run", name, **{"privacy.dp": False})
    shards = {shard.site: shard for shard in simulated_shards(config)}
    sent, answers = grid.asked("train"), grid.of("train")
    assert len(sent) == len(answers) == 6 and outcome.state.arrays == {}
    assert all(not message.content.array_records["arrays"] for message in sent)
    assert all({*message.content.array_records} == {"arrays", QUESTION} for message in sent)
    sites = {site.id: site.name for site in outcome.sites}
    for reply in answers[1:3]:  # the server puts the mean into the first one
        answer, shard = from_record(reply.content.array_records["arrays"]), shards[sites[reply.metadata.src_node_id]]
        np.testing.assert_allclose(answer["sum"], mean_of(config, shard.schema, shard.train), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_secure_sum_is_the_plain_one_but_for_rounding(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, list[np.ndarray]] = {1: [], 2: []}
    absorb = SumsHalf.absorb

    def listening(
        half: SumsHalf, number: int, state: State, sent: Arrays, collected: Collected
    ) -> tuple[State, Arrays]:
        assert not sent and collected.mean.keys() == {"sum"}
        found[number].append(collected.mean["sum"])
        return absorb(half, number, state, sent, collected)

    monkeypatch.setattr(SumsHalf, "absorb", listening)
    _, _, config = ran(tmp_path / "plain", name, **{"privacy.dp": False})
    _, outcome, _ = ran(
        tmp_path / "secure", name, **{"privacy.dp": False, "secure.aggregation": True, "secure.clip-norm": 1.0}
    )
    (plain, secure), shards = found[1], simulated_shards(config)
    means = [mean_of(config, shard.schema, shard.train) for shard in shards]
    patients = [shard.train.patients for shard in shards]
    np.testing.assert_allclose(plain, np.average(means, axis=0, weights=patients), rtol=1e-9, atol=1e-15)
    # Where patients were not counted, a secure sum weighs hospitals alike.
    weights = [outcome.state.public_patients.get(shard.site, 1.0) for shard in shards]
    assert 0 < np.abs(secure - np.average(means, axis=0, weights=weights)).max() < 2.0 / 2**config.secure.bits
