"""What a hospital's node can say of itself, with or without a coordinator; never a secret, never a record."""

from __future__ import annotations

import ssl
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from math import inf
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from polyclinic.client.home.holds import current_pause
from polyclinic.client.home.policy import Policy
from polyclinic.deployment.certificates import certificate_problem, expiry
from polyclinic.deployment.environment import endpoint
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.errors import ConfigError
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.statements import Statement, month_of, statements, with_details

_SECONDS = 3.0
_EVENT = ("run", "round", "purpose", "time")


def hospital_status(node: HospitalNode, messages: int = 5) -> dict[str, Any]:
    """Site, coordinator, certificate and ledger; ``messages``: how many of the last charges are told.

    Raises ConfigError when the authority's certificate cannot be read, DataError for a file that is no ledger.
    """
    ends = expiry(node.ca)
    return {
        "site": node.hospital.site,
        "coordinator": _coordinator(node),
        "authority": {"expires": _utc(ends), "days": _days(ends)},
        "ledger": ledger_status(node, messages, room=True),
        "held_out": held_out_status(node),
        "paused": current_pause(node.home),
    }


def _coordinator(node: HospitalNode) -> dict[str, Any]:
    """Whether it answers with a certificate of the authority; a TLS greeting, no message."""
    host, port = endpoint(node.node.coordinator)
    try:
        with closing(_connection(host, port, ssl.create_default_context(cafile=str(node.ca)))) as connection:
            connection.connect()
            until = str((connection.sock.getpeercert() or {})["notAfter"])
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC)
        return {
            "address": node.node.coordinator, "reachable": True, "problem": None, "expires": _utc(ends), "days": _days(ends),
        }  # fmt: skip
    except ssl.SSLCertVerificationError as error:
        problem = certificate_problem(error)
    except (OSError, HTTPException, KeyError) as error:
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return {"address": node.node.coordinator, "reachable": False, "problem": problem, "expires": None, "days": None}


def _connection(host: str, port: int, context: ssl.SSLContext) -> HTTPSConnection:
    """By the proxy that HTTPS_PROXY or ALL_PROXY names, unless NO_PROXY leaves the host out, as the node itself connects."""
    proxies = getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = HTTPSConnection(via.hostname or "", via.port or 80, timeout=_SECONDS, context=context)
    who = f"{unquote(via.username)}:{unquote(via.password or '')}" if via.username else ""
    connection.set_tunnel(
        host, port, {"Proxy-Authorization": f"Basic {b64encode(who.encode()).decode()}"} if who else None
    )
    return connection


def ledger_status(node: HospitalNode, messages: int = 5, room: bool = False) -> dict[str, Any]:
    """What is spent of which budget, whether the ledger is intact, and the last charges. Raises as ``hospital_status``.

    Args:
        node: The hospital's folder, read.
        messages: How many of the last charges are named.
        room: Whether ``room``, ``month`` and ``most_per_run`` are added, which takes longer. The first is epsilon of the
            largest single release that budget and limits still allow, None if nothing limits it or the ledger cannot be
            accounted. The others are the policy's limits, None for none: that of a month as ``month_of``, that of a run.
    """
    policy = node.policy
    if not node.ledger.is_file():
        return {
            "epsilon": 0.0, "delta": policy.delta, "budget": policy.budget, "intact": True, "charges": 0, "last": [],
            **(_room(policy, policy.budget, _month(policy, None)) if room else {}),
        }  # fmt: skip
    ledgers = Ledger.read_all(node.ledger)
    if node.hospital.site not in ledgers:
        raise ConfigError(f"The ledger {node.ledger} is not of {node.hospital.site}, but of {next(iter(ledgers))}.")
    statement = statements([ledgers[node.hospital.site]])[0]
    spent = statement["epsilon"]
    return {
        "epsilon": spent, "delta": statement["delta"], "budget": policy.budget, "intact": statement["intact"],
        "charges": len(statement["events"]),
        "last": [{key: event.get(key) for key in _EVENT} for event in statement["events"][-messages:]],
        **(_room(policy, _left(statement | {"budget": policy.budget}), _month(policy, statement)) if room else {}),
    }  # fmt: skip


def _room(policy: Policy, left: float | None, month: dict[str, float | None] | None) -> dict[str, Any]:
    """``left``: what the budget alone allows."""
    most = None if policy.most_epsilon_per_run == inf else policy.most_epsilon_per_run
    every = [number for number in (left, month["room"] if month else None, most) if number is not None]
    return {"room": min(every, default=None), "month": month, "most_per_run": most}


def _left(statement: Statement) -> float | None:
    if statement["budget"] is None or statement["epsilon"] is None:
        return None
    room: dict[str, float] = with_details(statement)["room"]
    return room["epsilon"]


def _month(policy: Policy, statement: Statement | None) -> dict[str, float | None] | None:
    """As ``month_of``, None where the policy has no limit of a month. ``statement``: None where nothing was charged."""
    limit = policy.most_epsilon_per_month
    if limit == inf:
        return None
    if statement is None or statement["epsilon"] is None:
        return {"limit": limit, "epsilon": 0.0 if statement is None else None, "room": None if statement else limit}
    return month_of(statement, limit)


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
