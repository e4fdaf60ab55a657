"""The audit of training: correct code passes, and every planted fault is caught by the part that can see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, SelfComposedDpEvent
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import logistic, mlp
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.noise import noise_process
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.strategies.ditto import Ditto
from polyclinic.strategies.scaffold import Scaffold
from polyclinic.training import classification
from polyclinic.training.auditing.audit import audit, findings, noise, sampling, sensitivity, steps
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.auditing.faults import FAULTS, NO_FAULT, fault_named
from polyclinic.training.auditing.subject import Subject
from polyclinic.training.local import PLAIN, LocalHalf, Sites, Trained
from polyclinic.training.logistic.convex import EXPONENTIAL, OBJECTIVE, OUTPUT
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays

ROUNDS, DELTA = 12, 1e-5
SETTINGS = TrainSettings(
    sample_rate=0.2, local_steps=5, learning_rate=0.3, max_grad_norm=0.7, noise_multiplier=2.5, optimizer="adam"
)
CLAIMED = epsilon(dpsgd_event(0.2, 2.5, 5 * ROUNDS), DELTA)


def patients(count: int = 80, features: int = 4) -> Rows:
    draw = generator(0, "test", "patients")
    return Rows(draw.normal(size=(count, features)), draw.integers(0, 2, count), np.arange(count), count)


def linear(features: int) -> Callable[[], nn.Module]:
    return lambda: logistic(features, 2)


def subject(task: Any = classification, fault: str | None = None, seed: int = 0, **changes: Any) -> Subject:
    settings = replace(SETTINGS, **changes)
    return Subject(settings, ROUNDS, patients(), 2, CLAIMED, DELTA, seed, fault_named(fault), task=task, build=linear)


def test_the_claims_here_are_those_of_a_usual_run() -> None:
    assert 2.0 < CLAIMED < 4.0


@pytest.mark.parametrize("engine", ["linear", "functional", pytest.param("opacus", marks=pytest.mark.slow)])
def test_correct_training_passes_everything(engine: str) -> None:
    found = audit(subject(engine=engine), 200, (80,))
    assert not found.violated and found.caught_by == [] and found.guessing is not None
    assert 0 < found.guessing.epsilon_lower < CLAIMED


def test_no_false_alarm_in_twenty_correct_audits() -> None:
    bounds = [guess(subject(seed=seed), 100, (40,), 0.95, True).epsilon_lower for seed in range(20)]
    assert max(bounds) <= CLAIMED and np.median(bounds) < CLAIMED / 2


@pytest.mark.parametrize("white_box", [True, False], ids=["white-box", "black-box"])
def test_canaries_see_that_the_noise_is_off(white_box: bool) -> None:
    assert guess(subject(fault="noise-off"), 1000, (333,), 0.95, white_box).epsilon_lower > CLAIMED + 0.5


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("noise-off", ["canaries", "noise size"]),
        ("half-noise", ["noise size"]),  # a true epsilon of about twice the claimed one is beyond what canaries show
        ("no-clipping", ["canaries", "sensitivity", "steps"]),  # steps are counted by what a clipped canary adds
        ("batch-norm", ["refusal", "sensitivity"]),
        ("shuffled", ["batch sizes", "patients' turns", "pairs"]),
    ],
)
def test_every_planted_fault_is_caught_by_the_part_that_can_see_it(fault: str, caught_by: list[str]) -> None:
    found = audit(subject(fault=fault), 1000, (333,))
    assert found.violated and found.caught_by == caught_by


def test_fault_13_batch_norm_is_refused_and_would_move_sums_by_ten_clip_norms() -> None:
    found = audit(subject(fault="batch-norm"), 100, (30,))
    assert found.refused is not None and "mixes patients" in found.refused and found.guessing is None
    assert found.findings[0].name == "sensitivity" and found.findings[0].measured > 10


def test_all_faults_are_tested_here() -> None:
    assert set(FAULTS) == {"noise-off", "half-noise", "no-clipping", "batch-norm", "shuffled", "second-noise-off"}
    assert fault_named(None) is NO_FAULT
    with pytest.raises(ConfigError, match="Did you mean 'shuffled'"):
        fault_named("shufled")


Train = Callable[[Any, Arrays, Sequence[SiteWork], TrainSettings], list[SiteUpdate]]


def task(train: Train) -> SimpleNamespace:
    """Classification with another ``train``."""
    return SimpleNamespace(
        event=classification.event, check=classification.check, evaluate=classification.evaluate, train=train
    )


def less_noise(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """Noise 1.3 times too small, as a wrongly factorised matrix mechanism had it."""
    return classification.train(
        build, arrays, work, replace(settings, noise_multiplier=settings.noise_multiplier / 1.3)
    )


def one_seed(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """Every site and round draws the same noise."""
    alike = [replace(site, noise=keyed_stream(0, "one seed for all")) for site in work]
    return classification.train(build, arrays, alike, settings)


def rows_for_patients(
    build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
) -> list[SiteUpdate]:
    """Every row is clipped as if it were a patient."""
    rows = [Rows(site.rows.x, site.rows.y, np.arange(len(site.rows.y)), len(site.rows.y)) for site in work]
    return classification.train(build, arrays, [replace(s, rows=r) for s, r in zip(work, rows, strict=True)], settings)


def twice_the_norm(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """A patient may add 2 C to a sum whose noise is for C, as when real and generated rows are clipped together."""
    twice = replace(settings, max_grad_norm=2 * settings.max_grad_norm, noise_multiplier=settings.noise_multiplier / 2)
    return classification.train(build, arrays, work, twice)


def one_step_more(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """Takes a step that is not charged, and does not report it."""
    taken = classification.train(build, arrays, work, replace(settings, local_steps=settings.local_steps + 1))
    return [replace(update, steps=settings.local_steps) for update in taken]


def skips_empty_batches(
    build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
) -> list[SiteUpdate]:
    """Where nobody is sampled nothing is released, which tells that nobody was there."""
    if any(site.rows.patients == 0 for site in work):
        return classification.train(build, arrays, work, replace(settings, noise_multiplier=0.0))
    return classification.train(build, arrays, work, settings)


def private_divisor(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """Divides by the hospital's number of patients and not by a public one."""
    private = [replace(site, public_patients=float(max(site.rows.patients, 1))) for site in work]
    return classification.train(build, arrays, private, settings)


def forgets_nan(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """One record that is not finite makes every parameter NaN."""
    updates = classification.train(build, arrays, work, settings)
    return [
        update if np.isfinite(site.rows.x).all() else replace(update, arrays={k: v * np.nan for k, v in arrays.items()})
        for site, update in zip(work, updates, strict=True)
    ]


@pytest.mark.parametrize(
    ("train", "check", "name"),
    [
        (less_noise, noise, "noise size"),
        (skips_empty_batches, noise, "noise size"),  # fault 12
        (one_seed, noise, "noise independence"),  # fault 8
        (one_step_more, steps, "steps"),  # fault 8
        (rows_for_patients, sensitivity, "sensitivity"),  # fault 21
        (twice_the_norm, sensitivity, "sensitivity"),  # fault 29
        (forgets_nan, sensitivity, "sensitivity"),  # fault 28
        (private_divisor, steps, "steps"),  # fault 28
    ],
)
def test_faults_found_in_peers_are_caught(train: Train, check: Callable[[Subject], Any], name: str) -> None:
    found = check(subject(task(train)))
    failed = [finding.name for finding in (found if isinstance(found, list) else [found]) if not finding.passed]
    assert failed == [name]


def test_fault_12_shuffled_small_batches_are_caught() -> None:
    """Batches of half a percent, one step a round: few of the checked canaries are in any round."""
    small = subject(fault="shuffled", sample_rate=1 / 200, local_steps=1)
    assert "batch sizes" in {finding.name for finding in sampling(small) if not finding.passed}
    assert all(finding.passed for finding in sampling(replace(small, fault=NO_FAULT)))


def test_a_network_with_hidden_units_is_audited_like_any_other() -> None:
    deep = replace(subject(), build=lambda features: lambda: mlp(features, 2, (6,)))
    found = audit(deep, 100, (40,))
    assert found.caught_by == []
    assert guess(replace(deep, fault=FAULTS["noise-off"]), 300, (150,), 0.95, True).epsilon_lower > CLAIMED


def test_noise_over_time_is_unmixed_before_it_is_measured() -> None:
    process = noise_process("banded", 5 * ROUNDS)
    cyclic = subject(batching="cyclic", noise=process, denoise="disk")
    assert steps(replace(cyclic, rounds=ROUNDS - 2)).passed and not steps(replace(cyclic, rounds=ROUNDS + 3)).passed
    assert [finding.name for finding in findings(cyclic) if not finding.passed] == []
    assert [finding.name for finding in noise(replace(cyclic, fault=FAULTS["half-noise"])) if not finding.passed] == [
        "noise size"
    ]
    assert guess(replace(cyclic, fault=FAULTS["noise-off"]), 1000, (333,), 0.95, True).epsilon_lower > CLAIMED


def test_full_batches_are_the_sampling_that_a_rate_of_one_claims() -> None:
    assert all(finding.passed for finding in sampling(subject(sample_rate=1.0)))


def test_real_hospitals_streams_are_audited_without_a_seed() -> None:
    system = replace(subject(), seed=None)
    first, second = (guess(system, 60, (30,), 0.95, True) for _ in range(2))
    assert first.canaries == second.canaries == 60
    assert not np.array_equal(system.stream("coins").uniform(60), system.stream("coins").uniform(60))
    assert all(finding.passed for finding in findings(system))


def test_a_task_may_bring_its_own_canaries_and_scores() -> None:
    own = task(classification.train)
    own.canaries = lambda features, classes, count, scale, stream: Rows(
        np.hstack([np.ones((count, features)), scale * np.eye(count)]),
        np.zeros(count, np.int64),
        np.arange(count),
        count,
    )
    own.canary_losses = lambda build, arrays, rows: -np.log(classification.evaluate(build, arrays, [rows])[0][:, 0])
    assert guess(subject(own, "noise-off", learning_rate=0.05), 200, (100,), 0.95, False).epsilon_lower > 2


def test_a_model_that_mixes_patients_is_refused_where_no_fault_was_planted() -> None:
    mixing = replace(
        subject(), build=lambda features: lambda: nn.Sequential(nn.BatchNorm1d(features), linear(features)())
    )
    with pytest.raises(ConfigError, match="mixes patients"):
        audit(mixing, 50, (20,))


TWICE: dict[str, LocalHalf] = {"personal": Ditto.Local(), "control": Scaffold.Local("gradient")}


def twice(name: str, fault: str | None = None) -> Subject:
    """Training that looks at the records twice in a round, with what both cost; ``name`` is that of the second pass."""
    made = subject(fault=fault, optimizer="sgd", local=TWICE[name])
    return replace(made, rounds=4, epsilon=epsilon(SelfComposedDpEvent(made.task.event(made.settings), 4), DELTA))


@pytest.mark.parametrize("name", TWICE)
def test_what_a_hospital_makes_of_its_records_a_second_time_is_audited_too(name: str) -> None:
    correct, wrong = twice(name), twice(name, "second-noise-off")
    passed = {finding.name: finding.passed for finding in findings(correct)}
    assert all(passed.values()) and {f"noise size ({name})", f"sample rate ({name})"} < set(passed)
    assert [finding.name for finding in noise(wrong) if not finding.passed] == [f"noise size ({name})"]
    assert guess(wrong, 300, (150,), 0.95, True).epsilon_lower > wrong.epsilon + 0.5
    with pytest.raises(ConfigError, match="twice in a round"):
        audit(subject(fault="second-noise-off"), 50, (20,))


def test_a_second_look_that_is_not_charged_or_draws_the_first_ones_noise_is_caught() -> None:
    def event(settings: TrainSettings, begun: bool = False) -> DpEvent:
        return classification.event(replace(settings, local=PLAIN), begun)

    def alike(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        same = [replace(site, noise=Repeated(site.noise)) for site in work]
        return classification.train(build, arrays, same, settings)

    class Repeated:
        def __init__(self, stream: Any) -> None:
            self.stream, self.uniform, self.first = stream, stream.uniform, None

        def normal(self, size: Any) -> Any:
            self.first = self.stream.normal(size) if self.first is None else self.first
            return self.first

    free, repeated = task(classification.train), task(alike)
    free.event = event
    assert not steps(replace(twice("personal"), task=free)).passed and steps(twice("personal")).passed
    caught = {finding.name for finding in noise(replace(twice("personal"), task=repeated)) if not finding.passed}
    assert "noise independence" in caught


def test_a_half_cannot_make_more_gradients_than_its_round_is_charged_for() -> None:
    @dataclass(frozen=True)
    class Greedy(LocalHalf):
        def round(self, sites: Sites) -> Trained:
            trained = super().round(sites)
            return Trained(trained.model - sites.gradient(trained.model))

    with pytest.raises(RuntimeError, match="more gradients than the 1"):
        findings(subject(local=Greedy()))
    with pytest.raises(RuntimeError, match="no pass 'more'"):
        findings(subject(local=Elsewhere()))


@dataclass(frozen=True)
class Elsewhere(LocalHalf):
    def round(self, sites: Sites) -> Trained:
        return Trained(sites.model - sites.gradient(sites.model, "more"))


def convex(task: Any = OUTPUT, fault: str | None = None, **changes: Any) -> Subject:
    settings = {"noise_multiplier": 1.5, "weight_decay": 0.1, "max_grad_norm": 2.0, "release_delta": 9e-6} | changes
    made = subject(task, fault, **settings)
    return replace(made, rounds=1, epsilon=epsilon(task.event(made.settings), DELTA))


@pytest.mark.parametrize("kind", ["gaussian", "gamma"])
@pytest.mark.parametrize("task", [OUTPUT, OBJECTIVE, EXPONENTIAL], ids=["output", "objective", "exponential"])
def test_a_released_minimiser_is_audited(task: Any, kind: str) -> None:
    if (task, kind) == (EXPONENTIAL, "gamma"):
        pytest.skip("a draw by the objective's value has no other noise")
    found = audit(convex(task, perturbation=kind), 200, (80,))
    assert found.caught_by == [] and found.white_box
    assert [finding.name for finding in found.findings] == [
        "canaries",
        "sensitivity",
        "noise size",
        "noise independence",
    ]


@pytest.mark.parametrize(
    ("task", "kind", "fault", "caught_by"),
    [
        (OUTPUT, "gaussian", "noise-off", ["canaries", "noise size"]),
        (OUTPUT, "gamma", "noise-off", ["canaries", "noise size"]),
        (OBJECTIVE, "gaussian", "noise-off", ["canaries", "noise size"]),
        (OUTPUT, "gaussian", "half-noise", ["noise size"]),
        (OUTPUT, "gamma", "half-noise", ["noise size"]),
        (OBJECTIVE, "gaussian", "half-noise", ["noise size"]),
        (OUTPUT, "gaussian", "no-clipping", ["canaries", "sensitivity"]),
        (OBJECTIVE, "gaussian", "no-clipping", ["canaries", "sensitivity"]),
        (EXPONENTIAL, "gaussian", "noise-off", ["canaries", "noise size"]),
        (EXPONENTIAL, "gaussian", "half-noise", ["noise size"]),
        (OUTPUT, "gaussian", "batch-norm", ["refusal"]),
    ],
)
def test_faults_of_a_released_minimiser_are_caught(task: Any, kind: str, fault: str, caught_by: list[str]) -> None:
    assert audit(convex(task, fault, perturbation=kind), 200, (150,)).caught_by == caught_by


def test_a_released_minimiser_that_a_private_number_of_patients_scales_is_caught() -> None:
    def private(build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        own = [replace(site, public_patients=float(max(site.rows.patients, 1))) for site in work]
        return OUTPUT.train(build, arrays, own, settings)

    wrong = replace(convex(), fault=replace(NO_FAULT, train=private))
    assert "sensitivity" in {finding.name for finding in findings(wrong) if not finding.passed}


def test_a_task_of_another_kind_is_attacked_through_its_final_model_alone() -> None:
    other = task(classification.train)
    other.takes_steps = False
    found = audit(subject(other, "noise-off", learning_rate=0.05), 300, (150,))
    assert not found.white_box and found.caught_by == ["canaries"] and len(found.findings) == 1


class Sum(nn.Module):
    """Sees the sum of the columns alone, in which no canary has a direction of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.linear(x.sum(dim=1, keepdim=True))


def test_a_model_in_which_canaries_are_alike_is_said_to_be_so() -> None:
    with pytest.raises(ConfigError, match="does not tell 50 canaries apart"):
        audit(replace(subject(), build=lambda features: Sum), 50, (20,))
