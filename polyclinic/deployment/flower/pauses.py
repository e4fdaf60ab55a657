"""Shorter pauses where Flower's programs poll at fixed ones, or wait a second for what is there in a moment."""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any

from polyclinic.deployment.flower import patch

# Seconds before a part of a message that has not arrived is asked for again; then twice as long each time, as in Flower.
SOON = 0.05


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


def pull_soon(module: Any) -> None:
    """Let ``module`` ask for parts of a message again soon; ends the process where it has no such place.

    A message is announced before its parts are sent, so that the first question often comes too early. Flower then waits a
    second: each node, each ClientApp, and the ServerApp for one reply after another.
    """

    def with_soon(pull: Any) -> Any:
        @wraps(pull)
        def pull_objects(*given: Any, **options: Any) -> Any:
            return pull(*given, **{"initial_backoff": SOON} | options)

        return pull_objects

    patch(module, "pull_objects", with_soon, "asking for a message's parts again soon")
