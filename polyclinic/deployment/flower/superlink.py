"""``python -m polyclinic.deployment.flower.superlink``: flower-superlink, with the gate before all that it serves.

Beside it: nodes and log are told why a node is refused, and the log that a certificate is about to end.
"""

from __future__ import annotations

import os

from starlette.middleware import Middleware

from polyclinic.deployment.environment import watch_certificates
from polyclinic.deployment.flower import patch
from polyclinic.deployment.flower.gate import Gate, networks
from polyclinic.deployment.flower.refusals import explain


def main() -> None:
    """flower-superlink's own arguments; POLYCLINIC_CONTROL_FROM holds the gate's networks."""
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.routers.fleet import node_auth
    from flwr.superlink.servicer.fleet import fleet_handlers

    explain(node_auth, fleet_handlers)
    watch_certificates()
    guard(os.environ.get("POLYCLINIC_CONTROL_FROM", ""))
    flower_superlink()


def guard(control_from: str) -> None:
    """Put the gate before every SuperLink that this process makes; ends the process where Flower has no place for it."""
    from flwr.superlink import extensions

    gate = Middleware(Gate, control_from=networks(control_from))
    patch(extensions, "get_middleware", lambda _: lambda: (gate,), "the gate, without which anybody could submit runs")


if __name__ == "__main__":
    main()
