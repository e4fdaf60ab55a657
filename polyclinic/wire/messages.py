"""What the server asks of a hospital, and what a hospital may answer: the contract of every message.

Requests travel in one ConfigRecord named ``polyclinic`` beside whatever the strategy sends, so that a strategy needs
to know nothing of privacy. A hospital checks a request against its own policy; a request never widens a policy.
"""

from __future__ import annotations

import re
from pathlib import Path
from time import time
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from polyclinic.errors import ConfigError
from polyclinic.training.local import BESIDE
from polyclinic.wire.arrays import fill_record
from polyclinic.wire.versions import PRIVACY_FORMAT

RECORD = "polyclinic"
ENROL = "query.enrol"
STATISTICS = "query.statistics"
ASK = "query.ask"
SELECT = "query.select"
SECURE_KEYS, SECURE_SHARES = "query.secure_keys", "query.secure_shares"
SECURE_CONFIRM, SECURE_UNMASK = "query.secure_confirm", "query.secure_unmask"
# The record of arrays beside a secure sum's requests, and of its answers.
SECURE = "secure"
# The record of arrays with the noised score counts of private metrics.
COUNTS = "counts"
# Records of arrays beside the model's: how to standardise, and what stays at hospitals.
STANDARDISER, LOCAL = "standardiser", "local"
# What a program asks beside the model, as the generator of a game; of a sum in place of a model, what the sum depends on.
QUESTION = "question"


# Where a record that was not sent to another process has the request that it was made of.
_ASKED = "_asked"


def is_model(key: str) -> bool:
    """Whether a record of arrays may be the model: none of the above, and none that a strategy sends or gets beside it."""
    return key not in (STANDARDISER, LOCAL, QUESTION) and not key.startswith(BESIDE)


# Codes of Flower's Error replies; Flower itself uses codes below 100.
REFUSED = 403
FAILED = 500


def _name(text: str) -> str:
    if not text.isprintable() or text in ("pooled", "macro") or re.fullmatch(r"node \d+", text):
        raise ValueError("a hospital's name is printed text on one line, and not 'pooled', 'macro' or 'node 7'")
    return text


# A hospital's name, which is printed in logs and stands in tables beside "pooled", "macro" and, of who has no name, "node 7".
SiteName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


class Request(BaseModel):
    """``run``: identifier of the run; ``site``: index of the hospital, which only a simulated node takes from here;
    ``home``: folder in which a simulated hospital keeps its ledger.
    ``plan``: all charges that the run will make, as ``ledger.terms.plan_text`` writes them; the hospital holds the run to the
    plan that came with its first charge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # A part of file names at the hospital, so it must not be a path.
    run: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")
    site: int = Field(ge=0)
    home: str = ""
    plan: str = Field("", max_length=1_000_000)

    def record(self) -> ConfigRecord:
        """What travels; within a process the record has the request itself beside it, so that nobody checks it again."""
        record = fill_record(ConfigRecord(), self.items())
        record.__dict__[_ASKED] = self
        return record

    def items(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if value is not None}


class EnrolRequest(Request):
    """Who is there? Answered with the hospital's name, schema, versions and policy, or with its name and why it refuses.

    ``version``, ``privacy_format``: of the coordinator's Polyclinic; a hospital takes part only in its own format.
    ``trains``: whether the run of the configuration follows, whose terms the policy must then allow; a query of its own asks
    for nothing of it.
    ``local_half``: whether the strategy has a half at hospitals, which they must load and their policy must allow.
    ``noise_multiplier``, ``statistics_noise_multiplier``: what the run will ask for, None without privacy; ``question`` alike.
    """

    version: str = Field("", max_length=100)
    privacy_format: int = PRIVACY_FORMAT
    trains: bool = True
    local_half: bool = False
    noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)
    statistics_noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)
    question: str = Field("", max_length=1_000_000)


class StatisticsRequest(Request):
    """The number of patients, and sums that standardise features where the run measures them.

    ``noise_multiplier`` None asks for exact sums (no privacy). ``local_half``: as of the enrolment of the run that follows.
    """

    local_half: bool = False
    noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)


class RoundRequest(Request):
    """A request that belongs to one round of training."""

    round: int = Field(ge=1, le=1_000_000)


class AskRequest(Request):
    """A question of its own, outside a run, as ``releases.kinds`` writes it.

    ``ledger``, ``budget`` (None is unlimited) and ``relation`` are a simulated hospital's, which has no policy of its own;
    a real one does not read them.
    """

    question: str = Field(max_length=1_000_000)
    ledger: str = ""
    budget: float | None = Field(None, gt=0, allow_inf_nan=False)
    relation: Literal["add-remove", "replace-one"] = "add-remove"


class TrainRequest(RoundRequest):
    """One round of local training; ``public_patients`` is the paid or declared count that divides batch sums.

    ``learning_rate``: what the server found where the run's configuration leaves it to the noise.

    ``local_half``: whether to train as the strategy's half at hospitals says.

    ``merge_by``: simulated hospitals that are called together may answer with one mean, weighted by this metric.
    ``secure_parties``: indices of the hospitals for which a secure sum's update is masked; ``secure_signatures``: theirs of
    the sum's terms, 64 bytes each.
    """

    noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)
    public_patients: float | None = Field(None, ge=1, le=1e9)
    learning_rate: float | None = Field(None, gt=0, le=1e6)
    local_half: bool = False
    merge_by: str = ""
    secure_parties: list[int] | None = None
    secure_signatures: list[bytes] | None = None


class SelectRequest(RoundRequest):
    """The best ``selected`` of candidate generators, by classifiers that the record ``question`` holds beside it.

    ``epsilon`` None asks for the exact best, which a policy must allow. Answered with ``chosen``, (selected,) int64.
    """

    selected: int = Field(ge=1, le=1000)
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def noise_multiplier(self) -> float | None:
        """1 / epsilon, as of every mechanism with a pure epsilon; None without privacy."""
        return None if self.epsilon is None else 1 / self.epsilon


class SecureKeysRequest(RoundRequest):
    """Keys for the round's secure sum.

    Answered with ``sealing``, ``mask``, ``commitment`` and the hospital's ``identity``, uint8 (32,) each, and its
    ``signature`` of the keys, uint8 (64,).
    """


class SecureSharesRequest(RoundRequest):
    """Shares of the hospital's seeds, ``threshold`` of which give a seed back, and agreement to the sum's terms.

    Beside it: ``peers``, the hospitals' indices (n,) int64; their keys ``sealing`` and ``mask`` and their ``identity``,
    uint8 (n, 32). Also each one's ``signature`` of its keys, uint8 (n, 64), and the ``weights`` of their updates, (n,)
    float64 in (0, 1]. Answered with ``sealed``, uint8 (n, 62), one row for each peer, the ``terms`` as this hospital
    was told them, uint8 (32,), and its ``signature`` of them, uint8 (64,).
    """

    threshold: int = Field(ge=2)


class SecureConfirmRequest(RoundRequest):
    """Agreement to whose updates make up a round's sum.

    Beside it: ``survivors`` (k,) int64, whose updates arrived. Answered with the digest of the ``question`` that this
    hospital trained on, uint8 (32,). The ``outcome``, uint8 (32,), stands for all that it was told in the round, and
    ``signature``, uint8 (64,), is its signature of the outcome.
    """


class SecureUnmaskRequest(RoundRequest):
    """What removes the masks of a round's sum, once enough hospitals signed the same outcome.

    Beside it: ``signers`` (k,) int64 and their ``signatures`` of the outcome, uint8 (k, 64); ``senders`` (m,) int64 and what
    they ``sealed`` for this hospital, uint8 (m, 62). Answered with ``shares``, uint8 (m + 1, 17), one row for each hospital
    for which the update was masked.
    """


class EvaluateRequest(Request):
    """Metrics of the model on the hospital's held-out patients.

    ``own``: whether to evaluate with the hospital's own arrays in the model's place.
    ``private_evaluations``: how many private releases of the run are to share the policy's ``metrics-epsilon``; None asks for
    no private metrics in this round.
    """

    round: int = Field(ge=0, le=1_000_000)
    own: bool = False
    private_evaluations: int | None = Field(None, ge=1, le=1_000_000)


def site_home(home: str | Path, site: str) -> Path:
    """The folder of a simulated site's ledger under ``home``; a site's name may hold anything, a folder's may not."""
    return Path(home) / quote(site, safe="").replace(".", "%2E")


def state_file(home: Path, run: str, round: int) -> Path:
    """The file of what a site keeps after ``round`` for its next one, in its own folder.

    Args:
        home: The site's home folder.
        run: The run's name.
        round: The round that has ended.
    """
    return home / f"optimizer-{run}-{round:06d}.safetensors"


def passed_on(message: Message, content: RecordDict, **changed: Any) -> Message:
    """The message with another content, and with other values of its metadata, by their names.

    Not by Flower's constructor, which checks each of them: for thousands of small messages that takes longer than the training.
    """
    before = message.metadata
    metadata = type(before).__new__(type(before))
    metadata.__dict__ |= before.__dict__ | {f"_{name}": value for name, value in changed.items()}
    passed = Message.__new__(Message)
    passed.__dict__ |= {"_metadata": metadata, "_content": content, "_error": None}
    return passed


def answering(message: Message, content: RecordDict) -> Message:
    """The reply to a message, as Flower's constructor makes it: it lives as long as the message would have lived on."""
    asked, now = message.metadata, time()
    return passed_on(
        message, content, message_id="", src_node_id=asked.dst_node_id, dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id, created_at=now, ttl=asked.created_at + asked.ttl - now,
        src_task_id=asked.dst_task_id, dst_task_id=asked.src_task_id, delivered_at="",
    )  # fmt: skip


R = TypeVar("R", bound=Request)


def read_request(kind: type[R], content: RecordDict) -> R:
    """The request in a message. Raises ConfigError naming the field that is missing, wrong or unknown."""
    record: Any = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise ConfigError(
            f"The message carries no ConfigRecord named {RECORD!r}; it was not sent by Polyclinic's server."
        )
    asked = record.__dict__.get(_ASKED)
    if type(asked) is kind and asked.items() == record:  # nobody changed it on its way
        return asked
    try:
        return kind.model_validate(dict(record))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"Message field {'.'.join(map(str, first['loc']))!r}: {first['msg']}.") from None
