"""A wire between two programs of this machine that can be cut, held still, slowed, or cut after some bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

OPEN, CUT, SILENT = "open", "cut", "silent"


class Wire:
    """Listens on ``port`` of the loopback and passes bytes both ways to what ``reach`` connects to.

    ``state``: OPEN; CUT refuses and ends connections; SILENT keeps them and passes nothing. ``delay``: seconds before each
    piece towards the client; ``allowance``: bytes towards the client after which its connection ends, None for no limit.
    """

    def __init__(self, port: int, reach: Callable[[], socket.socket]) -> None:
        self.port, self.delay = port, 0.0
        self.allowance: int | None = None
        self._reach, self._state = reach, OPEN
        self._live: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._welcome, daemon=True).start()

    @property
    def state(self) -> str:
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = state
        if state == CUT:
            self.drop()

    def drop(self) -> None:
        """End every connection of now."""
        for end in list(self._live):
            _close(end)

    def heal(self) -> None:
        self.state, self.delay, self.allowance = OPEN, 0.0, None

    def close(self) -> None:
        self._state = CUT
        self._door.close()
        self.drop()

    def _welcome(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            if self._state == CUT:
                _close(near)
                continue
            try:
                far = self._reach()
            except OSError:
                _close(near)
                continue
            self._live |= {near, far}
            for source, sink, down in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass, args=(source, sink, down), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                while self._state == SILENT:
                    time.sleep(0.05)
                if down and self.delay:
                    time.sleep(self.delay)
                if down and self.allowance is not None:
                    self.allowance -= len(piece)
                    if self.allowance < 0:
                        break
                sink.sendall(piece)
        for end in (source, sink):
            self._live.discard(end)
            _close(end)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def to_port(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=None)


def to_socket(path: str) -> Callable[[], socket.socket]:
    def reach() -> socket.socket:
        found = socket.socket(socket.AF_UNIX)
        found.connect(path)
        return found

    return reach
