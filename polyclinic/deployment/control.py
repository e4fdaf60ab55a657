"""What a coordinator asks of its running SuperLink: nodes, their registration and its end, and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from polyclinic.deployment.certificates import certificate_problem, failed_verification, read_public_key
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.submitters import KEY, SigningInterceptor, SubmitterKey, own_key
from polyclinic.errors import ConfigError, PolyclinicError, several
from polyclinic.wire.submissions import SUBMITTER

_MOST_RUNS = 100_000  # Flower lists the newest 20 where nobody says how many
_STATES = {"pending": "queued", "starting": "running", "running": "running"}


@contextmanager
def control(address: str, ca: Path, key: SubmitterKey | None = None) -> Iterator[Any]:
    """Flower's client of the control of the SuperLink at HOST:PORT, whose certificate ``ca`` signed.

    Args:
        address: HOST:PORT of the SuperLink.
        ca: The file of the authority's certificate.
        key: Whose key signs each call; None signs none.

    Raises:
        PolyclinicError: Whatever goes wrong within, in one sentence.
    """
    from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.error import FlowerError
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    try:
        with ControlHttpClient.from_server_address(
            address, False, ca.read_bytes(),
            [
                CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                *([SigningInterceptor(key)] if key else []),
            ],
        ) as client:  # fmt: skip
            yield client
    except httpx.RequestError as error:
        raise PolyclinicError(f"The SuperLink at {address} cannot be reached: {unreachable(error)}.") from None
    except httpx.HTTPStatusError as error:
        answer = FlowerError.from_json(error.response.text)
        why = str(answer.public_details or answer.message) if answer else error.response.text[:200]
        raise PolyclinicError(f"The SuperLink at {address} refused: {why.rstrip('.')}.") from None
    except OSError as error:
        raise ConfigError(f"{ca} cannot be read: {error.strerror}.") from None


@dataclass(frozen=True)
class Caller:
    """Who asks something of a coordinator's SuperLink.

    ``address``: its HOST:PORT, "" where it runs on this machine.
    ``key_file``: the file of the caller's key, None for none.
    """

    coordinator: Coordinator
    address: str = ""
    key_file: Path | None = None

    @cached_property
    def key(self) -> SubmitterKey | None:
        """Raises ConfigError where the file holds no key."""
        return own_key(self.key_file)

    @property
    def settings(self) -> dict[str, str]:
        """What the environment of Flower's own command must hold, beside that of this process."""
        return {KEY: str(self.key_file.resolve())} if self.key_file else {}

    def control(self) -> AbstractContextManager[Any]:
        """As ``control``, of this SuperLink and with this key."""
        coordinator = self.coordinator
        return control(self.address or coordinator.here, coordinator.folder / "ca.crt", self.key)


def nodes(client: Any) -> list[dict[str, Any]]:
    """All nodes that ever were registered, oldest first: name, node (an id as text), status and times in UTC."""
    return [
        {
            "name": node.name or None, "node": str(node.node_id), "status": node.status, "registered": node.registered_at,
            "online": node.last_activated_at or None, "offline": node.last_deactivated_at or None,
            "revoked": node.unregistered_at or None,
        }
        for node in _all_nodes(client)
    ]  # fmt: skip


def register(client: Any, key: Path, name: str) -> str:
    """Lets the node with this public key take part; returns its id.

    Args:
        client: Flower's client of the SuperLink's control.
        key: The file of the node's public key.
        name: The node's name, 1 to 100 printable characters.

    Raises:
        ConfigError: The key or the name is bad, or was registered before.
    """
    from flwr.proto.control_pb2 import RegisterNodeRequest

    public = read_public_key(key)
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise ConfigError(f"{name!r} is not a name for a node: it has 1 to 100 characters that can be printed.")
    for node in _all_nodes(client):
        if node.public_key == public:
            raise ConfigError(_known_key(node.name, revoked=bool(node.unregistered_at)))
    if name in _nodes_by_name(nodes(client)):
        raise ConfigError(f"A node named {name!r} is registered already; revoke it first or choose another name.")
    return str(client.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id)


def revoke(client: Any, name: str) -> str:
    """End the registration of a node by its name; returns its id. Raises ConfigError for a name that no node has."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    ids_by_name = _nodes_by_name(nodes(client))
    if name not in ids_by_name:
        raise ConfigError(f"No node is named {name!r}; registered are {several(ids_by_name) or 'none'}.")
    client.UnregisterNode(UnregisterNodeRequest(node_id=int(ids_by_name[name])))
    return ids_by_name[name]


def runs(client: Any) -> list[dict[str, Any]]:
    """All runs, the oldest first, each as a dictionary.

    run: an id as text
    status: as finished:completed
    state: queued, running, completed, failed or stopped
    place: in the queue
    rounds: where the run asks for other than the usual
    submitter, details, bundle: who submitted it, Flower's words, and the bundle's SHA-256
    submitted, finished: times
    """
    from flwr.proto.control_pb2 import ListRunsRequest

    listed = client.ListRuns(ListRunsRequest(limit=_MOST_RUNS)).run_dict.values()
    ordered = sorted(listed, key=lambda run: run.pending_at)
    queue = [run.run_id for run in ordered if run.status.status == "pending"]
    return [
        {
            "run": str(run.run_id), "status": ":".join(filter(None, (run.status.status, run.status.sub_status))),
            "state": run.status.sub_status or _STATES.get(run.status.status, run.status.status),
            "place": queue.index(run.run_id) + 1 if run.run_id in queue else None,
            "rounds": run.override_config["rounds"].sint64 if "rounds" in run.override_config else None,
            "submitter": run.override_config[SUBMITTER].string if SUBMITTER in run.override_config else None,
            "details": run.status.details or None, "bundle": run.fab_hash, "submitted": run.pending_at,
            "finished": run.finished_at or None,
        }
        for run in ordered
    ]  # fmt: skip


def stop_run(client: Any, named: str, numbers: Sequence[str]) -> str:
    """Ends the one of the runs with these ``numbers`` that has not ended; returns its number.

    Args:
        client: Flower's client of the SuperLink's control.
        named: How the run was asked for, for messages.
        numbers: The numbers of the runs that it may be.

    Raises:
        ConfigError: The SuperLink knows none of them, or all have ended.
        PolyclinicError: The SuperLink could not stop it.
    """
    from flwr.proto.control_pb2 import StopRunRequest

    states: dict[str, str] = {run["run"]: run["state"] for run in runs(client) if run["run"] in numbers}
    if not states:
        raise ConfigError(f"The SuperLink knows no run {named!r}; `polyclinic coordinator runs` lists all.")
    going = [run for run, state in states.items() if state in _STATES.values()]
    if not going:
        raise ConfigError(f"Run {named!r} has ended already: {list(states.values())[-1]}.")
    if not client.StopRun(StopRunRequest(run_id=int(going[-1]))).success:
        raise PolyclinicError(f"The SuperLink could not stop run {named!r}; it may have ended meanwhile.")
    return going[-1]


def _all_nodes(client: Any) -> list[Any]:
    """Flower's own description of all nodes that ever were registered, oldest first."""
    from flwr.proto.control_pb2 import ListNodesRequest

    return sorted(client.ListNodes(ListNodesRequest()).nodes_info, key=lambda node: str(node.registered_at))


def _known_key(name: str, revoked: bool) -> str:
    if revoked:
        return (
            f"This key was registered under the name {name!r} and revoked, and cannot be registered again; the hospital makes a "
            "new one with `polyclinic hospital rekey`."
        )
    return f"This key is registered already, under the name {name!r}; every hospital needs its own."


def _nodes_by_name(listed: list[dict[str, Any]]) -> dict[str, str]:
    return {node["name"]: node["node"] for node in listed if node["name"] and node["revoked"] is None}


def unreachable(error: httpx.RequestError) -> str:
    """Why nothing came of a call to the SuperLink; goes on a sentence."""
    if refused := failed_verification(error):
        return certificate_problem(refused)
    return "nothing answers there" if isinstance(error, httpx.ConnectError) else f"{type(error).__name__}"
