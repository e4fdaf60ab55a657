"""Draws of keyed streams: compiled and in NumPy the same bit for bit, and of the distribution that they are said to have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.loops import normals
from tests.nursery import python

KEYS = st.integers(0, 2**128 - 1)


def in_numpy(monkeypatch: pytest.MonkeyPatch, draw: object, key: int, at: int, out: np.ndarray) -> int:
    with monkeypatch.context() as patched:
        patched.setattr(normals, "_loops", lambda draws: None)
        return draw(key, at, out)  # type: ignore[no-any-return, operator]


@given(KEYS, st.integers(0, 2**62), st.integers(0, 5), st.integers(0, 3000))
@settings(max_examples=60)
def test_the_compiled_draws_are_those_of_numpy_bit_for_bit(key: int, at: int, rows: int, size: int) -> None:
    normals.load()  # which imports numba, so that draws take it
    out, alike = np.full((rows, size), np.nan, dtype=np.float32), np.full((rows, size), np.nan, dtype=np.float32)
    flat, too = np.full(rows * size, np.nan), np.full(rows * size, np.nan)
    with pytest.MonkeyPatch().context() as patched:
        ends = normals.normal(key, at, out), normals.uniform(key, at, flat)
        assert ends == (
            in_numpy(patched, normals.normal, key, at, alike),
            in_numpy(patched, normals.uniform, key, at, too),
        )
    assert np.array_equal(out.view(np.int32), alike.view(np.int32)) and np.array_equal(flat, too)
    assert np.isfinite(out).all() and (flat >= 0).all() and (flat < 1).all()


@given(KEYS, st.integers(0, 2**62), st.integers(1, 3000))
@settings(max_examples=30)
def test_draws_that_are_added_are_those_of_the_stream(key: int, at: int, size: int) -> None:
    normals.load()
    places, rows = [(key, at), (key // 3, at + 5)], np.zeros((2, size), dtype=np.float32)
    halves = np.array([[one & (2**64 - 1), one >> 64] for one, _ in places], dtype=np.uint64)
    normals.add_normal(halves, np.array([at, at + 5], dtype=np.uint64), 2.0, rows)
    for row, (one, begin) in zip(rows, places, strict=True):
        out = np.empty((1, size), dtype=np.float32)
        normals.normal(one, begin, out)
        assert np.array_equal(row, 2 * out[0])


@given(KEYS, st.integers(0, 5000), st.integers(1, 3000))
@settings(max_examples=30)
def test_the_words_are_numpys_and_a_part_is_had_without_what_comes_before(key: int, at: int, count: int) -> None:
    out = np.empty(count)
    assert normals.uniform(key, at, out) == at + count
    words = np.random.Philox(key=key).random_raw(at + count)[at:]
    assert np.array_equal(out, (words >> np.uint64(11)) * 2.0**-53)


def words_of(seed: int, count: int) -> np.ndarray:
    """Words spread over all of them, and those at which a step changes."""
    edges = [(k << 29) + d for k in range(9) for d in range(-3, 4)] + [2**k + d for k in range(25) for d in (-1, 0)]
    some = [word for word in edges if 0 <= word < 2**32]
    return np.concatenate([np.random.default_rng(seed).integers(0, 2**32, count), some]).astype(np.uint32)


def test_logarithm_cosine_and_sine_are_within_two_units_in_the_last_place() -> None:
    low = words_of(0, 1 << 20)
    radius, none = (part.astype(np.float64) for part in normals._pair(low, np.zeros_like(low)))
    exact = np.sqrt(-2 * np.log((low.astype(np.float32) + np.float32(1)).astype(np.float64) * 2.0**-32))
    assert (np.abs(radius - exact) <= 2 * np.spacing(exact.astype(np.float32))).all() and not none.any()

    high = words_of(1, 1 << 20)
    far = normals._pair(np.zeros_like(high), high)  # u = 2^-32, whose root is rounded once
    length = np.float32(np.sqrt(64 * np.log(2)))
    # Of the word the 24 bits next to the quarter turn count.
    turn = np.round(high / 2**30)
    angle = (high - turn * 2**30).astype(np.float32).astype(np.float64) * (2 * np.pi * 2.0**-32) + turn * (np.pi / 2)
    for part, exact in zip(far, (np.cos(angle), np.sin(angle)), strict=True):
        some = np.abs(exact) > 1e-6  # there float64 has digits enough of pi
        assert np.abs(part[some] / (length * exact[some]) - 1).max() < 3 * 2.0**-23
        assert np.abs(part[~some]).max(initial=0) < 1e-5


def test_the_tails_are_those_of_a_normal_as_far_as_32_bits_reach() -> None:
    """The share of words, of all 2^32, whose radius passes a length is exp(-length^2 / 2)."""

    def radius(word: int) -> float:
        pair = normals._pair(np.array([word], dtype=np.uint32), np.array([0], dtype=np.uint32))
        return float(pair[0][0])

    for length in (0.01, 0.5, 1.0, 3.0, 4.5, 5.8, 6.0, 6.4, 6.6):
        below, above = -1, 2**32 - 1  # the radius falls as the word grows
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if radius(middle) > length else (below, middle)
        share, exact = (below + 1) / 2**32, np.exp(-(length**2) / 2)
        assert abs(share - exact) < 4e-6 * exact + 2.0**-32
    assert radius(0) == pytest.approx(np.sqrt(64 * np.log(2))) and radius(2**32 - 1) == 0


def test_moments_and_distribution() -> None:
    out = np.empty((1000, 2001), dtype=np.float32)
    normals.normal(7, 1, out)
    draws = out.astype(np.float64).ravel()
    size = len(draws)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(draws**power) - moment) < 5 * np.sqrt(spread / size)
    assert stats.kstest(draws[:500_000], "norm").pvalue > 1e-4
    assert np.mean(np.abs(draws) > 4) == pytest.approx(2 * stats.norm.sf(4), rel=0.5)


def test_a_few_draws_do_not_import_numba() -> None:
    draw = "import sys; from polyclinic.privacy.streams import keyed_stream; keyed_stream(0).normal(9999)"
    done = python("-c", f"{draw}; assert 'numba' not in sys.modules")
    assert done.returncode == 0, done.stderr
