"""The coordinator's audit log: a line for each call that would change something at its SuperLink, and one for how it ended.

It is written as a hospital's journal is: where the first line cannot be written, the call is refused, unless it stops a run.
"""

from __future__ import annotations

import asyncio
from logging import ERROR
from pathlib import Path
from typing import Any

from polyclinic.deployment.coordinator import AUDIT
from polyclinic.deployment.flower.gate import CONTROL, READING, App, Scope, refuse, whole
from polyclinic.errors import DataError
from polyclinic.lines import append_line
from polyclinic.wire.submissions import SUBMITTER

_NAMED = {"run_id": "run", "node_id": "node", "name": "name"}


class Audit:
    """ASGI middleware behind the gate; ``state``: the folder of the log."""

    def __init__(self, app: App, state: Path) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        call = str(scope.get("path", "")).removeprefix(CONTROL)
        if scope["type"] != "http" or CONTROL + call != scope["path"] or call.startswith(READING):
            await self.app(scope, receive, send)
            return
        sent: list[Any] = []
        body, again = await whole(receive)
        line = {"call": call, "from": (scope.get("client") or [""])[0], **_read_names(call, "Request", body)}
        if name := scope.get("polyclinic.submitter"):  # who signed the call, as `Keys` has checked
            line["by"] = name
        if not await self._write_line({"event": "asked", **line}) and call != "stop-run":
            await refuse(send, 503, "The coordinator's audit log cannot be written.")
            return

        async def hold(message: Any) -> None:
            sent.append(message)

        try:
            await self.app(scope, again, hold)
        finally:
            status = next((part["status"] for part in sent if "status" in part), 500)
            event = "done" if status < 400 else "refused"
            answered = b"".join(part.get("body", b"") for part in sent)
            answer = _read_names(call, "Response", answered) if event == "done" else {}
            await self._write_line({"event": event, **line, **answer, "status": status})
        for message in sent:
            await send(message)

    async def _write_line(self, line: dict[str, Any]) -> bool:
        try:
            await asyncio.to_thread(append_line, self.state / AUDIT, line)
        except (OSError, DataError) as error:
            from flwr.common.logger import log

            log(ERROR, "The audit log %s cannot be written: %s", self.state / AUDIT, error)
            return False
        return True


def _read_names(call: str, kind: str, body: bytes) -> dict[str, str]:
    """The run, the node and the submitter that a call or its answer names, as far as it can be read."""
    from flwr.proto import control_pb2
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    described = getattr(control_pb2, "".join(word.title() for word in call.split("-")) + kind, None)
    try:
        message = described.FromString(body) if described else None
    except DecodeError:
        return {}
    settings = getattr(message, "override_config", {})
    by = settings[SUBMITTER].string if SUBMITTER in settings else ""
    values = {"by": by} | {key: getattr(message, field, None) for field, key in _NAMED.items()}
    return {key: str(value)[:100] for key, value in values.items() if value}
