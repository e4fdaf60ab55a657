"""Flower's own SuperLink application, asked from afar and from its own machine."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from flwr.proto.control_pb2 import RegisterNodeRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink import extensions, main
from flwr.superlink.servicer.runtime import runtime_handlers

from polyclinic.deployment.certificates import make_node_key, read_public_key
from polyclinic.deployment.coordinator import AUDIT
from polyclinic.deployment.flower.superlink import guard, queue

from .conftest import Cli

PROTOBUF = {"Content-Type": PROTOBUF_MEDIA_TYPE, "Accept": PROTOBUF_MEDIA_TYPE}
FAR, ADMIN = "203.0.113.9", "10.1.0.7"


@pytest.fixture(scope="module")
def superlink() -> Iterator[FastAPI]:
    own = extensions.get_middleware
    guard("10.1.0.0/24 2001:db8::/32")
    try:
        yield main.create_app()
    finally:
        extensions.get_middleware = own


def asked(app: FastAPI, client: str, path: str, body: bytes = b"", **headers: str) -> int:
    async def ask() -> int:
        transport = httpx.ASGITransport(app, client=(client, 5000), raise_app_exceptions=False)
        # The URL's host becomes the address at which the server was reached.
        async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.1:8000", headers=headers) as session:
            return (await session.post(path, content=body)).status_code

    return asyncio.run(ask())


def test_from_afar_nothing_is_open_but_the_nodes_own_calls(superlink: FastAPI) -> None:
    known = {context.route.path for context in main.iter_route_contexts(superlink.routes)}
    assert len([path for path in known if path.startswith("/v1/")]) > 50
    for path in sorted(known):
        refused = asked(superlink, FAR, path) == 403
        assert refused == (not path.startswith("/v1/fleet/") and path != "/health"), path


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1//control/start-run", "/V1/control/start-run", "/docs", "/"]
)
def test_no_spelling_of_a_path_gets_past(superlink: FastAPI, path: str) -> None:
    assert asked(superlink, FAR, path) in (403, 404)
    assert asked(superlink, FAR, "/v1/fleet/%2e%2e/control/start-run") in (403, 404)


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", ADMIN, "2001:db8::5"])
def test_the_machine_itself_and_named_networks_may_ask(superlink: FastAPI, client: str) -> None:
    assert asked(superlink, client, "/v1/control/list-runs") != 403


@pytest.mark.parametrize("client", [FAR, "10.1.1.7", "2001:db9::5", "not an address", "0.0.0.0"])
def test_a_header_lends_nobody_an_address(superlink: FastAPI, client: str) -> None:
    lent = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "Host": "127.0.0.1"}
    assert asked(superlink, client, "/v1/control/list-runs", **lent) == 403


def test_each_change_is_in_the_audit_log_with_how_it_ended_and_edits_show(cli: Cli, coordinator: Path) -> None:
    state = coordinator / "state"
    own = extensions.get_middleware
    guard("", state)
    try:
        app = main.create_app()
    finally:
        extensions.get_middleware = own
    asked(app, "127.0.0.1", "/v1/control/list-runs")
    assert asked(app, FAR, "/v1/control/stop-run") == 403 and not (state / AUDIT).exists()
    stop = StopRunRequest(run_id=7).SerializeToString()
    assert asked(app, "127.0.0.1", "/v1/control/stop-run", stop, **PROTOBUF) == 404
    node = RegisterNodeRequest(public_key=read_public_key(make_key(coordinator)), name="north").SerializeToString()
    assert asked(app, "127.0.0.1", "/v1/control/register-node", node, **PROTOBUF) == 200
    done = cli("coordinator", "audit", coordinator, "--json")
    shown = json.loads(done.out)
    assert done.code == 0 and shown["intact"]
    lines = [(line["event"], line["call"], line.get("run"), line.get("name")) for line in shown["entries"]]
    assert lines == [
        ("asked", "stop-run", "7", None), ("refused", "stop-run", "7", None),
        ("asked", "register-node", None, "north"), ("done", "register-node", None, "north"),
    ]  # fmt: skip
    assert shown["entries"][-1]["node"] and shown["entries"][-1]["from"] == "127.0.0.1"
    (state / AUDIT).write_text((state / AUDIT).read_text().replace('"run":"7"', '"run":"8"', 1))
    altered = cli("coordinator", "audit", coordinator)
    assert altered.code == 1 and "a line was changed" in altered.error
    (state / AUDIT).unlink()
    (state / AUDIT).symlink_to("/dev/full")
    assert asked(app, "127.0.0.1", "/v1/control/register-node", node, **PROTOBUF) == 503
    assert asked(app, "127.0.0.1", "/v1/control/stop-run", stop, **PROTOBUF) == 404  # in need a run can be stopped


def make_key(folder: Path) -> Path:
    (folder / "node.pub").write_text(make_node_key("north").public)
    return folder / "node.pub"


def test_no_more_runs_go_at_once_than_the_file_says_and_others_wait_in_order() -> None:
    """Flower's own state and its handler of a SuperExec's question for work."""
    own = runtime_handlers.acquire_task
    queue(runtime_handlers, 1)
    try:
        state = main.create_app().state.linkstate_factory.state()
        federation = state.federation_manager
        federation.ensure_default_federations_exist(flwr_aid="")
        runs = [
            state.create_run("a/b", "1", "0" * 64, {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
            for _ in range(3)
        ]
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])

        def begun() -> int:
            return int(runtime_handlers.acquire_task(request, state).task.run_id)

        assert begun() == runs[0] and begun() == 0
        assert state.stop_run(runs[1]) and begun() == 0  # one that waits is taken out
        assert state.stop_run(runs[0]) and begun() == runs[2]
    finally:
        runtime_handlers.acquire_task = own
