"""The server of the page of runs: a few GET routes over a folder, and nothing that could change it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from polyclinic.serving.page import PAGE, SCRIPT
from polyclinic.serving.runs import Runs

_DIGEST = base64.b64encode(sha256(SCRIPT.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; "
    f"base-uri 'none'; form-action 'none'; script-src 'sha256-{_DIGEST}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def application(folder: Path, hosts: Sequence[str]) -> Starlette:
    """Shows the runs in ``folder`` to who asks by one of the names in ``hosts``.

    Another site's page cannot ask under a name of its own that it points here (DNS rebinding): its name is not among them.
    """
    runs = Runs(folder)

    def page(request: Request) -> Response:
        return HTMLResponse(PAGE, headers=_HEADERS)

    def all_runs(request: Request) -> Response:
        return JSONResponse([runs.summary(name) for name in runs.names()], headers=_HEADERS)

    def one_run(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        try:
            found = runs.detail(request.path_params["name"], int(after) if after.isdecimal() else 0)
        except KeyError:
            raise HTTPException(404, "There is no such run.") from None
        return JSONResponse(found, headers=_HEADERS)

    def report(request: Request) -> Response:
        path = runs.report(request.path_params["name"])
        if path is None:
            raise HTTPException(404, "There is no report of such a run.")
        return FileResponse(path, media_type="text/html")  # the page brings a policy of its own

    routes = [
        Route("/", page), Route("/api/runs", all_runs), Route("/api/runs/{name}", one_run),
        Route("/runs/{name}/report.html", report),
    ]  # fmt: skip
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])
