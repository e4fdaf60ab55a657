"""docker-compose.yml: what it promises by its text, and, where a Docker engine is there, the federation itself.

The engine's tests build the images, start three hospitals with a database each, and try what must not be possible from
inside each container. Without an engine they are skipped with the reason; tests/deployment runs the same nodes as processes.
"""

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.cli.terminal import assignments
from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, RunConfig, check_effects

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
HOSPITALS = ("a", "b", "c")
UNREACHABLE, UNKNOWN = "Network is unreachable", ("name resolution", "Name or service not known")
RUNNING = ("superlink", *(f"{kind}-{site}" for kind in ("hospital", "db") for site in HOSPITALS))


def test_every_service_is_confined() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"], name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert "ports" not in service and "privileged" not in service, name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", [])), name
        # Databases run as the image's postgres; our own image has its user.
        assert service["image"] == "polyclinic:0.2.0" or service["user"] == "postgres", name
    assert "USER polyclinic" in (ROOT / "docker" / "Dockerfile").read_text()


def test_no_network_has_a_way_out_and_each_has_the_members_that_the_page_names() -> None:
    members: dict[str, set[str]] = {network: set() for network in COMPOSE["networks"]}
    for name, service in SERVICES.items():
        assert ("network_mode" in service) != ("networks" in service), name
        if name.startswith("metrics"):  # on the loopback of what it tells of
            beside = SERVICES[service["network_mode"].removeprefix("service:")]
            assert service["profiles"] == ["monitoring"] and "--host" not in service["command"]
            [volume] = service["volumes"]
            assert volume.endswith(":ro") and volume.removesuffix(":ro") in beside["volumes"]
        else:
            assert service.get("network_mode", "none") == "none", name
        for network in service.get("networks", []):
            members[network].add(name)
    for network, settings in COMPOSE["networks"].items():
        assert settings["internal"], network
        # Without this the bridge's address is the host's, and every service of the host that listens there is reached.
        assert settings["driver_opts"] == {"com.docker.network.bridge.inhibit_ipv4": "true"}, network
    expected = {"control": {"superlink", "register", "register-d", "submit", "resume"}}
    for site in (*HOSPITALS, "d"):
        expected[f"link-{site}"] = {"superlink", f"hospital-{site}"}
        expected[f"records-{site}"] = {f"db-{site}", f"seed-{site}", f"hospital-{site}"}
    assert members == expected
    assert SERVICES["superlink"]["sysctls"] == {"net.ipv4.ip_forward": "0"}


def test_secrets_and_records_are_mounted_by_their_own_services_alone() -> None:
    users: dict[str, set[str]] = {volume: set() for volume in COMPOSE["volumes"]}
    for name, service in SERVICES.items():
        for mount in service.get("volumes", []):
            if (volume := mount.split(":")[0]) in users:
                users[volume].add(name)
    for site in (*HOSPITALS, "d"):
        for volume in (f"secret-{site}", f"hospital-{site}", f"db-{site}"):
            assert users[volume] and all(user.endswith(f"-{site}") for user in users[volume])
    # The authority's key is where nothing that runs on can read it.
    assert users["authority"] == {"setup"} and SERVICES["setup"]["restart"] == "no"


def test_a_run_outlives_one_hospital_by_its_own_settings() -> None:
    submit = SERVICES["submit"]
    config = RunConfig.build(assignments([part for part in submit["entrypoint"] + submit["command"] if "=" in part]))
    check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
    assert 2 <= config.participation.min_sites < config.sites == len(HOSPITALS)


def test_every_command_of_the_page_is_run_by_a_test() -> None:
    page = (ROOT / "docs" / "deploy" / "compose.md").read_text()
    blocks = re.findall(r"^ *```text\n(.*?)^ *```", page, re.S | re.M)
    commands = {line.strip() for block in blocks for line in block.splitlines()}
    commands |= set(re.findall(r"`(docker [^`]+)`", page))
    texts = {node.value for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Constant)}
    assert len(commands) > 15 and not commands - texts


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


def wait_for(what: Callable[[], Any], seconds: float = 900.0) -> None:
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
            "POLYCLINIC_UID": str(os.getuid()), "COMPOSE_PROGRESS": "plain", "REPORTS": str(reports), "BUDGET": "20",
        }  # fmt: skip

    def __call__(self, *arguments: str, timeout: float = 900, check: bool = True) -> str:
        done = subprocess.run(["docker", "compose", *arguments], cwd=ROOT, env=self.environment, capture_output=True,
                              text=True, timeout=timeout)  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}"
        )
        return done.stdout

    def type(self, line: str, timeout: float = 900, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A line of the page, as it stands there."""
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=self.environment, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL)  # fmt: skip
        assert not check or done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}"
        return done

    def begin(self, line: str) -> subprocess.Popen[str]:
        """A run that such a line submits; `finish` waits for it."""
        return subprocess.Popen(["bash", "-c", line], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip

    def finish(self, run: subprocess.Popen[str]) -> None:
        output, _ = run.communicate(timeout=1800)
        assert run.returncode == 0 and ": finished:completed;" in output, f"{output[-4000:]}\n{self.logs()}"

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

    def messages(self, site: str, event: str, kind: str) -> int:
        """How many lines of its journal tell of such an event."""
        text = self(
            "exec", "-T", f"hospital-{site}", "sh", "-c", "cat /hospital/home/journal.jsonl 2>/dev/null || true"
        )
        entries = [json.loads(line) for line in text.splitlines()]
        return sum((entry["event"], entry["kind"]) == (event, kind) for entry in entries)

    def logs(self) -> str:
        done = subprocess.run(["docker", "compose", "logs", "--no-color", "--tail", "40"], cwd=ROOT, env=self.environment,
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        return done.stdout[-12000:]

    def container(self, service: str) -> dict[str, Any]:
        identity = self("ps", "--all", "--quiet", service).strip()
        found: list[dict[str, Any]] = json.loads(subprocess.check_output(["docker", "inspect", identity]))
        return found[0]

    def health(self, service: str) -> str:
        return str(self.container(service)["State"]["Health"]["Status"])

    def addresses(self, service: str) -> list[str]:
        return [
            str(network["IPAddress"]) for network in self.container(service)["NetworkSettings"]["Networks"].values()
        ]

    def refusal(self, service: str, host: str, port: int) -> str:
        """Why the service cannot connect there, in the words of its system; an empty string where it can."""
        command = ["python", "-c", f"import socket; socket.create_connection(({host!r}, {port}), 2)"]
        if service.startswith("db-"):  # PostgreSQL's image has no Python
            command = ["timeout", "2", "bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"]
        done = subprocess.run(["docker", "compose", "exec", "-T", service, *command], cwd=ROOT,
                              env=self.environment, capture_output=True, text=True, timeout=120)  # fmt: skip
        if done.returncode == 0:
            return ""
        reasons = [
            words
            for words in (UNREACHABLE, *UNKNOWN, "No route to host", "refused", "timed out")
            if words in done.stderr
        ]
        assert reasons or done.returncode == 124, done.stderr
        return [*reasons, "timed out"][0]


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
        demo.type("docker compose up --build --detach --wait")
        yield demo
    finally:
        own = f"label=com.docker.compose.project={demo.name}"
        runs = ["docker", "ps", "--quiet", "--filter", own, "--filter", "label=com.docker.compose.oneoff=True"]
        for run in subprocess.check_output(runs, text=True).split():  # of a test that failed
            subprocess.run(["docker", "rm", "--force", run], capture_output=True)
        demo.type("docker compose --profile late down --volumes")
        for kind in ("container", "network", "volume"):
            left = ["docker", kind, "ls", "--quiet", "--filter", own]
            assert not subprocess.check_output([*left, *(["--all"] if kind == "container" else [])])


@pytest.mark.parametrize("service", ["superlink", "hospital-a", "submit", "resume"])
def test_services_use_commands_and_options_that_there_are(service: str) -> None:
    program, group, name, *rest = SERVICES[service].get("entrypoint", SERVICES[service]["command"])
    shown = CliRunner().invoke(app, [group, name, "--help"], terminal_width=200)
    assert program == "polyclinic" and shown.exit_code == 0
    assert all(option in shown.output for option in rest if option.startswith("--"))


REPORT = "POLYCLINIC_UID=$(id -u) docker compose run --rm report"


@pytest.mark.compose
def test_a_run_outlives_the_loss_of_a_hospital_that_can_be_started_again(demo: Demo) -> None:
    done = demo.type(REPORT, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "There is no report: no run has begun."
    running = demo.begin("docker compose run --rm submit")
    wait_for(lambda: demo.messages("b", "answered", "query.statistics") or running.poll() is not None)
    with demo.slow_records("b"):  # so that it is lost while it is asked to train
        wait_for(lambda: demo.messages("b", "asked", "train") or running.poll() is not None)
        demo("kill", "hospital-b")
    done = demo.type(REPORT, check=False)
    assert done.returncode == 1 and re.fullmatch(
        r"There is no report: run \S+ has not finished\.", done.stderr.splitlines()[-1]
    )
    demo.finish(running)
    assert demo.type(REPORT).stdout.splitlines()[-1] == "reports/report.html"
    summary = json.loads(
        demo("exec", "-T", "superlink", "sh", "-c", 'cat "$(cat /coordinator/runs/latest.txt)"/summary.json')
    )
    joined = {site: told["rounds_joined"] for site, told in summary["metrics"]["sites"].items()}
    assert joined["a"] == joined["c"] == 3 > joined["b"] and summary["dropouts"]
    demo.type("docker compose start hospital-b")
    wait_for(lambda: demo.health("hospital-b") == "healthy")
    assert demo.nodes()["b"]["status"] == "online"
    name = demo.type("docker compose exec superlink ls /coordinator/runs").stdout.split()[0]
    assert summary["run"].endswith(name)
    for line in ("docker compose run --rm resume RUN", "docker compose run --rm resume latest -c timeout=600"):
        done = demo.type(line.replace("RUN", name), check=False)
        assert done.returncode == 2 and f"The run in /coordinator/runs/{name} has finished" in done.stderr + done.stdout


@pytest.mark.compose
def test_a_node_is_healthy_while_its_coordinator_answers_it_and_no_longer(demo: Demo) -> None:
    assert demo.health("hospital-a") == "healthy"
    started = demo.container("hospital-a")["State"]["StartedAt"]
    demo("stop", "superlink")
    wait_for(lambda: demo.health("hospital-a") == "unhealthy")
    demo.type("docker compose run --rm setup polyclinic coordinator renew /coordinator --ca-key /authority/ca.key")
    demo.type("docker compose start superlink")
    wait_for(lambda: all(demo.health(f"hospital-{site}") == "healthy" for site in HOSPITALS))
    # It is the same process, which connected again, and believes the authority's new certificate.
    assert demo.container("hospital-a")["State"]["StartedAt"] == started
    assert " (healthy)" in demo.type("docker compose ps").stdout
    demo.type("docker compose restart superlink")
    wait_for(lambda: demo.health("superlink") == "healthy" and demo.nodes()["a"]["status"] == "online")


@pytest.mark.compose
def test_what_the_page_reads_from_a_hospital_can_be_read(demo: Demo) -> None:
    status = demo.type("docker compose exec hospital-a polyclinic hospital status /hospital").stdout
    assert "of 20 at δ = 0.0001" in status and "answers, certificate until" in status
    checked = demo.type("docker compose exec hospital-a polyclinic hospital check /hospital").stdout
    assert "ok      registered" in checked and "ok      connected" in checked
    demo.type("docker compose --profile monitoring up --detach metrics metrics-a metrics-b metrics-c")
    scrape = "docker compose exec metrics-a python -c \"from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9464/metrics').read().decode())\""
    wait_for(lambda: 'polyclinic_check{check="connected"} 1.0' in demo.type(scrape, check=False).stdout, 120)
    coordinator = scrape.replace("metrics-a", "metrics")
    wait_for(lambda: 'polyclinic_check{check="nodes"} 1.0' in demo.type(coordinator, check=False).stdout, 120)
    demo("rm", "--stop", "--force", "metrics", "metrics-a", "metrics-b", "metrics-c")
    assert (
        " 0 cut short by a crash"
        in demo.type("docker compose exec hospital-a polyclinic hospital journal /hospital").stdout
    )
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    messages = demo.type('docker logs "$(docker compose ps --all --quiet hospital-a)" | jq .message').stdout
    assert '"a connects to superlink:8000."' in messages.splitlines()


@pytest.mark.compose
def test_services_that_work_once_do_nothing_when_their_work_is_done(demo: Demo) -> None:
    before = demo.nodes()
    keys = {site: demo("exec", "-T", f"hospital-{site}", "cat", "/hospital/node.pub") for site in HOSPITALS}
    certificate = demo("exec", "-T", "superlink", "cat", "/coordinator/ca.crt")
    # Without Python on their path: starting it is what took the time of a second `up`.
    for service in ("setup", "setup-a", "register"):
        demo("run", "--rm", "-T", "--no-deps", "--env", "PATH=/usr/bin:/bin", service, timeout=120)
    assert demo.nodes().keys() == before.keys()
    assert keys == {site: demo("exec", "-T", f"hospital-{site}", "cat", "/hospital/node.pub") for site in HOSPITALS}
    assert certificate == demo("exec", "-T", "superlink", "cat", "/coordinator/ca.crt")
    assert "patients already" in demo("run", "--rm", "-T", "--no-deps", "seed-a", timeout=120)


@pytest.mark.compose
def test_a_run_goes_to_its_end_with_a_fourth_hospital_that_comes_while_it_is_on(demo: Demo) -> None:
    before = {site: demo.status(site)["epsilon"] for site in HOSPITALS}
    enrolled = {site: demo.messages(site, "answered", "query.enrol") for site in HOSPITALS}
    running = demo.begin("docker compose run --rm submit -c rounds=2 -c privacy.epsilon=1.0 -c privacy.delta=1e-4")
    wait_for(
        lambda: (
            all(demo.messages(site, "answered", "query.enrol") > number for site, number in enrolled.items())
            or running.poll() is not None
        )
    )
    with demo.slow_records("a"):  # so that the run is on until the fourth hospital is there
        demo.type("docker compose --profile late up --detach hospital-d")
        wait_for(lambda: demo.nodes().get("d", {}).get("status") == "online")
        assert running.poll() is None
    demo.finish(running)
    demo.type(REPORT)
    page = (Path(demo.environment["REPORTS"]) / "report.html").read_text()
    assert all(f">{site}<" in page for site in (*HOSPITALS, "d"))
    for site in (*HOSPITALS, "d"):
        ledger = demo.status(site)
        assert 0 < ledger["epsilon"] - before.get(site, 0.0) <= 1.0 and ledger["intact"]
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
    running = demo.begin("docker compose run --rm submit -c rounds=1 -c privacy.epsilon=0.5 -c privacy.delta=1e-4")
    wait_for(lambda: demo("exec", "-T", "superlink", "sh", "-c", kept, check=False) not in ("", before))
    demo("exec", "-T", "superlink", "python", "-c", KILL_SERVERAPP)
    assert running.wait(timeout=900) != 0
    spent = demo.status("b")["epsilon"]
    demo("kill", "superlink")
    demo("up", "--detach", "--wait", "superlink")
    demo.type("docker compose run --rm resume")
    again = demo("exec", "-T", "superlink", "sh", "-c", 'cat "$(cat /coordinator/runs/latest.txt)"/summary.json')
    summary = json.loads(again)
    assert summary["rounds"] == 1 and set(HOSPITALS) <= set(summary["metrics"]["sites"])
    after = demo.status("b")  # what was asked again is not paid for again
    assert spent <= after["epsilon"] <= spent + 0.5 and after["epsilon"] > 0 and after["intact"]


@pytest.mark.compose
def test_no_container_reaches_the_internet_or_the_machine_that_it_runs_on(demo: Demo) -> None:
    listed = subprocess.check_output(
        ["docker", "network", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={demo.name}"], text=True
    )
    networks = {network["Name"]: network for network in
                json.loads(subprocess.check_output(["docker", "network", "inspect", *listed.split()]))}  # fmt: skip
    assert len(networks) >= 8 and all(network["Internal"] for network in networks.values())
    for service in RUNNING:
        joined = demo.container(service)["NetworkSettings"]["Networks"]
        assert set(joined) == {f"{demo.name}_{network}" for network in SERVICES[service]["networks"]}
        # An address that is for documentation (RFC 5737): there is no way to it, rather than nobody there.
        assert demo.refusal(service, "203.0.113.1", 443) == UNREACHABLE, service
    with closing(socket.create_server(("0.0.0.0", 0))) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()
        for service in ("superlink", "hospital-a", "db-a"):
            for network in demo.container(service)["NetworkSettings"]["Networks"]:
                [settings] = networks[network]["IPAM"]["Config"]
                gateway = settings.get("Gateway") or settings["Subnet"].replace(".0/", ".1/").split("/")[0]
                assert demo.refusal(service, gateway, port), f"{service} reaches the host at {gateway}"


@pytest.mark.compose
def test_hospitals_reach_neither_each_other_nor_each_others_databases(demo: Demo) -> None:
    addresses = {service: demo.addresses(service) for service in RUNNING}
    for site in HOSPITALS:
        assert not demo.refusal(f"hospital-{site}", f"db-{site}", 5432)
        assert not demo.refusal(f"hospital-{site}", "superlink", 8000)
        assert not demo.refusal(f"db-{site}", "127.0.0.1", 5432)
        own = f"hospital-{site}", f"db-{site}"
        pairs = [(service, name) for service in own for name in RUNNING if name not in own]
        pairs.remove((f"hospital-{site}", "superlink"))
        for service, stranger in (*pairs, ("superlink", f"db-{site}")):
            assert demo.refusal(service, stranger, 8000) in UNKNOWN, f"{service} finds {stranger}"
            for address in addresses[stranger]:
                assert demo.refusal(service, address, 8000) == UNREACHABLE, f"{service} reaches {stranger}"


@pytest.mark.compose
def test_the_authoritys_key_is_in_no_container_that_runs_on(demo: Demo) -> None:
    for service in RUNNING:
        mounts = demo.container(service)["Mounts"]
        assert mounts and f"{demo.name}_authority" not in {mount.get("Name") for mount in mounts}
    places = demo("exec", "-T", "superlink", "sh", "-c", "find / -name '*.key' 2> /dev/null || true").split()
    assert places == ["/coordinator/server.key"]
    assert "PRIVATE KEY" in demo("run", "--rm", "-T", "setup", "cat", "/authority/ca.key")


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
    history = subprocess.check_output(["docker", "history", "--no-trunc", "polyclinic:0.2.0"], text=True)
    assert not any(secret in history for secret in secrets)
    bill = json.loads(subprocess.check_output(
        ["docker", "run", "--rm", "--network", "none", "polyclinic:0.2.0", "cat", "/opt/venv/sbom.cdx.json"]))  # fmt: skip
    versions = {part["name"].lower(): part["version"] for part in bill["components"]}
    pinned = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    for name in ("flwr", "opacus", "pydantic", "sqlalchemy"):
        assert versions[name] == pinned[name]
