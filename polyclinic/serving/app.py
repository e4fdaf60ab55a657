"""The server of the page of runs and the page itself: a few GET routes over a folder, and nothing that could change it.

Names and reasons are data: the page only ever sets them as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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

from polyclinic.evaluation.page import frame, policy, render
from polyclinic.runs.folder import Run
from polyclinic.runs.history import Record
from polyclinic.serving.runs import MOST_ROUNDS, Runs

_MORE = """
tr.chosen > * { background: var(--soft); } td a, th a { color: var(--accent); }
svg text { font-size: 11px; fill: var(--muted); } svg .line { fill: none; stroke: var(--accent); stroke-width: 2; }
svg .grid { stroke: var(--line); } svg { max-width: 46rem; width: 100%; height: auto; display: block; }
progress { width: 8rem; accent-color: var(--accent); }
"""
SCRIPT = """
"use strict";
const $ = id => document.getElementById(id);
const number = (value, digits = 3) => value === null || value === undefined ? "–" : value.toFixed(digits);
const cell = (row, text, numeric = true) => {
  const made = row.insertCell();
  if (numeric) made.className = "num";
  made.append(text);
};
let chosen = decodeURIComponent(location.hash.slice(1)), course = [], seen = 0;

function list(runs) {
  const body = $("runs");
  body.replaceChildren();
  for (const run of runs) {
    const row = body.insertRow(), link = document.createElement("a"), bar = document.createElement("progress");
    link.href = "#" + encodeURIComponent(run.name);
    link.textContent = run.name;
    bar.max = run.rounds || 1;
    bar.value = run.round;
    if (run.name === chosen) row.className = "chosen";
    cell(row, link, false);
    cell(row, (run.dataset || "–") + ", " + (run.strategy || "–"), false);
    cell(row, run.problem ? run.state + ": " + run.problem : run.state, false);
    cell(row, bar, false);
    cell(row, run.round + " of " + (run.rounds ?? "–"));
    cell(row, run.newest ? number(run.newest.auroc) : "–");
    cell(row, run.private ? number(run.epsilon, 2) + " of " + (run.budget ?? "–") : "no guarantee");
  }
  $("none").hidden = runs.length > 0;
}

function draw(id, key, low, high) {
  const svg = $(id), space = "http://www.w3.org/2000/svg", rows = course.filter(row => row[key] !== null);
  svg.replaceChildren();
  if (!rows.length) return;
  const values = rows.map(row => row[key]), last = Math.max(2, rows[rows.length - 1].round);
  const bottom = low ?? Math.min(...values), top = Math.max(high ?? Math.max(...values), bottom + 1e-6);
  const x = round => 50 + 600 * (round - 1) / (last - 1), y = value => 190 - 170 * (value - bottom) / (top - bottom);
  const add = (kind, values, text) => {
    const made = document.createElementNS(space, kind);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
  };
  for (const part of [0, .25, .5, .75, 1]) {
    const value = bottom + part * (top - bottom);
    add("line", {x1: 50, x2: 650, y1: y(value), y2: y(value), class: "grid"});
    add("text", {x: 44, y: y(value) + 4, "text-anchor": "end"}, value.toFixed(2));
  }
  add("text", {x: 650, y: 208, "text-anchor": "end"}, "round " + rows[rows.length - 1].round);
  add("polyline", {points: rows.map(row => x(row.round) + "," + y(row[key])).join(" "), class: "line"});
  add("text", {x: 656, y: y(values[values.length - 1]) + 4}, values[values.length - 1].toFixed(3));
}

function show(run) {
  if (run.round < seen) course = [];
  seen = run.round;
  course = course.filter(row => !run.course.some(one => one.round === row.round)).concat(run.course);
  $("run").hidden = false;
  $("name").textContent = run.name;
  const wrong = run.problem ? ". " + run.problem : "";
  $("state").textContent = run.state + ", round " + run.round + " of " + (run.rounds ?? "–") + wrong;
  $("report").hidden = run.state !== "finished";
  $("report").href = "/runs/" + encodeURIComponent(run.name) + "/report.html";
  draw("auroc", "auroc", null, null);
  draw("loss", "loss", null, null);
  const body = $("sites");
  body.replaceChildren();
  for (const [name, site] of Object.entries(run.sites).slice(0, 300)) {
    const row = body.insertRow();
    cell(row, name, false);
    cell(row, String(site.round));
    for (const key of ["auroc", "accuracy", "loss"]) cell(row, number(site[key]));
    cell(row, run.private ? number(site.epsilon) : "no guarantee");
  }
  $("dropped").hidden = !run.dropouts.length;
  $("dropouts").replaceChildren(...run.dropouts.map(one => {
    const item = document.createElement("li");
    item.textContent = "Round " + one.round + ": " + one.site + ": " + one.reason;
    return item;
  }));
}

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store"});
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

async function look() {
  try {
    const runs = await ask("/api/runs");
    if (!chosen && runs.length) chosen = runs[0].name;
    list(runs);
    // The newest round is asked for again: a checkpoint may have held a part of it.
    if (runs.some(run => run.name === chosen))
      show(await ask("/api/runs/" + encodeURIComponent(chosen) + "?after=" + Math.max(0, seen - 1)));
    $("lost").hidden = true;
  } catch { $("lost").hidden = false; }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
addEventListener("hashchange", () => { chosen = decodeURIComponent(location.hash.slice(1)); course = []; seen = 0; });
look();
"""
_BODY = """<header><h1>Runs</h1><p class="muted">Live from their folder; nothing here changes a run.</p></header>
<div class="notice warn" id="lost" role="status" hidden><p>No answer: what is shown is the last that was told.</p></div>
<p id="none" hidden>There is no run in this folder yet.</p>
<div class="scroll" role="region" tabindex="0" aria-label="Runs"><table><thead><tr><th>Run</th><th>Of</th><th>State</th>
<th>Progress</th><th class="num">Round</th><th class="num">AUROC</th><th class="num">Epsilon</th></tr></thead>
<tbody id="runs"></tbody></table></div>
<section id="run" hidden>
<h2 id="name"></h2>
<p><span id="state" role="status"></span> <a id="report" hidden>Its report</a></p>
<h3>AUROC on held-out patients</h3><svg id="auroc" viewBox="0 0 700 214" role="img" aria-label="AUROC by round"></svg>
<h3>Loss on held-out patients</h3><svg id="loss" viewBox="0 0 700 214" role="img" aria-label="Loss by round"></svg>
<h3>Hospitals</h3>
<div class="scroll" role="region" tabindex="0" aria-label="Hospitals"><table><thead><tr><th>Hospital</th>
<th class="num">Round</th><th class="num">AUROC</th><th class="num">Accuracy</th><th class="num">Loss</th>
<th class="num">Epsilon spent</th></tr></thead><tbody id="sites"></tbody></table></div>
<div id="dropped" hidden><h3>Newest drop-outs</h3><ul id="dropouts"></ul></div>
</section>
"""
#: More of the page's content policy: it asks its own server.
ALLOWED = "; connect-src 'self'"


def live_page() -> str:
    """The page as HTML, the same for all runs."""
    return frame("Runs", render(_BODY, {}), script=SCRIPT, style=_MORE, allowed=ALLOWED)


_CLOSED = "; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS = {
    "Content-Security-Policy": policy(SCRIPT, ALLOWED + _CLOSED),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Headers:
    """Adds to every answer, also to refusals, those of the headers above that it does not bring."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
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
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=routes, middleware=[Middleware(_Headers), trusted])


def _is_inside(folder: Path, name: str) -> bool:
    run = Run(folder / name)
    return all(path.resolve().is_relative_to(folder) for path in (run.config_file, run.history_file, run.report))
