"""The same hospitals, trained without privacy and each alone: what federation gains and what privacy costs.

Only for simulations: these are extra trainings on the same patients, which no budget of the run covers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.server.exchange.sites import Site
from polyclinic.server.federate import Outcome, federate
from polyclinic.server.progress import Progress
from polyclinic.sim.grid import LocalGrid


def compare(
    config: RunConfig,
    grid_for: Callable[[RunConfig], LocalGrid],
    sites: tuple[Site, ...],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Metrics of both, by site: ``without_dp`` (with its pooled metrics) and ``alone`` (same budget, no federation)."""
    watcher, trainings = progress or Progress(), len(sites) + 1
    watcher.doing(f"comparison: 1 of {trainings}, all hospitals without DP")
    config = config.changed({"central.epsilon": 0.0, "secure.aggregation": False, "secure.noise": 0.0})
    open_config = config.changed({"privacy.dp": False})
    without = _last(_run(open_config, grid_for, lambda site: True))
    single = config.changed({"participation.min-sites": 1, "participation.sites": 0, "participation.min-separation": 1})
    alone: dict[str, Any] = {}
    for number, site in enumerate(sites, start=2):
        watcher.doing(f"comparison: {number} of {trainings}, {site.name} alone")
        rows = _last(
            _run(
                single,
                grid_for,
                partial(_is_named, site.name),
            )
        )
        alone[site.name] = rows.get(site.name, {})
    return {
        "without_dp": {
            "pooled": without.get("pooled", {}),
            "sites": {name: row for name, row in without.items() if name not in ("pooled", "macro")},
        },
        "alone": {"sites": alone},
    }


def _is_named(name: str, site: Site) -> bool:
    return site.name == name


def _run(config: RunConfig, grid_for: Callable[[RunConfig], LocalGrid], choose: Callable[[Site], bool]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as home, grid_for(config) as grid:
        return federate(grid, config, "comparison", Path(home), choose=choose)


def _last(outcome: Outcome) -> dict[str, dict[str, float | None]]:
    return {
        row["site"]: {name: row[name] for name in ("auroc", "accuracy", "loss")}
        for row in outcome.state.rows
        if row["round"] == outcome.state.round
    }
