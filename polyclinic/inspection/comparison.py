"""What a simulated run is shown beside: the same hospitals without privacy and each alone, and simple methods of synthesis.

The first two say what federation gains and what privacy costs, so both are fitted as well as they can be. The methods have the
same epsilon as the game beside them.
Only for simulations: these are extra trainings on the same patients, which no budget of the run covers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.judges import TITLES, judge_of
from polyclinic.programs import program_of
from polyclinic.runs.folder import Run
from polyclinic.runs.history import OVERALL
from polyclinic.server.exchange.sites import Site
from polyclinic.server.federate import Places, federate
from polyclinic.server.progress import Progress
from polyclinic.sim.grid import LocalGrid
from polyclinic.training.converged import fit, scale_of
from polyclinic.training.preparation import standardised
from polyclinic.training.task import Task

METHODS = ("moments", "independent")
# What a method of synthesis shares with the game: the patients, and the terms of privacy.
_SHARED = (
    "dataset", "sites", "partitioner", "alpha", "seed", "workers", "ray-address", "timeout", "data.schema-file",
    "privacy.dp", "privacy.epsilon", "privacy.delta", "privacy.overlap", "privacy.patients-per-site",
    "privacy.statistics-share", "synthesis.rows",
)  # fmt: skip
GridFor = Callable[[RunConfig], LocalGrid]


def compare(run: Run, grid_for: GridFor, sites: tuple[Site, ...], progress: Progress | None = None) -> dict[str, Any]:
    """Metrics of both, by site: ``without_dp`` (with its pooled metrics) and ``alone``.

    Where the program can, the run's model is fitted until it converges (``training.converged``), without privacy: to all
    hospitals' patients together, and to each hospital's, who needs no noise to learn from its own patients. Else the run is
    repeated without privacy, and with each hospital alone.
    """
    watcher, names, config = progress or Progress(), [site.name for site in sites], run.config()
    task = program_of(config).converging_task(sites[0].schema)
    alone: dict[str, Any] = {}
    if task is None:
        config = config.changed({"central.epsilon": 0.0, "secure.aggregation": False, "secure.noise": 0.0})
        watcher.doing(f"comparison: 1 of {len(names) + 1}, all hospitals without DP")
        without = _metrics(config.changed({"privacy.dp": False}), grid_for)
        single = config.changed(
            {"participation.min-sites": 1, "participation.sites": 0, "participation.min-separation": 1}
        )
    else:
        simulation = run.simulation("compare a simulation")
        rows = {name: simulation.rows(name) for name in names}
        watcher.doing(f"comparison: 1 of {len(names) + 1}, all patients without DP")
        without = _fitted(config, task, sites[0].schema, rows)
    for number, name in enumerate(names, start=2):
        watcher.doing(f"comparison: {number} of {len(names) + 1}, {name} alone")
        found = (
            _metrics(single, grid_for, name)
            if task is None
            else _fitted(config, task, sites[0].schema, {name: rows[name]})
        )
        alone[name] = found.get(name, {})
    return {
        "without_dp": {
            "pooled": without.get("pooled", {}),
            "sites": {name: row for name, row in without.items() if name not in OVERALL},
        },
        "alone": {"sites": alone},
    }


def beside(config: RunConfig, grid_for: GridFor, progress: Progress | None = None) -> dict[str, dict[str, Any]]:
    """By method its pooled ``auroc`` and ``accuracy`` as the game's own, or ``error``: why it has none."""
    watcher, flat = progress or Progress(), config.flat()
    found: dict[str, dict[str, Any]] = {}
    for number, method in enumerate(METHODS, start=1):
        watcher.doing(f"baseline {number} of {len(METHODS)}: {method}")
        try:
            simple = RunConfig.build({key: flat[key] for key in _SHARED} | {"task": "synthesis", "model": method})
            rows = _metrics(simple, grid_for)
        except PolyclinicError as error:
            found[method] = {"error": str(error)}
        else:
            overall = rows.get("pooled") or rows.get("macro") or {}
            found[method] = {name: overall.get(name) for name in ("auroc", "accuracy")}
    return found


def _metrics(config: RunConfig, grid_for: GridFor, only: str = "") -> dict[str, dict[str, float | None]]:
    """By site the metrics after the last round of a training of all hospitals, or of ``only`` one."""
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as home, grid_for(config) as grid:
        state = federate(
            grid, config, "comparison", Places(Path(home)), choose=lambda site: only in ("", site.name)
        ).state
    return {row["site"]: _shown(row) for row in state.newest_rows()}


def _fitted(
    config: RunConfig, task: Task, schema: Schema, sites: Mapping[str, tuple[Rows, Rows]]
) -> dict[str, dict[str, float | None]]:
    """By site and ``pooled`` the metrics of one model fitted to the training patients of all ``sites``, on those held out.

    sites: training and held-out rows by name.
    """
    program = program_of(config)
    judge = judge_of(program.objective(schema))
    train = Rows.joined([train for train, _ in sites.values()])
    scale = scale_of(train)
    model = fit(task, program.builder(schema), program.first(schema), standardised(train, scale), config.seed)
    held_out = [standardised(test, scale) for _, test in sites.values()]
    scores = program.scores(schema, model, held_out)
    labels = [rows.y for rows in held_out]
    pairs = dict(zip(sites, zip(labels, scores, strict=True), strict=True))
    pairs["pooled"] = np.concatenate(labels), np.concatenate(scores)
    return {name: _shown(judge.exact(*pair)) for name, pair in pairs.items()}


def _shown(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if name in TITLES}
