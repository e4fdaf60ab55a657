"""Who submitted a run, as a hospital can check it whatever the coordinator says: a signature over the run's settings.

A signature holds for one run, of any name. It covers all settings but those of the coordinator's machine and, of a bundle that
brings code, none of the code: what of it may run, ``allowed-runs`` of a policy says.
"""

from __future__ import annotations

from datetime import UTC, datetime

from polyclinic.config import RunConfig
from polyclinic.digests import digest
from polyclinic.privacy.secure.signatures import is_signed, sign

SUBMITTER, SIGNATURE = "participation.submitter", "participation.signature"
#: Keys that are of the coordinator's machine, or that a resumed run alone has: no signature and no approval covers them.
ELSEWHERE = frozenset({"out", "timeout", "workers", "ray-address", "resume", "participation.approval-wait", SIGNATURE})


def signed_config(config: RunConfig, submitter: str, private: bytes) -> RunConfig:
    """The configuration with the submitter's name and signature.

    Args:
        config: The configuration, as it goes to Flower.
        submitter: The name under which hospitals know the public key.
        private: The Ed25519 private key, 32 bytes.
    """
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    named = config.changed({SUBMITTER: submitter})
    return named.changed({SIGNATURE: f"{sign(private, _statement(named, time)).hex()}@{time}"})


def submission(config: RunConfig, public: bytes) -> str:
    """What identifies the submission of a configuration, in hexadecimal; empty where it is not signed with the key.

    Args:
        config: The configuration as it came from Flower, before anything that it leaves open was chosen.
        public: The submitter's Ed25519 public key, 32 bytes.
    """
    signature, _, time = config.participation.signature.partition("@")
    statement = _statement(config, time)
    return statement.decode() if is_signed(public, bytes.fromhex(signature), statement) else ""


def _statement(config: RunConfig, time: str) -> bytes:
    settings = {key: value for key, value in config.given().items() if key not in ELSEWHERE}
    return digest("polyclinic submission", time, settings).encode()
