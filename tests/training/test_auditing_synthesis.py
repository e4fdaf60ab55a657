"""The audit of task synthesis: every trainer passes, and every planted fault is caught."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.errors import ConfigError
from polyclinic.plugins import BUILT_IN, resolve
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event, gaussian_event
from polyclinic.privacy.statistics import PatientTotal as Counted
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.fakes import fake_rows, generator_of, pairs
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.sums import SumsMethod
from polyclinic.training import classification
from polyclinic.training.auditing.audit import audit, noise, sensitivity, steps
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.auditing.faults import fault_named
from polyclinic.training.auditing.fixed import Fixed, label_counts, of_game, of_sums
from polyclinic.training.auditing.subject import Claim
from polyclinic.training.logistic.newton import Newton, Table
from polyclinic.training.synthesis import SUM, GameTask, SumsTask
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats, Ints
from tests.synthesis.tables import MIXED

LAYOUT = Layout.of(MIXED)
TRIAL = Layout.of(
    Schema(
        name="trial",
        unit="record",
        columns=(
            Column(name="sbp", kind="trajectory", steps=4, bounds=(60.0, 240.0), centre=130.0, spread=20.0),
            Column(name="dbp", kind="trajectory", steps=4, bounds=(30.0, 140.0), centre=75.0, spread=12.0),
            Column(name="arm", kind="binary", role="label"),
        ),
    )
)
DELTA, ROUNDS = 1e-5, 6
STEPS = TrainSettings(
    sample_rate=0.2, local_steps=2, learning_rate=0.1, max_grad_norm=0.05, noise_multiplier=2.0, optimizer="adam"
)
WHOLE = TrainSettings(
    sample_rate=1.0, local_steps=1, learning_rate=1.0, max_grad_norm=1.0, noise_multiplier=3.0, optimizer="sgd"
)
MAKERS: dict[str, Any] = {name: resolve("methods", name) for name in BUILT_IN["methods"]} | {
    "moments in two rounds": lambda at: Moments(at, rounds=2), "latent": lambda at: Latent(at, classes=3, rounds=4),
    "mst": lambda at: resolve("methods", "marginals")(at, algorithm="mst", rounds=3),
}  # fmt: skip
GAMES = {"gan": LAYOUT, "dpgan": LAYOUT, "ppgan": LAYOUT, "wgan": LAYOUT, "wgan-gp": LAYOUT, "acgan": TRIAL}

SLOW = ("marginals", "mst", "wgan", "wgan-gp")


def some(names: Any) -> list[Any]:
    """All names, those that take long marked as slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


def patients(layout: Layout, count: int = 60) -> Rows:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (count, layout.features))
    return Rows(x, rng.integers(0, layout.schema.num_classes, count), np.arange(count), count)


def claim(settings: TrainSettings, layout: Layout, claimed: float, seed: int, fault: str | None) -> Claim:
    classes = layout.schema.num_classes
    return Claim(settings, ROUNDS, patients(layout), classes, claimed, DELTA, seed, fault_named(fault))


def sums(method: SumsMethod, fault: str | None = None, seed: int = 0) -> Fixed:
    claimed = epsilon(gaussian_event(3.0 / method.rounds**0.5), DELTA)
    return of_sums(method, claim(WHOLE, method.layout, claimed, seed, fault))


def played(game: Game, layout: Layout = LAYOUT, fault: str | None = None, seed: int = 0, **changes: Any) -> Fixed:
    settings = replace(STEPS, **changes)
    claimed = epsilon(dpsgd_event(0.2, 2.0, 2 * ROUNDS), DELTA)
    return of_game(game, layout, claim(settings, layout, claimed, seed, fault))


@pytest.mark.parametrize("name", some(MAKERS))
def test_every_method_of_sums_passes(name: str) -> None:
    found = audit(sums(MAKERS[name](LAYOUT)), 40, (20,))
    assert found.caught_by == [] and found.guessing is not None and found.white_box
    assert {one.name for one in found.findings} >= {"canaries", "sensitivity", "noise size", "steps", "label counts"}


def test_newton_steps_pass_though_their_last_sum_has_two_numbers() -> None:
    features = TRIAL.features
    table = Table(TRIAL.schema, np.zeros(features), np.ones(features), np.zeros(features, dtype=bool))
    assert audit(sums(Newton(table, rounds=4)), 40, (20,)).caught_by == []


@pytest.mark.parametrize("name", some(GAMES))
def test_every_game_passes(name: str) -> None:
    found = audit(played(make(GAMES[name], name), GAMES[name]), 40, (20,))
    assert found.caught_by == [] and found.guessing is not None


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("noise-off", ["canaries", "noise size"]), pytest.param("half-noise", ["noise size"], marks=pytest.mark.slow),
        pytest.param("no-clipping", ["canaries", "sensitivity"], marks=pytest.mark.slow),
        ("batch-norm", ["refusal", "sensitivity"]), ("shuffled", ["batch sizes", "patients' turns"]),
    ],
)  # fmt: skip
def test_faults_planted_in_a_game_are_caught(fault: str, caught_by: list[str]) -> None:
    found = audit(played(make(LAYOUT, "dpgan"), fault=fault), 150, (100,))
    assert set(caught_by) <= set(found.caught_by)
    assert set(found.caught_by) - set(caught_by) <= {"steps", "pairs"}


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ("noise-off", ["canaries", "noise size"]),
        ("half-noise", ["noise size"]),
        ("no-clipping", ["canaries", "sensitivity"]),
    ],
)
def test_faults_planted_in_a_sum_are_caught(fault: str, caught_by: list[str]) -> None:
    found = audit(sums(Moments(LAYOUT), fault), 150, (100,))
    assert found.caught_by == caught_by


def test_faults_without_a_place_and_black_boxes_are_refused() -> None:
    for fault in ("batch-norm", "shuffled"):
        with pytest.raises(ConfigError, match="sum"):
            sums(Moments(LAYOUT), fault)
    with pytest.raises(ConfigError, match="white box"):
        audit(sums(Moments(LAYOUT)), 40, (20,), white_box=False)


def test_a_critic_with_batch_norm_is_refused() -> None:
    game = make(LAYOUT, "dpgan")
    mixing = replace(game, critic_of=lambda at: nn.Sequential(nn.BatchNorm1d(at.width), nn.Linear(at.width, 1)))
    with pytest.raises(ConfigError, match="mixes patients"):
        audit(played(mixing), 40, (20,))


@dataclass(frozen=True, eq=False)
class Wide(Independent):
    """Its vectors are longer than 1, so that they must be clipped."""

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        return 3.0 * super().contributions(round, question, z, patient, patients)


class Unclipped(SumsTask):
    """A sum of vectors as they are."""

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        method, rows = self.method, site.rows
        z = method.layout.rows(rows.x, rows.y)
        total = method.contributions(1, dict(self.question), z, rows.patient, rows.patients).sum(axis=0)
        total = total + settings.noise_scale * site.noise.normal(len(total))
        return SiteUpdate({SUM: total / (site.public_patients or 1.0)}, 1, 0.0, {})


class Rowwise(SumsTask):
    """Every row is clipped as if it were a patient."""

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        rows = Rows(site.rows.x, site.rows.y, np.arange(len(site.rows.y)), len(site.rows.y))
        return super()._update(replace(site, rows=rows), settings)


@pytest.mark.parametrize("task", [Unclipped, Rowwise])
def test_sums_that_are_made_wrongly_are_caught(task: type[SumsTask]) -> None:
    subject = sums(Wide(LAYOUT))
    assert sensitivity(subject).passed
    wrong = [replace(part, task=task(part.task.method, part.task.question)) for part in subject.parts]  # type: ignore[attr-defined,arg-type]
    found = sensitivity(replace(subject, parts=tuple(wrong)))
    assert not found.passed and found.measured > 1.5


class Apart(GameTask):
    """Generated rows are backpropagated apart from real ones, so that a patient is clipped twice."""

    def train(self, build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        game, layout = self.game, self.layout
        both = []
        for site in work:
            z = layout.rows(site.rows.x, site.rows.y)
            fakes = fake_rows(
                generator_of(game, layout, self.question), game, layout, layout.labels(z), np.random.default_rng(0)
            )
            rows = pairs(game, layout, z, site.rows.patient, site.rows.patients, fakes)
            alone = Rows(rows.x, rows.y, 2 * rows.patient + (1 - rows.y), 2 * rows.patients)
            both.append(replace(site, rows=alone))
        return classification.train(build, arrays, both, replace(settings, loss=game.loss))


class Free(GameTask):
    """Takes a step more than it says."""

    def train(self, build: Any, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        found = super().train(build, arrays, work, replace(settings, local_steps=settings.local_steps + 1))
        return [replace(one, steps=settings.local_steps) for one in found]


def wrong_game(task: type[GameTask]) -> Fixed:
    subject = played(replace(make(LAYOUT, "dpgan"), loss="logistic"))
    own: Any = subject.task
    return replace(subject, task=task(own.game, own.layout, own.question, clips=False))  # type: ignore[arg-type]


def test_games_that_are_trained_wrongly_are_caught() -> None:
    assert sensitivity(wrong_game(GameTask)).passed
    assert sensitivity(wrong_game(Apart)).measured > 1.1
    assert not steps(wrong_game(Free)).passed and "noise size" in failed(noise(wrong_game(Free)))


def failed(found: Any) -> list[str]:
    return [one.name for one in found if not one.passed]


def test_counts_of_labels_by_rows_are_caught() -> None:
    def by_rows(shard: Shard) -> Counted:
        return Counted(np.bincount(shard.y, minlength=shard.schema.num_classes).astype(np.float64), 1.0)

    subject = sums(Independent(LAYOUT))
    assert label_counts(subject).passed
    assert label_counts(replace(subject, counts=by_rows)).measured == pytest.approx(64.0)


def test_no_patients_at_all_is_a_hospital_too() -> None:
    assert failed(noise(played(make(LAYOUT, "gan")))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MAKERS, *GAMES])
def test_no_false_alarm_in_many_seeds(name: str) -> None:
    # Twenty of the default of each kind; `polyclinic reproduce audit` has twenty of every one.
    for seed in range(20 if name in ("moments", "gan") else 4):
        subject = sums(MAKERS[name](LAYOUT), seed=seed) if name in MAKERS else None
        subject = subject or played(make(GAMES[name], name), GAMES[name], seed=seed)
        found = audit(subject, 100, (50,))
        assert found.caught_by == [], (seed, found.caught_by)


@pytest.mark.slow
def test_bounds_of_twenty_seeds_stay_below_the_claim() -> None:
    bounds = [guess(played(make(LAYOUT, "gan"), seed=seed), 100, (40,), 0.95, True).epsilon_lower for seed in range(20)]
    claimed = played(make(LAYOUT, "gan")).epsilon
    assert max(bounds) <= claimed and np.median(bounds) < claimed / 2
