"""Who submitted a run, as a hospital can check it whatever the coordinator says: a signature over the run's settings.

A signature holds for one run, of any name. It covers all settings but those of the coordinator's machine. It does not cover the
code of a bundle, of which a policy's ``allowed-runs`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from polyclinic.digests import digest
from polyclinic.privacy.secure.signatures import is_signed, sign

SUBMITTER, SIGNATURE = "participation.submitter", "participation.signature"
#: Keys that are of the coordinator's machine, or that a resumed run alone has: no signature and no approval covers them.
ELSEWHERE = frozenset({"out", "timeout", "workers", "ray-address", "resume", "participation.approval-wait", SIGNATURE})


_TIME = "%Y%m%dT%H%M%S.%fZ"


def sign_submission(settings: Mapping[str, object], private: bytes) -> str:
    """The signature of a run's settings, and its time.

    Args:
        settings: The configuration's ``minimal`` values, with the submitter's name.
        private: The submitter's Ed25519 private key, 32 bytes.
    """
    time = datetime.now(UTC).strftime(_TIME)
    return f"{sign(private, _statement(settings, time)).hex()}@{time}"


def submission(settings: Mapping[str, object], signature: str, public: bytes) -> str:
    """What identifies the submission of a run, in hexadecimal; empty where it is not signed with the key.

    Args:
        settings: The ``minimal`` values of the configuration that came from Flower, before what it leaves open was chosen.
        signature: As ``sign_submission`` made it.
        public: The submitter's Ed25519 public key, 32 bytes.
    """
    signed, _, time = signature.partition("@")
    statement = _statement(settings, time)
    return statement.decode() if is_signed(public, bytes.fromhex(signed), statement) else ""


def signed_at(signature: str) -> datetime:
    """When a signature says that it was made. Raises ValueError for one that ``sign_submission`` did not make."""
    return datetime.strptime(signature.partition("@")[2], _TIME).replace(tzinfo=UTC)


def _statement(settings: Mapping[str, object], time: str) -> bytes:
    covered = {key: value for key, value in settings.items() if key not in ELSEWHERE}
    return digest("polyclinic submission", time, covered).encode()
