"""What Prometheus reads of a node, what dashboard and alerts ask of it, and what `check` says of a hospital and a coordinator.

A server of TLS with a clock of its own stands for the coordinator.
"""

import json
import os
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from polyclinic.client.home.approvals import approvals, decide
from polyclinic.client.home.journal import append
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.deployment.monitoring.checks import coordinator_checks, hospital_checks
from polyclinic.deployment.monitoring.metrics import CoordinatorMetrics, HospitalMetrics, serve
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.wire.versions import PRIVACY_FORMAT, version_title, versions
from tests.client.test_hospital import STRICT, ledger, make_hospital, train
from tests.deployment.conftest import Cli

ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scrape(collector: Collector) -> dict[str, float]:
    """Samples by name and labels, as a Prometheus would have them."""
    port = free_port()
    server = serve(collector, "127.0.0.1", port)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    finally:
        server.shutdown()
        server.server_close()
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }  # fmt: skip


def test_a_hospitals_metrics_are_what_its_journal_and_ledger_say(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    metrics = HospitalMetrics(tmp_path / "home")
    assert scrape(metrics)["polyclinic_rounds_total"] == 0
    assert train(hospital).has_content()
    assert scrape(metrics)["polyclinic_rounds_total"] == 1
    train(hospital, noise_multiplier=0.01, round=2)
    found = scrape(metrics)
    assert (
        found["polyclinic_messages_total asked train"] == 2 and found["polyclinic_messages_total answered train"] == 1
    )
    assert found["polyclinic_refusals_total"] == 1 and found["polyclinic_rounds_total"] == 1
    assert found["polyclinic_bytes_total in"] == 2 * found["polyclinic_bytes_total out"] > 0
    spent = ledger(hospital).epsilon()
    assert found["polyclinic_epsilon_spent"] == pytest.approx(spent)
    assert found["polyclinic_epsilon_left"] == pytest.approx(2.0 - spent) and found["polyclinic_ledger_intact"] == 1


def test_runs_on_which_nobody_has_decided_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = f'{STRICT}require-approval = true\nallowed-runs = ["installed"]\n'
    hospital, home = make_hospital(tmp_path, policy), tmp_path / "home"
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", str(hospital))
    metrics = HospitalMetrics(home)
    assert scrape(metrics)["polyclinic_hospital_pending_runs"] == 0
    assert train(hospital).has_error()
    assert scrape(metrics)["polyclinic_hospital_pending_runs"] == 1
    [waiting] = approvals(home)
    decide(home, waiting.run, waiting.digest, "approved", 1e-6)  # which has ended by now
    assert scrape(metrics)["polyclinic_hospital_pending_runs"] == 0
    (home / "approvals" / "r.json").write_text("{")
    assert "polyclinic_hospital_pending_runs" not in scrape(metrics)


def test_a_damaged_ledger_and_torn_lines_show_and_stop_nothing(tmp_path: Path) -> None:
    train(make_hospital(tmp_path, STRICT))
    home = tmp_path / "home"
    (home / "ledger.sqlite").write_bytes(b"torn")
    (home / "journal.jsonl").write_bytes((home / "journal.jsonl").read_bytes() + b'{"event":"as')
    metrics = HospitalMetrics(home)
    found = scrape(metrics)
    assert found["polyclinic_ledger_intact"] == 0 and "polyclinic_epsilon_spent" not in found
    append(home, {"event": "asked", "kind": "train", "bytes": 1})
    assert scrape(metrics)["polyclinic_messages_total asked train"] == 2


def test_a_coordinators_metrics_are_those_of_its_runs(tmp_path: Path, quick: Callable[..., RunResult]) -> None:
    (tmp_path / "here.csv").write_text("round,site\n2,hospital-3\n")
    run = quick(
        rounds=2, sites=3, **{"participation.min-sites": 2, "simulation.availability": str(tmp_path / "here.csv")}
    )
    found = scrape(CoordinatorMetrics(tmp_path))
    name = next(path.parent.name for path in tmp_path.glob("*/config.toml"))
    assert found[f"polyclinic_run_round {name}"] == 2 and found[f"polyclinic_run_dropped {name}"] == 1
    assert found[f"polyclinic_run_hospitals {name}"] == 2  # all three were evaluated
    assert found[f"polyclinic_run_dropouts {name} hospital-3"] == 1
    assert found[f"polyclinic_run_metric auroc {name}"] == pytest.approx(
        run.summary["metrics"]["pooled"]["auroc"], rel=1e-3
    )
    assert 0 < found[f"polyclinic_run_round_seconds {name}"] < found[f"polyclinic_run_seconds {name}"]
    assert time.time() - 300 < found[f"polyclinic_run_newest_round_timestamp_seconds {name}"] <= time.time()
    assert found[f"polyclinic_run_epsilon {name}"] == pytest.approx(run.privacy["epsilon"], rel=1e-3)
    assert found[f"polyclinic_run_bytes_up {name}"] > 0 and found[f"polyclinic_run_finished {name}"] == 1


def test_both_say_how_long_their_certificates_last(coordinator: Path, tmp_path: Path) -> None:
    server, ca = coordinator / "server.crt", coordinator / "ca.crt"
    found = scrape(CoordinatorMetrics(tmp_path, [server, ca]))
    assert 824 < found["polyclinic_certificate_days server.crt"] < 826
    assert 3649 < found["polyclinic_certificate_days ca.crt"] < 3651
    assert scrape(HospitalMetrics(tmp_path, ca))["polyclinic_certificate_days ca.crt"] > 3649
    server.write_text("junk")
    assert "polyclinic_certificate_days server.crt" not in scrape(CoordinatorMetrics(tmp_path, [server]))


def test_the_journal_is_shown_and_an_edit_ends_with_1(hospital: Path, cli: Cli) -> None:
    home = hospital / "home"
    append(home, {"event": "asked", "kind": "train", "run": "[red]r", "round": 1})
    append(home, {"event": "refused", "kind": "train", "run": "r", "round": 1, "why": "the budget is spent"})
    told = json.loads(cli("hospital", "journal", hospital, "--last", 1, "--json").out)
    assert told["lines"] == 2 and told["intact"] and told["entries"][0]["why"] == "the budget is spent"
    assert "[red]r" in cli("hospital", "journal", hospital).out
    path = home / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"train", b"query", 1))
    done = cli("hospital", "journal", hospital)
    assert done.code == 1 and "a line was changed" in done.error


def test_metrics_are_served_until_sigterm(hospital: Path) -> None:
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "polyclinic", "hospital", "metrics", str(hospital), "--port", str(port)],
                              cwd=ROOT, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert server.stdout is not None and str(port) in server.stdout.readline()
    assert b"polyclinic_rounds_total 0" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read()
    server.terminate()
    assert server.wait(timeout=20) == 0


def test_an_address_that_cannot_be_listened_on_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot listen on 203.0.113.1:9000"):
        serve(CoordinatorMetrics(Path()), "203.0.113.1", 9000)


def served(tmp_path: Path, quick: Callable[..., RunResult]) -> set[str]:
    """The names of all metrics of both sides, also of those that have no value yet."""
    quick(rounds=1)
    train(make_hospital(tmp_path))
    collectors = HospitalMetrics(tmp_path / "home"), CoordinatorMetrics(tmp_path)
    families = [family for collector in collectors for family in collector.collect()]
    return {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in families}


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path, quick: Callable[..., RunResult]) -> None:
    dashboard = json.loads((ROOT / "docs" / "deploy" / "grafana.json").read_text())
    asked = {
        name for panel in dashboard["panels"] for target in panel["targets"]
        for name in re.findall(r"polyclinic_\w+", target["expr"])
    }  # fmt: skip
    assert asked and asked <= served(tmp_path, quick)


def test_the_alerts_ask_for_metrics_and_checks_that_there_are(
    tmp_path: Path, coordinator: Path, hospital: Path, quick: Callable[..., RunResult]
) -> None:
    groups = yaml.safe_load((ROOT / "docs" / "deploy" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 9
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["expr"].count("(") == rule["expr"].count(")")
    asked = {name for rule in rules for name in re.findall(r"polyclinic_\w+", rule["expr"])}
    unserved = asked - served(tmp_path, quick)
    assert unserved == {"polyclinic_held_out_ledger_intact"}  # served once there is such a ledger
    checks = hospital_checks(HospitalNode.read(hospital), quick=True)
    checks += coordinator_checks(Coordinator.read(coordinator), quick=True)
    of_checks = {name for rule in rules for name in re.findall(r'check="(\w+)"', rule["expr"])}
    assert of_checks and of_checks <= {check.name for check in checks}


def checked(cli: Cli, folder: Path, room: str = "hospital") -> dict[str, tuple[str, str]]:
    """State and sentence of each check, after its exit code, JSON and lines were seen to agree."""
    done = cli(room, "check", folder, "--json")
    told = json.loads(done.out)
    checks = {check["name"]: (check["state"], check["what"]) for check in told["checks"]}
    assert told["ok"] == (done.code == 0) == all(state == "ok" for state, _ in checks.values())
    lines = cli(room, "check", folder).out.splitlines()  # of which a change of the records is one that was told above
    same = [name for name in checks if name != "records"]
    assert [line.split()[:2] for line in lines if line.split()[1] in same] == [[checks[name][0], name] for name in same]
    return checks


class Clock(BaseHTTPRequestHandler):
    """Answers any question with a time that is ``ahead`` seconds before it."""

    ahead = 0.0

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() - self.ahead, usegmt=True)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def reached(coordinator: Path, hospital: Path) -> Path:
    """The hospital with a coordinator's certificate at the end of its line."""
    server = HTTPServer(("127.0.0.1", 0), Clock)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(coordinator / "server.crt", coordinator / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (hospital / "node.toml").write_text(f'coordinator = "localhost:{server.server_port}"\n')
    return hospital


def test_each_fault_of_a_hospital_is_a_line_with_the_next_step(
    cli: Cli, reached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = reached / "flwr" / "heartbeat"
    heartbeat.touch()
    first = checked(cli, reached)
    assert [name for name, (state, _) in first.items() if state != "ok"] == ["registered"]
    assert first["registered"] == ("failed", "it answers with 404")
    assert first["records"][1] == "200 patients in 200 rows fit the schema"
    assert first["versions"][1] == version_title(versions())
    data = tmp_path / "records" / "records.csv"
    lines = data.read_text().splitlines()
    data.write_text("\n".join(lines[:101]) + "\n")
    os.utime(heartbeat, (0, 0))
    append(reached / "home", {"event": "asked", "kind": "enrol", "version": "0.0.1"})
    monkeypatch.setattr(Clock, "ahead", 100.0)
    faulty = checked(cli, reached)
    state, said = faulty["records"]
    assert state == "warning" and "100 patients" in said and "there were 200 at the last check" in said
    assert faulty["connected"][0] == faulty["versions"][0] == faulty["clock"][0] == "failed"
    assert "about 100 seconds ahead of" in faulty["clock"][1] and "NTP" in faulty["clock"][1]
    other = "the coordinator has Polyclinic 0.0.1 (privacy format"
    assert f"{other} not said); install versions of the same privacy format" in faulty["versions"][1]
    append(reached / "home", {"event": "asked", "version": "0.0.1", "privacy_format": PRIVACY_FORMAT})
    state, said = checked(cli, reached)["versions"]
    assert state == "warning" and said.endswith(f"{other} {PRIVACY_FORMAT})")
    journal = reached / "home" / "journal.jsonl"
    append(reached / "home", {"event": "asked", "kind": "train"})
    journal.write_bytes(journal.read_bytes().replace(b"enrol", b"train", 1))
    data.write_text("\n".join([*lines[:3], lines[3].replace(",", ",secret", 1)]) + "\n")
    faulty = checked(cli, reached)
    assert faulty["journal"][0] == faulty["records"][0] == "failed" and "secret" not in faulty["records"][1]
    monkeypatch.setattr(Clock, "ahead", 3.5)
    assert checked(cli, reached)["clock"][0] == "warning"


def test_a_coordinator_that_does_not_answer_fails_the_checks_that_ask_it_alone(cli: Cli, hospital: Path) -> None:
    (hospital / "node.toml").write_text('coordinator = "127.0.0.1:1"\n')
    checks = checked(cli, hospital)
    unwell = {name: said for name, (state, said) in checks.items() if state != "ok"}
    assert set(unwell) == {"clock", "registered", "connected"}
    assert unwell["clock"] == unwell["registered"] == "the coordinator does not answer: nothing answers there"


def test_each_fault_of_a_coordinator_is_a_line_too(cli: Cli, coordinator: Path) -> None:
    checks = checked(cli, coordinator, "coordinator")
    assert {name for name, (state, _) in checks.items() if state == "failed"} == {"nodes", "database"}
    assert "cannot be reached: nothing answers there" in checks["nodes"][1]
    path = coordinator / "state" / "superlink.db"
    with sqlite3.connect(path) as database:
        database.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (hex(randomblob(30000)));")
    assert checked(cli, coordinator, "coordinator")["database"] == ("ok", "sound")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * 600 + content[4696:])
    state, said = checked(cli, coordinator, "coordinator")["database"]
    assert state == "failed" and ("restore" in said or "malformed" in said)
    run = coordinator / "runs" / "20260101-000000-abcdef"
    run.mkdir(parents=True)
    (run / "config.toml").touch()
    (run / "versions.json").write_text('{"hospitals": {"north": {"polyclinic": "0.0.1", "privacy_format": "999"}}}')
    assert checked(cli, coordinator, "coordinator")["versions"][1].endswith(
        "north has Polyclinic 0.0.1 (privacy format 999); install versions of the same privacy format at all"
    )


def test_the_quick_checks_are_metrics(coordinator: Path, reached: Path) -> None:
    node, read = HospitalNode.read(reached), Coordinator.read(coordinator)
    counted = scrape(HospitalMetrics(node.home, node.ca, lambda: hospital_checks(node, quick=True)))
    checks = {name.split()[1]: value for name, value in counted.items() if name.startswith("polyclinic_check ")}
    assert checks == {"certificate": 1.0, "clock": 1.0, "connected": 0.0, "disk": 1.0, "ledger": 1.0}
    assert not (node.home / "patients-counted").exists()
    counted = scrape(CoordinatorMetrics(read.folder, (), lambda: coordinator_checks(read, quick=True)))
    assert counted["polyclinic_check nodes"] == 0 and counted["polyclinic_check disk"] == 1
    assert "polyclinic_check database" not in counted
