"""What every noise process must do: stream its own matrix, go on from a kept state, and be charged for what it is."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.noise import NOISE, Participation, error, noise_process, warning
from polyclinic.privacy.streams import keyed_stream, system_stream

OPTIONS = [
    *((name, {}) for name in NOISE),
    ("banded", {"bands": 3}),
    ("blt", {"buffers": 2}),
    ("tree", {"honaker": False}),
    ("tree", {"completed": True}),
]
KINDS = [(name, {**options, "restart": restart}) for name, options in OPTIONS for restart in (None, 5)]
each_kind = pytest.mark.parametrize(("name", "options"), KINDS, ids=str)


@each_kind
def test_variances_are_those_of_the_matrix(name, options):
    process = noise_process(name, 13, **options)
    prefix = np.cumsum(process.matrix(), axis=0)
    np.testing.assert_allclose(process.variances(), (prefix**2).sum(axis=1), rtol=1e-9)


@each_kind
@pytest.mark.parametrize("stream", [keyed_stream(3, "noise"), system_stream()], ids=["keyed", "system"])
def test_noise_of_many_draws_has_the_covariance_of_the_matrix(name, options, stream):
    process = noise_process(name, 13, **options)
    noise, _ = process.draw(stream, {}, 13, 20_000)
    expected = process.matrix() @ process.matrix().T
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / 20_000)
    assert np.all(np.abs(noise @ noise.T / 20_000 - expected) < 5 * spread)
    for row, variance in zip(noise, np.diag(expected), strict=True):
        assert stats.kstest(row / np.sqrt(variance), "norm").pvalue > 1e-6


@each_kind
@settings(max_examples=25)
@given(pieces=st.lists(st.integers(0, 6), max_size=6), width=st.integers(1, 9))
def test_drawing_in_pieces_is_drawing_at_once(name, options, pieces, width):
    process = noise_process(name, 36, **options)
    at_once, _ = process.draw(keyed_stream(5, "noise"), {}, sum(pieces), width)
    stream, state, parts = keyed_stream(5, "noise"), {}, [at_once[:0]]
    for steps in pieces:
        noise, state = process.draw(stream, state, steps, width)
        parts.append(noise)
        saved = io.BytesIO()
        np.savez(saved, **state)
        saved.seek(0)
        state = dict(np.load(saved))
    assert np.array_equal(np.concatenate(parts), at_once)


@each_kind
def test_a_step_beyond_the_last_is_refused_before_anything_is_drawn(name, options):
    process = noise_process(name, 12, **options)
    stream = keyed_stream(1, "a")
    _, state = process.draw(stream, {}, 10, 3)
    with pytest.raises(ConfigError, match=f"{name}.*12 steps, of which 10 are drawn; 3 more"):
        process.draw(stream, state, 3, 3)
    with pytest.raises(ConfigError, match="-1 more"):
        process.draw(stream, state, -1, 3)
    assert process.draw(stream, state, 2, 3)[1]["step"] == 12


@each_kind
@pytest.mark.parametrize(
    "tear",
    [
        lambda state: {"step": state["step"]},
        lambda state: {**state, "more": state["step"]},
        lambda state: {**state, "step": np.asarray(-1)},
        lambda state: {**state, "step": np.asarray(13)},
        lambda state: {**state, "step": np.asarray(4.0)},
        lambda state: {**state, "step": np.asarray([4])},
        lambda state: {**state, "memory": state["memory"][:, :-1]},
        lambda state: {**state, "memory": np.concatenate([state["memory"], np.zeros((1, 3))])},
        lambda state: {**state, "memory": state["memory"].astype(int)},
    ],
)
def test_a_torn_state_is_refused(name, options, tear):
    process = noise_process(name, 12, **options)
    _, state = process.draw(keyed_stream(1, "a"), {}, 4, 3)
    with pytest.raises(ConfigError, match=f"not one of the noise process {name!r} with 3 parameters"):
        process.draw(keyed_stream(1, "b"), tear(state), 1, 3)


@pytest.mark.parametrize("name", [name for name in NOISE if name != "independent"])
def test_a_state_that_is_not_finite_or_of_another_width_is_refused(name):
    process = noise_process(name, 12)
    _, state = process.draw(keyed_stream(1, "a"), {}, 4, 3)
    state["memory"][0, 1] = np.nan
    for width in (3, 4):
        with pytest.raises(ConfigError, match="kept state"):
            process.draw(keyed_stream(1, "b"), state, 1, width)


@each_kind
def test_sites_streams_give_uncorrelated_noise(name, options):
    process = noise_process(name, 12, **options)
    one, two = (process.draw(keyed_stream(1, "site", site), {}, 12, 5000)[0] for site in (0, 1))
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.07 for a, b in zip(one, two, strict=True))


@each_kind
@pytest.mark.parametrize(("separation", "times"), [(1, 1), (1, 20), (5, 2), (5, 20), (20, 3)])
def test_the_event_is_one_gaussian_for_each_restart_that_may_hold_the_patient(name, options, separation, times):
    process = noise_process(name, 13, **options)
    participation = Participation(separation, times)
    assert process.event(2.0, participation) == gaussian_event(2.0, min(times, 3) if options["restart"] else 1)
    whole = process.releases(participation) * process.sensitivity(participation) ** 2
    rms_max = np.sqrt(whole * process.variances().max())
    assert error(process, participation).rms_max == pytest.approx(rms_max, rel=1e-12)


def test_restarts_compose_to_what_their_union_is():
    four = noise_process("sqrt-toeplitz", 64, restart=16)
    once = Participation(16, 4)
    assert epsilon(four.event(2.0, once), 1e-5) == pytest.approx(epsilon(gaussian_event(1.0), 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    "values",
    [
        lambda: noise_process("banded", 6).factorisation.coefficients,
        lambda: noise_process("blt", 6).factorisation.scale_decay[0],
        lambda: noise_process("blt", 6).factorisation.scale_decay[1],
    ],
)
def test_what_processes_share_cannot_be_changed(values):
    with pytest.raises(ValueError, match="read-only"):
        values()[0] = 0.0


def test_worse_than_independent_noise_is_said():
    process = noise_process("sqrt-toeplitz", 16)
    said = warning(process, Participation(1, 16))
    assert said is not None and "every step of 16" in said and "1.13 times" in said
    assert warning(process, Participation(2, 16)) is None
    assert warning(noise_process("independent", 16), Participation(1, 16)) is None
    assert warning(noise_process("independent", 16, restart=4), Participation(4, 16)) is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("sqrt-toepliz", 4), "sqrt-toepliz.*Did you mean 'sqrt-toeplitz'"),
        (("independent", 0), "steps .* at least 1, got 0"),
        (("independent", True), "steps"),
        (("dense", 257), "steps of dense noise .* 1 to 256, got 257"),
    ],
)
def test_what_is_no_process_is_refused(arguments, field):
    with pytest.raises(ConfigError, match=field):
        noise_process(*arguments)


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("independent", {"restart": 5}, "restart .* 1 to 4, got 5"),
        ("independent", {"restart": 0}, "restart"),
        ("independent", {"bands": 2}, "'independent' takes no option 'bands'"),
        ("banded", {"band": 2}, "takes no option 'band'. Did you mean 'bands'"),
        ("banded", {"participation": 3}, "participation is not an option .* got 3"),
        ("banded", {"bands": 5}, "bands .* 1 to 4, got 5"),
        ("banded", {"objective": "least"}, "objective must be 'max' or 'mean'.*'least'"),
        ("blt", {"buffers": 0}, "buffers .* 1 to 8, got 0"),
        ("blt", {"objective": 3}, "objective"),
        ("tree", {"completed": 2}, "completed must be true or false, got 2"),
        ("tree", {"honaker": "no"}, "honaker must be true or false, got 'no'"),
    ],
)
def test_an_option_that_is_unknown_or_out_of_range_is_refused(name, options, field):
    with pytest.raises(ConfigError, match=field):
        noise_process(name, 4, **options)


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (1.5, 1), (True, 1)])
def test_an_impossible_participation_is_refused(values):
    with pytest.raises(ConfigError, match="participation must be a whole number"):
        Participation(*values)
