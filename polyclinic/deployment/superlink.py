"""``python -m polyclinic.deployment.superlink``: flower-superlink, with the gate before all that it serves.

Beside it: nodes and log are told why a node is refused, and the log that a certificate is about to end.
"""

from __future__ import annotations

import os
import sys
from logging import WARNING

from starlette.middleware import Middleware

from polyclinic.deployment.certificates import warn_daily
from polyclinic.deployment.environment import certificates_to_watch
from polyclinic.deployment.gate import Gate, networks
from polyclinic.deployment.refusals import explain


def main() -> None:
    """flower-superlink's own arguments; POLYCLINIC_CONTROL_FROM holds the gate's networks."""
    from flwr.common.logger import log
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.routers.fleet import node_auth
    from flwr.superlink.servicer.fleet import fleet_handlers

    if not hasattr(node_auth, "authenticate_node") or not hasattr(fleet_handlers, "activate_node"):
        sys.exit("This flwr has no place for the reasons of a refusal; install flwr 1.41.")
    explain(node_auth, fleet_handlers)
    warn_daily(certificates_to_watch(), lambda sentence: log(WARNING, "%s", sentence))
    guard(os.environ.get("POLYCLINIC_CONTROL_FROM", ""))
    flower_superlink()


def guard(control_from: str) -> None:
    """Put the gate before every SuperLink that this process makes; ends the process where Flower has no place for it."""
    from flwr.superlink import extensions

    if not callable(getattr(extensions, "get_middleware", None)):
        sys.exit("This flwr has no hook for the gate, without which anybody could submit runs; install flwr 1.41.")
    gate = Middleware(Gate, control_from=networks(control_from))
    extensions.get_middleware = lambda: (gate,)


if __name__ == "__main__":
    main()
