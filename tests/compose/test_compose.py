"""docker-compose.yml: what it promises by its text, and, where a Docker engine is there, the federation itself.

The engine's tests build the images, start three hospitals with a database each, and try what must not be possible from
inside each container. Without an engine they are skipped with the reason; tests/deployment runs the same nodes as processes.
"""

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from polyclinic.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
HOSPITALS = ("a", "b", "c")


def test_every_service_is_confined() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["mem_limit"], name
        assert "ports" not in service and "privileged" not in service, name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", [])), name
        # Databases run as the image's postgres; our own image has its user.
        assert service["image"] == "polyclinic:0.1.0" or service["user"] == "postgres", name
    assert "USER polyclinic" in (ROOT / "docker" / "Dockerfile").read_text()


def test_only_a_hospitals_own_node_shares_a_network_and_a_volume_with_its_records() -> None:
    for site in (*HOSPITALS, "d"):
        network = f"records-{site}"
        assert COMPOSE["networks"][network]["internal"]
        assert {name for name, service in SERVICES.items() if network in service.get("networks", [])} == {
            f"db-{site}", f"seed-{site}", f"hospital-{site}",
        }  # fmt: skip
        assert SERVICES[f"db-{site}"]["networks"] == [network]
        for volume in (f"secret-{site}", f"hospital-{site}", f"db-{site}"):
            users = {name for name, service in SERVICES.items()
                     for mount in service.get("volumes", []) if mount.startswith(f"{volume}:")}  # fmt: skip
            assert users and all(user.endswith(f"-{site}") for user in users)
    assert "control" not in {network for site in HOSPITALS for network in SERVICES[f"hospital-{site}"]["networks"]}


def test_the_image_is_built_of_pinned_versions_in_a_stage_of_its_own() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert text.count("FROM ") == 2 and "constraints.txt" in text and "sbom.cdx.json" in text
    assert "# syntax" not in text


def _engine() -> str:
    """Why there is no engine, or an empty string."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    done = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        return f"no Docker engine answers: {done.stderr.strip()[-200:] or 'docker info failed'}"
    bases = subprocess.run(
        ["docker", "image", "inspect", "python:3.11-slim", "debian:bookworm-slim"], capture_output=True
    )
    return "the base images python:3.11-slim and debian:bookworm-slim are not there" if bases.returncode else ""


def wait_for(what: Callable[[], Any], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(1.0)


class Demo:
    """One project of the compose file, of its own name and subnet."""

    def __init__(self, reports: Path) -> None:
        self.name = f"polyclinic-test-{uuid.uuid4().hex[:8]}"
        self.environment = os.environ | {
            "COMPOSE_PROJECT_NAME": self.name, "TORCH_INDEX": os.environ.get("TORCH_INDEX", ""),
            "POLYCLINIC_UID": str(os.getuid()), "COMPOSE_PROGRESS": "plain", "REPORTS": str(reports),
        }  # fmt: skip

    def __call__(self, *arguments: str, timeout: float = 900, check: bool = True) -> str:
        done = subprocess.run(["docker", "compose", *arguments], cwd=ROOT, env=self.environment, capture_output=True,
                              text=True, timeout=timeout)  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}"
        )
        return done.stdout

    def submitted(self, *keys: str) -> subprocess.Popen[str]:
        """A run that was begun; `ended` waits for it."""
        command = ["docker", "compose", "run", "--rm", "-T", "submit", *keys, "--json"]
        return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)  # fmt: skip

    def ended(self, run: subprocess.Popen[str]) -> dict[str, Any]:
        out, error = run.communicate(timeout=900)
        assert run.returncode == 0, f"{out[-4000:]}\n{error[-4000:]}\n{self.logs()}"
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert told["status"] == "finished:completed"
        return told

    @contextmanager
    def slow_records(self, site: str) -> Iterator[None]:
        """Within it whoever reads the hospital's records waits."""
        command = ["docker", "compose", "exec", "-T", f"db-{site}", "psql", "-U", "hospital", "-d", "hospital"]
        session = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert session.stdin is not None and session.stdout is not None
        session.stdin.write(b"BEGIN;\nLOCK TABLE patients;\n")
        session.stdin.flush()
        assert [session.stdout.readline().strip() for _ in range(2)] == [b"BEGIN", b"LOCK TABLE"]
        try:
            yield
        finally:
            session.communicate()  # its end is the lock's

    def nodes(self) -> dict[str, dict[str, Any]]:
        found = self("exec", "-T", "superlink", "polyclinic", "coordinator", "nodes", "/coordinator", "--json")
        return {node["name"]: node for node in json.loads(found)}

    def status(self, site: str) -> dict[str, Any]:
        """What a hospital's ledger says."""
        found = self("exec", "-T", f"hospital-{site}", "polyclinic", "hospital", "status", "/hospital", "--json")
        return dict(json.loads(found)["ledger"])

    def journal(self, site: str) -> str:
        """Its text; nothing where no message came yet."""
        return self(
            "exec", "-T", f"hospital-{site}", "sh", "-c", "cat /hospital/home/journal.jsonl 2>/dev/null || true"
        )

    def logs(self) -> str:
        done = subprocess.run(["docker", "compose", "logs", "--no-color", "--tail", "40"], cwd=ROOT, env=self.environment,
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        return done.stdout[-12000:]

    def container(self, service: str) -> dict[str, Any]:
        identity = self("ps", "--all", "--quiet", service).strip()
        found: list[dict[str, Any]] = json.loads(subprocess.check_output(["docker", "inspect", identity]))
        return found[0]

    def reaches(self, service: str, host: str, port: int) -> bool:
        code = f"import socket; socket.create_connection(({host!r}, {port}), 3)"
        command = ["python", "-c", code]
        if service.startswith("db-"):  # PostgreSQL's image has no Python
            command = ["timeout", "3", "bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"]
        done = subprocess.run(["docker", "compose", "exec", "-T", service, *command], cwd=ROOT,
                              env=self.environment, capture_output=True, text=True, timeout=120)  # fmt: skip
        told = "socket.py", "/dev/tcp"
        assert done.returncode in (0, 124) or any(words in done.stderr for words in told), done.stderr
        return done.returncode == 0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    if why := _engine():
        pytest.skip(f"NO COMPOSE TESTS: {why}")
    if subprocess.run(["docker", "image", "inspect", "postgres:16-bookworm"], capture_output=True).returncode:
        subprocess.run(["docker", "build", "--quiet", "--tag", "postgres:16-bookworm", ROOT / "tests/compose/postgres"],
                       check=True, capture_output=True, timeout=600)  # fmt: skip
    demo = Demo(tmp_path_factory.mktemp("reports"))
    demo("build", "--quiet", "setup", timeout=1500)
    try:
        demo("up", "--detach", "--wait", "--wait-timeout", "600", timeout=700)
        yield demo
    finally:
        demo(
            "--profile",
            "late",
            "--profile",
            "submit",
            "--profile",
            "report",
            "down",
            "--volumes",
            "--timeout",
            "5",
            check=False,
        )


@pytest.mark.parametrize("service", ["superlink", "hospital-a", "submit", "resume"])
def test_services_use_commands_and_options_that_there_are(service: str) -> None:
    program, group, name, *rest = SERVICES[service].get("entrypoint", SERVICES[service]["command"])
    shown = CliRunner().invoke(app, [group, name, "--help"], terminal_width=200)
    assert program == "polyclinic" and shown.exit_code == 0
    assert all(option in shown.output for option in rest if option.startswith("--"))


@pytest.mark.compose
def test_a_run_goes_to_its_end_with_a_fourth_hospital_that_comes_while_it_is_on(demo: Demo) -> None:
    running = demo.submitted("-c", "rounds=2", "-c", "evaluate-every=2", "-c", "epsilon=2.0", "-c", "delta=1e-4")
    wait_for(lambda: all('"answered"' in demo.journal(site) for site in HOSPITALS) or running.poll() is not None)
    with demo.slow_records("a"):  # so that the run is on until the fourth hospital is there
        demo("--profile", "late", "up", "--detach", "hospital-d", timeout=600)
        wait_for(lambda: demo.nodes().get("d", {}).get("status") == "online")
        assert running.poll() is None
    demo.ended(running)
    demo("run", "--rm", "-T", "report")
    page = (Path(demo.environment["REPORTS"]) / "report.html").read_text()
    assert all(f">{site}<" in page for site in (*HOSPITALS, "d"))
    for site in (*HOSPITALS, "d"):
        ledger = demo.status(site)
        assert 0 < ledger["epsilon"] <= 2.0 and ledger["intact"]
        journal = json.loads(
            demo("exec", "-T", f"hospital-{site}", "polyclinic", "hospital", "journal", "/hospital", "--json")
        )
        assert journal["intact"] and {"asked", "answered"} == {entry["event"] for entry in journal["entries"]}


KILL_SERVERAPP = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if path.parent.name != str(os.getpid()) and b"flwr-serverapp" in path.read_bytes():
        os.kill(int(path.parent.name), signal.SIGKILL)
"""


@pytest.mark.compose
def test_a_run_whose_serverapp_and_then_superlink_were_killed_goes_on_to_its_end(demo: Demo) -> None:
    kept = 'test -f "$(cat /coordinator/runs/latest.txt)"/checkpoint.safetensors && cat /coordinator/runs/latest.txt'
    before = demo("exec", "-T", "superlink", "sh", "-c", kept, check=False)
    running = demo.submitted("-c", "rounds=1", "-c", "epsilon=0.5", "-c", "delta=1e-4")
    wait_for(lambda: demo("exec", "-T", "superlink", "sh", "-c", kept, check=False) not in ("", before))
    demo("exec", "-T", "superlink", "python", "-c", KILL_SERVERAPP)
    assert running.wait(timeout=300) != 0
    spent = demo.status("b")["epsilon"]
    demo("kill", "superlink")
    demo("up", "--detach", "--wait", "superlink")
    demo("run", "--rm", "-T", "resume")
    again = demo("exec", "-T", "superlink", "sh", "-c", 'cat "$(cat /coordinator/runs/latest.txt)"/summary.json')
    summary = json.loads(again)
    assert summary["rounds"] == 1 and set(HOSPITALS) <= set(summary["metrics"]["sites"])
    after = demo.status("b")  # what was asked again is not paid for again
    assert spent <= after["epsilon"] <= spent + 0.5 and after["epsilon"] > 0 and after["intact"]


@pytest.mark.compose
def test_nobody_but_its_own_node_reaches_a_database(demo: Demo) -> None:
    addresses = {
        site: next(iter(demo.container(f"db-{site}")["NetworkSettings"]["Networks"].values()))["IPAddress"]
        for site in HOSPITALS
    }
    for site, address in addresses.items():
        assert demo.reaches(f"hospital-{site}", f"db-{site}", 5432)
        others = [f"{kind}-{name}" for name in HOSPITALS if name != site for kind in ("hospital", "db")]
        for other in ("superlink", *others):
            assert not demo.reaches(other, address, 5432), f"{other} reaches db-{site}"
            assert not demo.reaches(other, f"db-{site}", 5432), f"{other} finds db-{site}"
        assert demo.reaches(f"db-{site}", "127.0.0.1", 5432) and not demo.reaches(f"db-{site}", "superlink", 8000)
    assert demo.reaches("hospital-a", "superlink", 8000) and not demo.reaches("hospital-a", "hospital-b", 9094)


@pytest.mark.compose
def test_containers_are_confined_and_no_secret_is_in_their_environment_logs_or_image(demo: Demo) -> None:
    secrets = [demo("exec", "-T", f"hospital-{site}", "cat", "/secret/password").strip() for site in HOSPITALS]
    logs = demo("logs", "--no-color")
    for service, site in (("superlink", "coordinator"), *((f"hospital-{site}", site) for site in HOSPITALS)):
        text = subprocess.check_output(["docker", "logs", demo.container(service)["Id"]], stderr=subprocess.STDOUT)
        assert {json.loads(line)["site"] for line in text.splitlines()} == {site}
    for service in ("superlink", *(f"{kind}-{site}" for kind in ("db", "hospital") for site in HOSPITALS)):
        found = demo.container(service)
        host, user = found["HostConfig"], found["Config"]["User"]
        assert (
            user not in ("", "root", "0") and host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and host["Memory"]
        )
        assert not found["NetworkSettings"]["Ports"] or not any(found["NetworkSettings"]["Ports"].values())
        assert not any(secret in json.dumps(found) for secret in secrets)
    assert len(set(secrets)) == 3 and not any(secret in logs for secret in secrets)
    history = subprocess.check_output(["docker", "history", "--no-trunc", "polyclinic:0.1.0"], text=True)
    assert not any(secret in history for secret in secrets)
    bill = json.loads(subprocess.check_output(
        ["docker", "run", "--rm", "--network", "none", "polyclinic:0.1.0", "cat", "/opt/venv/sbom.cdx.json"]))  # fmt: skip
    versions = {part["name"].lower(): part["version"] for part in bill["components"]}
    pinned = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    for name in ("flwr", "opacus", "pydantic", "sqlalchemy"):
        assert versions[name] == pinned[name]
