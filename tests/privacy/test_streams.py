"""Streams: entropy that nobody can predict, and keyed streams that a simulation can repeat."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from polyclinic.privacy.streams import LEAST_DELTA, generator, keyed_stream, system_stream, torch_seed


def test_system_streams_never_repeat():
    first, second = system_stream(), system_stream()
    draws = [first.normal(64), first.normal(64), second.normal(64)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_system_normals_are_standard_normal():
    draws = system_stream().normal(100_000)
    assert stats.kstest(draws, "norm").pvalue > 1e-6
    assert stats.kstest(draws[: draws.size // 2] * draws[draws.size // 2 :], "norm").pvalue < 1e-6  # the test has power
    assert abs(np.corrcoef(draws[0::2], draws[1::2])[0, 1]) < 0.03


def test_system_uniforms_are_uniform_and_below_one():
    draws = system_stream().uniform(100_000)
    assert stats.kstest(draws, "uniform").pvalue > 1e-6
    assert draws.min() >= 0 and draws.max() < 1


@pytest.mark.parametrize("stream", [system_stream(), keyed_stream(1, "a")], ids=["system", "keyed"])
@pytest.mark.parametrize("size", [0, 1, 7, (3, 5), (0, 4), ()])
def test_streams_draw_the_asked_shape(stream, size):
    shape = (size,) if isinstance(size, int) else size
    for draws in (stream.uniform(size), stream.normal(size)):
        assert np.asarray(draws).shape == shape
        assert np.isfinite(draws).all()
    assert np.asarray(stream.uniform(size)).dtype == system_stream().normal(size).dtype == np.float64


@pytest.mark.parametrize("width", [1, 5, 8, 9000])
def test_rows_drawn_together_are_those_drawn_one_by_one(width):
    together, single = keyed_stream(3, "a"), keyed_stream(3, "a")
    assert np.array_equal(together.normal((4, width)), [single.normal(width) for _ in range(4)])
    assert np.array_equal(together.uniform((4, width)), [single.uniform(width) for _ in range(4)])


def test_keyed_normals_are_standard_normal_and_uncorrelated():
    draws = keyed_stream(5, "noise").normal((1000, 301)).astype(np.float64)
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-6
    assert abs(np.mean(draws**4) - 3) < 0.1 and 4.3 < np.abs(draws).max() < 6.7
    flat = draws.ravel()
    assert all(abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 0.01 for lag in (1, 2, 301))
    assert abs(np.corrcoef(flat[:-1] ** 2, flat[1:] ** 2)[0, 1]) < 0.01


def test_keyed_streams_are_reproducible():
    assert np.array_equal(keyed_stream(7, "site", 3).normal(100), keyed_stream(7, "site", 3).normal(100))
    assert torch_seed(7, "site", 3) == torch_seed(7, "site", 3)
    assert torch_seed(7, "site", 3) != torch_seed(7, "site", 4)
    assert 0 <= torch_seed(7) < 2**63


def test_keyed_streams_differ_between_sites_and_rounds():
    keys = [("noise", site, turn) for site in ("hospital-1", "hospital-2") for turn in range(3)]
    keys += [("sampling", "hospital-1", 0), ("noise", "hospital-1", "0"), ("noisehospital-1", 0)]
    draws = np.array([keyed_stream(0, *key).normal(2000) for key in keys] + [keyed_stream(1, *keys[0]).normal(2000)])
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 0.12


def test_fault_19_no_stream_touches_global_random_state():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    system_stream().normal(10), keyed_stream(0, "x").normal(10), generator(3).random(10), torch_seed(3, "y")
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())


def test_fault_36_system_normals_reach_as_far_as_the_least_delta_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the least noise of a policy, 0.3, what lies beyond the largest draw is far below the least delta."""
    for byte, least in ((b"\x00", 13.3), (b"\xff", 0.0)):
        monkeypatch.setattr("os.urandom", lambda count, byte=byte: byte * count)
        draws = np.abs(system_stream().normal(2))
        assert np.isfinite(draws).all() and draws.max() >= least
    assert stats.norm.sf(13.3 - 1 / 0.3) * 1e6 < LEAST_DELTA / 1000
