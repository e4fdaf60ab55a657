"""What a simulated run is shown beside: the same hospitals without privacy and each alone, and simple methods of synthesis.

The first two say what federation gains and what privacy costs; the methods have the same epsilon as the game beside them.
Only for simulations: these are extra trainings on the same patients, which no budget of the run covers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.runs.history import OVERALL
from polyclinic.server.exchange.sites import Site
from polyclinic.server.federate import Places, federate
from polyclinic.server.progress import Progress
from polyclinic.sim.grid import LocalGrid

METHODS = ("moments", "independent")
# What a method of synthesis shares with the game: the patients, and the terms of privacy.
_SHARED = (
    "dataset", "sites", "partitioner", "alpha", "seed", "workers", "ray-address", "timeout", "data.schema-file",
    "privacy.dp", "privacy.epsilon", "privacy.delta", "privacy.overlap", "privacy.patients-per-site",
    "privacy.statistics-share", "synthesis.rows",
)  # fmt: skip
GridFor = Callable[[RunConfig], LocalGrid]


def compare(
    config: RunConfig, grid_for: GridFor, sites: tuple[Site, ...], progress: Progress | None = None
) -> dict[str, Any]:
    """Metrics of both, by site: ``without_dp`` (with its pooled metrics) and ``alone`` (same budget, no federation)."""
    watcher, trainings = progress or Progress(), len(sites) + 1
    watcher.doing(f"comparison: 1 of {trainings}, all hospitals without DP")
    config = config.changed({"central.epsilon": 0.0, "secure.aggregation": False, "secure.noise": 0.0})
    without = _metrics(config.changed({"privacy.dp": False}), grid_for)
    single = config.changed({"participation.min-sites": 1, "participation.sites": 0, "participation.min-separation": 1})
    alone = {}
    for number, site in enumerate(sites, start=2):
        watcher.doing(f"comparison: {number} of {trainings}, {site.name} alone")
        alone[site.name] = _metrics(single, grid_for, site.name).get(site.name, {})
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
    return {row["site"]: {name: row.get(name) for name in ("auroc", "accuracy", "loss")} for row in state.newest_rows()}
