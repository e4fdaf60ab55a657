"""One patient moves what a real hospital gives by at most the clip; what could make it more is refused before a charge."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from torch import nn

from polyclinic.client.app import app
from polyclinic.client.home import hospital as hospital_module
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.split import is_test_patient
from polyclinic.errors import ConfigError
from polyclinic.programs import program_of
from polyclinic.types import Floats
from polyclinic.wire.messages import STANDARDISER, EvaluateRequest, TrainRequest
from tests.client.test_hospital import context, ledger, make_hospital, message, model

CHAOS = RunConfig.build({
    "model": "mlp", "hidden": "3,1,1,1", "privacy.max-grad-norm": 1.0, "privacy.patients-per-site": 128, "rounds": 1,
    "training.momentum": 0.0,
    "data.standardise": "none",
})  # fmt: skip


def chaotic(factor: float) -> dict[str, np.ndarray]:
    """h + 2h - 3h, which is 0 but for rounding, times ``factor`` three times over."""
    large = np.float32(factor)
    arrays = {
        "0.weight": np.array([[0.31, 0.17]] * 3), "0.bias": np.full(3, 0.4),
        "2.weight": np.array([[1.0, 2.0, -3.0]]) * large, "2.bias": np.zeros(1),
        "4.weight": np.full((1, 1), large), "4.bias": np.zeros(1), "6.weight": np.full((1, 1), large), "6.bias": np.zeros(1),
        "8.weight": np.array([[-5.0], [5.0]]), "8.bias": np.zeros(2),
    }  # fmt: skip
    return {name: value.astype(np.float32) for name, value in arrays.items()}


class Quiet:
    def uniform(self, size: Any) -> Floats:
        return np.full(size, 0.5)

    def normal(self, size: Any) -> Floats:
        return np.zeros(size)


def hospital_of(folder: Path, patients: int) -> Path:
    """A hospital of the first so many training patients, and always the same held-out ones."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({
        "id": np.arange(400), "age": rng.integers(20, 90, 400), "sbp": rng.normal(130, 15, 400).round(1),
        "died": (rng.random(400) < 0.85) * 1,
    })  # fmt: skip
    held = np.array([is_test_patient(str(number), 0.25) for number in frame.id])
    hospital = make_hospital(folder, "budget = 1e6\ndelta = 1e-5\nsmallest-shard = 1\n")
    pd.concat([frame[~held].head(patients), frame[held].head(30)]).to_csv(folder / "records.csv", index=False)
    return hospital


@pytest.mark.parametrize("patients", [16, 32, 64, 96, 128])
def test_fault_31_one_patient_more_moves_a_round_by_at_most_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patients: int
) -> None:
    monkeypatch.setattr(hospital_module, "system_stream", Quiet)
    given = chaotic(3e5)

    def total(number: int) -> Floats:
        request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=128.0, learning_rate=1.0)
        reply = app(message(request, "train", given), context(hospital_of(tmp_path / f"of {number}", number), CHAOS))
        new = {name: value.numpy() for name, value in reply.content["arrays"].items()}
        # Of float32 models the small arrays, whose steps are not lost.
        small = [name for name in given if np.abs(given[name]).max() < 10]
        return np.concatenate([(given[name] - new[name]).ravel().astype(float) for name in small]) * 128

    moved = np.linalg.norm(total(patients + 1) - total(patients))
    assert 1e-3 < moved <= 1.0 + 1e-4  # the model that leaves is float32


def ask(folder: Path, arrays: dict[str, np.ndarray], asks: RunConfig, **records: Any) -> Message:
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=128.0, learning_rate=0.5)
    asked = message(request, "train", arrays)
    for name, value in records.items():
        asked.content[name] = value
    return app(asked, context(make_hospital(folder), asks))


class Remembering(nn.Module):
    """Rows less the sum of all rows before."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 3), nn.Tanh(), nn.Linear(3, classes))
        self.seen = nn.Buffer(torch.zeros(features), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().sum(0)
        out: torch.Tensor = self.layers(x - self.seen)
        return out


@pytest.mark.parametrize("noise_multiplier", [None, 1.2])
def test_a_model_that_remembers_is_refused_whatever_was_looked_at_before(
    tmp_path: Path, noise_multiplier: float | None
) -> None:
    """Looked at for work without privacy, which the budget then refuses; or with a layer so full that no row shows."""
    name = f"{__name__}:Remembering"
    policy = f'budget = 9.0\ndelta = 1e-3\nallow-without-privacy = true\nallowed-models = ["{name}"]\n'
    hospital, config = make_hospital(tmp_path, policy), RunConfig.build({"model": name})
    given = program_of(config).first(Schema.from_toml(tmp_path / "schema.toml"))

    def ask(number: int, noise_multiplier: float | None, arrays: dict[str, np.ndarray]) -> Message:
        request = TrainRequest(
            run="r", site=0, round=number, noise_multiplier=noise_multiplier, public_patients=128.0, learning_rate=0.5
        )
        return app(message(request, "train", arrays), context(hospital, config))

    full = given | {"layers.0.bias": np.full(3, 1e6, dtype=np.float32)}
    first = ask(1, noise_multiplier, full if noise_multiplier else given)
    assert first.has_content() if noise_multiplier else "it would become inf" in first.error.reason
    assert "The model mixes patients" in ask(2, 1.2, given).error.reason


@pytest.mark.parametrize("value", [1.1e6, -1e30, float("nan"), float("inf")])
def test_fault_31_a_model_with_an_absurd_number_is_refused_before_a_charge(tmp_path: Path, value: float) -> None:
    given = model()
    given["0.bias"] = np.full_like(given["0.bias"], value)
    refused = ask(tmp_path, given, RunConfig(training={"local_steps": 3, "sample_rate": 0.2})).error
    assert "array '0.bias' holds values that are not finite numbers from -1e+06 to 1e+06" in refused.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize(("field", "value"), [("lr", 1e7), ("lr", 1e300), ("proximal-mu", 1e7), ("proximal-mu", 1e300)])
def test_fault_31_an_absurd_step_is_refused_before_a_charge(tmp_path: Path, field: str, value: float) -> None:
    refused = ask(tmp_path, model(), RunConfig(), config=ConfigRecord({field: value})).error
    assert f"'{field}' is {value!r}" in refused.reason and "1e+06" in refused.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize(("mean", "std"), [(1e7, 1.0), (0.0, 1e7), (0.0, 1e-7)])
def test_fault_31_an_absurd_scale_is_refused_before_a_charge(tmp_path: Path, mean: float, std: float) -> None:
    scale = ArrayRecord({"mean": Array(np.full(2, mean)), "std": Array(np.full(2, std))})
    refused = ask(tmp_path, model(), RunConfig(), **{STANDARDISER: scale}).error
    assert "standardiser must hold 2 finite means" in refused.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_fault_31_a_configuration_cannot_hold_an_absurd_pull() -> None:
    with pytest.raises(ConfigError, match="training.weight-decay"):
        RunConfig.build({"training.weight-decay": 1e300})
    with pytest.raises(ConfigError, match="pull must be a number of at least 0 and at most"):
        program_of(RunConfig.build({"strategy": "ditto", "strategy-options": "pull=1e300"})).check_names()


def test_fault_30_imputation_fitted_to_own_records_answers_nothing_where_privacy_is_the_policy(tmp_path: Path) -> None:
    hospital = make_hospital(
        tmp_path, "budget = 2.0\ndelta = 1e-3\nrelease-metrics = true\nrelease-predictions = true\n"
    )
    fitted = RunConfig.build({"data.imputation": "mice", "privacy.dp": False})
    request = EvaluateRequest(run="r", site=0, round=0)
    refused = app(message(request, "evaluate", model()), context(hospital, fitted)).error
    assert "imputation 'mice' makes one patient's row depend on others'" in refused.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists() or not ledger(hospital).events()
    assert app(message(request, "evaluate", model()), context(hospital, RunConfig())).has_content()


def test_fault_30_the_rows_themselves_cannot_be_filled_so(tmp_path: Path) -> None:
    hospital = hospital_module._real_hospital(make_hospital(tmp_path))
    for fill in (hospital_module.filled_rows, hospital_module.filled_by, hospital_module.own_imputer):
        with pytest.raises(Exception, match="no epsilon holds"):
            fill(hospital, "mice")


def test_where_the_policy_allows_work_without_privacy_so_does_this(tmp_path: Path) -> None:
    hospital = make_hospital(
        tmp_path, "budget = 2.0\ndelta = 1e-3\nrelease-metrics = true\nallow-without-privacy = true\n"
    )
    fitted = RunConfig.build({"data.imputation": "mice", "privacy.dp": False, "training.optimizer": "sgd"})
    request = EvaluateRequest(run="r", site=0, round=0)
    assert app(message(request, "evaluate", model()), context(hospital, fitted)).has_content()
    private = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=128.0, learning_rate=0.5)
    refused = app(message(private, "train", model()), context(hospital, fitted)).error
    assert "no epsilon holds" in refused.reason
