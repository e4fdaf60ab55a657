"""What Prometheus reads of a node: numbers of the journal, the ledger and the runs, over HTTP, and the dashboard's names."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from polyclinic.client.home.journal import append
from polyclinic.deployment.monitoring.metrics import CoordinatorMetrics, HospitalMetrics, serve
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from tests.client.test_hospital import STRICT, ledger, make_hospital, train

from .conftest import Cli

ROOT = Path(__file__).resolve().parents[2]


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
    spent = ledger(hospital).spent()
    assert found["polyclinic_epsilon_spent"] == pytest.approx(spent)
    assert found["polyclinic_epsilon_left"] == pytest.approx(2.0 - spent) and found["polyclinic_ledger_intact"] == 1


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
