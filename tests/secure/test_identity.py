"""Hospitals that know each other's long-term keys refuse a server that puts keys of its own among theirs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.client.home.identity import identity
from polyclinic.client.home.policy import Policy
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.secure import secure_sum
from polyclinic.privacy.secure.distributed import SumTerms
from polyclinic.privacy.secure.signatures import is_signed, new_identity, public_identity, sign, statement
from polyclinic.server.exchange.secure import SumRefused
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import RECORD, SECURE, SECURE_SHARES, TrainRequest
from tests.client.test_hospital import STRICT, make_hospital
from tests.secure.ward import TRAIN, Ward

Swap = Callable[[Arrays], None]


class Swapping(Ward):
    """A ward whose server changes the list of keys that it passes on."""

    swap: Swap | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.answers: list[list[Any]] = [[] for _ in self.hospitals]

    def _answer(self, message: Message) -> Message:
        if self.swap and message.metadata.message_type == SECURE_SHARES:
            told = {name: value.copy() for name, value in from_record(message.content[SECURE]).items()}  # type: ignore[arg-type]
            self.swap(told)
            message.content[SECURE] = to_record(told)
        return super()._answer(message)

    def ask(self, message: Message) -> Any:
        answer = super().ask(message)
        self.answers[int(message.metadata.group_id)].append(answer)
        return answer


def ward(folder: Path, known: bool = True, size: int = 20) -> Swapping:
    """Four hospitals; ``known``: each lists the keys of all."""
    found = Swapping(folder, np.random.default_rng(0).normal(size=(4, size)) / np.sqrt(size), secure={"dropouts": 1})
    if known:
        found.list_each_other()
    return found


def own_keys(told: Arrays, place: int) -> dict[str, bytes]:
    """The server's own keys in a hospital's place; their seeds."""
    seeds = {name: secure_sum.new_seed() for name in ("sealing", "mask")}
    for name, seed in seeds.items():
        told[name][place] = np.frombuffer(secure_sum.public_key(seed), dtype=np.uint8)
    return seeds


def sign_keys(told: Arrays, place: int) -> bytes:
    """An identity of the server's in a hospital's place, with which it signs the keys there."""
    key = new_identity()
    stated = statement("keys", "run", 1, place, *(told[name][place].tobytes().hex() for name in ("sealing", "mask")))
    told["identity"][place] = np.frombuffer(public_identity(key), dtype=np.uint8)
    told["signature"][place] = np.frombuffer(sign(key, stated), dtype=np.uint8)
    return key


def signed_by_the_server(told: Arrays) -> None:
    own_keys(told, 1)
    sign_keys(told, 1)


def another_ones_twice(told: Arrays) -> None:
    for name in ("identity", "signature"):
        told[name][1] = told[name][2]


def in_each_others_places(told: Arrays) -> None:
    for name in ("sealing", "mask", "identity", "signature"):
        told[name][[1, 2]] = told[name][[2, 1]]


def one_missing(told: Arrays) -> None:
    told["identity"], told["signature"] = told["identity"][1:], told["signature"][1:]


@pytest.mark.parametrize(
    "swap",
    [lambda told: own_keys(told, 1), signed_by_the_server, another_ones_twice, in_each_others_places, one_missing],
)
def test_a_list_of_keys_that_the_server_changed_is_refused(tmp_path: Path, swap: Swap) -> None:
    found = ward(tmp_path)
    found.swap = swap
    reasons = "are not signed by a hospital that the policy knows|by an identity of its own|not one for each hospital"
    with pytest.raises(SumRefused, match=reasons):
        found.begin()


def test_keys_of_another_round_are_refused(tmp_path: Path) -> None:
    found = ward(tmp_path)
    first: list[Arrays] = []
    found.swap = lambda told: first.append({name: value.copy() for name, value in told.items()})
    found.sum()

    def again(told: Arrays) -> None:
        for name in ("sealing", "mask", "identity", "signature"):
            told[name][1] = first[0][name][1]

    found.swap = again
    with pytest.raises(SumRefused, match="the keys of hospital 1 are not signed"):
        found.begin(round=2)


def test_hospitals_that_know_each_other_sum_as_others_do(tmp_path: Path) -> None:
    mean, _ = ward(tmp_path).sum()
    np.testing.assert_allclose(mean, ward(tmp_path / "plain", known=False).sum()[0], atol=1e-5)


def test_a_hospital_that_is_not_on_the_list_is_refused(tmp_path: Path) -> None:
    found = ward(tmp_path)
    (found.hospitals[3].home / "identity.key").write_bytes(new_identity())
    with pytest.raises(SumRefused, match="the keys of hospital 3 are not signed"):
        found.begin()


def test_without_a_list_a_server_with_keys_of_its_own_reads_an_update(tmp_path: Path) -> None:
    """Why there are lists: hospital 0 is told the server's keys and identities for all others, so it masks and seals for the
    server, which signs all terms itself."""
    ward_, seeds, forged = ward(tmp_path, known=False), {}, {}

    def all_but_the_first(told: Arrays) -> None:
        if not seeds:
            seeds.update({place: own_keys(told, place) for place in (1, 2, 3)})
            forged.update({place: sign_keys(told, place) for place in (1, 2, 3)})

    ward_.swap = all_but_the_first
    ward_.begin()
    keys, shared = (from_record(answer[SECURE]) for answer in ward_.answers[0])  # type: ignore[arg-type]
    signatures = [bytes(shared["signature"]), *(sign(forged[place], bytes(shared["terms"])) for place in (1, 2, 3))]
    request = TrainRequest(run="run", site=0, round=1, secure_parties=[0, 1, 2, 3], secure_signatures=signatures)
    content = RecordDict({"arrays": to_record({"w": np.zeros(20)}), RECORD: request.record()})
    words = from_record(ward_.ask(Message(content, 1, TRAIN, group_id="0"))["arrays"])["masked"]
    terms = SumTerms(20, ward_.config.secure.clip_norm, ward_.config.secure.bits, 4, 3)
    size, word, shares = terms.size, terms.word, {}
    for place, own in seeds.items():
        agreed = secure_sum.agree(secure_sum.private_key(own["sealing"]), bytes(keys["sealing"]), "seal run 1")
        sealed = bytes(shared["sealed"][place])
        shares[place + 1] = secure_sum.unseal(agreed, sealed, 0, place)[: secure_sum.SHARE_BYTES]
        words = words + secure_sum.pair_masks(
            own["mask"],
            place,
            {0: bytes(keys["mask"])},
            size,
            word,
            terms.purpose("run", 1, ward_.question({"w": np.zeros(20)})),
        )
    words = words - secure_sum.own_mask(secure_sum.join(shares), size, word)
    np.testing.assert_allclose(terms.total(words), ward_.updates[0], atol=1e-5)


def test_a_signature_is_of_one_text_by_one_key() -> None:
    """Against cryptography's own objects, and RFC 8032, section 7.1, test 1."""
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert public_identity(secret) == public
    assert sign(secret, b"") == Ed25519PrivateKey.from_private_bytes(secret).sign(b"")
    assert sign(secret, b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")
    signature = sign(secret, b"text")
    assert is_signed(public, signature, b"text") and not is_signed(public, signature, b"other")
    assert not is_signed(public_identity(new_identity()), signature, b"text")
    assert not is_signed(public[:31], signature, b"text") and not is_signed(public, signature[:63], b"text")


def test_a_hospitals_key_is_made_once_and_its_own(tmp_path: Path) -> None:
    keys = []
    for name in ("north", "north", "south"):
        (tmp_path / name).mkdir(exist_ok=True)
        hospital = make_hospital(tmp_path / name, STRICT)
        done = CliRunner().invoke(app, ["identity", str(hospital), "--json"])
        told = json.loads(done.stdout)
        assert told["site"] == "St. Elsewhere"
        keys.append(told["public_key"])
    assert keys[0] == keys[1] != keys[2]
    file = tmp_path / "north" / "home" / "identity.key"
    assert file.stat().st_mode & 0o777 == 0o600 and not list(file.parent.glob("*.partial"))
    assert Policy.build({"budget": 1.0, "delta": 1e-3, "known-hospitals": keys}, "x").known_hospitals == tuple(keys)


def test_what_is_no_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_bytes(b"short")
    with pytest.raises(DataError, match="is damaged; restore it"):
        identity(tmp_path)
    with pytest.raises(ConfigError, match=r"key 'policy\.known-hospitals\.0'"):
        Policy.build({"budget": 1.0, "delta": 1e-3, "known-hospitals": ["abc"]}, "hospital.toml")
