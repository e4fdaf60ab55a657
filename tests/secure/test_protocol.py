"""A secure sum between the hospitals' own code and the server's: right sums, drop-outs, and servers that lie."""

import tempfile
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.secure import secure_sum
from polyclinic.server.exchange.cohort import secure_threshold
from polyclinic.server.exchange.secure import SumRefused
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import RECORD, SECURE, SECURE_CONFIRM, SECURE_KEYS, SECURE_SHARES, SECURE_UNMASK
from tests.secure.ward import TRAIN, Ward, is_uniform

PHASES = (SECURE_KEYS, SECURE_SHARES, TRAIN, SECURE_CONFIRM, SECURE_UNMASK)


def updates(count: int, size: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, size)) / np.sqrt(size)


def masked(ward: Ward) -> list[np.ndarray]:
    """The updates that the server received, as it received them."""
    replies = [reply for reply in ward.received if reply.metadata.message_type == TRAIN]
    return [from_record(reply.content["arrays"])["masked"] for reply in replies]  # type: ignore[arg-type]


@given(count=st.integers(2, 9), size=st.integers(1, 30), data=st.data())
@settings(max_examples=15)
def test_the_mean_is_the_plain_one_within_rounding_whoever_drops_out_where(
    count: int, size: int, data: st.DataObject
) -> None:
    tolerated = data.draw(st.integers(0, (count - 1) // 3))
    gone = data.draw(st.lists(st.integers(0, count - 1), max_size=tolerated, unique=True))
    silent = {(index, data.draw(st.sampled_from(PHASES))) for index in gone}
    vectors = updates(count, size, data.draw(st.integers(0, 99)))
    weights = {f"h{index}": data.draw(st.integers(1, 50)) * 1.0 for index in range(count)}
    with tempfile.TemporaryDirectory() as folder:
        ward = Ward(Path(folder), vectors, silent, secure={"dropouts": tolerated})
        mean, opened = ward.sum(weights)
    late = {index for index, phase in silent if phase in (SECURE_CONFIRM, SECURE_UNMASK)}
    arrived = [index for index in range(count) if index not in gone or index in late]
    shares = np.array([weights[f"h{index}"] for index in arrived])
    # Each update is rounded by less than a step, relative to the largest weight.
    step = ward.config.secure.clip_norm / 2**ward.config.secure.bits
    error = step * len(arrived) * max(weights.values()) / shares.sum()
    assert np.abs(mean - shares @ vectors[arrived] / shares.sum()).max() <= error
    assert {site.index for site, _ in opened.dropped} == late


@pytest.mark.parametrize("phase", PHASES)
def test_more_drop_outs_than_tolerated_are_refused_in_one_sentence(tmp_path: Path, phase: str) -> None:
    ward = Ward(tmp_path, updates(5), {(0, phase), (3, phase)}, secure={"dropouts": 1})
    if phase == TRAIN:
        found = ward.begin()
        exchange = ward.upload(found)
        # The round loop does not open such a sum; a server that tries is refused by every hospital.
        with pytest.raises(SumRefused, match=r"fewer than the threshold 4"):
            found.open(exchange.replies, {"w": np.zeros(20)}, "num-examples")
        return
    with pytest.raises(SumRefused, match=r"Round 1, .*: 3 hospitals replied, the secure sum needs 4\."):
        ward.sum()


def test_updates_are_clipped_and_infinite_ones_count_as_zero(tmp_path: Path) -> None:
    vectors = np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 0.0]])
    mean, _ = Ward(tmp_path, vectors, secure={"clip_norm": 1.0}).sum()
    np.testing.assert_allclose(mean, [0.3, 0.4], atol=1e-6)


def test_forty_hospitals_and_thirteen_drop_outs(tmp_path: Path) -> None:
    vectors = updates(40)
    ward = Ward(tmp_path, vectors, {(index, TRAIN) for index in range(13)}, secure={"dropouts": 13})
    mean, _ = ward.sum()
    np.testing.assert_allclose(mean, vectors[13:].mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_what_the_server_receives_is_uniform_but_for_the_sum(tmp_path: Path, scale: float) -> None:
    """All that reached the server, with all masks removed that it may remove: only the sum of all is not noise."""
    ward = Ward(tmp_path, scale * updates(4, 3000), secure={"dropouts": 1})
    found = ward.begin()
    exchange = ward.upload(found)
    sent = masked(ward)
    assert all(is_uniform(words) for words in sent)
    found.open(exchange.replies, {"w": np.zeros(3000)}, "num-examples")
    # The shares of own masks that the server was sent give it each hospital's own mask, but no pair masks.
    unmasks = [reply for reply in ward.received if reply.metadata.message_type == SECURE_UNMASK]
    rows = [from_record(reply.content[SECURE])["shares"] for reply in unmasks]  # type: ignore[arg-type]
    for index in range(4):
        seed = secure_sum.join({number: bytes(row[index]) for number, row in enumerate(rows[:3], start=1)})
        sent[index] = sent[index] - secure_sum.own_mask(seed, 3000, found.terms.word)
    for left_out in range(4):
        assert is_uniform(sent[left_out])
        assert is_uniform(sum((sent[i] for i in range(4) if i != left_out), np.zeros(3000, dtype=found.terms.word)))
        assert is_uniform(sent[left_out] - sent[left_out - 1])
    assert not is_uniform(sum(sent, np.zeros(3000, dtype=found.terms.word)))


def test_moving_what_one_hospital_sends_to_another_changes_the_opened_sum_in_nothing(tmp_path: Path) -> None:
    """Steps of the grid go from one hospital to another: what is opened is the same to the last bit."""
    step = RunConfig().secure.clip_norm / 2 ** RunConfig().secure.bits
    base = np.round(updates(4, 500) / step) * step
    moved = base + np.outer([1, -1, 0, 0], np.arange(500) * step)
    one, other = Ward(tmp_path / "one", base), Ward(tmp_path / "other", moved)
    np.testing.assert_array_equal(one.sum()[0], other.sum()[0])
    assert all(is_uniform(a - b) for a, b in zip(masked(one), masked(other), strict=True))


def test_a_dropped_hospitals_update_that_arrives_late_stays_masked(tmp_path: Path) -> None:
    """The server says that hospital 3 dropped out, though it has its update: all that it learns leaves its own mask on."""
    ward = Ward(tmp_path, updates(4, 3000), secure={"dropouts": 1})
    found = ward.begin()
    exchange = ward.upload(found)
    _, late = exchange.replies.pop()
    kept = from_record(late.content["arrays"])["masked"]  # type: ignore[arg-type]
    found.open(exchange.replies, {"w": np.zeros(3000)}, "num-examples")
    rows = [from_record(reply.content[SECURE])["shares"] for reply in ward.received[-3:]]  # type: ignore[arg-type]
    seed = secure_sum.join({number: bytes(row[3]) for number, row in enumerate(rows, start=1)})
    keys = {index: bytes(told["mask"]) for index, told in found.keys.items()}
    assert secure_sum.public_key(seed) == keys[3]  # the pair masks of hospital 3 are known to the server
    purpose = found.terms.purpose("run", 1, ward.question({"w": np.zeros(3000)}))
    pairs = secure_sum.pair_masks(seed, 3, keys, 3000, found.terms.word, purpose)
    assert is_uniform(kept - pairs)


def test_fault_20_drop_outs_never_leave_less_noise_than_agreed(tmp_path: Path) -> None:
    """Ten hospitals, three tolerated drop-outs: with any number of them the noise is at least z, with four no sum opens."""
    z, size = 2.0, 250
    for gone in (0, 2, 3):
        silent = {(index, TRAIN) for index in range(gone)}
        ward = Ward(tmp_path / str(gone), np.zeros((10, size)), silent, secure={"dropouts": 3, "noise": z})
        found = ward.begin()
        opened = found.open(ward.upload(found).replies, {"w": np.zeros(size)}, "num-examples")
        total = from_record(opened.reply.content["arrays"])["w"] * (10 - gone) / found.terms.step  # type: ignore[arg-type]
        agreed = z * np.sqrt((10 - gone) / 7)
        assert total.std() / found.terms.sensitivity == pytest.approx(agreed, rel=0.2)
        assert epsilon(found.terms.event(10 - gone), 1e-5) <= 1.12 * epsilon(gaussian_event(agreed), 1e-5)
        assert epsilon(found.terms.event(10 - gone), 1e-5) <= epsilon(found.terms.event(7), 1e-5)
    ward = Ward(
        tmp_path / "four", np.zeros((10, size)), {(i, TRAIN) for i in range(4)}, secure={"dropouts": 3, "noise": z}
    )
    found = ward.begin()
    with pytest.raises(SumRefused, match="fewer than the threshold 7"):
        found.open(ward.upload(found).replies, {"w": np.zeros(size)}, "num-examples")
    with pytest.raises(ValueError, match="the sum needs 7"):
        found.terms.event(6)


def asked_of(ward: Ward, index: int, kind: str) -> Any:
    """The last message of a kind that a hospital was sent, for a server that asks again."""
    return next(m for m in reversed(ward.sent) if m.metadata.message_type == kind and m.metadata.group_id == str(index))


class Recorded(Ward):
    """Also keeps what the server sent."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sent: list[Any] = []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        self.sent += messages
        return super().send_and_receive(messages, timeout=timeout)


def changed(message: Any, **arrays: np.ndarray) -> Any:
    """The message with other arrays."""
    other = copy(message)
    old = from_record(message.content[SECURE])
    other.content = copy(message.content)
    other.content[SECURE] = to_record(old | arrays)
    return other


def test_a_server_that_asks_for_both_shares_of_a_hospital_is_refused(tmp_path: Path) -> None:
    ward = Recorded(tmp_path, updates(5), secure={"dropouts": 1})
    ward.sum()
    for kind in (SECURE_CONFIRM, SECURE_UNMASK):
        again = ward.ask(asked_of(ward, 0, kind))
        first = next(reply for reply in ward.received if reply.metadata.message_type == kind)
        assert again[SECURE] == first.content[SECURE]  # the same question has the same answer
    without = changed(asked_of(ward, 0, SECURE_CONFIRM), survivors=np.array([0, 1, 2, 3], dtype=np.int64))
    assert "to another question" in str(ward.ask(without))


@pytest.mark.parametrize("count", range(2, 11))
def test_a_threshold_of_two_thirds_or_less_is_refused_by_server_and_hospitals(tmp_path: Path, count: int) -> None:
    for threshold in range(1, count + 1):
        config = RunConfig(secure={"aggregation": True, "dropouts": count - threshold})
        if threshold >= 2 and 3 * threshold > 2 * count:
            assert secure_threshold(config, count) == threshold
        else:
            with pytest.raises(ConfigError, match=f"over two thirds, to stay; allowed are at most {(count - 1) // 3}"):
                secure_threshold(config, count)
    ward = Recorded(tmp_path, updates(count), {(0, SECURE_SHARES)}, secure={"dropouts": (count - 1) // 3})
    with suppress(SumRefused):  # of two or three hospitals all must answer
        ward.begin()
    told = asked_of(ward, 0, SECURE_SHARES)
    for threshold in range(2, count + 2):
        if 3 * threshold <= 2 * count or threshold > count:
            told.content[RECORD]["threshold"] = threshold
            assert f"the threshold {threshold} is not over two thirds of {count}" in str(ward.ask(told))


def test_one_hospital_alone_has_no_secure_sum(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of 1 hospital in a round secure aggregation needs at least two"):
        Ward(tmp_path, updates(1)).begin()


@pytest.mark.parametrize("survivors", [[0, 1], [1, 2, 3], [0, 1, 9], [0, 0, 1, 2], [2, 1, 0]])
def test_survivors_that_cannot_be_are_refused(tmp_path: Path, survivors: list[int]) -> None:
    ward = Recorded(tmp_path, updates(5), secure={"dropouts": 1})
    found = ward.begin()
    exchange = ward.upload(found)
    ward.silent = {(0, SECURE_CONFIRM)}
    found.open(exchange.replies, {"w": np.zeros(20)}, "num-examples")
    told = changed(asked_of(ward, 0, SECURE_CONFIRM), survivors=np.array(survivors, dtype=np.int64))
    answer = ward.ask(told)
    assert "refused in the secure sum of round 1" in str(answer)


def test_masks_are_for_those_who_shared_their_seeds_and_nobody_else(tmp_path: Path) -> None:
    ward = Recorded(tmp_path, updates(5), {(4, SECURE_SHARES)}, secure={"dropouts": 1})
    found = ward.begin()
    ward.upload(found)
    told = asked_of(ward, 0, TRAIN)
    for parties in ([0, 1], [1, 2, 3], [0, 1, 2, 7], [2, 1, 0]):
        other = copy(told)
        other.content = copy(told.content)
        other.content[RECORD] = copy(told.content[RECORD])
        other.content[RECORD]["secure_parties"] = parties
        assert "is not one for those that shared their seeds" in str(ward.ask(other))


def test_keys_that_are_not_its_own_or_twice_the_same_are_refused(tmp_path: Path) -> None:
    ward = Recorded(tmp_path, updates(4), {(0, SECURE_SHARES)}, secure={"dropouts": 1})
    ward.begin()
    told = asked_of(ward, 0, SECURE_SHARES)
    public = from_record(told.content[SECURE])
    swapped = public["mask"][[1, 0, 2, 3]]
    assert "is not its own" in str(ward.ask(changed(told, mask=swapped)))
    assert "one for each hospital" in str(ward.ask(changed(told, mask=public["mask"][[0, 1, 1, 3]])))
    assert "not in order" in str(ward.ask(changed(told, peers=np.array([1, 0, 2, 3], dtype=np.int64))))
    assert "does not hold" in str(ward.ask(changed(told, more=swapped)))


def test_a_share_that_was_altered_or_is_anothers_is_refused(tmp_path: Path) -> None:
    ward = Recorded(tmp_path, updates(4), secure={"dropouts": 1})
    found = ward.begin()
    exchange = ward.upload(found)
    ward.silent = {(0, SECURE_UNMASK)}
    found.open(exchange.replies, {"w": np.zeros(20)}, "num-examples")
    told = asked_of(ward, 0, SECURE_UNMASK)
    sealed = from_record(told.content[SECURE])["sealed"]
    assert "altered" in str(ward.ask(changed(told, sealed=sealed ^ np.uint8(1))))
    assert "altered" in str(ward.ask(changed(told, sealed=sealed[[1, 0, 2]])))


def test_phases_are_answered_once_and_secrets_are_erased(tmp_path: Path) -> None:
    ward = Recorded(tmp_path, updates(4), secure={"dropouts": 1})
    found = ward.begin()
    secrets = list(tmp_path.rglob("secure-*"))
    assert len(secrets) == 4 and all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    for kind in (SECURE_KEYS, SECURE_SHARES):
        told = asked_of(ward, 1, kind)
        first = next(r for r in ward.received if r.metadata.message_type == kind and r.metadata.group_id == "1")
        again = from_record(ward.ask(told)[SECURE])
        for name, value in from_record(first.content[SECURE]).items():  # type: ignore[arg-type]
            np.testing.assert_array_equal(value, again[name])
    other = changed(
        asked_of(ward, 1, SECURE_SHARES), mask=np.roll(from_record(told.content[SECURE])["mask"], 1, axis=0)
    )
    assert "to another question" in str(ward.ask(other))
    found.open(ward.upload(found).replies, {"w": np.zeros(20)}, "num-examples")
    assert not list(tmp_path.rglob("secure-*"))
    assert "has erased them" in str(ward.ask(asked_of(ward, 1, TRAIN)))


def test_a_later_round_has_other_keys_and_erases_what_an_earlier_one_left(tmp_path: Path) -> None:
    ward = Ward(tmp_path, updates(3))
    first = ward.begin()
    home = next(tmp_path.rglob("secure-*")).parent
    (home / ".partial-0a1b2c3d.secure-run-000001.safetensors").write_bytes(
        b"half of them, where a crash cut the writing short"
    )
    second = ward.begin(round=2)
    assert {path.name for path in tmp_path.rglob("*secure-run*")} == {"secure-run-000002.safetensors"}
    for index in range(3):
        assert not np.array_equal(first.keys[index]["mask"], second.keys[index]["mask"])
