"""flower-superexec whose ClientApps are forked from a process that has imported torch and the like already.

That process ends when no ClientApp has been asked for a while, so that an idle node is small, and starts again with the
next.

Run by its path, and imports nothing of Polyclinic. A task runs in a fork of a process that knows third-party packages
alone, since its bundle may bring a Polyclinic of its own. Arguments are flower-superexec's own.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from logging import ERROR, WARNING
from multiprocessing.context import ForkServerProcess
from signal import SIGTERM
from typing import Any

# What a ClientApp of Polyclinic imports of others; a test holds the two together.
PRELOAD = (
    "numpy", "scipy.special", "scipy.stats", "scipy.optimize", "pandas", "pyarrow.pandas_compat", "torch", "torch.func", "zuko",
    "dp_accounting", "pydantic", "safetensors.numpy", "sqlite3", "statistics", "tomllib", "httpcore",
    "cryptography.hazmat.primitives.asymmetric.x25519", "cryptography.hazmat.primitives.ciphers.aead", "flwr.clientapp",
    "flwr.supernode.runtime.run_clientapp",
)  # fmt: skip
# Seconds, longer than a run waits between two rounds, as a rule; what is forked from holds 260 MB.
IDLE = "POLYCLINIC_IDLE_SECONDS"
IDLE_SECONDS = 600.0
_NICENESS = 5
_SOON = 0.05  # seconds; a test holds it to that of ``pauses``


def main() -> None:
    """flower-superexec's own main, with this executor; ends the process where Flower has no place for it."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec import run_superexec as superexec

    from polyclinic.deployment.flower import patch
    from polyclinic.deployment.flower.pauses import Pauses, put_in

    # A node that shares its processor with ClientApps must get its heartbeat through, or the coordinator takes it for gone.
    os.nice(_NICENESS)
    pauses, idle = put_in(superexec, Pauses()), float(os.environ.get(IDLE, IDLE_SECONDS))
    patch(
        superexec, "get_executor", lambda _: lambda *_, **__: forking(pauses.restart, idle=idle), "the forking executor"
    )
    flower_superexec()


def forking(
    launched: Callable[[], None] = lambda: None, preload: tuple[str, ...] = PRELOAD, idle: float = IDLE_SECONDS
) -> Any:
    """A Flower ``Executor`` that forks ClientApps and starts all other tasks as Flower does.

    A ClientApp that a signal killed is reported to the node at once; Flower alone would wait a minute for its
    heartbeat.

    Args:
        launched: Called at each launch of a task.
        preload: Modules that the process from which ClientApps are forked imports.
        idle: After so many seconds without a ClientApp that process ends; the next ClientApp starts it again.
    """
    from multiprocessing import forkserver

    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

    class Forking(SubprocessExecutor):
        def __init__(self) -> None:
            self._running: list[tuple[ForkServerProcess, ExecutionSpec]] = []
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(list(preload))
            self._busy = time.monotonic()
            forkserver.ensure_running()

        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            launched()
            # With packages of its own a bundle needs a process that has imported none.
            if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
                return super().launch(spec)
            where = (spec.runtime_api_address, spec.token, spec.insecure, spec.root_certificates_path, spec.parent_pid)
            self._busy = time.monotonic()
            process = self._context.Process(target=run_client, args=where)
            try:
                process.start()
            except (OSError, EOFError):  # the forkserver was killed; the next launch starts another
                return super().launch(spec)
            self._running.append((process, spec))
            return LaunchResult.accepted()

        def reconcile(self) -> None:
            ended = [(process, spec) for process, spec in self._running if not process.is_alive()]
            self._running = [pair for pair in self._running if pair not in ended]
            for process, spec in ended:
                if (process.exitcode or 0) < 0:
                    report_killed(spec, -(process.exitcode or 0))
                process.close()
            if self._running:
                self._busy = time.monotonic()
            elif time.monotonic() - self._busy > idle:
                self._busy = math.inf
                pid = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGTERM)  # the next launch notices, as it does when somebody else has killed it

        def close(self) -> None:
            for process, _ in self._running:
                process.terminate()

    return Forking()


def run_client(address: str, token: str, insecure: bool, certificates: str | None, parent_pid: int | None) -> None:
    """One ClientApp, in a process of its own: what flwr-clientapp does after it has read its arguments.

    Args:
        address: The address of the runtime's API.
        token: The task's token.
        insecure: Whether to connect without TLS.
        certificates: The file of root certificates; None for the system's.
        parent_pid: The process with which this one ends, None for none.
    """
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    # As ``pauses.pull_soon``, which the bundle's Polyclinic may not have. Flower's own name, for it is Flower that calls it.
    inflatable_utils.pull_objects = partial(inflatable_utils.pull_objects, initial_backoff=_SOON)
    draw_anew()
    run_clientapp(
        address, token, insecure, validate_and_resolve_root_certificates(certificates, insecure), parent_pid, False
    )


def draw_anew() -> None:
    """Seed anew what forks share and a new process draws from the system: numpy's global state, if a bundle's code uses it."""
    import numpy as np

    np.random.seed()  # noqa: NPY002


def report_killed(spec: Any, signal: int) -> None:
    """Tell the node with the task's token that the task failed; where it cannot be told, the heartbeat's end tells it."""
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.supercore import log
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    client = RuntimeHttpClient.from_server_address(
        server_address=spec.runtime_api_address, insecure=spec.insecure,
        root_certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), RuntimeTokenHttpInterceptor(spec.token)],
    )  # fmt: skip
    log(ERROR, "The ClientApp of task %d was killed by signal %d.", spec.task_id, signal)
    try:
        client.PushTaskOutput(
            PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=f"The ClientApp was killed by signal {signal}.")
        )
    except httpx.HTTPError as error:
        log(WARNING, "The node could not be told: %s", error)
    finally:
        client.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # how Flower says that the node has ended
        main()
