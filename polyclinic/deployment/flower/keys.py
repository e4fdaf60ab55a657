"""Whose calls of a SuperLink's control are answered, where ``submitters.toml`` lists people: those that one of them signed.

An ``admin`` may ask everything. Who may ``submit`` starts runs, stops their own, and reads. Such runs bring no code, which would
run on the coordinator's machine, and their results lie in its folder. On that machine what only reads needs no key, nor do
the processes that carry out runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.deployment.bundles import is_own_bundle
from polyclinic.deployment.flower.gate import CONTROL, OPEN, READING, App, Scope, from_here, refuse, whole
from polyclinic.deployment.submitters import NAME_HEADER, SIGNATURE_HEADER, TOLERANCE, Submitter, problem, submitters
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.wire.submissions import SUBMITTER

# Keys that name places on the coordinator's machine, or that it calls.
_PLACES = ("tracking.tool", "tracking.place", "data.imputer-file", "data.schema-file")
# Keys by whose values the coordinator's machine imports any module and calls what is in it: ``package.module:Name``.
_OBJECTS = (
    "dataset", "task", "objective", "model", "strategy", "strategy-options", "mods", "evaluation.function",
)  # fmt: skip
# What of Flower's request `coordinator submit` fills.
_SENT = {"fab", "override_config", "federation", "override_federation_config"}


class Keys:
    """ASGI middleware behind the gate; ``folder``: the coordinator's."""

    def __init__(self, app: App, folder: Path) -> None:
        self.app, self.folder = app, folder
        self.began, self.used = datetime.now(UTC), dict[str, float]()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "lifespan" or path.startswith(OPEN):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            try:
                listed = await asyncio.to_thread(submitters, self.folder)
            except ConfigError as error:
                await refuse(send, 503, str(error))
                return
            needs_none = not path.startswith(CONTROL) or path.removeprefix(CONTROL).startswith(READING)
            if not listed or (needs_none and from_here(scope)):
                await self.app(scope, receive, send)
            elif path.startswith(CONTROL):
                await self._answer_signed(listed, scope, receive, send)
            else:  # where runs are carried out, which is on this machine
                await refuse(send, 403, "Only the coordinator's own machine may ask this.")

    async def _answer_signed(self, listed: Mapping[str, Submitter], scope: Scope, receive: Any, send: Any) -> None:
        """Answers a call of the control that one of the ``listed`` signed and may make."""
        path, (body, again) = str(scope["path"]), await whole(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        name, signature = unquote(headers.get(NAME_HEADER, "")), headers.get(SIGNATURE_HEADER, "")
        call = path.removeprefix(CONTROL)
        if why := problem(listed, name, signature, path, body) or self._again(signature):
            await refuse(send, 401, why)
        elif why := await asyncio.to_thread(self._beyond, listed[name], name, call, body, scope):
            await refuse(send, 403, why)
        else:
            await self.app({**scope, "polyclinic.submitter": name}, again, send)

    def _again(self, signature: str) -> str:
        """Why a signature may have been used before; each is remembered until it is too old."""
        now = time.time()
        self.used = {used: until for used, until in self.used.items() if until > now}
        if signature in self.used:
            return "This signed call was made before."
        if datetime.fromisoformat(signature.partition(" ")[0]) < self.began:
            return "This call was signed before the SuperLink began; make it again, or set the clock that is wrong."
        self.used[signature] = now + 2 * TOLERANCE
        return ""

    def _beyond(self, submitter: Submitter, name: str, call: str, body: bytes, scope: Scope) -> str:
        """Why a person of this role may not make the call; empty where it is allowed."""
        from flwr.proto import control_pb2
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            if call == "start-run":
                return self._beyond_start(submitter, name, control_pb2.StartRunRequest.FromString(body))
            if submitter.role == "admin" or call.startswith(READING):
                return ""
            if call == "stop-run":
                run = control_pb2.StopRunRequest.FromString(body).run_id
                state = scope["app"].state.linkstate_factory.state()
                if any(info.override_config.get(SUBMITTER) == name for info in state.get_run_info(run_ids=[run])):
                    return ""
                return f"{name!r} did not submit run {run}; an admin may stop it."
        except DecodeError:
            return "The call cannot be read."
        return f"{name!r} may submit runs, and {call!r} is for admins."

    def _beyond_start(self, submitter: Submitter, name: str, asked: Any) -> str:
        from flwr.common.serde import user_config_from_proto

        given = user_config_from_proto(asked.override_config)
        if given.get(SUBMITTER, "") != name:
            return f"The run names {given.get(SUBMITTER, '')!r} as its submitter, and {name!r} signed the call."
        if submitter.role == "admin":
            return ""
        runs = (self.folder / "runs").resolve()
        out = (self.folder / str(given.get("out", RunConfig().out))).resolve()
        if not out.is_relative_to(runs):
            return f"Results of {name!r} lie in {runs}; an admin may choose another folder."
        named = [key for key in _PLACES if given.get(key)] + [key for key in _OBJECTS if ":" in str(given.get(key, ""))]
        if named:
            return (
                f"{name!r} may not set {named[0]!r} to {str(given[named[0]])[:100]!r}, which names a place or code on the "
                "coordinator's machine; an admin may."
            )
        if not is_own_bundle(asked.fab.content) or {field.name for field, _ in asked.ListFields()} - _SENT:
            return (
                f"{name!r} may submit what Polyclinic {polyclinic.__version__} sends without --app; an admin may submit other "
                "bundles, whose code runs on the coordinator's machine."
            )
        return self._beyond_resume(name, out, str(given.get("resume", "")))

    def _beyond_resume(self, name: str, out: Path, resumed: str) -> str:
        from polyclinic.runs.folder import Run  # with pandas, which a SuperLink needs for nothing else

        try:
            if resumed and not (out / resumed).resolve().is_relative_to(out):
                return f"Run {resumed!r} is not in {out}."
            if resumed and Run.open(out / resumed).config().participation.submitter != name:
                return f"{name!r} did not submit run {resumed!r}; an admin may go on with it."
        except PolyclinicError as error:
            return str(error)
        return ""
