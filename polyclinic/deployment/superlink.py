"""``python -m polyclinic.deployment.superlink``: flower-superlink, with the gate before all that it serves."""

from __future__ import annotations

import os
import sys

from starlette.middleware import Middleware

from polyclinic.deployment.gate import Gate, networks


def main() -> None:
    """flower-superlink's own arguments; POLYCLINIC_CONTROL_FROM holds the gate's networks."""
    from flwr.superlink.cli import flower_superlink

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
