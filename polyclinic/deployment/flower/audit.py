"""The coordinator's audit log: a line for each call that would change something at its SuperLink, and one for how it ended.

It is written as a hospital's journal is: where the first line cannot be written, the call is refused, unless it stops a run.
"""

from __future__ import annotations

import asyncio
from logging import ERROR
from pathlib import Path
from typing import Any

from polyclinic.client.home.journal import append
from polyclinic.deployment.coordinator import AUDIT
from polyclinic.deployment.flower.gate import App, Scope
from polyclinic.errors import DataError

_CONTROL = "/v1/control/"
_READING = ("list-", "get-", "show-", "stream-", "pull-")
_NAMED = {"run_id": "run", "node_id": "node", "name": "name"}


class Audit:
    """ASGI middleware behind the gate; ``state``: the folder of the log."""

    def __init__(self, app: App, state: Path) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        call = str(scope.get("path", "")).removeprefix(_CONTROL)
        if scope["type"] != "http" or _CONTROL + call != scope["path"] or call.startswith(_READING):
            await self.app(scope, receive, send)
            return
        parts, sent = [await receive()], []
        while parts[-1].get("more_body"):
            parts.append(await receive())
        line = {"call": call, "from": (scope.get("client") or [""])[0], **_named(call, "Request", parts)}
        if not await self._written({"event": "asked", **line}) and call != "stop-run":
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"The coordinator's audit log cannot be written."})
            return

        async def again() -> Any:
            return parts.pop(0) if parts else await receive()

        async def hold(message: Any) -> None:
            sent.append(message)

        try:
            await self.app(scope, again, hold)
        finally:
            status = next((part["status"] for part in sent if "status" in part), 500)
            event = "done" if status < 400 else "refused"
            answer = _named(call, "Response", sent) if event == "done" else {}
            await self._written({"event": event, **line, **answer, "status": status})
        for message in sent:
            await send(message)

    async def _written(self, line: dict[str, Any]) -> bool:
        try:
            await asyncio.to_thread(append, self.state, line, AUDIT)
        except (OSError, DataError) as error:
            from flwr.common.logger import log

            log(ERROR, "The audit log %s cannot be written: %s", self.state / AUDIT, error)
            return False
        return True


def _named(call: str, kind: str, parts: list[Any]) -> dict[str, str]:
    """The run, the node and the submitter that a call or its answer names, as far as it can be read."""
    from flwr.proto import control_pb2
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    described = getattr(control_pb2, "".join(word.title() for word in call.split("-")) + kind, None)
    try:
        message = described.FromString(b"".join(part.get("body", b"") for part in parts)) if described else None
    except DecodeError:
        return {}
    settings = getattr(message, "override_config", {})
    by = settings["participation.submitter"].string if "participation.submitter" in settings else ""
    values = {"by": by} | {key: getattr(message, field, None) for field, key in _NAMED.items()}
    return {key: str(value)[:100] for key, value in values.items() if value}
