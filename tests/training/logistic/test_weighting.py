"""Average effects by inverse-probability weights: statsmodels' numbers without privacy, bounded vectors, intervals that cover."""

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from statsmodels.treatment.treatment_effects import TreatmentEffect

from polyclinic.errors import ConfigError, DataError
from polyclinic.training.logistic.weighting import Weighting
from polyclinic.types import Arrays, Floats
from tests.training.logistic.effects import fit, noise_of, patients, weighting

DIFFERENCE = np.array([1.0, -1.0])


def columns(z: Floats, number: bool = False) -> tuple[Floats, Floats, Floats]:
    """Covariates behind a 1, treatment, outcome from 0 to 1, of the rows that hospitals have."""
    low, high = (bound[-1] for bound in weighting(False, number=number).layout.bounds)
    return np.column_stack([np.ones(len(z)), z[:, 1:5]]), z[:, 0], (z[:, -1] - low) / (high - low)


@pytest.mark.parametrize("number", [False, True])
def test_without_privacy_it_is_statsmodels_on_pooled_patients(number: bool) -> None:
    z, _ = patients(np.random.default_rng(3), 900, number=number)
    x, treated, y = columns(z, number)
    pooled = TreatmentEffect(sm.OLS(y, x), treated, results_select=sm.Logit(treated, x).fit(disp=False, tol=1e-14))
    theirs = pooled.ipw(effect_group="all")
    effect, _ = fit(weighting(False, most=1e6, number=number), [z[:100], z[100:450], z[450:]])
    error, share, factor = effect.along(DIFFERENCE)
    assert effect.means @ DIFFERENCE == pytest.approx(float(np.ravel(theirs.effect)[0]), abs=1e-6)
    assert error == pytest.approx(float(theirs.results_gmm.bse[0]), abs=1e-6)
    assert (share, factor) == (0.0, pytest.approx(1.959964, abs=1e-6))


def test_clipped_weights_give_the_weighted_means_of_clipped_weights() -> None:
    z, _ = patients(np.random.default_rng(4), 900)
    x, treated, y = columns(z)
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(x[:, 1:], treated)
    chances = model.predict_proba(x[:, 1:])[np.arange(len(z)), treated.astype(int)]
    weights = np.minimum(1 / chances, 2.5)
    assert (weights == 2.5).mean() > 0.1
    expected = [np.average(y[treated == arm], weights=weights[treated == arm]) for arm in (1, 0)]
    method = weighting(False, most=2.5)
    effect, state = fit(method, [z[:300], z[300:]])
    np.testing.assert_allclose(effect.means, expected, atol=1e-6)
    counts, clipped, _ = method.overlap(state)
    np.testing.assert_allclose(counts, [(treated == arm).sum() for arm in (1, 0)])
    np.testing.assert_allclose(clipped, [(weights == 2.5)[treated == arm].mean() for arm in (1, 0)], atol=1e-9)
    before, after, _ = method.standardised_differences(state)
    for j in range(4):
        column = [x[treated == arm, j + 1] for arm in (1, 0)]
        deviation = np.sqrt((column[0].var() + column[1].var()) / 2)
        means = [np.average(part, weights=weights[treated == arm]) for part, arm in zip(column, (1, 0), strict=True)]
        assert before[j] == pytest.approx((column[0].mean() - column[1].mean()) / deviation, abs=1e-9)
        assert after[j] == pytest.approx((means[0] - means[1]) / deviation, abs=1e-6)
    assert abs(after).max() < abs(before).max() / 2


def test_a_known_propensity_compares_the_arms_as_they_are() -> None:
    z, _ = patients(np.random.default_rng(5), 800, by_design=True)
    _, treated, y = columns(z)
    effect, _ = fit(weighting(False, rounds=2, by_design=0.5), [z])
    error, *_ = effect.along(DIFFERENCE)
    np.testing.assert_allclose(effect.means, [y[treated == arm].mean() for arm in (1, 0)], atol=1e-9)
    welch = np.sqrt(sum(y[treated == arm].var() / (treated == arm).sum() for arm in (1, 0)))
    assert error == pytest.approx(welch, rel=0.02)


def questions(method: Weighting, scale: float, seed: int) -> list[tuple[int, Arrays]]:
    """A question of each kind, as a coordinator that lies may send it."""
    rng = np.random.default_rng(seed)
    asked: Arrays = {"estimate": scale * rng.standard_normal(5)}
    effect = asked | {"corrections": scale * rng.standard_normal((5, 2)), "means": scale * rng.standard_normal(2)}
    newton = {
        "basis": scale * rng.standard_normal((5, 5)), "weights": scale * rng.standard_normal((5, 1)),
        "radius": np.array([scale]),
    }  # fmt: skip
    return [(1, {}), (2, newton), (method.fitting + 1, asked), (method.rounds, effect)]


@settings(max_examples=40)
@given(st.floats(1e-3, 1e6), st.integers(0, 100), st.sampled_from([None, 0.5]))
def test_no_question_makes_a_private_sum_weigh_a_patient_by_more_than_the_bound(
    scale: float, seed: int, by_design: float | None
) -> None:
    method = weighting(True, by_design=by_design, most=4.0)
    z, _ = patients(np.random.default_rng(seed), 30)
    for round, question in questions(method, scale, seed):
        if by_design and "basis" in question or round == 1 and by_design:
            continue
        vectors = method.contributions(round, question, z, np.arange(30), 30)
        assert vectors.shape == (30, method.size(round, question))
        assert np.linalg.norm(vectors, axis=1).max() <= 1 + 1e-9
        if round == method.rounds:
            weights = (vectors * method._scales)[:, 5:].max()
            assert weights <= method.most


def test_questions_of_other_shapes_are_refused() -> None:
    method = weighting(True)
    z, _ = patients(np.random.default_rng(0), 5)
    good = dict(questions(method, 1.0, 0))
    for round, bad in (
        (method.rounds, good[method.rounds] | {"means": np.zeros(3)}),
        (method.rounds, {"estimate": np.zeros(5)}),
        (method.fitting + 1, {"estimate": np.zeros(5, dtype=np.float32)}),
    ):
        with pytest.raises(ConfigError, match="must be float64 of shape"):
            method.contributions(round, bad, z, np.arange(5), 5)


def test_rows_of_a_patient_count_as_one() -> None:
    z, _ = patients(np.random.default_rng(6), 60)
    for private in (True, False):
        method = weighting(private)
        for round, question in questions(method, 0.3, 1):
            if round <= method.fitting and not private:
                round, question = 1, {"estimate": question.get("estimate", np.zeros(5))}
            once = method.contributions(round, question, z, np.arange(60), 60)
            thrice = method.contributions(round, question, np.repeat(z, 3, axis=0), np.repeat(np.arange(60), 3), 60)
            width = -1 if private and round == 1 else None  # the first private sum asks how many rows a patient has
            np.testing.assert_allclose(once[:, :width], thrice[:, :width], atol=1e-12)


def test_sums_for_privacy_but_without_noise_come_near_the_exact_effect() -> None:
    z, _ = patients(np.random.default_rng(7), 20_000)
    (exact, whole), (near, shortened) = (fit(weighting(private), [z]) for private in (False, True))
    counts = [weighting(private).overlap(state)[0] for private, state in ((False, whole), (True, shortened))]
    np.testing.assert_allclose(*counts, rtol=1e-6)
    errors = [effect.along(DIFFERENCE)[0] for effect in (exact, near)]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)
    np.testing.assert_allclose(near.means, exact.means, atol=0.2 * errors[0])


def test_so_much_noise_that_nothing_can_be_said_is_a_refusal() -> None:
    z, _ = patients(np.random.default_rng(8), 150)
    with pytest.raises(DataError, match="noise"):
        fit(weighting(True), [z], noise_of(0.5), np.random.default_rng(0))[0].along(DIFFERENCE)


def test_a_treatment_that_a_covariate_tells_for_certain_is_a_refusal() -> None:
    z, _ = patients(np.random.default_rng(9), 300)
    z[:, 4] = z[:, 0]
    with pytest.raises(DataError, match="did not settle"):
        fit(weighting(False), [z])


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilon, count, by_design, number",
    [(None, 1000, False, False), (3.0, 4000, False, False), (3.0, 2000, True, False), (3.0, 4000, False, True)],
)
def test_intervals_hold_the_truth_as_often_as_they_say(
    epsilon: float | None, count: int, by_design: bool, number: bool
) -> None:
    method = weighting(epsilon is not None, by_design=0.5 if by_design else None, number=number)
    noise = noise_of(epsilon) if epsilon else 0.0
    held, wide = coverage(method, count, noise, 300, by_design, number)
    # Three standard errors of 300 runs around 95 %.
    assert 0.912 < held < 0.988 and wide < 2.5


def coverage(
    method: Weighting, count: int, noise: float, runs: int, by_design: bool = False, number: bool = False
) -> tuple[float, float]:
    """The share of intervals that hold the truth, and how much wider they are than without the noise."""
    truth = np.mean([patients(np.random.default_rng(10_000 + s), 200_000, by_design, number)[1] for s in range(5)])
    truth = truth / 10 if number else truth
    held, wide = [], []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        z, _ = patients(rng, count, by_design, number)
        effect, _ = fit(method, [z], noise, rng if noise else None)
        error, share, factor = effect.along(DIFFERENCE)
        held.append(abs(effect.means @ DIFFERENCE - truth) <= factor * error)
        wide.append(factor / 1.96 / np.sqrt(1 - share))
    return float(np.mean(held)), float(np.mean(wide))


def test_without_privacy_a_hospital_keeps_what_tells_of_few_patients_of_an_arm() -> None:
    method, z = weighting(False), patients(np.random.default_rng(5), 60)[0]
    treated = np.flatnonzero(z[:, 0] > 0.5)
    enough = np.delete(z, treated[3:], axis=0)
    assert not method.refusal(1, {}, enough, np.arange(len(enough)), len(enough))
    fewer = np.delete(z, treated[2:], axis=0)
    assert "fewer than 3 patients" in method.refusal(1, {}, fewer, np.arange(len(fewer)), len(fewer))
    of = np.where(enough[:, 0] > 0.5, 0, np.arange(len(enough)))  # the three are rows of one
    assert "fewer than 3 patients" in method.refusal(1, {}, enough, of, len(enough))
    none = np.delete(z, treated, axis=0)
    assert not method.refusal(1, {}, none, np.arange(len(none)), len(none))
