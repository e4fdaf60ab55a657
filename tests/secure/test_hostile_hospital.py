"""A hospital that answers a secure sum's phases with what would stop the others is left out, with its reason."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from polyclinic.privacy.secure.signatures import new_identity, sign
from polyclinic.server.exchange.secure import SumRefused
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import SECURE, SECURE_CONFIRM, SECURE_KEYS, SECURE_SHARES
from tests.secure.test_protocol import updates
from tests.secure.ward import Ward


class OneHostile(Ward):
    """A ward whose last hospital answers one phase with something else."""

    phase = ""
    change: Callable[[Arrays], None] = staticmethod(lambda answer: None)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type == self.phase and int(message.metadata.group_id) == len(self.hospitals) - 1:
            answer = {name: value.copy() for name, value in from_record(reply.content[SECURE]).items()}  # type: ignore[arg-type]
            self.change(answer)
            reply.content[SECURE] = to_record(answer)
        return reply


def wrong_signature(answer: Arrays) -> None:
    answer["signature"] = np.frombuffer(sign(new_identity(), b"other"), dtype=np.uint8)


def small_order(answer: Arrays) -> None:
    answer["mask"] = np.zeros(32, dtype=np.uint8)


def another_statement(answer: Arrays) -> None:
    answer["terms" if "terms" in answer else "outcome"][0] ^= 1


@pytest.mark.parametrize(("phase", "change", "reason"), [
    (SECURE_KEYS, wrong_signature, "its keys are impossible or not signed"),
    (SECURE_KEYS, small_order, "its keys are impossible or not signed"),
    (SECURE_SHARES, wrong_signature, "it signed another terms than the others"),
    (SECURE_SHARES, another_statement, "it signed another terms than the others"),
    (SECURE_CONFIRM, wrong_signature, "it signed another outcome than the others"),
    (SECURE_CONFIRM, another_statement, "it signed another outcome than the others"),
])  # fmt: skip
def test_it_is_left_out_and_the_others_sum(
    tmp_path: Path, phase: str, change: Callable[[Arrays], None], reason: str
) -> None:
    vectors = updates(4)
    ward = OneHostile(tmp_path, vectors, secure={"dropouts": 1})
    ward.phase, ward.change = phase, change  # type: ignore[method-assign]
    mean, opened = ward.sum()
    arrived = 4 if phase == SECURE_CONFIRM else 3  # whose update had arrived is in the sum
    np.testing.assert_allclose(mean, vectors[:arrived].mean(axis=0), atol=1e-5)
    if phase == SECURE_CONFIRM:
        assert [(site.index, why) for site, why in opened.dropped if why.startswith(reason)]
    none_may_drop = OneHostile(tmp_path / "none", vectors)
    none_may_drop.phase, none_may_drop.change = phase, change  # type: ignore[method-assign]
    with pytest.raises(SumRefused, match=reason):
        none_may_drop.sum()


def test_a_false_question_beside_a_true_signature_changes_no_sum(tmp_path: Path) -> None:
    """Hospital 3 drops out, so that the server derives its pair masks for the question; the others say which it was."""

    def another_question(answer: Arrays) -> None:
        answer["question"][0] ^= 1

    vectors = updates(5)
    ward = OneHostile(tmp_path, vectors, {(3, "train")}, secure={"dropouts": 1})
    ward.phase, ward.change = SECURE_CONFIRM, another_question  # type: ignore[method-assign]
    mean, _ = ward.sum()
    np.testing.assert_allclose(mean, vectors[[0, 1, 2, 4]].mean(axis=0), atol=1e-5)
