"""How long the looks at a table and its anonymising take: ``python -m benchmarks.anonymity [--quick] [--json]``.

Whole commands, from the CSV file to the files written, one thread each. The full benchmark writes
benchmarks/results/anonymity.json and, from it, the table of docs/records/anonymity.md. With ``--quick`` it prints, and
writes nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common.machine import machine
from benchmarks.common.probes import OUT, ROOT, Probe, module, run

RESULT = ROOT / "benchmarks" / "results" / "anonymity.json"
PAGE = ROOT / "docs" / "records" / "anonymity.md"
BEGIN, END = "<!-- benchmarks.anonymity: begin -->", "<!-- benchmarks.anonymity: end -->"
ROWS, PEOPLE, REPEATS = 100_000, 20_000, 2
LIMIT = 60.0  # seconds that issue 5 allows for 100,000 rows with six quasi-identifiers
QUASI = ("age", "sex", "zip", "race", "admitted", "stay")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    rows, repeats = (2_000, 1) if given.quick else (ROWS, REPEATS)
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.anonymity" + (" --quick" if given.quick else ""),
        "terms": {"rows": rows, "patients": rows * 4 // 5, "quasi": list(QUASI), "repeats": repeats, "limit": LIMIT},
    }
    with tempfile.TemporaryDirectory() as folder:
        probes = _probes(Path(folder), rows)
        result["rows"] = [_measured(probe, repeats) for probe in probes]
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_section(PAGE, result)
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def admissions(rows: int, seed: int = 0) -> pd.DataFrame:
    """Made-up admissions: four patients to five rows, six quasi-identifiers and a diagnosis of 40."""
    rng = np.random.default_rng(seed)
    people = rows * 4 // 5
    of_row = np.concatenate([np.arange(people), rng.integers(0, people, rows - people)])
    person = {
        "age": np.clip(rng.normal(60, 18, people).round(), 0, 110).astype(int),
        "sex": rng.choice(["f", "m"], people),
        "zip": [f"{60_000 + code}" for code in rng.zipf(1.3, people) % 999],
        "race": rng.choice(list("abcde"), people, p=[0.6, 0.2, 0.1, 0.06, 0.04]),
    }
    visit = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1400, rows), unit="D")
    return pd.DataFrame(
        {"id": of_row, **{name: np.asarray(cells)[of_row] for name, cells in person.items()},
         "admitted": visit.strftime("%Y-%m-%d"), "stay": rng.geometric(0.2, rows),
         "diagnosis": rng.choice([f"d{code}" for code in range(40)], rows)}
    )  # fmt: skip


def _probes(folder: Path, rows: int) -> list[Probe]:
    records, outside = folder / "records.csv", folder / "outside.csv"
    table = admissions(rows)
    table.to_csv(records, index=False)
    table.drop(columns=["id", "diagnosis"]).sample(min(PEOPLE, rows), random_state=0).to_csv(outside, index=False)
    asked = ("--quasi", ",".join(QUASI), "--unit", "id", "--json")
    anonymize = ("anonymize", str(records), *asked, "--k", "5", "--out", f"{OUT}/released.csv")
    commands = {
        "`risk`, nine measures": ("risk", str(records), *asked, "--sensitive", "diagnosis"),
        "`anonymize`, k = 5": anonymize,
        "`anonymize`, k = 5, no suppression": (*anonymize, "--suppression", "0"),
        "`anonymize`, k = 5, l = 3": (*anonymize, "--sensitive", "diagnosis", "--l", "3"),
        "`anonymize`, k = 5, t = 0.4": (*anonymize, "--sensitive", "diagnosis", "--t", "0.4"),
        "`anonymize --method mondrian`, k = 5": (*anonymize, "--method", "mondrian"),
        f"`link`, {min(PEOPLE, rows):,} people": (
            "link",
            str(records),
            str(outside),
            "--on",
            ",".join(QUASI),
            "--json",
        ),
    }
    return [Probe(title, module("polyclinic", *argv), kind="command") for title, argv in commands.items()]


def _measured(probe: Probe, repeats: int) -> dict[str, Any]:
    """The best of ``repeats`` runs, how many times it fits into the limit, and the least processor time of a run."""
    runs, before = [], _processor()
    for _ in range(repeats):
        seconds = run(probe).seconds
        runs.append((seconds, (after := _processor()) - before))
        before = after
    seconds, cpu = (min(part) for part in zip(*runs, strict=True))
    sys.stderr.write(f"{probe.label}: {seconds:.1f} s, {cpu:.1f} s of the processor\n")
    return {"what": probe.label, "seconds": seconds, "processor_seconds": cpu, "limit": LIMIT, "ratio": LIMIT / seconds,
            "met": seconds <= LIMIT}  # fmt: skip


def _processor() -> float:
    """Seconds of the processor that all commands so far have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a command and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        "| command | seconds | of the processor | limit | limit / seconds | met |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {row['what']} | {row['seconds']:.1f} | {row['processor_seconds']:.1f} | {row['limit']:g} | {row['ratio']:.1f}x | "
        f"{'yes' if row['met'] else 'no'} |"
        for row in result["rows"]
    ]
    return "\n".join(lines) + (
        f"\n\n{terms['rows']:,} rows of {terms['patients']:,} patients, {len(terms['quasi'])} quasi-identifiers, whole commands "
        f"with one thread, best of {terms['repeats']}; other work slows the seconds, hardly those of the processor. "
        f"Measured {about['date']} at commit {about['commit']} by "
        f"`{result['command']}` on {about['cpu']}, Python {about['python']}; load {about['load']} on {about['cores']} cores."
    )


def write_section(path: Path, result: Mapping[str, Any]) -> None:
    """Put the table between the two marks of ``path``, which must hold them."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n{table(result)}\n{END}{after}", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anonymity", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, one run each; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
