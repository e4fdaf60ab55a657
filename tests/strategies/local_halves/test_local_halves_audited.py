"""The audit of halves at hospitals: correct ones pass, planted faults are caught, and a penalty is clipped with the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent, SelfComposedDpEvent
from torch.nn import functional

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import mlp
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.streams import generator
from polyclinic.strategies.moon import MOON
from polyclinic.training import classification
from polyclinic.training.auditing.audit import audit, noise, sensitivity, steps
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.auditing.faults import fault_named
from polyclinic.training.auditing.subject import Subject
from polyclinic.training.local import PLAIN, LocalHalf, Penalty, Sites, Trained
from polyclinic.training.task import TrainSettings
from tests.strategies.local_halves.halves import HALVES, SECOND, START, build, moved, patients, settings, work
from tests.training.test_auditing import task

ROUNDS, DELTA = 4, 1e-5
SEPARATE = {name: next(label for label in passes if label) for name, passes in SECOND.items()}


def subject(name: str, fault: str | None = None, **changes: Any) -> Subject:
    """Training with the half ``name``, with what it costs."""
    draw = generator(0, "test", "patients")
    rows = Rows(draw.normal(size=(80, 4)), draw.integers(0, 2, 80), np.arange(80), 80)
    chosen = settings(**{"sample_rate": 0.2, "noise_multiplier": 2.5, "local": HALVES[name]} | changes)
    claimed = epsilon(SelfComposedDpEvent(classification.event(chosen), ROUNDS), DELTA)
    return Subject(
        chosen, ROUNDS, rows, 2, claimed, DELTA, 0, fault_named(fault), task=classification, build=perceptron
    )


def perceptron(features: int) -> Any:
    return lambda: mlp(features, 2, (3,))


@pytest.mark.parametrize("name", HALVES)
def test_a_correct_half_passes_every_check_of_each_of_its_passes(name: str) -> None:
    found = audit(subject(name), 60, (30,))
    assert found.caught_by == [] and found.white_box
    checked = {finding.name for finding in found.findings}
    places = ["", f" ({SEPARATE[name]})"] if name in SEPARATE else [""]
    assert {"sensitivity", "steps", "noise independence"} <= checked
    assert {f"{check}{place}" for check in ("noise size", "sample rate", "pairs") for place in places} <= checked


@pytest.mark.parametrize("name", SECOND)
def test_a_second_pass_without_noise_is_caught_by_its_noise_and_by_canaries(name: str) -> None:
    wrong = subject(name, "second-noise-off")
    assert [finding.name for finding in noise(wrong) if not finding.passed] == [f"noise size ({SEPARATE[name]})"]
    assert guess(wrong, 300, (150,), 0.95, True).epsilon_lower > wrong.epsilon


@pytest.mark.parametrize("name", [name for name in HALVES if name not in SECOND])
def test_the_fault_of_a_second_pass_has_no_place_where_there_is_one(name: str) -> None:
    with pytest.raises(ConfigError, match="twice in a round"):
        noise(subject(name, "second-noise-off"))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("fault", ["noise-off", "half-noise", "no-clipping"])
def test_a_fault_of_every_pass_is_caught(name: str, fault: str) -> None:
    wrong = subject(name, fault)
    found = [sensitivity(wrong)] if fault == "no-clipping" else noise(wrong)
    failed = {finding.name for finding in found if not finding.passed}
    sizes = {f"noise size ({label})" if label else "noise size" for label in SECOND.get(name, {"": 4})}
    assert failed == ({"sensitivity"} if fault == "no-clipping" else sizes)


@pytest.mark.parametrize("name", SECOND)
def test_a_second_pass_that_is_not_charged_is_caught(name: str) -> None:
    def event(settings: TrainSettings, begun: bool = False) -> DpEvent:
        kept = settings.local.passes(settings)[0].gradients
        return classification.event(replace(settings, local=PLAIN, local_steps=kept), begun)

    free = task(classification.train)
    free.event = event
    assert steps(subject(name)).passed and not steps(replace(subject(name), task=free)).passed


# ---- a term of each patient's own loss


@dataclass(frozen=True)
class Elsewhere(LocalHalf):
    """One gradient of MOON's loss, at a model that is neither the one that was sent nor the hospital's last."""

    half: MOON.Local
    penalises = True
    sends = ("sum",)

    def round(self, sites: Sites) -> Trained:
        here, last = sites.model * 1.3 + 0.2, sites.model * 0.5 - 0.4
        penalty = Penalty((sites.model, last), self.half._term)
        return Trained(sites.model, sent={"sum": sites.gradient(here, penalty=penalty)})


def sum_of(rows: Rows, weight: float, engine: str, **changes: Any) -> np.ndarray:
    """The sum of the clipped gradients of all patients of ``rows``, without noise."""
    half = Elsewhere(MOON.Local(weight, 0.3))
    chosen = {"sample_rate": 1.0, "local_steps": 1, "noise_multiplier": 0.0, "double": True, "engine": engine}
    (site,) = work(1)
    (update,) = classification.train(
        build, moved(START), [replace(site, rows=rows)], settings(**chosen | changes, local=half)
    )
    return np.concatenate([np.ravel(update.beside["sum"][name]) for name in START]) * site.public_patients


def joined(rows: Rows, x: np.ndarray) -> Rows:
    """One patient more, of whom ``x`` are the rows."""
    number = np.full(len(x), rows.patients)
    return Rows(
        np.concatenate([rows.x, x]), np.concatenate([rows.y, number * 0]), np.concatenate([rows.patient, number]),
        rows.patients + 1,
    )  # fmt: skip


ROW = np.linspace(-2, 2, 6)[None]
STRANGERS = {
    "typical": ROW,
    "far": ROW * 1e30,
    "infinite": ROW * np.inf,
    "missing": ROW * np.nan,
    "many rows": np.repeat(ROW, 40, 0),
}


@pytest.mark.parametrize(("engine", "apart"), [("functional", False), ("opacus", False), ("auto", True)])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_patient_moves_a_sum_with_a_penalty_by_no_more_than_the_clip_norm(
    stranger: str, engine: str, apart: bool
) -> None:
    company = patients(0)
    with_them, without = (
        sum_of(rows, 1e5, engine, apart=apart) for rows in (joined(company, STRANGERS[stranger]), company)
    )
    assert np.linalg.norm(with_them - without) <= 0.4 * (1 + 1e-6)
    assert stranger in ("infinite", "far") or np.linalg.norm(with_them - without) > 0.1


def test_the_penalty_is_a_part_of_what_is_clipped() -> None:
    with_it, without = (sum_of(patients(0), weight, "functional") for weight in (2.0, 0.0))
    assert np.linalg.norm(with_it - without) > 0.5
    # So strong a term leaves nothing of the loss in what is clipped to the same norm.
    strong, stronger = (sum_of(patients(0), weight, "functional", max_grad_norm=1e-3) for weight in (1e5, 1e6))
    np.testing.assert_allclose(strong, stronger, atol=1e-6)


@pytest.mark.parametrize("engine", ["functional", "opacus"])
def test_a_penalty_has_the_gradient_of_the_written_out_loss(engine: str) -> None:
    """Equation 3 of MOON, of each patient the mean over the rows, without clipping."""
    rows = patients(0)
    found = sum_of(rows, 2.0, engine, noise_multiplier=None)
    sent = {name: torch.from_numpy(value).double() for name, value in moved(START).items()}
    here = {name: (value * 1.3 + 0.2).requires_grad_() for name, value in sent.items()}
    last = {name: value * 0.5 - 0.4 for name, value in sent.items()}
    module, x = build().double(), torch.from_numpy(rows.x)

    def hidden(of: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.tanh(x @ of["0.weight"].T + of["0.bias"])

    z, near, far = hidden(here), hidden(sent), hidden(last)
    similar = torch.stack([functional.cosine_similarity(z, other) / 0.3 for other in (near, far)])
    outputs = torch.func.functional_call(module, here, (x,))
    each = functional.cross_entropy(outputs, torch.from_numpy(rows.y), reduction="none")
    each = each - 2.0 * torch.log_softmax(similar, 0)[0]
    count = torch.bincount(torch.from_numpy(rows.patient))
    total = (each / count[torch.from_numpy(rows.patient)]).sum()
    slopes = torch.autograd.grad(total, [here[name] for name in START])
    expected = np.concatenate([np.ravel(slope.numpy()) for slope in slopes])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
