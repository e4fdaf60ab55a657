"""Shorter pauses where Flower's programs poll at fixed ones."""

from __future__ import annotations

import sys
import time
from typing import Any


class Pauses:
    """In place of the module ``time`` in a module of Flower's: a pause between polls is a tenth of what was waited.

    It is at least a fifteenth of what Flower asks for and at most that, so an idle program polls as seldom as Flower's.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Something came or went: what is waited counts from now."""
        self._since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(self.pause(seconds, time.monotonic() - self._since))

    @staticmethod
    def pause(seconds: float, waited: float) -> float:
        """Seconds to pause after ``waited`` seconds where Flower pauses ``seconds``."""
        return min(seconds, max(seconds / 15, waited / 10))


def put_in(module: Any, pauses: Pauses) -> Pauses:
    """Let ``module``, whose only use of ``time`` is to sleep, pause so; ends the process where it has no such place."""
    if getattr(module, "time", None) is not time:
        sys.exit(f"{module.__name__} of this flwr does not pause by `time`; install flwr 1.41.")
    module.time = pauses
    return pauses
