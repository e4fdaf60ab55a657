"""Who may use what of the SuperLink's one port.

Flower 1.41 serves nodes (``/v1/fleet``), its command line (``/v1/control``) and its own processes (``/v1/runtime``) on
one port. Only the first asks for a key: whoever reaches the port could register a node, submit a run with code of their
own, or take over one that waits. Here the last two are for the coordinator's machine and the networks that it names.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CONTROL = "/v1/control/"
#: How calls of the control begin that change nothing.
READING = ("list-", "get-", "show-", "stream-", "pull-")
_NO_PERMISSIONS = 9  # flwr.supercore.error.ApiErrorCode.NO_PERMISSIONS
#: Of a call of the control: Flower takes bundles of at most 10 MiB.
MOST_BYTES = 16 * 2**20
#: How paths begin that anybody may ask: what nodes ask is authenticated by their keys.
OPEN = ("/v1/fleet/", "/health")


class Gate:
    """ASGI middleware; ``control_from``: networks that may use more than nodes may."""

    def __init__(self, app: App, control_from: Sequence[Network] = ()) -> None:
        self.app, self.control_from = app, control_from

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._may(scope):
            control = str(scope.get("path", "")).startswith(CONTROL)
            await self.app(scope, _limit_body(receive) if control else receive, send)
        elif scope["type"] == "http":
            await refuse(send, 403, "Only the coordinator's own machine may ask this.")

    def _may(self, scope: Scope) -> bool:
        path = str(scope.get("path", ""))
        return path.startswith(OPEN[0]) or path == OPEN[1] or from_here(scope) or self._is_control_client(scope)

    def _is_control_client(self, scope: Scope) -> bool:
        try:
            address = _address((scope.get("client") or [""])[0])
        except (TypeError, ValueError):
            return False
        return any(address in network for network in self.control_from)


def from_here(scope: Scope) -> bool:
    """Whether a call comes from the machine itself; one that connects to its own address is, for nobody else answers there."""
    try:
        address = _address((scope.get("client") or [""])[0])
        return address.is_loopback or address == _address((scope.get("server") or [""])[0])
    except (TypeError, ValueError):
        return False


async def refuse(send: Any, status: int, why: str) -> None:
    """Answers a call.

    Args:
        send: ASGI's.
        status: HTTP's.
        why: The answer, a sentence.
    """
    # As Flower's own errors are, so that its command line shows the sentence.
    body = json.dumps({"code": _NO_PERMISSIONS, "detail": why}).encode()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


async def whole(receive: Any) -> tuple[bytes, Callable[[], Awaitable[Any]]]:
    """All that a call sends, and what receives it again for who comes next."""
    parts = [await receive()]
    while parts[-1].get("more_body"):
        parts.append(await receive())
    body = b"".join(part.get("body", b"") for part in parts)

    async def again() -> Any:
        return parts.pop(0) if parts else await receive()

    return body, again


def _limit_body(receive: Any) -> Callable[[], Awaitable[Any]]:
    """What a call sends; as soon as that is more than any call has to, the call counts as broken off."""
    left = MOST_BYTES

    async def receive_next() -> Any:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return receive_next


def networks(text: str) -> list[Network]:
    """Networks in CIDR form, separated by spaces. Raises ValueError."""
    return [ipaddress.ip_network(part) for part in text.split()]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text)
    # What a socket of both families calls an IPv4 address.
    return getattr(address, "ipv4_mapped", None) or address
