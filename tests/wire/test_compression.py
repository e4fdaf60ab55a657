"""Smaller uploads: what comes out is what was meant, nothing is biased, and what is left out comes later."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.types import Arrays
from polyclinic.wire.compression import Compression, decode, encode

SHAPES = {"b.weight": (4, 3), "a.bias": (5,), "c": (1,)}


def arrays(seed: int, scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    found: Arrays = {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}
    return found | {"steps": np.array([3])}


def flat(model: Arrays) -> np.ndarray:
    return np.concatenate([model[name].ravel() for name in sorted(SHAPES)])


@given(st.integers(0, 1000), st.booleans(), st.sampled_from(["full", "half", "int8"]))
def test_a_model_comes_back_as_exactly_as_its_numbers_allow(seed: int, difference: bool, precision: str) -> None:
    how = Compression(difference, precision)
    before, after = arrays(seed), arrays(seed + 1)
    upload, residual = encode(after, before, how, keyed_stream(seed))
    back = decode(upload, before, how)
    sent = flat(after) - flat(before) if difference else flat(after)
    step = {"full": 1e-6, "half": 2e-3, "int8": 1.0 / 127}[precision] * np.abs(sent).max()
    assert residual is None and np.abs(flat(back) - flat(after)).max() <= step * 1.001 + 1e-6
    assert np.array_equal(back["steps"], before["steps"])
    assert {name: value.dtype for name, value in back.items()} == {name: value.dtype for name, value in before.items()}


def test_eight_bits_are_right_on_average() -> None:
    before, after, how = arrays(0), arrays(1), Compression(True, "int8")
    stream = keyed_stream(7)
    mean = np.mean([flat(decode(encode(after, before, how, stream)[0], before, how)) for _ in range(4000)], axis=0)
    step = np.abs(flat(after) - flat(before)).max() / 127
    assert np.abs(mean - flat(after)).max() < 5 * step / np.sqrt(4 * 4000)


def test_the_largest_numbers_are_sent_and_the_rest_comes_later() -> None:
    how = Compression(True, "full", 0.2)
    before, after = arrays(0), arrays(1)
    change = flat(after) - flat(before)
    upload, residual = encode(after, before, how, keyed_stream(0))
    assert residual is not None and len(upload["values"]) == 4 and upload["indices"].dtype == np.int32
    assert set(upload["indices"]) == set(np.argsort(-np.abs(change))[:4])
    sent = flat(decode(upload, before, how)) - flat(before)
    np.testing.assert_allclose(sent + residual, change, atol=1e-6)
    # Nothing new: what was left out is sent bit by bit, until nothing is left.
    for _ in range(4):
        upload, residual = encode(before, before, how, keyed_stream(0), residual)
        sent = sent + flat(decode(upload, before, how)) - flat(before)
    np.testing.assert_allclose(sent, change, atol=1e-5)
    assert residual is not None and np.abs(residual).max() < 1e-6


@pytest.mark.parametrize(("how", "ratio"), [
    (Compression(True, "half"), 0.5), (Compression(True, "int8"), 0.26), (Compression(True, "full", 0.01), 0.021),
    (Compression(True, "int8", 0.01), 0.0135),
])  # fmt: skip
def test_uploads_are_as_small_as_they_say(how: Compression, ratio: float) -> None:
    before = {"w": np.zeros(10_000, dtype=np.float32)}
    after = {"w": np.random.default_rng(0).normal(size=10_000).astype(np.float32)}
    upload, _ = encode(after, before, how, keyed_stream(0))
    assert sum(value.nbytes for value in upload.values()) <= ratio * after["w"].nbytes


@pytest.mark.parametrize(("how", "change"), [
    (Compression(True), lambda u: {}),
    (Compression(True), lambda u: u | {"more": np.zeros(1)}),
    (Compression(True), lambda u: {"values": u["values"][:-1]}),
    (Compression(True), lambda u: {"values": u["values"].astype(np.float64)}),
    (Compression(True, "full", 0.5), lambda u: u | {"indices": u["indices"] + 100}),
    (Compression(True, "full", 0.5), lambda u: u | {"indices": u["indices"][:-1]}),
])  # fmt: skip
def test_an_upload_that_is_none_is_refused(how: Compression, change) -> None:  # type: ignore[no-untyped-def]
    upload, _ = encode(arrays(1), arrays(0), how, keyed_stream(0))
    with pytest.raises(ConfigError, match="upload"):
        decode(change(upload), arrays(0), how)


def test_what_overflowed_is_not_kept_for_the_next_upload() -> None:
    before, after = {"w": np.zeros(4, np.float32)}, {"w": np.array([1e9, np.nan, 2.0, 1.0], np.float32)}
    _, residual = encode(after, before, Compression(True, "half", 0.5), keyed_stream(0))
    assert residual is not None and np.isfinite(residual).all()
