"""The log of a node as one JSON object a line, made from what Flower's programs and ours write.

Flower's programs start each other and log as text, some of it before or beside any logger (warnings, tracebacks, libraries in
C). So lines are read as they come and told apart by their form; what has none is a message like any other. No line is lost:
only empty ones and terminal colours are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

Event = dict[str, Any]
LONGEST = 1 << 16  # characters of one record; more begins a new one, so that memory is bounded

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_FORMS = (
    ("flwr", re.compile(rf"({_LEVELS}) (?:\d{{4}}-\d\d-\d\d [\d:,]+)?: *(.*)", re.S)),
    ("uvicorn", re.compile(rf"({_LEVELS}): +(.*)", re.S)),
    ("warnings", re.compile(r"(?:\S+:\d+: )(?=\w*Warning: )()(.*)", re.S)),
)
# The forms of the SuperLink's uvicorn, of alembic and of logging itself.
_NAMED = re.compile(rf"(?:[\dT:.-]+Z )?({_LEVELS}) *(?:\[([\w.]+)\] |:([\w.]+):)(.*)", re.S)
_NATIVE = re.compile(r"([IWEF])\d{4}\b")  # absl and gRPC
_NATIVE_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "critical"}
_RUN = re.compile(r"\brun(?:[ _]id)?[ =:`']+(\d{8}-\d{6}-[0-9a-f]+|\d{5,20}(?![\w-]))", re.I)
_ROUND = re.compile(r"\bround (\d{1,9})\b", re.I)
_GROUP = re.compile(
    r"\[RUN \d+, ROUND \d+\]"
)  # what Flower calls a round there is a message's group: the hospital, to us
_TRACE = re.compile(r"Traceback \(most recent call last\)|  \+ Exception Group Traceback")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# Bounded, so that no long line takes long.
_URL = re.compile(r"(\b\w{1,30}://[^\s:/@]{0,300}:)[^\s@]{1,500}@")
_GIVEN = re.compile(r"((?:password|passwd|pwd|secret)['\"]?\s*[=:]\s*['\"]?)[^\s'\",;&)]+", re.I)


class Lines:
    """Lines of a node's output, as events; those of one record, such as a traceback's, become one event.

    ``site``: who says so in every event. ``hidden``: what must not be written; so must no password in a URL, nor one that is
    called so.
    """

    def __init__(self, site: str, hidden: Sequence[str] = ()) -> None:
        self._site = site
        # A very short one would hide half of every line.
        self._hidden = sorted((text for text in hidden if len(text) > 3), key=len, reverse=True)
        self._open: Event | None = None
        self._trace = ""  # of the open event: "", "in" its frames, or "after" them
        self._run: Event = {}  # what Flower's line "[RUN ...]" says of the next

    def feed(self, line: str) -> Iterator[Event]:
        """The events that this line, without its end, shows to be whole."""
        text = _COLOUR.sub("", line.replace("\0", "")).rstrip()
        event = self._event_of_json(text)
        if event is None and self._continues(text):
            return
        yield from self.flush()
        if event is not None:
            yield event
        elif text.strip():
            self._open = self._begin_event(text)
            if not self._open["message"] and not self._trace:
                self._open = None  # Flower's way to leave a line empty

    def flush(self) -> Iterator[Event]:
        """The event that may still have gone on."""
        event, self._open, self._trace = self._open, None, ""
        if event is not None:
            yield self._safe(
                {name: value.rstrip() if isinstance(value, str) else value for name, value in event.items()}
            )

    def cut(self, line: bytes) -> tuple[bytes, bytes]:
        """What can be a record of its own of a line that goes on, and what begins the next: no secret is cut in two."""
        hidden = [secret.encode() for secret in self._hidden]
        for secret in hidden:
            line = line.replace(secret, b"***")
        starts = (secret[:size] for secret in hidden for size in range(1, len(secret)))
        at = len(line) - max((len(start) for start in starts if line.endswith(start)), default=0)
        return line[:at], line[at:]

    @property
    def waiting(self) -> bool:
        """Whether an event may still go on."""
        return self._open is not None

    def event(self, level: str, message: str, logger: str = "polyclinic") -> Event:
        """An event of our own.

        Args:
            level: As "info" or "error".
            message: The words, from which whatever must not be written is taken out.
            logger: The name of whoever says so.
        """
        entry: Event = {"time": _now(), "level": level, "logger": logger, "site": self._site, "message": message}
        return dict(self._safe(entry))

    def _begin_event(self, text: str) -> Event:
        if _TRACE.match(text):
            self._trace = "in"
            return self.event("error", "", "output") | {"exception": text}
        level, logger, message = _parse_line(text)
        event = self.event(level, message, logger) | self._run | _where(message)
        self._run = _where(message) if message.startswith("[RUN ") else {}
        return event

    def _event_of_json(self, text: str) -> Event | None:
        """JSON that a program wrote itself, if it is an object that can be written again; whose it is is for us to say."""
        if not text.startswith("{"):
            return None
        try:
            content = json.loads(text)
            message = str(content.get("message", content.pop("msg", "")))
            usual = self.event("info", message, "output") | _where(message)
            event = dict(self._safe({**usual, **content, "site": self._site}))
            encode_line(event)
        except (ValueError, RecursionError):
            return None
        return event

    def _continues(self, text: str) -> bool:
        """Whether the line belongs to the open event, to which it is then added."""
        event, inside = self._open, not text or text[0].isspace()
        if event is None or len(event["message"]) + len(event.get("exception", "")) > LONGEST:
            return False
        if _TRACE.match(text):
            self._trace = "in"
            if event["logger"] == "output":
                event["level"] = "error"
        elif inside:
            if not text and not self._trace:
                return False
        elif self._trace == "in" and _parse_line(text)[1] == "output":
            self._trace = "after"  # the line that names the exception
            event["message"] = event["message"] or text
        elif self._trace != "after" or not text.startswith(_CHAIN):
            return False
        part = "exception" if self._trace else "message"
        event[part] = f"{event[part]}\n{text}" if part in event else text
        return True

    def _safe(self, value: Any) -> Any:
        """The value with every secret in its texts hidden."""
        if isinstance(value, dict):
            return {self._safe(key): self._safe(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._safe(part) for part in value]
        if not isinstance(value, str):
            return value
        for secret in self._hidden:
            value = value.replace(secret, "***")
        return _GIVEN.sub(r"\1***", _URL.sub(r"\1***@", value))


def encode_line(event: Event) -> bytes:
    """One line of ASCII."""
    return json.dumps(event, allow_nan=False).encode("ascii") + b"\n"


def _parse_line(text: str) -> tuple[str, str, str]:
    """Level, logger and message of a line of text."""
    for logger, form in _FORMS:
        if match := form.match(text):
            return (match[1] or "warning").lower(), logger, match[2]
    if match := _NAMED.match(text):
        return match[1].lower(), match[2] or match[3], match[4]
    native = _NATIVE.match(text)
    return _NATIVE_LEVELS[native[1]] if native else "info", "output", text


def _where(message: str) -> Event:
    """Run (Flower's number, or our name) and round that a message names.

    Text, since the number has up to 64 bits, more than some readers' numbers.
    """
    run, number = _RUN.search(message), None if _GROUP.match(message) else _ROUND.search(message)
    return ({"run": run[1]} if run else {}) | ({"round": int(number[1])} if number else {})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
