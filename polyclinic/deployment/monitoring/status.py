"""What a hospital's node can say of itself, with or without a coordinator; never a secret, never a record."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from typing import Any

from polyclinic.client.home.approvals import paused
from polyclinic.deployment.certificates import certificate_problem, expiry
from polyclinic.deployment.environment import endpoint
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.errors import ConfigError
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.statements import statements

_SECONDS = 3.0
_TOLD = ("run", "round", "purpose", "time")


def hospital_status(node: HospitalNode, messages: int = 5) -> dict[str, Any]:
    """Site, coordinator, certificate and ledger; ``messages``: how many of the last charges are told.

    Raises ConfigError when the authority's certificate cannot be read, DataError for a file that is no ledger.
    """
    ends = expiry(node.ca)
    return {
        "site": node.hospital.site,
        "coordinator": _coordinator(node),
        "authority": {"expires": _utc(ends), "days": _days(ends)},
        "ledger": ledger_status(node, messages),
        "held_out": held_out_status(node),
        "paused": paused(node.home),
    }


def _coordinator(node: HospitalNode) -> dict[str, Any]:
    """Whether it answers with a certificate of the authority; a TLS greeting, no message."""
    host, port = endpoint(node.node.coordinator)
    try:
        context = ssl.create_default_context(cafile=str(node.ca))
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            until = str((secure.getpeercert() or {})["notAfter"])
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC)
        return {
            "address": node.node.coordinator, "reachable": True, "problem": None, "expires": _utc(ends), "days": _days(ends),
        }  # fmt: skip
    except ssl.SSLCertVerificationError as error:
        problem = certificate_problem(error)
    except (OSError, KeyError) as error:
        problem = getattr(error, "strerror", None) or type(error).__name__
    return {"address": node.node.coordinator, "reachable": False, "problem": problem, "expires": None, "days": None}


def ledger_status(node: HospitalNode, messages: int = 5) -> dict[str, Any]:
    """What is spent of which budget, whether the ledger is intact, and the last charges. Raises as ``hospital_status``."""
    policy = node.policy
    nothing: dict[str, Any] = {
        "epsilon": 0.0, "delta": policy.delta, "budget": policy.budget, "left": policy.budget, "intact": True,
        "charges": 0, "last": [],
    }  # fmt: skip
    if not node.ledger.is_file():
        return nothing
    ledgers = Ledger.read_all(node.ledger)
    if node.hospital.site not in ledgers:
        raise ConfigError(f"The ledger {node.ledger} is not of {node.hospital.site}, but of {next(iter(ledgers))}.")
    statement = statements([ledgers[node.hospital.site]])[0]
    spent = statement["epsilon"]
    left = None if policy.budget is None or spent is None else max(0.0, policy.budget - spent)
    return {
        "epsilon": spent, "delta": statement["delta"], "budget": policy.budget, "left": left,
        "intact": statement["intact"], "charges": len(statement["events"]),
        "last": [{key: event.get(key) for key in _TOLD} for event in statement["events"][-messages:]],
    }  # fmt: skip


def held_out_status(node: HospitalNode) -> dict[str, Any] | None:
    """What the held-out patients' own ledger says; None where there is none yet."""
    path = node.ledger.with_name("held-out.sqlite")
    if not path.is_file():
        return None
    statement = statements([Ledger.read(path)])[0]
    return {key: statement[key] for key in ("epsilon", "delta", "intact")} | {"charges": len(statement["events"])}


def _days(ends: datetime) -> int:
    return (ends - datetime.now(UTC)).days


def _utc(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
