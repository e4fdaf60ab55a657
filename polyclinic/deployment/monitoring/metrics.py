"""What Prometheus may ask of a node: a hospital's own journal and ledger, or the coordinator's runs. Read only.

A hospital's numbers are of its own house: they say what was asked and what was spent, and are meant for its own
monitoring. So they listen on this machine alone unless another address is given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from polyclinic.client.home.approvals import approvals
from polyclinic.client.home.journal import NAME
from polyclinic.deployment.certificates import days_left
from polyclinic.deployment.monitoring.checks import OK, Check
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.lines import entry_of
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.runs.history import OVERALL, Record

Checks = Callable[[], Iterable[Check]]
#: What of a row is no metric.
_FIGURES = ("round", "site", "seconds", "epsilon", "train_loss", "bytes_up", "bytes_down", "simulated_seconds")


@dataclass
class _Journal:
    """What the journal has come to; each scrape reads only the lines that are new."""

    path: Path
    read: int = 0
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    newest: float = 0.0

    def follow(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self.read)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            if entry := entry_of(line):
                self._add(entry)

    def _add(self, entry: dict[str, object]) -> None:
        event, kind = str(entry.get("event")), str(entry.get("kind"))
        self.messages[kind, event] += 1
        self.bytes["in" if event == "asked" else "out"] += int(str(entry.get("bytes", 0)))
        self.seconds[kind] += float(str(entry.get("seconds", 0.0)))
        self.rounds += (kind, event) == ("train", "answered")
        self.newest = max(self.newest, datetime.fromisoformat(str(entry["time"])).timestamp())


class HospitalMetrics(Collector):
    """Of the hospital whose home this is: messages by kind and outcome, rounds, seconds, bytes, what its ledger says, and how
    many runs wait for a person.

    home: folder of journal and ledger. ca: the authority's certificate. checks: made at each scrape. What cannot be read is
    left out; ``polyclinic_ledger_intact`` is then 0.
    """

    def __init__(self, home: Path, ca: Path | None = None, checks: Checks = tuple) -> None:
        self._home, self._ledger, self._held_out = home, home / "ledger.sqlite", home / "held-out.sqlite"
        self._journal = _Journal(home / NAME)
        self._certificates, self._checks = [ca] if ca else [], checks

    def collect(self) -> Iterator[Metric]:
        yield _days_of(self._certificates)
        yield _of_checks(self._checks())
        self._journal.follow()
        yield from self._of_messages()
        with suppress(PolyclinicError):
            # Not those whose approval ended: most of them are runs that have long finished.
            waiting = sum(approval.state == "pending" for approval in approvals(self._home))
            yield _gauge("hospital_pending_runs", "Runs on which nobody here has decided.", waiting)
        if self._ledger.exists():
            yield from _of_ledger(self._ledger)
        if self._held_out.exists():
            yield from _of_ledger(self._held_out, held_out=True)

    def _of_messages(self) -> Iterator[Metric]:
        counted = self._journal
        messages = "Messages asked, answered, refused and failed."
        yield _labelled_metric(CounterMetricFamily, "messages", messages, ("kind", "event"), counted.messages.items())
        seconds = (([kind], total) for kind, total in counted.seconds.items())
        yield _labelled_metric(
            CounterMetricFamily, "message_seconds", "Seconds from message to answer.", ("kind",), seconds
        )
        size = (([direction], total) for direction, total in counted.bytes.items())
        yield _labelled_metric(
            CounterMetricFamily, "bytes", "Bytes of arrays that came and left.", ("direction",), size
        )
        refused = sum(count for (_, event), count in counted.messages.items() if event == "refused")
        counts = {
            "rounds": ("Rounds of training that were answered.", counted.rounds),
            "refusals": ("Messages that the policy or the budget refused.", refused),
        }
        for name, (what, count) in counts.items():
            yield CounterMetricFamily(f"polyclinic_{name}", what, value=count)
        yield _gauge("newest_message_timestamp_seconds", "When the journal was last written.", counted.newest)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"polyclinic_{name}", what, value=value)


def _labelled_metric(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, what: str, labels: tuple[str, ...],
    values: Iterable[tuple[Sequence[str], float]],
) -> Metric:  # fmt: skip
    metric = family(f"polyclinic_{name}", what, labels=labels)
    for of, value in values:
        metric.add_metric(of, value)
    return metric


def _of_ledger(path: Path, held_out: bool = False) -> Iterator[Metric]:
    """Whether a ledger is as it was written and, where it can be read, what was spent; of the main one what is left, too."""
    spent, budget, intact = None, None, False
    with suppress(PolyclinicError):
        ledger = Ledger.read(path)
        spent, budget, intact = ledger.epsilon(), ledger.budget, ledger.verify()
    prefix, whose = ("held_out_", "held-out patients'") if held_out else ("", "hospital's")
    yield _gauge(f"{prefix}ledger_intact", f"1 where the {whose} ledger is as it was written.", int(intact))
    if spent is not None:
        yield _gauge(f"{prefix}epsilon_spent", f"Epsilon of all charges to the {whose} ledger at its delta.", spent)
        if budget is not None and not held_out:
            yield _gauge("epsilon_budget", "Lifetime budget of these records.", budget)
            yield _gauge(
                "epsilon_left",
                "Budget less epsilon spent; a further release may cost more, for epsilons do not add up.",
                max(budget - spent, 0.0),
            )


class CoordinatorMetrics(Collector):
    """Of the runs in a folder: rounds done, hospitals that answered in the newest, drop-outs, bytes, seconds, epsilon.

    runs: the folder that runs are written to (configuration key ``out``). certificates: of the coordinator. checks: made at
    each scrape.
    """

    def __init__(self, runs: Path, certificates: Sequence[Path] = (), checks: Checks = tuple) -> None:
        self._runs, self._certificates, self._checks = runs, certificates, checks

    def collect(self) -> Iterator[Metric]:
        yield _days_of(self._certificates)
        yield _of_checks(self._checks())
        names = {
            "round": "Newest round that is done.", "hospitals": "Hospitals that answered the newest round.",
            "dropped": "Hospitals that dropped out of the newest round.", "round_seconds": "Seconds of the newest round.",
            "newest_round_timestamp_seconds": "When the newest round was written, or the run began.",
            "bytes_up": "Bytes of arrays from hospitals, over all rounds.",
            "bytes_down": "Bytes of arrays to hospitals, over all rounds.", "seconds": "Seconds of all rounds.",
            "epsilon": "Largest epsilon that a hospital's ledger said.", "finished": "1 when the report is written.",
        }  # fmt: skip
        records = {run: run.history() for run in Run.all_in(self._runs)}
        figures = {run.name: _of_run(run, history) for run, history in records.items()}
        for name, what in names.items():
            values = [([run], of[name]) for run, of in figures.items()]
            yield _labelled_metric(GaugeMetricFamily, f"run_{name}", what, ("run",), values)
        dropouts = Counter((run.name, drop["site"]) for run, of in records.items() for drop in of["dropout"])
        what = "Rounds that a hospital dropped out of, by run."
        yield _labelled_metric(GaugeMetricFamily, "run_dropouts", what, ("run", "site"), dropouts.items())
        judged = [((run.name, name), value) for run, of in records.items() for name, value in _metrics(of["row"])]
        what = "Metrics over all hospitals in the newest round, as far as policies let them leave."
        yield _labelled_metric(GaugeMetricFamily, "run_metric", what, ("run", "metric"), judged)


def _days_of(certificates: Sequence[Path]) -> Metric:
    days = []
    for path in certificates:
        with suppress(ConfigError):
            days.append(([path.name], days_left(path)))
    return _labelled_metric(GaugeMetricFamily, "certificate_days", "Days until a certificate ends.", ("file",), days)


def _metrics(rows: Sequence[Record]) -> Iterator[tuple[str, float]]:
    """The metrics of the newest round's row over all hospitals, by name."""
    overall = {row["site"]: row for row in rows if row["round"] == rows[-1]["round"] and row["site"] in OVERALL}
    row = overall.get("pooled") or overall.get("macro") or {}
    yield from ((name, value) for name, value in row.items() if name not in _FIGURES and value is not None)


def _of_checks(checks: Iterable[Check]) -> Metric:
    values = [([check.name], float(check.state == OK)) for check in checks]
    return _labelled_metric(GaugeMetricFamily, "check", "1 where a check finds all well.", ("check",), values)


def _of_run(run: Run, records: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    rows = records["row"]
    newest = max((row["round"] for row in rows), default=0)
    sites = [row for row in rows if row["site"] not in OVERALL]
    return {
        "round": float(newest),
        "hospitals": float(sum(row["round"] == newest and row.get("bytes_up") is not None for row in sites)),
        "dropped": float(sum(drop["round"] == newest for drop in records["dropout"])),
        "round_seconds": next((row.get("seconds") or 0.0 for row in reversed(rows)), 0.0),
        "newest_round_timestamp_seconds": (run.history_file if rows else run.config_file).stat().st_mtime,
        "bytes_up": sum(row.get("bytes_up") or 0.0 for row in sites),
        "bytes_down": sum(row.get("bytes_down") or 0.0 for row in sites),
        "seconds": sum({row["round"]: row.get("seconds") or 0.0 for row in rows}.values()),
        "epsilon": max((row.get("epsilon") or 0.0 for row in sites), default=0.0),
        "finished": float(run.finished),
    }


def serve(collector: Collector, host: str, port: int) -> WSGIServer:
    """Answers scrapes of this collector alone, in a thread; returns the server.

    Args:
        collector: What gives the metrics.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        ConfigError: Host and port cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        return start_http_server(port, host, registry)[0]
    except (OSError, OverflowError) as error:
        raise ConfigError(f"Metrics cannot listen on {host}:{port}: {error}.") from None
