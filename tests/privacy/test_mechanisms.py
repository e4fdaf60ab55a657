"""Mechanisms: exact draws against their probabilities and against OpenDP, golden noise, and events that tell the truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon, event_from_json, event_to_json
from polyclinic.privacy.mechanisms import (
    FINE,
    Additive,
    Mechanism,
    calibrate,
    discrete_gaussian,
    exponential,
    gaussian,
    laplace,
    randomised_response,
    report_noisy_max,
    to_grid,
)  # fmt: skip
from polyclinic.privacy.sampling import Coins, noise, whole_below
from polyclinic.privacy.streams import keyed_stream, system_stream

STREAMS = {"keyed": keyed_stream(3, "mechanisms"), "system": system_stream()}
CONTINUOUS = {"laplace": stats.laplace, "gaussian": stats.norm}


def probabilities(shape: str, scale: float, reach: int) -> np.ndarray:
    """Of -reach..reach, from the definition."""
    x = np.arange(-reach, reach + 1, dtype=float)
    weight = np.exp(-np.abs(x) / scale) if shape == "laplace" else np.exp(-(x**2) / (2 * scale**2))
    return weight / weight.sum()


def fit(draws: list[int], expected: np.ndarray) -> float:
    """The p-value of a chi-square test; cells expected fewer than 8 times are one."""
    reach = len(expected) // 2
    seen = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(expected))
    rare = expected * len(draws) < 8
    seen, wanted = (np.append(x[~rare], x[rare].sum()) for x in (seen, expected * len(draws)))
    keep = wanted > 0
    return float(stats.chisquare(seen[keep], wanted[keep] * seen.sum() / wanted[keep].sum()).pvalue)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("shape", "scale"), [("laplace", 0.7), ("laplace", 3.3), ("gaussian", 0.6), ("gaussian", 2.0), ("gaussian", 7.7)]
)
def test_draws_have_the_exact_probabilities(shape: str, scale: float, stream: str) -> None:
    draws = noise(shape, scale, 12_000, STREAMS[stream])
    assert fit(draws, probabilities(shape, scale, 400)) > (1e-4 if stream == "keyed" else 1e-9)


@pytest.mark.parametrize("shape", CONTINUOUS)
def test_the_simulations_draws_are_those_of_opendp(shape: str) -> None:
    ours, theirs = (noise(shape, 4.25, 10_000, STREAMS[name]) for name in ("keyed", "system"))
    table = np.array([np.bincount(np.clip(draws, -15, 15) + np.int64(15), minlength=31) for draws in (ours, theirs)])
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 10]).pvalue > 1e-9


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("shape", CONTINUOUS)
def test_on_a_fine_grid_noise_is_as_good_as_continuous(shape: str, stream: str) -> None:
    draws = np.array(noise(shape, 1.3 * FINE, 5_000, STREAMS[stream]), dtype=float) / (1.3 * FINE)
    assert stats.kstest(draws, CONTINUOUS[shape].cdf).pvalue > (1e-4 if stream == "keyed" else 1e-9)
    assert np.unique(draws).size > 4990


@pytest.mark.parametrize("stream", STREAMS)
def test_no_tail_is_cut(stream: str) -> None:
    draws = np.abs(noise("laplace", 1000.0, 30_000, STREAMS[stream]))
    assert 25 < (draws > 6000).sum() < 140 and (draws > 8000).sum() < 45  # 74 and 10 expected
    beyond = np.abs(noise("gaussian", 1000.0, 15_000, STREAMS[stream])) > 3000
    assert 10 < beyond.sum() < 90  # 40 expected


def test_a_seed_gives_the_same_noise_and_another_seed_another() -> None:
    one, same, other = (noise("gaussian", 1e6, 20, keyed_stream(seed, "q")) for seed in (1, 1, 2))
    assert one == same and one != other
    assert noise("laplace", 1e6, 20, system_stream()) != noise("laplace", 1e6, 20, system_stream())


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000, 2**53 - 1])
def test_whole_numbers_below_a_limit_are_uniform(n: int) -> None:
    draws = whole_below(n, 4000, keyed_stream(1, "below"))
    assert draws.min() >= 0 and draws.max() < n
    assert stats.kstest((draws + keyed_stream(2, "jitter").uniform(4000)) / n, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_coins_fall_with_exponential_probability(exponent: Fraction) -> None:
    coins = Coins(keyed_stream(0, "coins"))
    heads = sum(coins.flip_exp(exponent) for _ in range(5000))
    assert stats.binomtest(heads, 5000, math.exp(-exponent)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_a_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        noise("laplace", scale, 1, keyed_stream(0))


# The grid.


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20), st.integers(1, 2**32))
def test_a_patient_never_weighs_more_than_the_grid_says(values: list[float], points: int) -> None:
    whole = to_grid(np.array(values), 2.5, points)
    assert whole.dtype == np.int64 and (np.abs(whole) <= points).all()
    finite = np.isfinite(values)
    assert np.allclose(whole[finite] / points, np.clip(np.array(values)[finite] / 2.5, -1, 1), atol=0.5 / points)
    assert (whole[~finite] == 0).all()


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("mechanism", [laplace(1.5), laplace(1.5, FINE), gaussian(1.5), discrete_gaussian(1.5, 8)])
def test_what_leaves_lies_on_the_grid(mechanism: Additive, stream: str) -> None:
    total = np.array([5, -7 * FINE, 0], dtype=np.int64)
    release = mechanism.release(total, STREAMS[stream])
    assert release.value.dtype == np.int64 and release.event == mechanism.event
    assert (np.abs(release.value - total) < 40 * release.standard_error).all()


@pytest.mark.parametrize("mechanism", [laplace(0.6), laplace(2.0, FINE), gaussian(2.0), discrete_gaussian(0.9, 3)])
def test_the_standard_error_is_the_noises(mechanism: Additive) -> None:
    draws = mechanism.release(np.zeros(10_000, dtype=np.int64), keyed_stream(9, "error")).value
    assert draws.astype(float).std() == pytest.approx(mechanism.standard_deviation, rel=0.04)


# What noise costs.


@pytest.mark.parametrize(
    ("target", "sigma"),
    [(0.1, 30.749566), (0.5, 7.031827), (1, 3.730632), (2, 1.993812), (5, 0.891868), (10, 0.499889)],
)
def test_gaussian_noise_is_calibrated_exactly(target: float, sigma: float) -> None:
    assert dpa.get_sigma_gaussian(target, 1e-5) == pytest.approx(sigma, abs=1e-6)
    found = calibrate(gaussian, target, 1e-5).scale / FINE
    assert found >= sigma and 0.995 * target < dpa.get_epsilon_gaussian(found, 1e-5) <= target


def test_fault_06_the_classic_formula_is_not_used_where_it_is_wrong() -> None:
    classic = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert epsilon(dpa.GaussianDpEvent(classic), 1e-5) > 10.3
    assert epsilon(calibrate(gaussian, 10, 1e-5).event, 1e-5) <= 10


@pytest.mark.parametrize(("sigma", "spent"), [(1.0, 4.430238), (2.0, 2.011340), (5.0, 0.726643)])
def test_discrete_gaussian_noise_costs_what_its_own_sum_says(sigma: float, spent: float) -> None:
    assert epsilon(discrete_gaussian(sigma).event, 1e-5) == pytest.approx(spent, rel=2e-3)
    assert epsilon(discrete_gaussian(sigma).event, 1e-5) >= spent - 1e-6


@pytest.mark.parametrize(("points", "scale"), [(1, 0.8), (3, 2.0), (10, 4.0), (40, 25.0)])
def test_fine_laplace_noise_is_bounded_by_its_continuous_event(points: int, scale: float) -> None:
    one = probabilities("laplace", scale, 40 * math.ceil(scale) + points)
    other = np.roll(one, points)
    other[:points] = one[-1]
    for loss in np.linspace(-1.2 * (points + 1) / scale, 1.2 * (points + 1) / scale, 101):
        ours = np.maximum(one - math.exp(loss) * other, 0).sum()
        assert ours <= max(1 - math.exp((loss - (points + 1) / scale) / 2), 1 - math.exp(loss), 0) + 1e-9


@pytest.mark.parametrize("scale", [2.0, 8.0, 50.0])
def test_a_rounded_gaussian_is_as_near_as_its_event_needs(scale: float) -> None:
    x = np.arange(-12 * scale, 12 * scale + 1)
    rounded = stats.norm.cdf((x + 0.5) / scale) - stats.norm.cdf((x - 0.5) / scale)
    distance = 0.5 * np.abs(rounded - probabilities("gaussian", scale, int(12 * scale))).sum()
    assert distance < 1 / (40 * scale**2)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("target", [0.3, 2.0])
@pytest.mark.parametrize(
    ("make", "pure"),
    [(laplace, True), (lambda z: laplace(z, FINE), True), (lambda z: laplace(z, FINE, 2), True), (gaussian, False),
     (discrete_gaussian, False), (lambda z: discrete_gaussian(z, 1024, 2), False), (lambda z: exponential(1 / z), True)],
)  # fmt: skip
def test_calibrated_noise_costs_at_most_the_target(
    make: Callable[[float], Mechanism], pure: bool, target: float, relation: str
) -> None:
    least = (2 if relation == "replace-one" else 1) / target if pure else 0.0
    mechanism = calibrate(make, target, 1e-5, "pld", relation, least)
    assert 0.98 * target < epsilon(mechanism.event, 1e-5, "pld", relation) <= target
    if pure:
        assert epsilon(mechanism.event, 1e-12, "pld", relation) <= target * 1.003


@dataclass(frozen=True)
class Percentile:
    """A filter that other libraries list beside the private ones."""

    event: dpa.DpEvent = dpa.UnsupportedDpEvent()


def test_fault_11_only_accounted_mechanisms_can_be_called_private() -> None:
    for mechanism in (laplace(1.0), laplace(1.0, FINE), gaussian(1.0), discrete_gaussian(1.0), discrete_gaussian(1.0, 4, 2),
                      randomised_response(1.0, 3), exponential(1.0), report_noisy_max(1.0)):  # fmt: skip
        assert event_from_json(event_to_json(mechanism.event)) == mechanism.event
        assert 0 < epsilon(mechanism.event, 1e-5, "rdp", "replace-one") < math.inf
    with pytest.raises(ConfigError, match="not one that can be accounted"):
        calibrate(lambda z: Percentile(), 1.0, 1e-5)
    with pytest.raises(ConfigError, match="unknown"):
        event_to_json(Percentile().event)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gaussian(1.0, 1000), "discrete_gaussian takes any"),
        (lambda: gaussian(-1.0), "noise_multiplier"),
        (lambda: laplace(math.inf), "noise_multiplier"),
        (lambda: laplace(1.0, 0), "sensitivity"),
        (lambda: laplace(1e9, FINE), "too large"),
        (lambda: discrete_gaussian(0.0), "noise_multiplier"),
        (lambda: exponential(0.0), "epsilon"),
        (lambda: report_noisy_max(1.0, 0), "sensitivity"),
        (lambda: randomised_response(1.0, 1), "2 categories"),
        (lambda: randomised_response(math.nan), "epsilon"),
        (lambda: calibrate(gaussian, -1.0, 1e-5), "epsilon"),
        (lambda: calibrate(gaussian, 1.0, 2.0), "delta"),
    ],
)
def test_impossible_mechanisms_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


# Randomised response.


@pytest.mark.parametrize(("categories", "truth", "lie"), [(2, 0.731059, 0.537883), (4, 0.475367, 0.699511)])
def test_randomised_response_tells_the_truth_as_often_as_it_should(categories: int, truth: float, lie: float) -> None:
    mechanism = randomised_response(1.0, categories)
    assert mechanism.truth == pytest.approx(truth, abs=1e-6)
    assert mechanism.noise_parameter == pytest.approx(lie, abs=1e-6)
    assert 0.999 < epsilon(mechanism.event, 1e-6, relation="replace-one") <= 1.0
    truths = np.ones(20_000, dtype=np.int64)
    told = np.bincount(mechanism.answers(truths, keyed_stream(0, "answers")), minlength=categories)
    expected = np.full(categories, (1 - mechanism.truth) / (categories - 1))
    expected[1] = mechanism.truth
    assert stats.chisquare(told, expected * 20_000).pvalue > 1e-3


def test_randomised_counts_are_unbiased_and_vary_as_stated() -> None:
    mechanism, truths = randomised_response(1.0, 3), np.repeat([0, 1, 2], [600, 300, 100])
    releases = [mechanism.counts(mechanism.answers(truths, keyed_stream(turn, "rr"))) for turn in range(2000)]
    counts, errors = (np.array([getattr(r, name) for r in releases]) for name in ("value", "standard_error"))
    assert np.allclose(counts.mean(axis=0), [600, 300, 100], atol=4 * errors.mean() / math.sqrt(2000))
    assert np.allclose(counts.std(axis=0), errors.mean(axis=0), rtol=0.07)
    assert np.allclose(counts.sum(axis=1), 1000)


def test_randomised_shares_of_a_sample_vary_as_published() -> None:
    mechanism = randomised_response(1.0)
    assert mechanism.variance(0.3, 1000) == pytest.approx(1.130674e-3, abs=1e-9)
    sampled = keyed_stream(1, "sample").uniform((2000, 1000)) < 0.3
    told = mechanism.answers(sampled.ravel().astype(np.int64), keyed_stream(2, "told")).reshape(2000, 1000)
    shares = [mechanism.counts(answers).value[1] / 1000 for answers in told]
    assert np.var(shares) == pytest.approx(1.130674e-3, rel=0.12)


def test_randomised_response_is_not_for_hidden_attendance() -> None:
    with pytest.raises(ConfigError, match="replace-one"):
        calibrate(lambda z: randomised_response(1 / z), 1.0, 1e-5)


# Choosing.


def chances(rate: float, scores: tuple[int, ...], noisy_max: bool) -> np.ndarray:
    """Exact probabilities of each candidate, from the definitions."""
    gain = np.exp(rate * (np.array(scores) - max(scores)))
    if not noisy_max:
        return gain / gain.sum()
    found = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        passed = 1.0
        for candidate in order:
            found[candidate] += passed * gain[candidate] / len(orders)
            passed *= 1 - gain[candidate]
    return found


@pytest.mark.parametrize("make", [exponential, report_noisy_max])
def test_choices_have_the_exact_probabilities(make: Callable[..., object]) -> None:
    mechanism, scores = make(1.2, 2), (3, 0, 5, 4)
    coins = keyed_stream(0, "choice")
    seen = np.bincount([mechanism.choose(np.array(scores), coins).value for _ in range(8000)], minlength=4)
    assert stats.chisquare(seen, 8000 * chances(0.3, scores, make is report_noisy_max)).pvalue > 1e-3


def test_the_noisy_max_is_the_largest_score_with_exponential_noise() -> None:
    scores = np.array([3, 0, 5, 4])
    noisy = scores - np.log(1 - keyed_stream(1, "noisy").uniform((200_000, 4))) / 0.3
    seen = np.bincount(noisy.argmax(axis=1), minlength=4) / 200_000
    assert np.allclose(seen, chances(0.3, tuple(scores), True), atol=0.006)


@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("make", [exponential, report_noisy_max])
@settings(max_examples=60)
@given(data=st.data(), scores=st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_one_patient_changes_no_choices_chance_by_more_than_epsilon(
    make: Callable[..., object], monotone: bool, data: st.DataObject, scores: list[int]
) -> None:
    mechanism = make(0.9, 1, monotone)
    change = data.draw(st.lists(st.integers(0 if monotone else -1, 1), min_size=len(scores), max_size=len(scores)))
    one, other = (
        chances(float(mechanism.rate), tuple(s), mechanism.noisy_max)
        for s in (scores, [a + b for a, b in zip(scores, change, strict=True)])
    )
    assert np.abs(np.log(one / other)).max() <= mechanism.event.epsilon * (1 + 1e-9)
