"""The page on which a hospital's people look at runs, approve and deny them, and pause: the commands' decisions, in a browser.

It listens on this machine alone, under an address that holds a secret of this start; whoever has it may decide. Texts of a
coordinator are escaped, and the page runs no script.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from polyclinic.client.home import approvals
from polyclinic.client.home.holds import current_pause
from polyclinic.deployment.approving import facts, share_of_budget, spending
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.evaluation.page import frame, policy, render
from polyclinic.serving.app import Headers

_TERMS = """{% macro terms(run) %}<table class="facts"><tbody>
{% for name, value in run.rows %}<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</tbody></table>
<ul>{% for sentence in run.leaves %}<li>{{ sentence }}</li>{% endfor %}</ul>
<details><summary>All settings that are not usual</summary><pre>
{%- for key, value in run.settings.items() %}{{ key }} = {{ value | pprint }}
{% endfor %}</pre></details>{% endmacro %}
"""
_BODY = _TERMS + Path(__file__).with_name("approvals.html").read_text(encoding="utf-8")
_MOST_BYTES = 10_000
_ALLOWED = "; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"


def approval_page(folder: Path, token: str) -> Starlette:
    """The page of the hospital in ``folder``, under ``/TOKEN/``. Every request reads the folder anew."""

    def checked_token(request: Request) -> None:
        if not hmac.compare_digest(request.path_params["token"].encode(), token.encode()):
            raise HTTPException(404, "There is no such page.")

    async def page(request: Request) -> Response:
        checked_token(request)
        try:
            return HTMLResponse(await run_in_threadpool(_page, folder, ""))
        except PolyclinicError as error:  # a file of the hospital's that cannot be read
            raise HTTPException(500, str(error)) from None

    async def decide(request: Request) -> Response:
        checked_token(request)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BYTES:
                raise HTTPException(413, "That is more than a decision takes.")
        given = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace"), True).items()}
        try:
            await run_in_threadpool(_decide, folder, request.path_params["decision"], given)
        except PolyclinicError as error:
            return HTMLResponse(await run_in_threadpool(_page, folder, str(error)), 400)
        return RedirectResponse("./", 303)

    routes = [
        Route("/{token}/", page),
        Route("/{token}/{decision}", decide, methods=["POST"]),
    ]
    headers = {"Content-Security-Policy": policy("", _ALLOWED)}
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[Middleware(Headers, headers), trusted])


def _decide(folder: Path, decision: str, given: dict[str, str]) -> None:
    """Raises PolyclinicError for a decision that cannot be made."""
    home, why, run = HospitalNode.read(folder).home, given.get("why", ""), given.get("run", "")
    if decision == "pause":
        approvals.pause(home, why)
    elif decision == "resume":
        approvals.resume(home)
    elif decision == "deny":
        approvals.decide(home, run, "", "denied", 1.0, why)
    elif decision == "approve":
        try:
            days = float(given.get("days", ""))
        except ValueError:
            raise ConfigError(f"Days are {given.get('days', '')!r}; allowed are numbers above 0.") from None
        approvals.decide(home, run, given.get("terms", ""), "approved", days)
    else:
        raise ConfigError(f"The decision is {decision!r}; allowed are approve, deny, pause and resume.")


def _page(folder: Path, error: str) -> str:
    node = HospitalNode.read(folder)
    spends = spending(node)
    runs = [_add_rows(facts(approval, node.policy), spends) for approval in approvals.approvals(node.home)]
    body = render(_BODY, {
        "site": node.hospital.site, "spent": _number(spends["spent"], "unbounded"),
        "budget": _number(spends["budget"], "no limit"), "required": node.policy.require_approval, "error": error,
        "pause": current_pause(node.home), "days": f"{node.policy.approval_days:g}",
        "waiting": [run for run in runs if run["state"] == "pending"],
        "decided": [run for run in runs if run["state"] != "pending"][::-1],
    })  # fmt: skip
    return frame(f"Runs at {node.hospital.site}", body, script="", allowed=_ALLOWED)


def _add_rows(run: dict[str, Any], spends: dict[str, float | None]) -> dict[str, Any]:
    """A run's facts with the rows of its table."""
    share = share_of_budget(run, spends["budget"])
    asks = "no privacy" if run["epsilon"] is None else run["epsilon"]
    by = "Submitted and signed by" if run["signed"] else "Submitted by, it says"
    rows = [("Task", run["task"]), ("Model", run["model"]), ("Strategy", run["strategy"]), ("Rounds", run["rounds"]),
            ("ε asked", f"{asks}, {share} of the budget" if share else asks), (by, run["submitter"]),
            ("Asked at", run["asked"]), ("Code", run["code"]),
            ("Terms", run["terms"])]  # fmt: skip
    return run | {"rows": [(name, value) for name, value in rows if value != ""]}


def _number(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.4g}"
