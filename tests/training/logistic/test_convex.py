"""The convex tasks: the minimiser, its sensitivity, the noise, exact draws, runs, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal, getcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import kstest
from sklearn.linear_model import LogisticRegression
from torch import nn

from polyclinic import Federation
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.privacy import perturbation
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.perturbation import TOLERANCE, BoundedRows
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training.logistic import convex
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays

TASKS = [convex.OUTPUT, convex.OBJECTIVE, convex.EXPONENTIAL]
BOTH = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def build() -> nn.Module:
    return logistic(4, 2).double()


START: Arrays = {name: value.numpy() for name, value in initialise(build, 0).items()}


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "sample_rate": 0.1, "local_steps": 7, "learning_rate": 0.3, "max_grad_norm": 2.0, "noise_multiplier": 1.5,
        "weight_decay": 0.05, "release_delta": 1e-4,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def rows(patients: int = 60, repeats: int = 1, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(patients, 4))
    y = (x @ [1.0, -2.0, 0.5, 0.0] + rng.logistic(size=patients) > 0.3).astype(np.int64)
    order = np.repeat(np.arange(patients), repeats)
    return Rows(x[order], y[order], order, patients)


def weights(arrays: Arrays) -> np.ndarray:
    """The released w: the difference of the two outputs, with the intercept last."""
    both = np.concatenate([arrays["0.weight"], arrays["0.bias"][:, None]], axis=1)
    np.testing.assert_allclose(both[0], -both[1])
    return np.asarray(both[1] - both[0])


def release(task: convex.ConvexTask, data: Rows, key: int = 0, **changes: Any) -> np.ndarray:
    site = SiteWork(data, keyed_stream(0, "b", key), keyed_stream(0, "noise", key), 50.0)
    return weights(task.train(build, START, [site], settings(**changes))[0].arrays)


def bounded(data: Rows, norm: float = 2.0) -> BoundedRows:
    return convex._bound_rows(data, norm)


@pytest.mark.parametrize("strength", [1e-3, 0.5, 40.0])
def test_the_minimiser_is_scikit_learns(strength: float) -> None:
    data = rows(300)
    v = bounded(data)
    x = v.rows * (2.0 * data.y - 1.0)[:, None]
    theirs = LogisticRegression(
        C=1 / strength, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cholesky"
    )
    np.testing.assert_allclose(convex.minimise(v, strength), theirs.fit(x, data.y).coef_[0], atol=1e-6)


@BOTH
def test_without_privacy_a_site_trains_its_minimiser(task: convex.ConvexTask) -> None:
    data = rows()
    found = release(task, data, noise_multiplier=None)
    np.testing.assert_allclose(found, convex.minimise(bounded(data), 0.05 * 60), atol=1e-12)
    update = task.train(build, START, [SiteWork(data, *[keyed_stream(0, "x")] * 2)], settings(noise_multiplier=None))[0]
    scores = task.evaluate(build, update.arrays, [data])[0]
    x = np.concatenate([data.x, np.ones((60, 1))], axis=1)
    np.testing.assert_allclose(scores[:, 1], expit(x @ found))
    assert update.steps == 1 and update.state == {} and 0 < update.loss < np.log(2)


vectors = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=8)


@given(vectors, st.floats(1e-3, 10), st.floats(0.1, 5), st.lists(st.floats(-20, 20), min_size=3, max_size=3))
@hypothesis_settings(max_examples=60)
def test_a_patient_moves_the_minimiser_by_at_most_its_sensitivity(
    x: list[list[float]], strength: float, norm: float, linear: list[float]
) -> None:
    full = perturbation.bounded_rows(np.array(x), np.ones(len(x)), np.arange(len(x)), len(x), norm)
    term = np.array(linear)
    whole = convex.minimise(full, strength, term)
    pull = expit(-full.rows @ whole)
    assert np.linalg.norm(strength * whole + term - pull @ full.rows) <= TOLERANCE * norm
    most = perturbation.minimiser_sensitivity(full, strength)
    for left_out in range(len(x)):
        less = BoundedRows(np.delete(full.rows, left_out, axis=0), norm)
        assert np.linalg.norm(whole - convex.minimise(less, strength, term)) <= most


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shape", ["separable", "alike", "opposed", "tiny", "none"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_the_minimiser_is_found_whatever_the_records(norm: float, shape: str, scale: float) -> None:
    """Else a hospital's silence would tell of its records; with the weakest regulariser that a run can ask for."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(400, 6))
    v *= np.sign(v[:, :1]) if shape == "separable" else 1.0
    v = {
        "alike": np.ones((400, 6)),
        "opposed": np.concatenate([v[:200], -v[:200]]),
        "none": v[:0],
        "tiny": v * 1e-9,
    }.get(shape, v)
    whole = perturbation.bounded_rows(v * norm, np.ones(len(v)), np.arange(len(v)), len(v), norm)
    strength = perturbation.public_strength(whole, 1e-300, 1.0)
    found = convex.minimise(whole, strength, scale * norm * rng.normal(size=6))
    assert np.isfinite(found).all()


def test_the_sensitivity_is_nearly_reached() -> None:
    """A patient whom the others contradict pulls with nearly the whole norm."""
    others = BoundedRows(np.full((500, 1), -1.0), 1.0)
    full = BoundedRows(np.append(others.rows, [[1.0]], axis=0), 1.0)
    moved = [convex.minimise(part, 2_000.0, np.array([6e3])) for part in (full, others)]
    assert abs(float((moved[0] - moved[1])[0])) > 0.8 * perturbation.minimiser_sensitivity(full, 2_000.0)


@BOTH
def test_a_private_release_depends_on_the_public_count_alone(task: convex.ConvexTask) -> None:
    """One patient more, as the row of zeros that moves nothing, leaves the release as it was."""
    data = rows()
    nobody = Rows(np.append(data.x, [[np.nan] * 4], axis=0), np.append(data.y, 1), np.append(data.patient, 60), 61)
    v = bounded(data)
    more = BoundedRows(np.append(v.rows, np.zeros((1, 5)), axis=0), 2.0)
    np.testing.assert_allclose(convex.minimise(v, 2.5), convex.minimise(more, 2.5), atol=1e-9)
    moved = np.linalg.norm(release(task, nobody) - release(task, data))
    assert moved <= perturbation.minimiser_sensitivity(v, 2.5)


@BOTH
def test_repeating_a_patients_rows_changes_nothing(task: convex.ConvexTask) -> None:
    np.testing.assert_allclose(release(task, rows()), release(task, rows(repeats=4)), atol=1e-8)


def test_output_noise_has_its_size() -> None:
    data = rows()
    exact = convex.minimise(bounded(data), 2.5)
    draws = np.stack([release(convex.OUTPUT, data, key) - exact for key in range(800)])
    assert draws.std() == pytest.approx(1.5 * 2.0 / 2.5, rel=0.03)
    pure = np.stack([release(convex.OUTPUT, data, key, perturbation="gamma") - exact for key in range(800)])
    assert np.linalg.norm(pure, axis=1).mean() == pytest.approx(5 * 1.5 * 2.0 / 2.5, rel=0.03)


def test_objective_noise_has_its_size_and_the_regulariser_its_least_strength() -> None:
    """What is released is stationary for the linear term that was drawn, which so comes to light again."""
    data = rows()
    v = bounded(data)
    share = perturbation.determinant_epsilon(1.5, "gaussian", 1e-4)
    strength = perturbation.least_strength(2.0, share)
    assert strength > 2.5, "the public count asks for less"

    def term(w: np.ndarray) -> np.ndarray:
        return np.asarray(expit(-v.rows @ w) @ v.rows - strength * w)

    draws = np.stack([term(release(convex.OBJECTIVE, data, key)) for key in range(800)])
    assert draws.std() == pytest.approx(1.5 * 2.0, rel=0.04) and abs(draws.mean()) < 0.2
    eased = release(convex.OBJECTIVE, data, weight_decay=10.0)
    assert np.linalg.norm(eased) < 0.2 * np.linalg.norm(release(convex.OBJECTIVE, data))


@pytest.mark.parametrize(
    ("patients", "strength", "noise"), [(40, 3.0, 0.4), (40, 3.0, 2.0), (200, 3.0, 4.0), (0, 1.0, 1.0)]
)
def test_the_exponential_mechanism_draws_from_its_density(patients: int, strength: float, noise: float) -> None:
    """Against the density's own distribution function, by quadrature; of nobody it is output perturbation's normal law."""
    v = BoundedRows(np.random.default_rng(0).uniform(-2, 2, size=(patients, 1)) + 0.0, 2.0)
    step, stream = settings(noise_multiplier=noise), keyed_stream(0, "noise", patients)
    draws = np.array([convex._exponential(v, strength, step, stream)[0] for _ in range(600)])
    inverse = perturbation.inverse_temperature(v, strength, noise)
    w = np.linspace(-12, 12, 40_001) / np.sqrt(inverse * strength) + convex.minimise(v, strength)[0]
    loss = np.logaddexp(0.0, -v.rows * w).sum(axis=0) + strength / 2 * w**2
    below = np.cumsum(np.exp(-inverse * (loss - loss.min())))
    assert kstest(draws, lambda at: np.interp(at, w, below / below[-1])).pvalue > 1e-3
    if not patients:
        assert inverse * strength == pytest.approx((noise * perturbation.minimiser_sensitivity(v, strength)) ** -2)


@pytest.mark.parametrize("size", [1e-20, 1e-12, 1e-6, 1e-3, 0.9, 3.0, 50.0, 800.0])
def test_how_far_losses_lie_above_their_tangents_is_exact_however_small_the_move(size: float) -> None:
    getcontext().prec = 80
    margins = np.array([-30.0, -2.0, 0.0, 0.7, 25.0])
    pull = 1.0 / (1.0 + np.exp(margins))
    for move in (size, -size):
        found = convex._above_tangent(np.full((1, 5), move), pull)[0]
        for one, value in zip(pull, found, strict=True):
            p, d = Decimal(float(one)), Decimal(move)
            exact = float((1 + p * ((-d).exp() - 1)).ln() + p * d)
            # Of a move below the root of the rounding error what is left is nothing beside the move.
            assert abs(value - exact) <= 1e-12 * exact + 3e-16 * float(p) * size


def test_the_exponential_mechanism_draws_its_law_at_settings_that_make_moves_tiny() -> None:
    """A lying coordinator may give any. Differences of losses would leave the tangents alone and cut the draw to a half-space."""
    norm, decay = 1e-6, 1e6
    rows = np.random.default_rng(0).normal(size=(200, 3))
    v = BoundedRows(norm * rows / np.linalg.norm(rows, axis=1, keepdims=True), norm)
    strength = decay * 200
    step, stream = settings(noise_multiplier=5.0), keyed_stream(0, "noise", 1)
    inverse = perturbation.inverse_temperature(v, strength, 5.0)
    centre = convex.minimise(v, strength)
    draws = np.array([convex._exponential(v, strength, step, stream) for _ in range(1500)]) - centre
    direction = rows.sum(axis=0) / np.linalg.norm(rows.sum(axis=0))
    scaled = draws @ direction * np.sqrt(inverse * strength)
    assert abs(scaled.mean()) < 0.1 and 0.8 < scaled.std() < 1.05


@pytest.mark.slow
def test_a_draw_of_millions_of_proposals_ends_in_a_draw() -> None:
    """An error after so many would tell of the records: one proposal in about four million is accepted."""
    v = BoundedRows(np.random.default_rng(0).normal(size=(40, 20)), 8.0)
    drawn = convex._exponential(v, 1.45, settings(noise_multiplier=0.02), keyed_stream(0, "noise"))
    assert np.isfinite(drawn).all()


def test_the_exponential_mechanism_draws_nearer_to_the_minimiser_than_output_perturbation() -> None:
    """At the same price and strength: the losses' curvature narrows the draw, where output noise does not see it."""
    data = rows(300)
    exact = convex.minimise(bounded(data), 2.5)
    far = {
        task.name: np.mean([np.sum((release(task, data, key) - exact) ** 2) for key in range(200)])
        for task in (convex.OUTPUT, convex.EXPONENTIAL)
    }
    assert convex.OUTPUT.event(settings()) == convex.EXPONENTIAL.event(settings())
    assert far["exponential-mechanism"] < 0.3 * far["output-perturbation"]


@BOTH
def test_releases_with_any_noise_that_may_be_asked_for_are_finite(task: convex.ConvexTask) -> None:
    for noise in (1e-3, 1e3, 1e6):
        assert np.isfinite(release(task, rows(), noise_multiplier=noise)).all()


@BOTH
def test_each_site_has_its_own_noise_and_rounds_do_not_build_on_each_other(task: convex.ConvexTask) -> None:
    data = rows()
    sites = [SiteWork(data, keyed_stream(0, "b"), keyed_stream(0, "noise", site), 50.0) for site in range(2)]
    first, second = (weights(update.arrays) for update in task.train(build, START, sites, settings()))
    assert not np.allclose(first, second)
    other = {name: value + 1.0 for name, value in START.items()}
    site = SiteWork(data, keyed_stream(0, "b"), keyed_stream(0, "noise", 0), 50.0)
    np.testing.assert_array_equal(first, weights(task.train(build, other, [site], settings())[0].arrays))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: mlp(4, 2, (3,)), "needs a convex model"),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "needs a convex model"),
        (lambda: nn.Sequential(nn.Linear(4, 2, bias=False)), "needs a convex model"),
        (lambda: logistic(4, 3), "needs a binary label"),
        (lambda: logistic(5, 2), "from 4 features"),
    ],
)
@BOTH
def test_other_models_and_labels_are_refused(
    task: convex.ConvexTask, module: Callable[[], nn.Module], words: str
) -> None:
    arrays = {name: value.numpy() for name, value in initialise(module, 0).items()}
    with pytest.raises(ConfigError, match=words):
        task.check(module, arrays, 4)
    with pytest.raises(ConfigError, match=words):
        task.train(module, arrays, [SiteWork(rows(), *[keyed_stream(0, "x")] * 2, 50.0)], settings())


@BOTH
def test_plain_linear_layers_pass_and_impossible_settings_do_not(task: convex.ConvexTask) -> None:
    task.check(build, START, 4)
    alone: Callable[[], nn.Module] = lambda: nn.Linear(4, 2)  # noqa: E731
    task.check(alone, {name: value.numpy() for name, value in initialise(alone, 0).items()}, 4)
    with pytest.raises(ConfigError, match="weight_decay is 0"):
        task.event(settings(weight_decay=0.0))
    with pytest.raises(ConfigError, match="public_patients is missing"):
        task.train(build, START, [SiteWork(rows(), *[keyed_stream(0, "x")] * 2)], settings())


AUROC = {"breast-cancer": 0.93, "heart-disease": 0.6, "ist": 0.68}


@pytest.mark.parametrize(("dataset", "kind"), [*((name, "gaussian") for name in AUROC), ("breast-cancer", "gamma")])
@BOTH
def test_a_run_spends_what_it_states(task: convex.ConvexTask, kind: str, dataset: str, tmp_path: Path) -> None:
    folder = {"heart-disease": "heart_uci", "ist": "ist"}.get(dataset, "")
    if not (Path(os.environ.get("POLYCLINIC_DATA", "")) / folder).is_dir():
        pytest.skip(f"POLYCLINIC_DATA names no folder with {folder}")
    if (kind, task) == ("gamma", convex.EXPONENTIAL):
        pytest.skip("a draw by the objective's value has no other noise")
    result = Federation.from_dataset(dataset, out=str(tmp_path)).run(
        task=task.name, convex={"perturbation": kind}, pictures=False
    )
    assert result.config.rounds == 1 and result.config.privacy.max_grad_norm == 2.0
    assert result.pooled["auroc"] > AUROC[dataset]
    ledgers = Ledger.read_all(result.path / "sites" / "ledger.sqlite")
    for site, ledger in ledgers.items():
        assert [event["purpose"] for event in ledger.events()] == ["statistics", "train"]
        assert 2.9 < ledger.epsilon() <= 3.0
        assert result.sites.loc[site, "epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02)
    private = result.summary["privacy"]
    assert private["steps"] == 1 and private["sample_rate"] is None and result.summary["engine"] is None


def test_a_tasks_own_defaults_are_its_own() -> None:
    federation = Federation.from_dataset("breast-cancer", task="output-perturbation", seed=3)
    assert (federation.config.rounds, federation.config.training.weight_decay) == (1, 0.1)
    back = federation.with_options(task="classification").config
    assert (back.rounds, back.training.weight_decay, back.seed) == (30, 0.0, 3)
    forth = federation.with_options(rounds=2, training={"weight_decay": 0.5}).with_options(seed=4).config
    assert (forth.task, forth.rounds, forth.training.weight_decay) == ("output-perturbation", 2, 0.5)


def test_every_round_is_charged_as_a_release_of_its_own(tmp_path: Path) -> None:
    one, three = (
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(
            task="objective-perturbation", rounds=rounds, pictures=False
        )
        for rounds in (1, 3)
    )
    assert three.summary["privacy"]["noise_multiplier"] > 1.5 * one.summary["privacy"]["noise_multiplier"]
    assert three.summary["privacy"]["epsilon"] <= 3.0
    told = [note for note in three.summary["notes"] if "release of its own" in note]
    assert told and not any("release of its own" in note for note in one.summary["notes"])


def test_without_statistics_gamma_noise_makes_the_whole_run_pure(tmp_path: Path) -> None:
    result = Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(
        task="output-perturbation",
        convex={"perturbation": "gamma"},
        data={"standardise": "none"},
        privacy={"patients_per_site": 80},
    )
    for ledger in Ledger.read_all(result.path / "sites" / "ledger.sqlite").values():
        (event,) = ledger.events()
        assert event["event"]["delta"] == 0 and event["event"]["epsilon"] <= 3.0 and ledger.epsilon() <= 3.0
    assert result.pooled["auroc"] > 0.9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "mlp"}, "needs a convex model"),
        ({"training.weight-decay": 0.0}, "training.weight-decay is 0 but task is 'output-perturbation'"),
        (
            {"task": "exponential-mechanism", "training.weight-decay": 0.03},
            "drawing a model would take too long; give training.weight-decay at least 0.049",
        ),
        (
            {"task": "exponential-mechanism", "convex.perturbation": "gamma"},
            "has an effect only with the task output-pert",
        ),
        ({"task": "output-pertubation"}, "Did you mean 'output-perturbation'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_any_charge(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(**{"task": "output-perturbation"} | changes)
    assert not list(tmp_path.rglob("ledger.sqlite"))


@pytest.mark.slow
def test_excess_risk_falls_as_the_bounds_say() -> None:
    """At least as n^(-1/2) for output perturbation, with a regulariser of that order, and as n^-1 for objective perturbation.

    Bounds for all convex losses; a smooth loss with curvature at its minimum does better.
    """
    numbers = [1_000, 4_000, 16_000, 64_000]
    noise, delta = 1.5, 1e-5
    risks: dict[str, list[float]] = {"output": [], "objective": []}
    for n in numbers:
        data = rows(n, seed=1)
        v = bounded(data)
        mean_loss = lambda w, v=v: float(np.logaddexp(0.0, -v.rows @ w).mean())  # noqa: E731
        best = mean_loss(convex.minimise(v, 1e-6))
        step = settings(noise_multiplier=noise, release_delta=delta)
        for name, run, strength in (
            ("output", convex._output, 2.0 * np.sqrt(n)),
            ("objective", convex._objective, 1e-3),
        ):
            found = [mean_loss(run(v, strength, step, keyed_stream(0, name, n, draw))) for draw in range(60)]
            risks[name].append(float(np.mean(found)) - best)
    slopes = {name: float(np.polyfit(np.log(numbers), np.log(found), 1)[0]) for name, found in risks.items()}
    assert slopes["output"] < -0.5 and slopes["objective"] < -1.0
    assert all(after < before for found in risks.values() for before, after in zip(found, found[1:], strict=False))
    assert risks["objective"][-1] < risks["output"][-1]


@pytest.mark.slow
def test_excess_risk_of_the_exponential_mechanism_falls_with_patients_and_with_noise() -> None:
    """As z sqrt(d) / n, and below z R sqrt(d) |w| / n itself, where the strength is z R sqrt(d) / |w|.

    Gopi, Lee and Liu 2022, Theorem 3; z is the noise multiplier, of order 1 / epsilon.
    """
    norm, size = 2.0, 3
    numbers, noises, draws = [400, 800, 1_600, 3_200], [0.75, 1.5, 3.0], 60

    def excess(n: int, noise: float) -> tuple[float, float]:
        data = rows(n, seed=1)
        v = convex._bound_rows(Rows(data.x[:, :2], data.y, data.patient, n), norm)
        mean_loss = lambda w: float(np.logaddexp(0.0, -v.rows @ w).mean())  # noqa: E731
        best = convex.minimise(v, 1e-6)
        strength = noise * norm * np.sqrt(size) / np.linalg.norm(best)
        step = settings(noise_multiplier=noise, max_grad_norm=norm)
        drawn = [convex._exponential(v, strength, step, keyed_stream(0, "law", n, draw)) for draw in range(draws)]
        bound = noise * norm * np.sqrt(size) * float(np.linalg.norm(best)) / n
        return float(np.mean([mean_loss(w) for w in drawn])) - mean_loss(best), bound

    by_number = [excess(n, 1.5) for n in numbers]
    by_noise = [excess(1_000, noise) for noise in noises]
    slope = float(np.polyfit(np.log(numbers), np.log([found for found, _ in by_number]), 1)[0])
    assert slope == pytest.approx(-1.0, abs=0.2)
    slope = float(np.polyfit(np.log(noises), np.log([found for found, _ in by_noise]), 1)[0])
    assert slope == pytest.approx(1.0, abs=0.2)
    assert all(found < bound for found, bound in (*by_number, *by_noise))


def test_the_ledger_adds_up_releases() -> None:
    one = convex.OBJECTIVE.event(settings())
    assert epsilon(one, 1e-3) < epsilon(_twice(one), 1e-3) < 2 * epsilon(one, 5e-4) + 1e-6


def _twice(event: Any) -> Any:
    from dp_accounting import SelfComposedDpEvent

    return SelfComposedDpEvent(event, 2)
