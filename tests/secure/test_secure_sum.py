"""The parts of secure aggregation: seeds in shares, keys agreed on, masks that cancel and tell nothing."""

import secrets
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.privacy.secure import secure_sum
from tests.secure.ward import is_uniform

WORDS = (np.dtype(np.uint32), np.dtype(np.uint64))


@given(count=st.integers(2, 12), data=st.data())
@settings(max_examples=40)
def test_any_threshold_of_shares_gives_the_seed_back_and_fewer_do_not(count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, count))
    seed = secure_sum.new_seed()
    shares = secure_sum.split(seed, threshold, count)
    chosen = data.draw(st.permutations(range(1, count + 1)))
    assert secure_sum.join({point: shares[point - 1] for point in chosen[:threshold]}) == seed
    assert secure_sum.join({point: shares[point - 1] for point in chosen[: threshold - 1]}) != seed


def test_shares_below_the_threshold_are_uniform_whatever_the_seed() -> None:
    for seed in (bytes(16), b"\xff" * 16):
        low = b"".join(secure_sum.split(seed, 2, 3)[0][1:] for _ in range(4000))
        assert is_uniform(np.frombuffer(low, dtype=np.uint8))


def test_a_threshold_out_of_range_is_refused() -> None:
    for threshold in (0, 4):
        with pytest.raises(ValueError, match="threshold"):
            secure_sum.split(bytes(16), threshold, 3)


def test_both_sides_agree_on_a_key_and_no_third() -> None:
    seeds = [secure_sum.new_seed() for _ in range(3)]
    (ours, theirs, other), public = map(secure_sum.private_key, seeds), list(map(secure_sum.public_key, seeds))
    agreed = secure_sum.agree(ours, public[1], "seal run 1")
    assert agreed == secure_sum.agree(theirs, public[0], "seal run 1")
    assert agreed != secure_sum.agree(theirs, public[0], "seal run 2")
    assert agreed != secure_sum.agree(other, public[0], "seal run 1")


def test_a_sealed_share_opens_for_whom_it_is_and_as_it_was() -> None:
    key = secrets.token_bytes(32)
    sealed = secure_sum.seal(key, b"a" * 34, 1, 2)
    assert len(sealed) == secure_sum.SEALED_BYTES and secure_sum.unseal(key, sealed, 1, 2) == b"a" * 34
    with pytest.raises(ValueError, match="altered"):
        secure_sum.unseal(key, sealed, 1, 3)
    with pytest.raises(ValueError, match="altered"):
        secure_sum.unseal(key, sealed[:-1] + bytes([sealed[-1] ^ 1]), 1, 2)


@pytest.mark.parametrize("word", WORDS)
def test_pair_masks_of_all_cancel_and_of_any_fewer_are_uniform(word: np.dtype) -> None:  # type: ignore[type-arg]
    seeds = {index: secure_sum.new_seed() for index in (0, 3, 4, 9)}
    keys = {index: secure_sum.public_key(seed) for index, seed in seeds.items()}
    masks = {i: secure_sum.pair_masks(seed, i, keys, 4096, word, "run 1") for i, seed in seeds.items()}
    assert not sum(masks.values(), np.zeros(4096, dtype=word)).any()
    for count in (1, 2, 3):
        for some in combinations(masks.values(), count):
            assert is_uniform(sum(some, np.zeros(4096, dtype=word)))


def test_masks_differ_by_seed_and_round() -> None:
    seed, keys = secure_sum.new_seed(), {1: secure_sum.public_key(secure_sum.new_seed())}
    first, second = (secure_sum.pair_masks(seed, 0, keys, 1024, WORDS[0], f"run {n}") for n in (1, 2))
    assert is_uniform(first - second)
    assert is_uniform(secure_sum.own_mask(seed, 1024, WORDS[0]))
