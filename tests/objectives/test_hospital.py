"""A real hospital with a label that is a number: trains, is charged, and lets exact metrics leave where its policy says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from polyclinic.client.app import app
from polyclinic.client.checks import check_names
from polyclinic.client.home.hospital import _real_hospital
from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused
from polyclinic.models.tabular import initialise
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.programs import program_of
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import COUNTS, RECORD, REFUSED, EvaluateRequest, TrainRequest
from tests.client.test_hospital import STRICT, context, ledger, message
from tests.objectives.cohorts import records, schema

CONFIG = RunConfig(training={"local_steps": 3, "sample_rate": 0.2})
OPEN = STRICT + "release-metrics = true\nrelease-predictions = true\n"


def make_hospital(folder: Path, policy: str = OPEN) -> Path:
    records("days", 200).to_csv(folder / "records.csv", index=False)
    schema("days").to_toml(folder / "schema.toml")
    (folder / "hospital.toml").write_text(
        f'site = "a"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\n{policy}'
    )
    return folder / "hospital.toml"


def model(config: RunConfig) -> dict[str, np.ndarray]:
    build = program_of(config).builder(schema("days"))
    return {name: value.numpy() for name, value in initialise(build, 0).items()}


def train(hospital: Path, config: RunConfig = CONFIG, arrays: dict[str, np.ndarray] | None = None) -> Message:
    program = program_of(config)
    plan = plan_text([(program.price(program.settings(1.2)), 2)])
    request = TrainRequest(
        run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5, plan=plan
    )
    return app(message(request, "train", arrays or model(config)), context(hospital, config))


def evaluate(hospital: Path, config: RunConfig = CONFIG, **changes: Any) -> Message:
    values: dict[str, Any] = {"run": "r", "site": 0, "round": 1, "private_evaluations": 1} | changes
    return app(message(EvaluateRequest(**values), "evaluate", model(config)), context(hospital, config))


def test_it_trains_and_its_exact_metrics_leave_as_its_policy_says(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    reply = train(hospital)
    assert reply.content["metrics"]["steps"] == 3 and ledger(hospital).epsilon() > 0
    content = evaluate(hospital).content
    arrays = from_record(content["predictions"])
    assert arrays["labels"].dtype == np.float64 and arrays["scores"].shape == (len(arrays["labels"]), 1)
    assert np.allclose(arrays["scores"], 8.0)  # the untrained model's: the label's public centre
    assert content["metrics"]["mae"] == pytest.approx(np.abs(arrays["labels"] - 8.0).mean())
    assert [event["purpose"] for event in ledger(hospital).events()][-1] == "held-out metrics and predictions"


def test_private_metrics_are_noised_sums_of_errors_that_are_charged_to_held_out_patients(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, STRICT)
    train(hospital)
    content = evaluate(hospital).content
    assert content[COUNTS]["counts"].numpy().shape == (6,) and "mae" not in content["metrics"]
    [event] = Ledger.read(tmp_path / "home" / "held-out.sqlite").events()
    assert event["purpose"] == "private-metrics" and 0.9 < content[RECORD]["held-out-epsilon"] <= 1.0


def test_an_objective_that_the_policy_does_not_name_is_refused_before_its_code_is_loaded(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    request = EvaluateRequest(run="r", site=0, round=1, private_evaluations=1)
    unknown = RunConfig(objective="no_such_module:Loss")
    reply = app(message(request, "evaluate", model(CONFIG)), context(hospital, unknown))
    assert "the policy allows the objectives classification, binary," in reply.error.reason
    narrow = make_hospital(tmp_path, OPEN + 'allowed-objectives = ["huber"]\n')
    refused = train(narrow, RunConfig(objective="quantile"))
    assert refused.error.code == REFUSED
    assert "the policy allows the objectives huber, not 'quantile'" in refused.error.reason
    assert not ledger(hospital).events()


def test_what_follows_from_the_label_needs_no_permission(tmp_path: Path) -> None:
    """Hazards are settled by name where no objective is given; any other name is refused by an empty list."""
    file = make_hospital(tmp_path, OPEN + "allowed-objectives = []\n")
    schema("survival").to_toml(tmp_path / "schema.toml")
    hospital = _real_hospital(file)
    settled = RunConfig().for_schema(hospital.schema)
    assert settled.objective == "hazards"
    check_names(hospital, settled)
    for name in ("piecewise-exponential", "squared"):
        with pytest.raises(BudgetRefused, match=f"the policy allows the objectives hazards, not '{name}'"):
            check_names(hospital, RunConfig(objective=name))
    schema("days").to_toml(tmp_path / "schema.toml")
    with pytest.raises(BudgetRefused, match="the policy allows the objectives none, not 'hazards'"):
        check_names(_real_hospital(file), settled)


def test_a_model_of_another_number_of_outputs_is_refused_before_the_ledger(tmp_path: Path) -> None:
    hospital, two = make_hospital(tmp_path), RunConfig(objective="quantile", objective_options={"levels": [0.1, 0.9]})
    refused = train(hospital, two, model(CONFIG))
    assert refused.has_error() and not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("kind", ["Ranked", "Remembering"])
def test_predictions_that_depend_on_other_rows_are_refused_before_any_ledger(tmp_path: Path, kind: str) -> None:
    name = f"tests.objectives.test_objectives:{kind}"
    hospital = make_hospital(tmp_path, STRICT + f'allowed-objectives = ["{name}"]\n')
    config = RunConfig(objective=name)
    for reply in (train(hospital, config, model(CONFIG)), evaluate(hospital, config)):
        assert "predictions of a row must be finite" in reply.error.reason
    assert not ledger(hospital).events() and not (tmp_path / "home" / "held-out.sqlite").exists()
