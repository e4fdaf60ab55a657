"""How fast private steps of flows at many hospitals are: ``python -m benchmarks.flows [--quick] [--json]``.

32 hospitals of 200 patients, batches of about 16, a table of 12 numbers and a label, the flow `maf` as it is by default: the
stacked engine against the same engine hospital by hospital, and against a plain loop over hospitals and records (autograd one
record at a time, as published). The full benchmark writes benchmarks/results/flows.json and, from it, the table of
docs/flows/flows.md. With ``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.layout import Layout
from polyclinic.training.density import DensityTask, spread
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic_studies.flows.published import clipped_sum

RESULT = ROOT / "benchmarks" / "results" / "flows.json"
PAGE = ROOT / "docs" / "flows" / "flows.md"
BEGIN, END = "<!-- benchmarks.flows: begin -->", "<!-- benchmarks.flows: end -->"
SITES, PATIENTS, BATCH, STEPS = 32, 200, 16, 5
GOAL = 5.0  # how many times faster than a loop over hospitals issue 7 wants the stacked engine
TITLES = {
    "stacked": "all hospitals at once",
    "apart": "the same engine, hospital by hospital",
    "records": "a plain loop over hospitals and records",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    sites, patients, turns = (2, 20, 1) if given.quick else (SITES, PATIENTS, 3)
    found = measured(sites, patients, turns)
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.flows" + (" --quick" if given.quick else ""),
        "terms": {"sites": sites, "patients": patients, "batch": min(BATCH, patients), "goal": GOAL},
        "rows": [compared(way, row, found["stacked"]) for way, row in found.items()],
    }
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def recipe() -> Recipe:
    """The default flow of 12 numbers and a label of two classes."""
    numbers = (Column(name=f"x{i}", kind="continuous", bounds=(-4.0, 4.0), centre=0.0, spread=1.0) for i in range(12))
    label = Column(name="y", kind="binary", role="label")
    return make(Layout.of(Schema(name="flows", unit="record", columns=(*numbers, label))))


def work(sites: int, patients: int, turn: int) -> list[SiteWork]:
    """Made-up records of each hospital."""
    found = []
    for site in range(sites):
        rng = generator(0, "flow", site)
        rows = Rows(
            rng.uniform(-1, 1, (patients, 12)), rng.integers(0, 2, patients), np.arange(patients), patients
        )  # fmt: skip
        sampling, noise, layers = (keyed_stream(0, name, site, turn) for name in ("batches", "noise", "layers"))
        found.append(SiteWork(rows, sampling, noise, float(patients), layers=layers))
    return found


def measured(sites: int, patients: int, turns: int) -> dict[str, dict[str, float]]:
    """By way, the median seconds, and seconds of the processor, of a step of all hospitals; the ways take turns."""
    flow = recipe()
    settings = TrainSettings(min(1.0, BATCH / patients), STEPS, 1e-2, 1.0, 1.0, optimizer="adam")
    arrays = {name: value.numpy() for name, value in initialise(flow.module, 0).items()}

    def stacked(turn: int) -> None:
        DensityTask(flow).train(flow.module, arrays, work(sites, patients, turn), settings)

    def apart(turn: int) -> None:
        for site in work(sites, patients, turn):
            DensityTask(flow).train(flow.module, arrays, [site], settings)

    def records(turn: int) -> None:
        for site in work(sites, patients, turn):
            _by_records(flow, site, settings)

    ways: dict[str, Callable[[int], None]] = {"stacked": stacked, "apart": apart, "records": records}
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, step in ways.items():
            began, used = time.perf_counter(), time.process_time()
            step(turn)
            seen[way].append((time.perf_counter() - began, time.process_time() - used))
    return {way: _medians(rows[1:]) for way, rows in seen.items()}


def _medians(rows: Sequence[tuple[float, float]]) -> dict[str, float]:
    seconds, processor = (median(part) / STEPS for part in zip(*rows, strict=True))
    return {"seconds": seconds, "processor_seconds": processor}


def _by_records(flow: Recipe, site: SiteWork, settings: TrainSettings) -> None:
    """Private Adam steps, a gradient a record, one after another out of the batch's losses."""
    module = flow.module()
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    x = torch.from_numpy(spread(flow, site.rows, np.random.default_rng(0)).x).float()
    for _ in range(settings.local_steps):
        taken = torch.from_numpy(site.sampling.uniform(len(x)) < settings.sample_rate)
        total = clipped_sum(module, x[taken], settings.max_grad_norm)
        total += settings.noise_scale * torch.from_numpy(site.noise.normal(len(total))).float()
        pieces = torch.split(total / (settings.sample_rate * len(x)), [p.numel() for p in module.parameters()])
        for p, piece in zip(module.parameters(), pieces, strict=True):
            p.grad = piece.view_as(p)
        optimizer.step()


def compared(way: str, row: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, Any]:
    """The row with how many times as long it takes as ``ours``, by the clock and by the processor."""
    ratio, processor = (row[name] / ours[name] for name in ("seconds", "processor_seconds"))
    met = None if way == "stacked" else min(ratio, processor) >= GOAL
    return {"way": way, **row, "ratio": ratio, "processor_ratio": processor, "met": met}


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a way and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        f"| a private step of {terms['sites']} hospitals | seconds | of the processor | stacked is faster | by the processor "
        "| goal | met |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for row in result["rows"]:
        peer = row["met"] is not None
        cells = [TITLES[row["way"]], f"{row['seconds']:.3f}", f"{row['processor_seconds']:.3f}"]
        cells += (
            [f"{row['ratio']:.1f}x", f"{row['processor_ratio']:.1f}x", f"≥ {terms['goal']:g}x"] if peer else [""] * 3
        )
        lines.append(f"| {' | '.join([*cells, {True: 'yes', False: 'no', None: ''}[row['met']]])} |")
    return "\n".join(lines) + (
        f"\n\nThe default `maf` of 12 numbers and a label, {terms['patients']} patients a hospital, batches of about "
        f"{terms['batch']}, Adam, one thread. Measured {about['date']} at commit {about['commit']} by `{result['command']}` on "
        f"{about['cpu']}, torch {about['torch']}; load {about['load']} on {about['cores']} cores."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 hospitals of 20 patients; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
