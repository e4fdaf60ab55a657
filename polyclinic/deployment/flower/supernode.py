"""``python -m polyclinic.deployment.flower.supernode``: flower-supernode that runs only the bundles of the policy's allowed-runs.

The check stands in the node's process, before a bundle is stored or unpacked; code that a bundle brings cannot reach
it. Beside it: shorter pauses, an executor that forks, and an answer for every message whose ClientApp ended without
one. The node also ends with a reason (``refusals``) when the coordinator refuses it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import replace
from logging import ERROR
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from polyclinic.client.home.holds import obstacle
from polyclinic.client.home.own_files import withheld
from polyclinic.client.home.policy import HospitalFile, Policy
from polyclinic.deployment.bundles import refusal
from polyclinic.deployment.environment import watch_certificates
from polyclinic.deployment.flower import patch
from polyclinic.deployment.flower.pauses import Pauses, pull_soon, put_in
from polyclinic.deployment.flower.refusals import RefusalInterceptor
from polyclinic.deployment.flower.turns import take_turns, turns_here
from polyclinic.errors import ConfigError
from polyclinic.wire.messages import REFUSED


def main() -> None:
    """flower-supernode's own arguments; POLYCLINIC_HOSPITAL names the hospital.toml, FLWR_HOME the folder of Flower's files."""
    from flwr.supernode import fleet_http_connection as connection
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    judge_bundles(node)
    withhold(node)
    hasten(node)
    take_turns(node, turns_here())
    persist(connection)
    note_heartbeats(connection, Path(os.environ["FLWR_HOME"]) / "heartbeat")
    explain_end(connection)
    watch_certificates()
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    _end()


def _end(why: str = "") -> NoReturn:
    """End with exit code 1, so that systemd starts the node again.

    Threads that Flower leaves behind would keep a node that asks for nothing any more, and that nobody starts again.
    """
    if why:
        from flwr.common.logger import log

        log(ERROR, "%s", why)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def persist(connection: Any) -> None:
    """Let Flower's connection (its module) try again after every fault of the line; a certificate that does not hold ends it.

    Flower itself gives up where a line ends within TLS's handshake, as when a proxy has lost its SuperLink.
    """

    def lasting(make: Callable[[], Any]) -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not _of_the_line(error) and gives_up(error)
        return invoker

    patch(connection, "make_simple_http_retry_invoker", lambda make: lambda: lasting(make), "lasting connections")


def explain_end(connection: Any) -> None:
    """Let Flower's connection (its module) end the node with a sentence and exit code 1 where the coordinator refuses it."""
    patch(
        connection, "NodeAuthHttpInterceptor", lambda signing: lambda *keys: RefusalInterceptor(signing(*keys), _end),
        "the reasons of a refusal",
    )  # fmt: skip


def _of_the_line(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.TransportError) and "certificate" not in str(error).lower()


def note_heartbeats(connection: Any, file: Path) -> None:
    """Let Flower's connection (its module) touch the file whenever the SuperLink has answered a heartbeat.

    The file's age tells a health check whether the node is connected, which no port of the node does. It is deleted first.
    Ends the process where this flwr has no place for it.
    """

    def send_and_note(send: Callable[[], bool]) -> bool:
        answered = send()
        if answered:
            with contextlib.suppress(OSError):  # a full disk must not end the heartbeats
                file.touch()
        return answered

    patch(
        connection,
        "HeartbeatSender",
        lambda sender: lambda send: sender(lambda: send_and_note(send)),
        "noting heartbeats",
    )
    file.unlink(missing_ok=True)


def hasten(node: Any) -> None:
    """Let Flower's node (its module) poll sooner while messages come, fork its tasks, and answer for those that died.

    Ends the process where this flwr has no place for it.
    """
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState as State

    answers = callable(getattr(State, "_store_error_replies", None))
    if getattr(node, "subprocess", None) is not subprocess or not answers:
        sys.exit("This flwr has no place for the forking executor; install flwr 1.41.")
    pauses = put_in(node, Pauses())
    purpose = "shorter pauses"
    patch(
        node,
        "_pull_and_store_message",
        lambda pull: _restart_pauses(pull, pauses, lambda run_id: run_id is not None),
        purpose,
    )
    patch(node, "_push_messages", lambda push: _restart_pauses(push, pauses, lambda _: True), purpose)
    pull_soon(node)
    node.subprocess = SimpleNamespace(Popen=_executor)
    patch(State, "finish_task", _answer_failures, "answers for ClientApps that died")


def judge_bundles(node: Any) -> None:
    """Let Flower's node (its module) run only bundles that the hospital's policy allows."""
    purpose = "the check of allowed-runs"
    patch(node, "_pull_and_store_message", lambda pull: _check_bundles(pull, _allowed_runs), purpose)
    patch(node, "_verify_fab", _verdict, purpose)


def _allowed_runs() -> Collection[str]:
    """The policy's allowed-runs as the file says now. Raises ConfigError where the file cannot be used."""
    path = Path(os.environ["POLYCLINIC_HOSPITAL"])
    return Policy.build(HospitalFile.read(path).policy, str(path)).allowed_runs


def _check_bundles(pull: Callable[..., Any], allowed: Callable[[], Collection[str]]) -> Callable[..., Any]:
    """Flower's step that fetches a message, with the bundle of each run it does not know yet judged as it arrives."""

    def pull_checked(*, get_run: Any, get_fab: Any, trusted_entities: Any, **rest: Any) -> Any:
        runs: list[Any] = []

        def run(run_id: int) -> Any:
            runs.append(get_run(run_id))
            return runs[-1]

        def fab(fab_hash: str, run_id: int) -> Any:
            bundle = get_fab(fab_hash, run_id)
            details = runs[-1]
            answer = ""
            try:
                why = refusal(
                    bundle.content, (bundle.hash_str, details.fab_hash), details.fab_id, details.fab_version, allowed()
                )
            except ConfigError as error:  # a settings file that cannot be used allows nothing
                why = answer = str(withheld(error, "settings file"))
            licence = {} if trusted_entities else {"valid_license": "not asked for"}
            return replace(bundle, verifications={**bundle.verifications, **licence, _REFUSAL: why, _ANSWER: answer})

        # An entry makes Flower ask its verifier; where signers are trusted, the names are theirs.
        return pull(get_run=run, get_fab=fab, trusted_entities=trusted_entities or {_REFUSAL: ""}, **rest)

    return pull_checked


def withhold(node: Any) -> None:
    """Let Flower's node (its module) send a refusal in place of an answer that a pause or a denial has overtaken."""
    patch(node, "_push_messages", _refuse_overtaken, "answers that a pause or a denial holds back")


def _refuse_overtaken(push: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's step that sends an answer, with people's decisions looked at as late as the node can."""
    from flwr.app import Error
    from flwr.app.message.message import make_message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

    def push_allowed(*, send: Callable[..., Any], push_object: Callable[..., Any], **rest: Any) -> Any:
        def send_allowed(message: Any, tree: Any, seconds: float) -> Any:
            path = Path(os.environ["POLYCLINIC_HOSPITAL"])
            file = HospitalFile.read(path)
            why = obstacle(path.resolve().parent / file.home, message.metadata.reply_to_message_id)
            if not why:
                return send(message, tree, seconds)
            metadata = copy(message.metadata)
            refusal = make_message(metadata, error=Error(REFUSED, f"{file.site}: {why}."))
            metadata.__dict__["_message_id"] = refusal.object_id
            wanted, session = send(refusal, get_object_tree(refusal), seconds)
            for name, part in get_all_nested_objects(refusal).items():
                if name in wanted:
                    push_object(metadata.run_id, session, name, part.deflate())
            return set(), session

        return push(send=send_allowed, push_object=push_object, **rest)

    return push_allowed


def _verdict(verify: Callable[..., bool]) -> Callable[..., bool]:
    from flwr.app import Error
    from flwr.common.constant import ErrorCode
    from flwr.supernode import start_client_internal as node

    usual = node.FAB_VERIFICATION_ERROR

    def verdict(fab: Any, trusted_entities: dict[str, str]) -> bool:
        from flwr.common.logger import log

        verifications = dict(fab.verifications)
        answer = verifications.pop(_ANSWER, "")
        # Flower answers a bundle that fails with this error, whose text the coordinator sees.
        node.FAB_VERIFICATION_ERROR = Error(ErrorCode.INVALID_FAB, answer) if answer else usual
        if why := verifications.pop(_REFUSAL, "no check was made"):
            log(ERROR, "This hospital does not run what the coordinator sent: %s.", why)
            return False
        return set(trusted_entities) == {_REFUSAL} or verify(
            replace(fab, verifications=verifications), trusted_entities
        )

    return verdict


def _restart_pauses(step: Callable[..., Any], pauses: Pauses, moved: Callable[[Any], bool]) -> Callable[..., Any]:
    """The step, after which pauses are short again where a message came or went."""

    def take_step(**given: Any) -> Any:
        done = step(**given)
        if moved(done):
            pauses.restart()
        return done

    return take_step


def _executor(command: list[str]) -> subprocess.Popen[bytes]:
    """Start our executor with flower-superexec's arguments; a node whose executor is gone answers nothing, so it ends too."""
    from flwr.supercore.constant import FORCE_EXIT_TIMEOUT_SECONDS

    process = subprocess.Popen([sys.executable, "-P", str(Path(__file__).with_name("executor.py")), *command[1:]])

    def watch() -> None:
        process.wait()
        time.sleep(FORCE_EXIT_TIMEOUT_SECONDS)  # a node that ends with it is gone by then
        _end(
            "The node ends: the process that starts its ClientApps is gone; start it again, as systemd does by itself."
        )

    threading.Thread(target=watch, daemon=True).start()
    return process


def _answer_failures(finish: Callable[..., bool]) -> Callable[..., bool]:
    """Flower's step that ends a task, with an error in reply to the message of a ClientApp that failed without a reply.

    Flower itself waits for such a reply for ever, unless the ClientApp died without a word.
    """

    def finish_task(state: Any, task_id: int, sub_status: str, details: str) -> bool:
        from flwr.common.constant import SubStatus
        from flwr.supercore.constant import TaskType
        from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR

        finished = finish(state, task_id, sub_status, details)
        if finished and sub_status == SubStatus.FAILED:
            for task in state.get_tasks(task_ids=[task_id]):
                if task.type == TaskType.CLIENT_APP:
                    state.get_messages_legacy(run_ids=[task.run_id], is_reply=False)  # only what was taken is answered
                    state._store_error_replies({task.run_id}, CLIENT_APP_CRASHED_ERROR)
                    _give_up_half_given(state, task.run_id)
        return finished

    return finish_task


def _give_up_half_given(state: Any, run_id: int) -> None:
    """Delete what there is of a reply that its dead ClientApp gave in part, since Flower's node waits for the rest for ever."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.object_store import NoObjectInStoreError

    with state.lock_msg_store:
        replies = [entry.message.metadata for entry in state.msg_store.values()]
    for reply in (metadata for metadata in replies if metadata.run_id == run_id and metadata.reply_to_message_id):
        with contextlib.suppress(NoObjectInStoreError):  # it was sent, and forgotten, meanwhile
            parts = list(iterate_object_tree(state.object_store.get_object_tree(reply.message_id)))
            if any(state.object_store.get(part.object_id) == b"" for part in parts):
                state.object_store.delete(reply.message_id)


_REFUSAL = "polyclinic-refusal"
_ANSWER = "polyclinic-answer"  # what the coordinator sees in place of Flower's words, empty for those

if __name__ == "__main__":
    main()
