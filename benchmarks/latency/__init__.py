"""What a small round costs at real hospitals: ``python -m benchmarks.latency [--quick] [--json]``.

A coordinator and two hospitals on loopback with TLS, as docs/deploy/README.md starts them, first with Flower's own SuperExec and
pauses, then with ours: seconds of a round that trains next to nothing, seconds of the processor of a message at a hospital, and
what a node costs that waits. With ``--sites 30`` so many hospitals, with ours alone. The full benchmark writes
benchmarks/results/latency.json, or latency-30.json, and from it a table of docs/deploy/README.md. With ``--quick`` it prints, and
writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from polyclinic.deployment.bundles import own_bundle
from polyclinic.deployment.environment import with_settings
from polyclinic.deployment.hospital import HospitalNode

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "deploy" / "README.md"
TITLES = {"ours": "`polyclinic hospital start`", "flower": "Flower's own SuperExec and pauses"}
FEW, MANY = 2, 30
# A node that waits is small after ten minutes; nobody waits so long here. Thirty nodes need a minute for a round.
IDLE_SECONDS = 90.0
SCHEMA = """\
name = "clinic"
columns = [
    {name = "id", kind = "integer", role = "patient_id"},
    {name = "age", kind = "integer", bounds = [0, 120], unit = "years"},
    {name = "died", kind = "binary", role = "label"},
]
"""
# Flower's node with the policy's check alone, and a bundle whose server asks for replies as Flower does.
NODE = "from polyclinic.deployment.flower import supernode; supernode.hasten = lambda node: None; supernode.main()"
SERVER = "import polyclinic.server.app as server\nserver.PromptGrid = lambda grid, *_: grid\napp = server.app\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    rounds, idle = (2, 2.0) if given.quick else (4, 30.0)
    ways = ("flower", "ours") if given.sites == FEW else ("ours",)
    rows = {way: measured(way, rounds, idle, given.sites) for way in ways}
    options = ["--quick"] * given.quick + [f"--sites {given.sites}"] * (given.sites != FEW)
    result: dict[str, Any] = {
        "machine": machine(),
        "command": " ".join(["python -m benchmarks.latency", *options]),
        "terms": {"sites": given.sites, "rounds": rounds, "local_steps": 2, "patients": 150},
        "rows": [compared(way, rows[way], rows["ours"]) for way in TITLES if way in rows],
    }
    if not given.quick:
        path, begin, end = place(given.sites)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, begin, end, table(result))
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def place(sites: int) -> tuple[Path, str, str]:
    """The file of the result for so many hospitals, and between which lines of the page its table stands."""
    name = "latency" if sites == FEW else f"latency-{sites}"
    return RESULTS / f"{name}.json", f"<!-- benchmarks.{name}: begin -->", f"<!-- benchmarks.{name}: end -->"


def measured(way: str, rounds: int, idle: float, sites: int) -> dict[str, float]:
    """Medians over rounds after the first and over hospitals; a node's memory and work while it waits ``idle`` seconds."""
    with tempfile.TemporaryDirectory(prefix="polyclinic-latency-") as name, federation(Path(name), way, sites) as made:
        time.sleep(IDLE_SECONDS + 5.0)  # until no node holds any more what ClientApps are forked from
        waits = [(spent(node.pid), node.pid) for node in made.nodes.values()]
        time.sleep(idle)
        waiting = median(spent(pid) - before for before, pid in waits) / idle * 60
        waiting_megabytes = median(memory(node.pid) for node in made.nodes.values())
        before = {site: (spent(node.pid), made.messages(site)) for site, node in made.nodes.items()}
        bundle = [] if way == "ours" else ["--app", made.folder / "plain"]
        keys = {"sites": sites, "participation.min-sites": sites, "privacy.epsilon": 1.5, "privacy.delta": 1e-3,
        "rounds": rounds, "training.local-steps": 2,
                "privacy.patients-per-site": 150, "timeout": 300.0}  # fmt: skip
        began = time.perf_counter()
        made.call("coordinator", "submit", made.folder / "coordinator", "--stream", *bundle,
                  *(part for key, value in keys.items() for part in ("-c", f"{key}={value}")))  # fmt: skip
        whole = time.perf_counter() - began
        run = Path((made.folder / "coordinator" / "runs" / "latest.txt").read_text())
        work = [
            (spent(node.pid) - before[site][0]) / (made.messages(site) - before[site][1])
            for site, node in made.nodes.items()
        ]
        row = {
            "seconds": float(pd.read_csv(run / "rounds.csv").groupby("round")["seconds"].first().iloc[1:].median()),
            "run_seconds": whole, "processor_seconds": median(work), "idle_processor_seconds": waiting,
            "waiting_megabytes": waiting_megabytes, "node_megabytes": median(memory(node.pid) for node in made.nodes.values()),
        }  # fmt: skip
    sys.stderr.write(f"{way}: {row}\n")
    return row


@dataclass(frozen=True)
class Federation:
    """A coordinator and hospitals under way in ``folder``, and the hospitals' nodes."""

    folder: Path
    nodes: Mapping[str, subprocess.Popen[bytes]]

    def call(self, *arguments: object) -> str:
        return call(*arguments)

    def messages(self, site: str) -> int:
        """Messages that the hospital's node got so far."""
        return (self.folder / f"{site}.log").read_text(errors="replace").count("Receiving: ")


@contextlib.contextmanager
def federation(folder: Path, way: str, sites: int = FEW) -> Iterator[Federation]:
    """Registered hospitals that wait for messages; all of it ends with the context."""
    rng = np.random.default_rng(0)
    records = pd.DataFrame({"id": np.arange(200), "age": rng.integers(20, 90, 200), "died": rng.integers(0, 2, 200)})
    records.to_csv(folder / "records.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    _plain_bundle(folder / "plain")
    names = [f"site-{place}" for place in range(sites)]
    ports = _free_ports(1 + sites)
    co, processes = folder / "coordinator", list[subprocess.Popen[bytes]]()
    call("coordinator", "init", co, "--host", "localhost", "--port", ports[0], "--listen", "127.0.0.1")
    try:
        start = [sys.executable, "-m", "polyclinic", "coordinator", "start", str(co)]
        processes.append(_start(start, {}, folder / "coordinator.log"))
        _wait(lambda: "Application startup complete" in (folder / "coordinator.log").read_text(errors="replace"))
        for site, port in zip(names, ports[1:], strict=True):
            call("hospital", "init", folder / site, "--site", site, "--data", folder / "records.csv", "--schema",
                 folder / "schema.toml", "--coordinator", f"localhost:{ports[0]}", "--ca", co / "ca.crt", "--budget", 3.0,
                 "--delta", 1e-3, "--port", port)  # fmt: skip
            call("coordinator", "register", co, folder / site / "node.pub", "--name", site)
            policy = folder / site / "hospital.toml"
            policy.write_text(policy.read_text().replace('allowed-runs = ["installed"]', "allowed-runs = []"))
            found = HospitalNode.read(folder / site)
            command = found.command()
            if way == "flower":
                command[2:4] = ["-c", NODE]
            idle = {"POLYCLINIC_IDLE_SECONDS": str(IDLE_SECONDS)}
            processes.append(_start(command, found.settings | idle, folder / f"{site}.log"))
        for site in names:
            log = folder / f"{site}.log"
            _wait(lambda log=log: "SuperNode ID" in log.read_text(errors="replace"))  # type: ignore[misc]
        yield Federation(folder, dict(zip(names, processes[1:], strict=True)))
    finally:
        for process in processes[::-1]:
            process.terminate()
        for process in processes:
            process.wait(30)
        time.sleep(2.0)


def call(*arguments: object) -> str:
    """Standard output of a command of Polyclinic; raises CalledProcessError where it fails."""
    argv = [sys.executable, "-m", "polyclinic", *map(str, arguments)]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=with_settings(_OWN)).stdout


def tree(pid: int) -> list[int]:
    """The process and all that it and they started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(_stat(path)[1]), []).append(int(path.parent.name))
    found = [pid]
    for parent in found:
        found += parents.get(parent, [])
    return found


def spent(pid: int) -> float:
    """Seconds of the processor of the process, of all that it and they started, and of those that ended."""
    ticks = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(Path(f"/proc/{process}/stat"))[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """Megabytes of the process and of all that it and they started; what some share is counted once."""
    kilobytes = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def compared(way: str, row: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, Any]:
    """The row with how many times as long it takes as ``ours``, by the clock and by the processor."""
    ratio, processor = (row[name] / ours[name] for name in ("seconds", "processor_seconds"))
    return {"way": way, **row, "ratio": ratio, "processor_ratio": processor}


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a way and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        "| a node started by | seconds of a round | of a run | processor seconds of a message | of a minute's waiting | "
        "memory, waiting | after the run |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        times = "" if row["way"] == "ours" else f" ({row['ratio']:.1f}x)"
        more = "" if row["way"] == "ours" else f" ({row['processor_ratio']:.1f}x)"
        cells = [TITLES[row["way"]], f"{row['seconds']:.1f}{times}", f"{row['run_seconds']:.0f}"]
        cells += [f"{row['processor_seconds']:.2f}{more}", f"{row['idle_processor_seconds']:.2f}"]
        waiting = row.get("waiting_megabytes")  # not measured before 2026-11-27
        cells += ["-" if waiting is None else f"{waiting:.0f} MB", f"{row['node_megabytes']:.0f} MB"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + (
        f"\n\n{terms['sites']} hospitals, the coordinator and all else on one machine over loopback with TLS, {terms['rounds']} "
        f"rounds of {terms['local_steps']} steps and an evaluation, {terms['patients']} patients each. A run's seconds are those "
        f"of `submit --stream`. Other work on the machine slows seconds, hardly those of the processor. Measured "
        f"{about['date']} at commit {about['commit']} by `{result['command']}` on {about['cpu']}, torch {about['torch']}, flwr "
        f"{about['flwr']}; load {about['load']} on {about['cores']} cores."
    )


# Bytecode is kept, as in an installation.
_OWN = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}


def _start(command: list[str], settings: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as sink:
        return subprocess.Popen(command, stdout=sink, stderr=sink, env=with_settings({**settings, **_OWN}))


def _plain_bundle(folder: Path) -> None:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(own_bundle().replace("polyclinic.server_app:app", "plain:app"))
    (folder / "plain.py").write_text(SERVER)


def _stat(path: Path) -> list[str]:
    return path.read_text().rpartition(")")[2].split()


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]


def _wait(what: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} seconds in vain")
        time.sleep(0.2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 rounds; not for quoting")
    parser.add_argument("--sites", type=int, choices=(FEW, MANY), default=FEW, help="hospitals")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser
