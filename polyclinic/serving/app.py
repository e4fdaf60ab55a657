"""The page of runs, a few GET routes over a folder and nothing that could change it; and what every served page shares.

Names and reasons are data: the page only ever sets them as text.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyclinic.errors import ConfigError
from polyclinic.evaluation.page import frame, policy, render
from polyclinic.runs.folder import Run
from polyclinic.runs.history import Record
from polyclinic.serving.runs import MOST_ROUNDS, Runs

_HERE = Path(__file__)
_BODY, _STYLE, _SCRIPT = (_HERE.with_name(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
#: More of the page's content policy: it asks its own server.
ALLOWED = "; connect-src 'self'"


def live_page() -> str:
    """The page as HTML, the same for all runs."""
    return frame("Runs", render(_BODY, {}), script=_SCRIPT, style=_STYLE, allowed=ALLOWED)


_CLOSED = "; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Headers:
    """Adds these ``headers``, and those that every page has, to every answer that does not bring them, also to refusals."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self.app, self.headers = app, {**_HEADERS, **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class _Json(JSONResponse):
    """JSON in ASCII, so that whatever characters a file's names have, they can be sent."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def _unless_gone(runs: Runs, name: str) -> Record | None:
    try:
        return runs.summary(name)
    except KeyError:  # its folder was removed meanwhile
        return None


def application(folder: Path, hosts: Sequence[str]) -> Starlette:
    """Shows the runs in ``folder`` to who asks by one of the names in ``hosts``.

    Another site's page cannot ask under a name of its own that it points here (DNS rebinding): its name is not among them.
    A run whose folder or files are links out of ``folder`` is not shown.
    """
    runs, folder, shown = Runs(folder), folder.resolve(), live_page()

    def names() -> list[str]:
        return [name for name in runs.names() if _is_inside(folder, name)]

    def page(request: Request) -> Response:
        return HTMLResponse(shown)

    def all_runs(request: Request) -> Response:
        return _Json([summary for name in names() if (summary := _unless_gone(runs, name))])

    def one_run(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < len(str(MOST_ROUNDS))):
            raise HTTPException(400, "The number of a round must be whole, at least 0 and less than a billion.")
        name = request.path_params["name"]
        try:
            if name not in names():
                raise KeyError(name)
            return _Json(runs.detail(name, int(after)))
        except KeyError:
            raise HTTPException(404, "There is no such run.") from None

    def report(request: Request) -> Response:
        name = request.path_params["name"]
        path = runs.report(name) if name in names() else None
        if path is None:
            raise HTTPException(404, "There is no report of such a run.")
        return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": policy(allowed=_CLOSED)})

    routes = [
        Route("/", page), Route("/api/runs", all_runs), Route("/api/runs/{name}", one_run),
        Route("/runs/{name}/report.html", report),
    ]  # fmt: skip
    headers = {"Content-Security-Policy": policy(_SCRIPT, ALLOWED + _CLOSED)}
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=routes, middleware=[Middleware(Headers, headers), trusted])


def _is_inside(folder: Path, name: str) -> bool:
    run = Run(folder / name)
    return all(path.resolve().is_relative_to(folder) for path in (run.config_file, run.history_file, run.report))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises ConfigError where there is no listening."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"There is no listening at {host}:{port}: {error.strerror or error}.") from None


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Answer at the socket until Ctrl-C; addresses that are asked for, which may hold a secret, are not logged."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=5
    )
    uvicorn.Server(config).run(sockets=[listener])
