"""A server that tells hospitals different lists, survivors, questions or terms learns no sum of fewer hospitals."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.client import secure
from polyclinic.config import RunConfig, secure_terms
from polyclinic.privacy.secure import secure_sum
from polyclinic.privacy.secure.signatures import is_signed, new_identity, public_identity, sign
from polyclinic.wire.messages import SECURE_SHARES, SecureSharesRequest
from tests.secure.lying import Attack, LyingServer, Story, every_story, plan, smallest_opened
from tests.secure.ward import Ward

SIZE = 6
planned = cache(plan)
EVERY = [(count, threshold) for count in range(3, 11) for threshold in range(2, count + 1)]
#: How many hospitals' sum such a server opens where hospitals sign nothing, by hospitals and threshold above half of them.
OPENED = {(5, 3): 1, (6, 4): 3, (7, 4): 1, (8, 5): 1, (9, 5): 1, (9, 6): 5, (10, 6): 1, (10, 7): 6}


def server(folder: Path, count: int, known: bool = False, **options: Any) -> LyingServer:
    vectors = np.random.default_rng(count).normal(size=(count, SIZE))
    ward = Ward(folder, vectors, **options)
    if known:
        ward.list_each_other()
    return LyingServer(ward)


def is_safe(threshold: int, count: int) -> bool:
    return 3 * threshold > 2 * count


def agreeing_stories(count: int, threshold: int) -> Iterator[dict[int, Story]]:
    """Up to the hospitals' order, all that a server may tell them so that the threshold of them sign the same; the others show
    nothing, so that only their lists matter. A sample of 20,000 where there are more."""
    for parties in range(threshold, count + 1):
        for survivors in range(threshold, parties + 1):
            for signers in range(threshold, survivors + 1):
                agreed = {index: (frozenset(range(parties)), frozenset(range(survivors))) for index in range(signers)}
                lists = [
                    [frozenset({index, *chosen}) for size in range(threshold - 1, count)
                     for chosen in combinations([other for other in range(count) if other != index], size)]
                    for index in range(signers, count)
                ]  # fmt: skip
                if np.prod([len(options) for options in lists]) <= 20_000:
                    told = product(*lists)
                else:
                    draws = np.random.default_rng(0)
                    told = (tuple(options[draws.integers(len(options))] for options in lists) for _ in range(20_000))
                for chosen in told:
                    others = {index: (parties, parties) for index, parties in enumerate(chosen, start=signers)}
                    yield agreed | others


def test_fault_41_unlike_lists_and_survivors_opened_one_hospitals_update_where_none_were_signed() -> None:
    """What the faults before were worth, by search over all plans of a server without help."""
    found = {key: attack for key in EVERY if (attack := planned(*key)) and 2 * key[1] > key[0]}
    assert {key: len(attack.victims) for key, attack in found.items()} == OPENED
    # Thresholds above two thirds keep single updates closed, but not sums of fewer hospitals than the threshold.
    assert [key for key in OPENED if is_safe(key[1], key[0])] == [(10, 7)]


@pytest.mark.parametrize(("count", "threshold", "helping"), [
    (3, 2, 0), (3, 3, 1), (4, 3, 0), (4, 3, 1), (5, 4, 1), (5, 4, 2),
    pytest.param(5, 4, 0, marks=pytest.mark.slow),
])  # fmt: skip
def test_fault_41_nothing_that_few_hospitals_accept_opens_a_smaller_sum(
    count: int, threshold: int, helping: int
) -> None:
    """Every list and every survivors told to every hospital, and hospitals on the server's side."""
    opened = [smallest_opened(told, count, threshold, True) for told in every_story(count, threshold, helping)]
    assert min(size for size in opened if size) == threshold - helping


def test_more_hospitals_on_the_servers_side_than_the_threshold_bears_open_a_smaller_sum() -> None:
    """The bound is sharp: with 2t = n + c the honest hospitals' seeds of both kinds can be had."""
    opened = [smallest_opened(told, 4, 3, True) for told in every_story(4, 3, 2)]
    assert min(size for size in opened if size) == 1  # two of the four know their own part of the sum of three
    told = {0: (frozenset({0, 2, 3}), frozenset({0, 2, 3})), 1: (frozenset({1, 2, 3}), frozenset({1, 2, 3}))}
    assert smallest_opened(told, 4, 3, True) == 1


@pytest.mark.parametrize(("count", "threshold"), [(5, 3), (6, 4), (6, 5), (7, 5), (8, 6), (9, 7), (10, 8)])
def test_fault_41_nothing_that_the_threshold_of_hospitals_signs_opens_a_smaller_sum(count: int, threshold: int) -> None:
    opened = [smallest_opened(told, count, threshold, True) for told in agreeing_stories(count, threshold)]
    assert min(size for size in opened if size) == threshold


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("count", "threshold"), [key for key in EVERY if plan(*key)])
def test_fault_41_hospitals_refuse_every_such_attack(tmp_path: Path, count: int, threshold: int, known: bool) -> None:
    lying = server(tmp_path, count, known)
    assert lying.carry_out(attack_on(count, threshold)) is None
    if is_safe(threshold, count):
        reason = "fewer than the threshold"
    else:
        reason = f"the threshold {threshold} is not over two thirds of {count} hospitals"
    assert len(lying.refused) == count and all(reason in why for why in lying.refused)


@pytest.mark.parametrize(("count", "threshold"), OPENED)
def test_fault_41_signed_outcomes_stop_the_attack_at_any_threshold_over_half(
    tmp_path: Path, count: int, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure, "_check_threshold", lambda *arguments: None)
    lying = server(tmp_path, count)
    assert lying.carry_out(attack_on(count, threshold)) is None
    assert len(lying.refused) == count and all("fewer than the threshold" in why for why in lying.refused)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("count", "threshold"), OPENED)
def test_the_attack_opens_the_sum_at_hospitals_that_check_neither(
    tmp_path: Path, count: int, threshold: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above show what the two checks are worth, and not that the attack was wrong."""
    monkeypatch.setattr(secure, "_check_threshold", lambda *arguments: None)
    monkeypatch.setattr(secure, "check_outcome_signed", lambda *arguments: None)
    lying, attack = server(tmp_path, count, known), attack_on(count, threshold)
    total = lying.carry_out(attack)
    assert total is not None
    np.testing.assert_allclose(total, lying.ward.updates[list(attack.victims)].sum(axis=0), atol=1e-4)


def attack_on(count: int, threshold: int) -> Attack:
    attack = planned(count, threshold)
    assert attack is not None
    return attack


@pytest.mark.parametrize(
    ("changes", "threshold"),
    [({"secure.noise": 0.0}, 3), ({"secure.clip-norm": 1.0}, 3), ({"secure.bits": 20}, 3), ({"seed": 5}, 3), ({}, 4)],
)
def test_fault_41_one_hospital_told_other_terms_is_found_out_before_anything_is_charged(
    tmp_path: Path, changes: dict[str, Any], threshold: int
) -> None:
    """Another configuration, or another threshold, for hospital 0: no update leaves for or from it."""
    lying = server(tmp_path, 4, secure={"noise": 2.0})
    config = lying.ward.config
    lying.exchange_keys()
    for index in range(4):
        lying.ward.config = RunConfig.build(config.minimal() | changes) if index == 0 else config
        request = SecureSharesRequest(site=index, threshold=threshold if index == 0 else 3, **lying.places)
        lying.shared[index] = lying.ask(index, SECURE_SHARES, request, lying.public())
    for index in range(4):
        lying.ward.config = RunConfig.build(config.minimal() | changes) if index == 0 else config
        assert lying.train(index, range(4)) is None
    others = [f"hospital {0 if index else 1} did not sign the list of hospitals and the terms" for index in range(4)]
    assert all(expected in why for expected, why in zip(others, lying.refused, strict=True))
    assert lying.train(1, [1, 2, 3]) is not None  # the three that were told the same may sum without it


def test_fault_41_a_configuration_that_changes_after_the_terms_were_signed_is_refused(tmp_path: Path) -> None:
    lying = server(tmp_path, 4, secure={"noise": 2.0})
    lying.exchange_keys()
    assert lying.share(3)
    lying.ward.config = lying.ward.config.with_values({"secure.noise": 0.0})
    assert lying.train(0, range(4)) is None and "did not sign" in lying.refused[0]


@pytest.mark.parametrize("changed", ["weights", "keys"])
def test_fault_41_one_hospital_told_another_list_is_found_out(tmp_path: Path, changed: str) -> None:
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    honest = lying.public()
    other = dict(honest)
    if changed == "weights":
        other["weights"] = np.array([1.0, 1e-9, 1e-9, 1e-9])
    else:  # hospital 3 is left out of the list
        other = {name: value[:3] for name, value in honest.items()}
    for index in range(4):
        request = SecureSharesRequest(site=index, threshold=3, **lying.places)
        lying.shared[index] = lying.ask(index, SECURE_SHARES, request, honest if index else other)
    assert lying.train(0, [0, 1, 2]) is None and "did not sign the list" in lying.refused[-1]
    assert lying.train(1, [0, 1, 2]) is None and "did not sign the list" in lying.refused[-1]


def test_fault_41_hospitals_asked_different_questions_open_no_sum(tmp_path: Path) -> None:
    """Another model for hospital 0, with which the others' updates might be nothing: they signed the same terms, and all train.

    Three are the threshold and show the own masks of all. But the pair masks of hospital 0 are for another question, so that
    they do not cancel, and they are not shown, for it is among the survivors.
    """
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    assert lying.share(3)
    masked = [lying.train(index, range(4), model=float(index == 0)) for index in range(4)]
    signatures = {index: lying.confirm(index, range(4))["signature"] for index in range(4)}
    assert not lying.unmask(0, range(4), signatures) and "1 hospitals signed the question" in lying.refused[0]
    shares = {index: lying.unmask(index, range(4), signatures)["shares"] for index in (1, 2, 3)}
    terms = secure_terms(lying.ward.config, SIZE, 4, 3)
    total = np.zeros(SIZE, dtype=terms.word)
    for party, words in enumerate(masked):
        assert words is not None
        seed = secure_sum.join({index + 1: bytes(rows[party]) for index, rows in shares.items()})
        assert secure_sum.commitment(seed) == bytes(lying.keys[party]["commitment"])
        total += words - secure_sum.own_mask(seed, SIZE, terms.word)
    assert np.abs(terms.total(total)).max() > 10 * np.abs(lying.ward.updates).sum()


def settled(lying: LyingServer, round: int = 1, run: str = "run") -> dict[int, np.ndarray]:
    """The signatures of the outcome of a whole honest round up to there."""
    lying.places = {"run": run, "round": round}
    lying.exchange_keys()
    assert lying.share(3)
    for index in range(4):
        assert lying.train(index, range(4)) is not None
    return {index: lying.confirm(index, range(4))["signature"] for index in range(4)}


def test_signatures_of_another_round_or_run_are_refused(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    first = settled(lying)
    terms = [bytes(lying.shared[index]["signature"]) for index in range(4)]
    for places in ({"round": 2}, {"run": "another"}):
        assert settled(lying, **places)  # type: ignore[arg-type]
        assert not lying.unmask(0, range(4), first) and "0 hospitals signed" in lying.refused[-1]
    lying.places = {"run": "third", "round": 1}
    lying.exchange_keys()
    assert lying.share(3)
    assert lying.train(0, range(4), secure_signatures=terms) is None and "did not sign" in lying.refused[-1]


def test_signatures_that_are_twice_anothers_or_too_few_are_refused(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    signatures = settled(lying)
    two = {index: signatures[index] for index in (0, 1)}
    assert not lying.unmask(0, range(4), two) and "2 hospitals signed" in lying.refused[-1]
    borrowed = two | {2: signatures[1], 3: signatures[0]}
    assert not lying.unmask(0, range(4), borrowed) and "2 hospitals signed" in lying.refused[-1]
    stranger = np.frombuffer(sign(new_identity(), b"outcome"), dtype=np.uint8)
    assert not lying.unmask(0, range(4), two | {9: stranger}) and "from each of some survivors" in lying.refused[-1]
    assert lying.unmask(0, range(4), signatures | {3: stranger})["shares"].shape == (4, 17)  # three are enough


def test_terms_are_signed_by_each_of_the_parties_with_its_own_identity(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    assert lying.share(3)
    right = [bytes(lying.shared[index]["signature"]) for index in range(4)]
    for wrong in ([right[0], right[0], right[2], right[3]], [b"", *right[1:]], right[:3], []):
        assert lying.train(0, range(4), secure_signatures=wrong) is None
    assert "hospital 1 did not sign" in lying.refused[0] and "hospital 0 did not sign" in lying.refused[1]
    assert all("not one for each hospital" in why for why in lying.refused[2:])
    assert lying.train(0, range(4)) is not None


def test_fault_41_a_hospital_keeps_its_place_for_the_whole_round(tmp_path: Path) -> None:
    """Asked to train as another hospital it would mask for itself in place of that one."""
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    assert lying.share(3)
    assert lying.train(0, range(4), site=3) is None
    assert "its keys are those of hospital 0, not of 3" in lying.refused[0]


def test_shares_before_a_signed_outcome_and_outcomes_before_an_update_are_refused(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    assert lying.share(3)
    assert not lying.confirm(0, range(4)) and "sent no masked update" in lying.refused[-1]
    assert lying.train(0, range(4)) is not None
    signatures = {index: lying.shared[index]["signature"] for index in range(4)}
    assert not lying.unmask(0, range(4), signatures) and "signed no outcome" in lying.refused[-1]


def test_an_outcome_is_signed_once(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    signatures = settled(lying)
    np.testing.assert_array_equal(lying.confirm(0, range(4))["signature"], signatures[0])
    assert not lying.confirm(0, [0, 1, 2]) and "to another question" in lying.refused[-1]
    # The shares are the same whoever else signed, so that a resumed round may have other signers.
    first = lying.unmask(0, range(4), signatures)
    again = lying.unmask(0, range(4), {index: signatures[index] for index in range(3)})
    np.testing.assert_array_equal(first["shares"], again["shares"])


def test_a_key_of_small_order_is_refused_before_it_fails_a_hospital(tmp_path: Path) -> None:
    lying = server(tmp_path, 4)
    lying.exchange_keys()
    lying.keys[2] = lying.keys[2] | {"mask": np.zeros(32, dtype=np.uint8)}
    assert not lying.share(3)
    assert all("the mask key of hospital 2 is of small order" in why for why in lying.refused[:2])


def test_a_signature_is_of_the_text_and_key_that_it_was_made_for() -> None:
    """Verifications are remembered; another text, key or signature is another one."""
    secret = new_identity()
    public, signature = public_identity(secret), sign(secret, b"text")
    for _ in range(2):
        assert is_signed(public, signature, b"text")
        assert not is_signed(public, signature, b"other") and not is_signed(
            public_identity(new_identity()), signature, b"text"
        )


def test_lists_and_tables_of_another_shape_are_refused_in_a_sentence(tmp_path: Path) -> None:
    lying = server(tmp_path, 3)
    lying.exchange_keys()
    request = SecureSharesRequest(site=0, threshold=3, run="run", round=1)
    for name, value in (("peers", np.zeros((3, 2), dtype=np.int64)), ("sealing", np.zeros(3, dtype=np.uint8))):
        assert not lying.ask(0, SECURE_SHARES, request, lying.public() | {name: value})
    assert lying.share(3)
    for index in range(3):
        lying.train(index, range(3))
    assert not lying.confirm(0, np.zeros((2, 2), dtype=np.int64))  # type: ignore[arg-type]
    assert len(lying.refused) == 3 and all("the message does not hold" in reason for reason in lying.refused)
