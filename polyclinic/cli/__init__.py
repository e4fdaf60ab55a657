"""The ``polyclinic`` command: exit code 0 done, 1 the work failed, 2 the input was wrong, 3 a budget refused it."""

from __future__ import annotations

import sys

from polyclinic.cli.commands import app
from polyclinic.cli.terminal import fail
from polyclinic.errors import PolyclinicError


def main() -> None:
    """Run the command line; every foreseen error is one sentence on stderr."""
    try:
        app()
    except PolyclinicError as error:
        sys.exit(fail(error))
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. A run's checkpoint is kept; go on with `polyclinic run --resume RUN`.\n")
        sys.exit(130)


__all__ = ["app", "main"]
