"""Hospitals that answer a secure sum's messages by their own code, about vectors of a test's choosing; all is recorded."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from scipy import stats

from polyclinic.client import secure
from polyclinic.client.calls import Call
from polyclinic.client.home.hospital import Hospital
from polyclinic.client.home.identity import identity
from polyclinic.client.home.policy import Policy
from polyclinic.config import RunConfig
from polyclinic.digests import digest
from polyclinic.errors import PolyclinicError
from polyclinic.privacy.secure.signatures import public_identity
from polyclinic.programs import program_of
from polyclinic.server.exchange.secure import Opened, SecureSum, begin
from polyclinic.server.exchange.sites import Exchange, Site, SiteGrid
from polyclinic.server.state import Run
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.types import Arrays
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import (
    FAILED,
    SECURE_CONFIRM,
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_UNMASK,
    SecureConfirmRequest,
    SecureKeysRequest,
    SecureSharesRequest,
    SecureUnmaskRequest,
    TrainRequest,
    read_request,
)

TRAIN = "train"
PHASES = {
    SECURE_KEYS: (SecureKeysRequest, secure.keys),
    SECURE_SHARES: (SecureSharesRequest, secure.shares),
    SECURE_CONFIRM: (SecureConfirmRequest, secure.confirm),
    SECURE_UNMASK: (SecureUnmaskRequest, secure.unmask),
}


def is_uniform(words: np.ndarray) -> bool:
    """Chi-square over the values of all bytes, at one in a million."""
    counts = np.bincount(np.frombuffer(words.tobytes(), dtype=np.uint8), minlength=256)
    return bool(stats.chisquare(counts).pvalue > 1e-6)


class Ward(Grid):
    """``updates``: (n, size), one for each hospital. ``silent``: (index, message type) pairs that get no answer.

    ``received``: every message that the server got, in order.
    """

    def __init__(
        self, folder: Path, updates: np.ndarray, silent: Iterable[tuple[int, str]] = (), **options: Any
    ) -> None:
        LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
        self.config = RunConfig.build(
            {"secure.aggregation": True, "data.standardise": "none", "privacy.dp": False}, options
        )
        self.updates = updates
        self.silent = set(silent)
        self.received: list[Message] = []
        policy = Policy(budget=None, delta=1e-3, allow_without_privacy=True, allow_shared_noise=True)
        self.hospitals = [
            Hospital(f"h{index}", None, policy, folder / f"h{index}", folder / "ledger", index, ())  # type: ignore[arg-type]
            for index in range(len(updates))
        ]
        self.sites = [
            Site(index, f"h{index}", index + 1, True, None, 1e-3, None, "add-remove", "pld")  # type: ignore[arg-type]
            for index in range(len(updates))
        ]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self._answer(message) for message in messages if not self._is_silent(message)]
        self.received += replies
        return replies

    def _is_silent(self, message: Message) -> bool:
        return (int(message.metadata.group_id), message.metadata.message_type) in self.silent

    def _answer(self, message: Message) -> Message:
        answer = self.ask(message)
        if isinstance(answer, RecordDict):
            return Message(answer, reply_to=message)
        assert isinstance(answer, PolyclinicError), answer
        return Message(Error(FAILED, str(answer)), reply_to=message)

    def ask(self, message: Message) -> Any:
        """What one hospital answers: content, or an error."""
        hospital = self.hospitals[int(message.metadata.group_id)]
        kind = message.metadata.message_type
        if kind in PHASES:
            request, answer = PHASES[kind]
            call = Call(message.content, hospital, read_request(request, message.content), self.config)  # type: ignore[type-var]
            return answer([call])[0]  # type: ignore[operator]
        call = Call(message.content, hospital, read_request(TrainRequest, message.content), self.config)
        given = from_record(message.content["arrays"])  # type: ignore[arg-type]
        try:
            secure.check_upload(call, given)
        except PolyclinicError as error:
            return error
        question = self.question(given)
        words = secure.mask_update(call, {"w": given["w"] + self.updates[call.request.site]}, given, question.hex())
        return RecordDict({"arrays": to_record(words), "metrics": MetricRecord({"num-examples": 1.0})})

    def list_each_other(self, among: Iterable[int] | None = None) -> None:
        """The hospitals ``among`` (None is all) have policies that list all hospitals' keys."""
        listed = tuple(public_identity(identity(hospital.home)).hex() for hospital in self.hospitals)
        for index in range(len(self.hospitals)) if among is None else among:
            hospital = self.hospitals[index]
            policy = hospital.policy.model_copy(update={"known_hospitals": listed})
            self.hospitals[index] = replace(hospital, policy=policy)

    def question(self, given: Arrays) -> bytes:
        """The digest of what hospitals are asked with this model."""
        return bytes.fromhex(digest(given, self.config.decisive()))

    def begin(self, weights: dict[str, float] | None = None, round: int = 1) -> SecureSum:
        """Keys and shares."""
        model = {"w": np.zeros(self.updates.shape[1])}
        return begin(
            Run(self, self.sites, FedAvg(), program_of(self.config), "run", ""), self.sites, model, weights or {}, round
        )[0]

    def upload(self, found: SecureSum) -> Exchange:
        """The masked updates of the sum's parties."""

        def request(site: Site) -> TrainRequest:
            return TrainRequest(
                run="run", site=site.index, round=found.round, secure_parties=found.indices,
                secure_signatures=found.signatures,
            )  # fmt: skip

        content = RecordDict({"arrays": to_record({"w": np.zeros(self.updates.shape[1])})})
        messages = [Message(content, site.id, TRAIN) for site in found.parties]
        return SiteGrid(self, found.parties, request, {}).exchange(messages, 10)

    def sum(self, weights: dict[str, float] | None = None, round: int = 1) -> tuple[np.ndarray, Opened]:
        """A whole round: the (size,) mean of the updates that arrived, and what was opened."""
        found = self.begin(weights, round)
        opened = found.open(self.upload(found).replies, {"w": np.zeros(self.updates.shape[1])}, "num-examples")
        return from_record(opened.reply.content["arrays"])["w"], opened  # type: ignore[arg-type]

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Sequence[int]:
        return [site.node for site in self.sites]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        raise NotImplementedError
