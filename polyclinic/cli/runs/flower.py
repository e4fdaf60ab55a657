"""``polyclinic flower run``: Flower's own runtime for one run, started, watched and stopped.

``flwr run`` leaves its SuperLink running, exits 0 when a run failed, and by default installs the app's dependencies
anew. Here a private SuperLink serves one run, and the result is read from the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, RunConfig, check_effects
from polyclinic.deployment.environment import flower_settings, with_settings
from polyclinic.deployment.submitting import follow_run, own_app, start_run
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_of
from polyclinic.runs.folder import LATEST
from polyclinic.sim.simulation import FlowerApp

_START_SECONDS = 60.0


def run_under_flower(layers: Sequence[Mapping[str, Any]], app_dir: Path | None, screen: Console) -> RunResult:
    """Submit a run to a SuperLink of its own and wait for its end.

    layers: of keys, over the app's configuration; later ones rank first. app_dir: an app made with Polyclinic; None takes one of
    no code.
    Modules in the current folder are found, as under ``polyclinic run``. Raises ConfigError for a folder that is no such app and
    for keys that cannot be, PolyclinicError with Flower's status when the run did not complete.
    """
    packaged = FlowerApp.read(app_dir).config if app_dir else RunConfig.app_config()
    if app_dir and (missing := [key for key in RunConfig.app_config() if key not in packaged]):
        raise ConfigError(
            f"{app_dir} is not an app made with Polyclinic: its [tool.flwr.app.config] has no key {missing[0]!r}; "
            "`polyclinic simulate` runs other apps."
        )
    config = RunConfig.build(packaged, *layers)
    check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
    sites = config.sites or dataset_of(config).default_sites
    with tempfile.TemporaryDirectory(prefix="polyclinic-flower-") as home:
        out = str(Path(config.out).expanduser().resolve())
        given = config.for_flower(packaged) | {"out": out}
        note = Path(out) / LATEST
        note.unlink(missing_ok=True)
        environment = with_settings(flower_settings(Path(home)))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
        app_dir = app_dir or own_app(Path(home))
        with superlink(Path(home), environment):
            federation = f"num-supernodes={sites} client-resources-num-cpus=1"
            run = start_run(app_dir.resolve(), "run", given, environment, "--federation-config", federation)
            message, _ = follow_run(run, "run", environment, lambda line: screen.print(line, soft_wrap=True))
            status, details = flower_status(environment)
        if status != "finished:completed":
            raise PolyclinicError(message or f"The Flower run ended as {status}: {details or 'no details given'}.")
        return RunResult.read(note.read_text(encoding="utf-8"))


@contextlib.contextmanager
def superlink(home: Path, environment: dict[str, str]) -> Iterator[None]:
    """A SuperLink for simulations on a free port of the loopback, stopped with all its children.

    ``flwr`` commands in ``environment``, which holds ``flower_settings(home)``, find it by the name ``run``.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "superlink.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1",
             "--port", str(port), "--disable-runtime-dependency-installation"],
            env=environment, cwd=home, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise PolyclinicError(
                    f"Flower's SuperLink did not start: {log.read_text(errors='replace')[-400:].strip()}"
                )
            time.sleep(0.1)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "run"\n[superlink.run]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0).is_success
    except httpx.HTTPError:
        return False


def flower_status(environment: dict[str, str]) -> tuple[str, str]:
    """Flower's own word on the newest run; its exit code says nothing."""
    for _ in range(40):
        listed = subprocess.run(
            ["flwr", "list", "--limit", "1", "--format", "json"], env=environment, capture_output=True, text=True
        )
        try:
            run = json.loads(listed.stdout)["runs"][0]
        except (json.JSONDecodeError, KeyError, IndexError):
            raise PolyclinicError(
                f"Flower does not list the run: {listed.stdout[-300:]}{listed.stderr[-300:]}"
            ) from None
        if str(run["status"]).startswith("finished"):
            return str(run["status"]), str(run.get("status-details", ""))
        time.sleep(0.5)
    return str(run["status"]), "it is still going on"
