"""Every place in Flower that Polyclinic changes is listed with its reason, and is as it was when the change was written."""

import ast
import hashlib
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyclinic.deployment import flower
from polyclinic.deployment.flower import executor
from polyclinic.deployment.flower.pauses import SOON, pull_soon

# What Flower 1.41 has in each place: the first digits of the SHA-256 of its source. Where one differs, read what is new there,
# and whether the change of ours still does what `polyclinic.deployment.flower` says of it, before the digits are replaced.
SOURCES = {
    "cli.utils.CliClientHttpInterceptor": "3bacb42f738c",
    "supercore.superexec.run_superexec.get_executor": "891abfc53747",
    "supercore.inflatable.inflatable_utils.pull_objects": "31bb2de46b45",
    "superlink.extensions.get_middleware": "37012f4eb789",
    "superlink.grid.http_grid.pull_objects": "31bb2de46b45",
    "superlink.servicer.runtime.runtime_handlers.acquire_task": "bd7f7507d885",
    "superlink.routers.fleet.node_auth.authenticate_node": "f8e66372d61b",
    "superlink.servicer.fleet.fleet_handlers.activate_node": "0370edbbeb92",
    "supernode.fleet_http_connection.HeartbeatSender": "27714c8e3512",
    "supernode.fleet_http_connection.NodeAuthHttpInterceptor": "a032beb3c41b",
    "supernode.fleet_http_connection.make_simple_http_retry_invoker": "49e12326a4b1",
    "supernode.nodestate.in_memory_nodestate.InMemoryNodeState.finish_task": "6800803a9677",
    "supernode.start_client_internal._pull_and_store_message": "eaf5d0e36dc3",
    "supernode.start_client_internal._push_messages": "00bb86faffde",
    "supernode.start_client_internal._verify_fab": "dc3eb78d803b",
    "supernode.start_client_internal.pull_objects": "31bb2de46b45",
}
ROOM = Path(flower.__file__).parent


def source(place: str) -> str:
    owner, name = place.rsplit(".", 1)
    module, within = owner.removesuffix(".InMemoryNodeState"), owner.endswith(".InMemoryNodeState")
    described: Any = import_module(f"flwr.{module}")
    return inspect.getsource(getattr(described.InMemoryNodeState if within else described, name))


@pytest.mark.parametrize("place", SOURCES)
def test_flower_has_in_each_place_what_the_change_was_written_for(place: str) -> None:
    assert hashlib.sha256(source(place).encode()).hexdigest()[:12] == SOURCES[place]


def test_every_change_is_listed_and_made_by_what_the_list_says() -> None:
    listed: dict[str, set[str]] = {}
    for module, names, change in re.findall(r"- ``([\w.]+)``: (.+?), by\s+``([\w.]+)``", str(flower.__doc__), re.S):
        assert callable(
            getattr(import_module(f"polyclinic.deployment.flower.{change.split('.')[0]}"), change.split(".")[1])
        )
        listed.setdefault(module, set()).update(re.findall(r"``(\w+)``", names))
    places = {f"{module}.{name}" for module, names in listed.items() for name in names - {"time", "subprocess"}}
    assert places == set(SOURCES)
    made = [
        node.args[1].value
        for path in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "patch"
        and isinstance(node.args[1], ast.Constant)
    ]  # fmt: skip
    assert set(made) == {place.rsplit(".", 1)[1] for place in SOURCES}


@pytest.mark.parametrize("owner", [SimpleNamespace(), SimpleNamespace(step=None)])
def test_a_flower_without_the_place_does_not_run(owner: Any) -> None:
    with pytest.raises(SystemExit, match="no place for the gate; install flwr 1.41"):
        flower.patch(owner, "step", lambda step: step, "the gate")


def test_parts_of_a_message_are_asked_for_again_soon_and_until_they_are_there() -> None:
    from flwr.supercore.inflatable import inflatable_utils as flowers

    asked: list[str] = []

    def part(name: str) -> bytes:
        asked.append(name)
        if len(asked) < 4:
            raise flowers.ObjectUnavailableError(name)
        return b"x"

    module = SimpleNamespace(pull_objects=flowers.pull_objects)
    pull_soon(module)
    assert module.pull_objects(["a"], part) == {"a": b"x"} and asked == ["a"] * 4
    given = SimpleNamespace(pull_objects=lambda *_, **options: options)
    pull_soon(given)
    assert given.pull_objects([], part) == {"initial_backoff": SOON} and executor._SOON == SOON
    assert given.pull_objects([], part, initial_backoff=2.0) == {"initial_backoff": 2.0}
