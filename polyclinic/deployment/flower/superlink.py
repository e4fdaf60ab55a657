"""``python -m polyclinic.deployment.flower.superlink``: flower-superlink, with the gate before all that it serves.

Beside it: runs wait for each other, nodes and log are told why a node is refused, and the log that a certificate is about to
end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from starlette.middleware import Middleware

from polyclinic.deployment.environment import watch_certificates
from polyclinic.deployment.flower import patch
from polyclinic.deployment.flower.audit import Audit
from polyclinic.deployment.flower.gate import Gate, networks
from polyclinic.deployment.flower.keys import Keys
from polyclinic.deployment.flower.refusals import explain
from polyclinic.errors import ConfigError
from polyclinic.files import locked


def main() -> None:
    """flower-superlink's own arguments; POLYCLINIC_CONTROL_FROM holds the gate's networks, POLYCLINIC_STATE the audit log's
    folder, and POLYCLINIC_AT_ONCE how many runs go at once."""
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.routers.fleet import node_auth
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    explain(node_auth, fleet_handlers)
    watch_certificates()
    state = os.environ.get("POLYCLINIC_STATE")
    guard(os.environ.get("POLYCLINIC_CONTROL_FROM", ""), Path(state) if state else None)
    queue(runtime_handlers, int(os.environ.get("POLYCLINIC_AT_ONCE", "0")))
    with alone(Path(state)) if state else nullcontext():
        flower_superlink()


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """No other SuperLink serves this folder of state meanwhile; with one that does the process ends, exit code 2.

    One that is asked to end leaves its port at once, and goes on until its runs have ended.
    """
    with ExitStack() as stack:
        try:
            refusal = f"Another SuperLink still serves {state}; wait until its runs have ended, or kill it."
            stack.enter_context(locked(state / "served", refusal))
        except ConfigError as error:
            print(error, file=sys.stderr, flush=True)
            sys.exit(2)
        yield


def guard(control_from: str, audited: Path | None = None) -> None:
    """Put the gate before every SuperLink that this process makes; ends the process where Flower has no place for it.

    audited: the folder of the audit log, which lies in the coordinator's own; None where there is neither.
    """
    from flwr.superlink import extensions

    layers = [Middleware(Gate, control_from=networks(control_from))]
    layers += [Middleware(Keys, folder=audited.parent), Middleware(Audit, state=audited)] if audited else []
    purpose = "the gate, without which anybody could submit runs"
    patch(extensions, "get_middleware", lambda _: lambda: tuple(layers), purpose)


def queue(handlers: Any, at_once: int) -> None:
    """Let Flower's handlers (their module) begin a run only while fewer than ``at_once`` go on; 0 begins all.

    Flower begins the one first that was submitted first, and keeps those that wait in its database.
    """
    from flwr.common.constant import Status
    from flwr.proto.runtime_pb2 import AcquireTaskResponse

    def limit_tasks(acquire: Any) -> Any:
        def acquire_task(request: Any, state: Any) -> Any:
            going = state.get_run_info(statuses=[Status.STARTING, Status.RUNNING]) if at_once else ()
            return acquire(request, state) if len(going) < (at_once or 1) else AcquireTaskResponse()

        return acquire_task

    patch(handlers, "acquire_task", limit_tasks, "the queue of runs")


if __name__ == "__main__":
    main()
