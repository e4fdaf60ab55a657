"""The ``polyclinic`` command: exit code 0 done, 1 the work failed, 2 the input was wrong, 3 a budget refused it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from polyclinic.cli.commands import app
from polyclinic.cli.terminal import fail, spell_what_cannot_be_shown
from polyclinic.errors import PolyclinicError

# Commands of parties whose processes run installed code alone, whatever lies in the folder where they are started.
_INSTALLED_CODE_ALONE = ("coordinator", "hospital")


def main() -> None:
    """Run the command line; every foreseen error is one sentence on stderr, and Ctrl-C exits with 130."""
    spell_what_cannot_be_shown()
    if sys.argv[1:2] and sys.argv[1] not in _INSTALLED_CODE_ALONE:
        with suppress(FileNotFoundError):  # the folder was deleted
            # Where a researcher's `module:Name` is; last, so that it hides nothing installed.
            sys.path.append(str(Path.cwd()))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a scheduler sends is a wish to stop, like Ctrl-C
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
            gc.freeze()  # at its end Python would look for garbage among all that was loaded, for a second
    except PolyclinicError as error:
        sys.exit(fail(error))
    except BrokenPipeError:
        # The reader, such as `head`, has gone; Python's own flush at exit would complain of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


__all__ = ["app", "main"]
