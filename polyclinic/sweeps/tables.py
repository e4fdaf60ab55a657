"""The tables of a sweep: a row a run, and what the repetitions of each combination come to, read from the runs' folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.split import held_out_per_training
from polyclinic.evaluation.intervals import summarize_repetitions
from polyclinic.evaluation.judges import calibration_targets, compared_metrics, headline, titles
from polyclinic.files import NewFile, as_text, write_files
from polyclinic.runs.folder import Run
from polyclinic.sweeps.carrying import Execute, Outcome, Watch, carry_out
from polyclinic.sweeps.plan import Planned, Value

POOLED = "pooled"


@dataclass(frozen=True)
class Combination:
    """What the runs with the same values of the keys that vary come to.

    runs: How many finished.
    estimates: By hospital (or ``pooled``) and metric what ``intervals.summarize_repetitions`` makes of them.
    """

    values: Mapping[str, Value]
    runs: int
    estimates: Mapping[tuple[str, str], dict[str, float | None]]

    @property
    def pooled(self) -> dict[str, dict[str, float | None]]:
        """By metric the estimates over all hospitals: of ``epsilon`` and ``seconds``, then of what held-out patients measure."""
        return {metric: estimate for (site, metric), estimate in self.estimates.items() if site == POOLED}


@dataclass(frozen=True)
class Sweep:
    """A sweep that was carried out.

    folder: Of the runs and of the tables.
    table: A row a run (``results``).
    combinations: What the repetitions of each combination come to, in their order.
    """

    folder: Path
    outcomes: Sequence[Outcome]
    table: pd.DataFrame
    combinations: Sequence[Combination]

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each combination, hospital (or ``pooled``) and metric: the values that vary and the estimate."""
        return pd.DataFrame(
            {**each.values, "site": site, "metric": metric, **estimate}
            for each in self.combinations for (site, metric), estimate in each.estimates.items()
        )  # fmt: skip

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.run is None]


def sweep(runs: Sequence[Planned], execute: Execute, jobs: int = 1, watch: Watch | None = None) -> Sweep:
    """Carry out the runs in their configurations' ``out``, and write tables and page there. Errors as ``carry_out``.

    Args:
        runs: At least one, all with the same ``out``.
        execute, jobs, watch: As in ``carry_out``.
    """
    folder = Path(runs[0].config.out).expanduser().resolve()
    outcomes = carry_out(runs, folder, execute, jobs, watch)
    table = results(outcomes)
    result = Sweep(folder, outcomes, table, combine(table, runs))
    write_tables(result)
    write_page(result)
    return result


def results(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row a run: the values that vary, the seeds and the fold, ``run`` (its folder's name) and ``status``.

    As far as the run went, ``epsilon``, ``seconds``, the pooled metrics by their names and each hospital's as ``auroc@HOSPITAL``.
    """
    rows = []
    for outcome in outcomes:
        row: dict[str, Any] = {**outcome.planned.values, **outcome.planned.repetition}
        if outcome.run is None:
            rows.append(row | {"run": None, "status": f"failed: {outcome.error}"})
            continue
        summary, sites = outcome.run.summary(), last_metrics(outcome.run)
        status = f"stopped: {summary.stopped}" if summary.stopped else "finished"
        row |= {
            "run": outcome.run.name,
            "status": status,
            "epsilon": summary.privacy.epsilon,
            "seconds": summary.seconds,
        }
        pooled = sites.pop(POOLED)
        undefined = dict.fromkeys((summary.evaluation or {}).get(POOLED) or {}, np.nan)
        row |= pooled | {name: value for name, value in undefined.items() if name not in pooled}
        rows.append(row | {f"{metric}@{site}": value for site, own in sites.items() for metric, value in own.items()})
    return pd.DataFrame(rows)


def last_metrics(run: Run) -> dict[str, dict[str, float]]:
    """The last model's metrics by hospital, and of all held-out patients together as ``pooled``; undefined ones are left out."""
    summary = run.summary()
    judged = summary.evaluation or {}
    estimates = {POOLED: judged.get(POOLED) or {}, **(judged.get("sites") or {})}
    metrics, names = {}, set(summary.metrics.pooled.model_dump()) - {"released"}
    for site, row in {POOLED: summary.metrics.pooled, **summary.metrics.sites}.items():
        exact = row.model_dump(include=names, exclude_none=True)
        values = {name: estimate["value"] for name, estimate in estimates.get(site, {}).items()} | exact
        metrics[site] = {name: float(value) for name, value in values.items() if value is not None}
    return metrics


def combine(table: pd.DataFrame, runs: Sequence[Planned]) -> list[Combination]:
    """What the repetitions of each combination come to.

    Args:
        table: Of ``results``.
        runs: The same runs, in the same order.
    """
    metrics = list(table.columns)[list(table.columns).index("status") + 1 :]
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run.combination, []).append(place)
    combinations = []
    for several in places.values():
        estimates, share = {}, held_out_per_training([runs[place].config.split.rule for place in several])
        for column in metrics:
            metric, _, site = column.partition("@")
            if values := table[column].iloc[several].dropna().tolist():
                estimates[site or POOLED, metric] = summarize_repetitions(values, share)
        combinations.append(Combination(runs[several[0]].values, int(table["run"].iloc[several].count()), estimates))
    return combinations


def write_tables(sweep: Sweep) -> None:
    """``sweep.csv`` and ``sweep.parquet`` of the runs, ``sweep-summary.csv`` and ``sweep-summary.parquet`` of the summary."""
    files = {}
    for name, frame in (("sweep", sweep.table), ("sweep-summary", sweep.summary)):
        text = frame.rename(columns=as_text).map(as_text).to_csv(index=False)
        files[sweep.folder / f"{name}.csv"] = NewFile(text)
        files[sweep.folder / f"{name}.parquet"] = NewFile(partial(frame.to_parquet, index=False))
    write_files(files)


def write_page(sweep: Sweep) -> Path:
    """``sweep.html``: curves and intervals; returns its path."""
    from polyclinic.evaluation.report.sweep import Row, render_sweep  # with the figures' matplotlib, only at the end

    summaries = [outcome.run.summary_json() for outcome in sweep.outcomes if outcome.run]
    named = {name: title for summary in reversed(summaries) for name, title in titles(summary).items()}
    shown = dict.fromkeys(
        name
        for each in summaries
        for name in (*compared_metrics(each), *list(calibration_targets(each))[:1], *headline(each))
    )
    configs = [outcome.planned.config.flat() for outcome in sweep.outcomes]
    shared = {key: value for key, value in configs[0].items() if all(config[key] == value for config in configs)}
    return render_sweep(
        [Row(each.values, each.runs, each.pooled) for each in sweep.combinations],
        [f"{outcome.planned}: {outcome.error}" for outcome in sweep.failed],
        {key: value for key, value in shared.items() if key != "out"},
        {name: named[name] for name in shown},
        sweep.folder / "sweep.html",
    )
