"""Who may use what of the SuperLink's one port.

Flower 1.41 serves nodes (``/v1/fleet``), its command line (``/v1/control``) and its own processes (``/v1/runtime``) on
one port. Only the first asks for a key: whoever reaches the port could register a node, submit a run with code of their
own, or take over one that waits. Here the last two are for the coordinator's machine and the networks that it names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_OPEN = ("/v1/fleet/",)  # authenticated by the node's key
_HEALTH = ("/health",)


class Gate:
    """ASGI middleware; ``control_from``: networks that may use more than nodes may."""

    def __init__(self, app: App, control_from: Sequence[Network] = ()) -> None:
        self.app, self.control_from = app, control_from

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._may(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the coordinator's own machine may ask this."})

    def _may(self, scope: Scope) -> bool:
        path = str(scope.get("path", ""))
        return path.startswith(_OPEN) or path in _HEALTH or self._trusted(scope.get("client"), scope.get("server"))

    def _trusted(self, client: Any, server: Any) -> bool:
        try:
            address = _address(client[0])
            # A machine that connects to its own address is itself: nobody else can answer there.
            return (
                address.is_loopback
                or address == _address(server[0])
                or any(address in network for network in self.control_from)
            )
        except (TypeError, ValueError, IndexError):
            return False


def networks(text: str) -> list[Network]:
    """Networks in CIDR form, separated by spaces. Raises ValueError."""
    return [ipaddress.ip_network(part) for part in text.split()]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text)
    # What a socket of both families calls an IPv4 address.
    return getattr(address, "ipv4_mapped", None) or address
