"""A lying server that makes hospitals forget what they answered, so that they would mask another update by the same seeds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from polyclinic.client.app import app
from polyclinic.client.home.identity import identity
from polyclinic.config import RunConfig
from polyclinic.privacy.secure.signatures import public_identity
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import (
    RECORD,
    SECURE,
    SECURE_KEYS,
    SECURE_SHARES,
    Request,
    SecureKeysRequest,
    SecureSharesRequest,
    TrainRequest,
)
from tests.client.test_hospital import make_hospital, model
from tests.secure.lying import LyingServer
from tests.secure.ward import Ward

COUNT = 3
CONFIG = RunConfig(
    secure={"aggregation": True, "clip_norm": 10.0},
    training={"local_steps": 1, "learning_rate": 0.5},
    privacy={"patients_per_site": 100},
)


class Server:
    """Asks three real hospitals, which know each other's identities and take part in secure sums alone."""

    def __init__(self, folder: Path) -> None:
        LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
        self.hospitals, self.shared, self.refused = [], {}, []  # type: ignore[var-annotated]
        identities = []
        for index in range(COUNT):
            (folder / str(index) / "home").mkdir(parents=True, mode=0o700)
            identities.append(public_identity(identity(folder / str(index) / "home", durable=True)).hex())
        policy = f"budget = 200.0\ndelta = 1e-3\nonly-secure-aggregation = true\nknown-hospitals = {identities}\n"
        for index in range(COUNT):
            file = make_hospital(folder / str(index), policy, rows=100 + 37 * index)
            file.write_text(file.read_text().replace("St. Elsewhere", f"hospital {index}"))
            self.hospitals.append(file)

    def ask(
        self, index: int, request: Request, kind: str, name: str = SECURE, arrays: Any = None
    ) -> dict[str, np.ndarray]:
        content = RecordDict({RECORD: request.record()})
        if arrays is not None:
            content[name] = to_record(arrays)
        context = Context(1, index + 1, {"hospital": str(self.hospitals[index])}, RecordDict(), CONFIG.flat())
        reply = app(Message(content, index + 1, kind), context)
        if reply.has_error():
            self.refused.append(reply.error.reason)
            return {}
        return from_record(reply.content[name])  # type: ignore[arg-type]

    def agree(self, number: int) -> None:
        """Keys and shares of a round."""
        places = {"run": "r", "round": number}
        keys = [self.ask(site, SecureKeysRequest(site=site, **places), SECURE_KEYS) for site in range(COUNT)]  # type: ignore[arg-type]
        public = {name: np.stack([key[name] for key in keys]) for name in ("sealing", "mask", "identity", "signature")}
        public |= {"peers": np.arange(COUNT), "weights": np.ones(COUNT)}
        self.shared[number] = [
            self.ask(site, SecureSharesRequest(site=site, threshold=COUNT, **places), SECURE_SHARES, arrays=public)  # type: ignore[arg-type]
            for site in range(COUNT)
        ]

    def train(self, site: int, number: int, public_patients: float) -> np.ndarray | None:
        request = TrainRequest(
            run="r", site=site, round=number, noise_multiplier=1.0, public_patients=public_patients,
            secure_parties=list(range(COUNT)),
            secure_signatures=[bytes(shared["signature"]) for shared in self.shared[number]],
        )  # fmt: skip
        return self.ask(site, request, "train", "arrays", model()).get("masked")


def test_fault_41_a_later_round_does_not_make_hospitals_answer_an_earlier_one_again(tmp_path: Path) -> None:
    """Two masked updates of the same seeds, divided by other numbers of patients, differ by one hospital's own update."""
    server = Server(tmp_path)
    server.agree(3)  # first, since the keys of a round erase the secrets of those before it
    server.agree(1)
    assert all(server.train(site, 1, 100.0) is not None for site in range(COUNT))
    assert all(server.train(site, 1, 50.0) is None for site in range(COUNT))
    assert all("was already answered to another question" in why for why in server.refused)
    assert all(server.train(site, 3, 100.0) is not None for site in range(COUNT))  # round 1 is forgotten with this
    server.refused.clear()
    assert all(server.train(site, 1, 50.0) is None for site in range(COUNT))
    assert len(server.refused) == COUNT and all("no secrets of this round" in why for why in server.refused)
    assert not list(tmp_path.glob("*/home/secure-r-000001.*"))


@pytest.mark.parametrize("site", range(4))
def test_fault_41_a_later_round_does_not_make_hospitals_sign_another_outcome(tmp_path: Path, site: int) -> None:
    ward = Ward(tmp_path, np.ones((4, 5)), secure={"dropouts": 1})
    later, first = LyingServer(ward, round=3), LyingServer(ward, round=1)
    for server in (later, first):
        server.exchange_keys()
        assert server.share(3)
        assert all(server.train(index, range(4)) is not None for index in range(4))
    assert all(first.confirm(index, range(4)) for index in range(4))
    assert all(later.confirm(index, range(4)) for index in range(4))
    assert not first.confirm(site, [index for index in range(4) if index != (site + 1) % 4])
    assert "no secrets of this round" in first.refused[-1]
