"""Flower's own SuperLink application, asked from afar and from its own machine."""

import asyncio
import fcntl
import hashlib
import io
import json
import stat
import zipfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink import extensions, main
from flwr.superlink.servicer.runtime import runtime_handlers

from polyclinic.deployment import submitters as module
from polyclinic.deployment.bundles import own_bundle
from polyclinic.deployment.certificates import make_node_key, read_public_key
from polyclinic.deployment.coordinator import AUDIT
from polyclinic.deployment.flower.superlink import alone, guard, queue
from polyclinic.deployment.submitters import FILE, NAME_HEADER, SIGNATURE_HEADER, TOLERANCE, SubmitterKey
from polyclinic.privacy.secure.signatures import new_identity

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


def asked(app: FastAPI, client: str, path: str, body: bytes | AsyncIterator[bytes] = b"", **headers: str) -> int:
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


@pytest.fixture
def keyed(coordinator: Path) -> Iterator[FastAPI]:
    """A SuperLink's application whose folder lists ada, who may submit, and the admin bob."""
    own = extensions.get_middleware
    guard("10.1.0.0/24", coordinator / "state")
    try:
        app = main.create_app()
        asked(app, ADMIN, "/health")  # the gate is made with the first call, as a SuperLink's start makes one
        yield app
    finally:
        extensions.get_middleware = own


@pytest.fixture
def people(cli: Cli, coordinator: Path, tmp_path: Path) -> dict[str, SubmitterKey]:
    for name, role in (("ada", "submit"), ("bob", "admin"), ("José @ IT", "submit")):
        assert cli("coordinator", "submitter", "new", name, "--out", tmp_path / f"{name}.key").code == 0
        assert cli("coordinator", "submitter", "add", coordinator, tmp_path / f"{name}.pub", "--role", role).code == 0
    assert stat.S_IMODE((tmp_path / "ada.key").stat().st_mode) == 0o600
    return {name: SubmitterKey.read(tmp_path / f"{name}.key") for name in ("ada", "bob", "José @ IT")}


def signed(app: FastAPI, key: SubmitterKey, call: str, message: Any, client: str = ADMIN) -> int:
    body, path = message.SerializeToString(), f"/v1/control/{call}"
    return asked(app, client, path, body, **PROTOBUF, **key.headers(path, body))


def start(submitter: str = "ada", content: bytes | None = None, **settings: Any) -> StartRunRequest:
    content = fab(own_bundle()) if content is None else content
    given = {"participation.submitter": submitter, "out": "runs", **settings}
    return StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content),
        override_config=user_config_to_proto(given),
    )


def fab(project: str, **files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, text in {"pyproject.toml": project, ".info/CONTENT": "", **files}.items():
            bundle.writestr(name, text)
    return buffer.getvalue()


def test_once_people_are_listed_who_has_no_key_may_do_nothing(keyed: FastAPI, people: dict[str, SubmitterKey]) -> None:
    key = people["bob"]
    listing, body = "/v1/control/list-runs", ListRunsRequest(limit=5).SerializeToString()
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF) == 401
    assert asked(keyed, "127.0.0.1", listing, body, **PROTOBUF) == 200  # checks and metrics of the machine itself go on
    assert (
        asked(keyed, "127.0.0.1", "/v1/control/stop-run", StopRunRequest(run_id=7).SerializeToString(), **PROTOBUF)
        == 401
    )
    assert asked(keyed, FAR, listing, body, **PROTOBUF, **key.headers(listing, body)) == 403
    headers = key.headers(listing, body)
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **headers) == 200
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **headers) == 401  # the same call once more
    time, nonce, signature = headers[SIGNATURE_HEADER].split()
    for spelled in (f"{time} {nonce} {signature.upper()}", f"{time} {nonce} {signature} x"):  # nor in another spelling
        assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **(headers | {SIGNATURE_HEADER: spelled})) == 401
    for path, sent in ((listing, ListRunsRequest(limit=6).SerializeToString()), ("/v1/control/list-nodes", body)):
        assert asked(keyed, ADMIN, path, sent, **PROTOBUF, **key.headers(listing, body)) == 401
    jose = people["José @ IT"]
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **jose.headers(listing, body)) == 200
    # Who may submit from another machine may not carry out runs in a ServerApp's place.
    work = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]).SerializeToString()
    assert asked(keyed, ADMIN, "/v1/runtime/acquire-task", work, **PROTOBUF) == 403
    assert asked(keyed, "127.0.0.1", "/v1/runtime/acquire-task", work, **PROTOBUF) != 403
    mallory = SubmitterKey("bob", new_identity())
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **mallory.headers(listing, body)) == 401
    assert asked(keyed, ADMIN, listing, body, **PROTOBUF, **{NAME_HEADER: "bob", SIGNATURE_HEADER: "now"}) == 401


@pytest.mark.parametrize("seconds", [-TOLERANCE - 5, TOLERANCE + 5])
def test_a_call_of_another_time_is_refused(
    keyed: FastAPI, people: dict[str, SubmitterKey], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=seconds)

    with monkeypatch.context() as then:
        then.setattr(module, "datetime", Clock)
        headers = people["bob"].headers("/v1/control/list-runs", b"")
    assert asked(keyed, ADMIN, "/v1/control/list-runs", b"", **PROTOBUF, **headers) == 401


def test_a_call_that_was_signed_before_a_restart_is_refused(
    coordinator: Path, people: dict[str, SubmitterKey], keyed: FastAPI
) -> None:
    """Whether it was made then nobody remembers."""
    headers = people["bob"].headers("/v1/control/list-runs", b"")
    own = extensions.get_middleware
    guard("10.1.0.0/24", coordinator / "state")
    try:
        restarted = main.create_app()
    finally:
        extensions.get_middleware = own
    asked(restarted, ADMIN, "/health")
    assert asked(keyed, ADMIN, "/v1/control/list-runs", b"", **PROTOBUF, **headers) == 200
    assert asked(restarted, ADMIN, "/v1/control/list-runs", b"", **PROTOBUF, **headers) == 401


def test_who_may_submit_starts_and_stops_what_is_hers_and_no_code_of_her_own(
    keyed: FastAPI, people: dict[str, SubmitterKey], coordinator: Path, cli: Cli
) -> None:
    ada, bob = people["ada"], people["bob"]
    code = fab(own_bundle(), **{"evil.py": "raise SystemExit"})
    server = fab(own_bundle().replace("polyclinic.server_app:app", "os:system"))
    settings = fab(own_bundle().replace('out = "runs"', 'out = "/etc"'))
    node = RegisterNodeRequest(public_key=read_public_key(make_key(coordinator)), name="north")
    joining = start()
    joining.series_id = 7  # another's run, whose number Flower then takes for this one's
    for refused in (
        start(content=code), start(content=server), start(content=settings), start(content=b""), start("bob"), start(out="/etc"),
        start(out="runs/../.."), start(**{"tracking.tool": "mlflow"}), start(resume="../../elsewhere"),
        StartRunRequest(app_spec="a/b", override_config=user_config_to_proto({"participation.submitter": "ada"})),
        start(**{"data.schema-file": "/etc/passwd"}), start(content=fab(own_bundle(), **{".info/CONTENT": "0" * 2_000_000})),
        joining,
    ):  # fmt: skip
        assert signed(keyed, ada, "start-run", refused) == 403
    assert signed(keyed, ada, "register-node", node) == 403
    assert signed(keyed, ada, "start-run", start()) == 200
    assert signed(keyed, bob, "start-run", start("bob", code)) == 200
    assert signed(keyed, bob, "start-run", start("ada")) == 403  # nobody signs for others
    runs = {run.override_config["participation.submitter"]: run.run_id
            for run in keyed.state.linkstate_factory.state().get_run_info()}  # fmt: skip
    assert signed(keyed, ada, "stop-run", StopRunRequest(run_id=runs["bob"])) == 403
    assert signed(keyed, ada, "stop-run", StopRunRequest(run_id=runs["ada"])) == 200
    assert signed(keyed, bob, "register-node", node) == 200
    lines = json.loads(cli("coordinator", "audit", coordinator, "--last", 0, "--json").out)["entries"]
    assert [line["by"] for line in lines if line["event"] == "done"] == ["ada", "bob", "ada", "bob"]
    assert cli("coordinator", "submitter", "remove", coordinator, "ada").code == 0
    assert signed(keyed, ada, "start-run", start()) == 401  # at once


@pytest.mark.parametrize("key", ["dataset", "task", "objective", "model", "strategy", "mods", "evaluation.function"])
def test_who_may_submit_names_no_object_of_a_package(keyed: FastAPI, people: dict[str, SubmitterKey], key: str) -> None:
    """The coordinator would import the module, and call what it names."""
    assert signed(keyed, people["ada"], "start-run", start(**{key: "antigravity:geohash"})) == 403
    assert signed(keyed, people["bob"], "start-run", start("bob", **{key: "antigravity:geohash"})) == 200
    options = start(**{"strategy-options": "train-metrics-aggr-fn='os:system'"})
    assert signed(keyed, people["ada"], "start-run", options) == 403


def test_no_more_is_read_than_a_call_may_send(keyed: FastAPI, people: dict[str, SubmitterKey]) -> None:
    """Before anybody knows who calls."""
    sent = []

    async def endless() -> AsyncIterator[bytes]:
        while len(sent) < 64:
            sent.append(1)
            yield bytes(2**20)

    assert asked(keyed, ADMIN, "/v1/control/start-run", endless(), **PROTOBUF) == 401
    assert len(sent) < 32


def test_the_last_person_is_not_removed_and_a_list_of_nobody_lets_nobody_in(
    keyed: FastAPI, people: dict[str, SubmitterKey], coordinator: Path, cli: Cli
) -> None:
    """Otherwise to end a stolen key would let everybody in."""
    remove = ("coordinator", "submitter", "remove", coordinator)
    assert cli(*remove, "ada").code == cli(*remove, "José @ IT").code == 0
    last = cli(*remove, "bob")
    assert last.code == 2 and "'bob' is the only person listed" in last.error
    assert signed(keyed, people["ada"], "stop-run", StopRunRequest(run_id=7)) == 401
    (coordinator / FILE).write_text("")
    assert asked(keyed, ADMIN, "/v1/control/list-runs", b"", **PROTOBUF) == 503


def test_a_list_that_cannot_be_read_lets_nobody_in(
    keyed: FastAPI, people: dict[str, SubmitterKey], coordinator: Path
) -> None:
    (coordinator / FILE).write_text("[ada]\nrole = 'king'\n")
    assert signed(keyed, people["bob"], "stop-run", StopRunRequest(run_id=7)) == 503


def test_people_are_added_and_removed_with_errors_that_name_what_is_wrong(
    cli: Cli, coordinator: Path, tmp_path: Path
) -> None:
    assert "Nobody is listed" in cli("coordinator", "submitter", "list", coordinator).out
    made = json.loads(cli("coordinator", "submitter", "new", "ada", "--out", tmp_path / "ada.key", "--json").out)
    add, public = ("coordinator", "submitter", "add", coordinator), made["key"]
    assert public == SubmitterKey.read(tmp_path / "ada.key").public
    assert cli(*add, tmp_path / "ada.pub").code == 0
    for name, key, words in [
        ("ada", "0" * 64, "'ada' is listed already"), ("eve", public, "'ada' is listed already"), ("a/b", "0" * 64, "name"),
        ("eve", "xyz", "key"), ("", "0" * 64, "name"),
    ]:  # fmt: skip
        (tmp_path / "other.pub").write_text(f"name = '{name}'\nkey = '{key}'\n")
        done = cli(*add, tmp_path / "other.pub")
        assert done.code == 2 and words in done.error
    private = cli(*add, tmp_path / "ada.key")
    assert private.code == 2 and SubmitterKey.read(tmp_path / "ada.key").private.hex() not in private.error
    assert cli("coordinator", "submitter", "new", "a/b", "--out", tmp_path / "other.key").code == 2
    assert json.loads(cli("coordinator", "submitter", "list", coordinator, "--json").out) == [
        {"name": "ada", "key": public, "role": "submit"}
    ]
    gone = cli("coordinator", "submitter", "remove", coordinator, "eve")
    assert gone.code == 2 and "Nobody is listed as 'eve'; listed are ada." in gone.error
    (tmp_path / "bad.key").write_text("name = 'ada'\nprivate = 'secret'\n")
    bad = cli("coordinator", "runs", coordinator, "--key", tmp_path / "bad.key")
    assert bad.code == 2 and "secret" not in bad.error.replace("bad.key", "")
    assert cli("coordinator", "submitter", "new", "ada", "--out", tmp_path / "bad.key").code == 2


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


def test_no_second_superlink_serves_a_folder_whose_first_has_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "served").touch()
    with (tmp_path / "served").open() as first:  # as another process would hold it: a lock of its own
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(SystemExit) as ended, alone(tmp_path):
            pytest.fail("it serves")
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(f"Another SuperLink still serves {tmp_path}; wait until")
    with alone(tmp_path):
        pass
