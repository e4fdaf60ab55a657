"""``python -m polyclinic.deployment.superlink``: flower-superlink, with the gate before all that it serves."""

from __future__ import annotations

import os
import sys

from starlette.middleware import Middleware

from polyclinic.deployment.gate import Gate, networks


def main() -> None:
    """flower-superlink's own arguments; POLYCLINIC_CONTROL_FROM holds the gate's networks."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink

    gate = Middleware(Gate, control_from=networks(os.environ.get("POLYCLINIC_CONTROL_FROM", "")))
    if not callable(getattr(extensions, "get_middleware", None)):
        sys.exit("This flwr has no hook for the gate, without which anybody could submit runs; install flwr 1.41.")
    extensions.get_middleware = lambda: (gate,)
    flower_superlink()


if __name__ == "__main__":
    main()
