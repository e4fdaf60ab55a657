"""What a game is shown beside: simple methods of synthesis over the same hospitals at the same epsilon.

Only for simulations: these are extra releases of the same patients, which no budget of the run covers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.server.federate import federate
from polyclinic.server.progress import Progress
from polyclinic.sim.grid import LocalGrid

METHODS = ("moments", "independent")
# What a baseline shares with the game: the patients, and the terms of privacy.
_SHARED = (
    "dataset", "sites", "partitioner", "alpha", "seed", "workers", "ray-address", "timeout", "data.schema-file",
    "privacy.dp", "privacy.epsilon", "privacy.delta", "privacy.overlap", "privacy.patients-per-site",
    "privacy.statistics-share", "synthesis.rows",
)  # fmt: skip


def beside(
    config: RunConfig, grid_for: Callable[[RunConfig], LocalGrid], progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """By method its pooled ``auroc`` and ``accuracy`` as the game's own, or ``error``: why it has none."""
    watcher, flat = progress or Progress(), config.flat()
    found: dict[str, dict[str, Any]] = {}
    for number, method in enumerate(METHODS, start=1):
        watcher.doing(f"baseline {number} of {len(METHODS)}: {method}")
        try:
            simple = RunConfig.build({key: flat[key] for key in _SHARED} | {"task": "synthesis", "model": method})
            found[method] = _metrics(simple, grid_for)
        except PolyclinicError as error:
            found[method] = {"error": str(error)}
    return found


def _metrics(config: RunConfig, grid_for: Callable[[RunConfig], LocalGrid]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as home, grid_for(config) as grid:
        state = federate(grid, config, "baseline", Path(home)).state
    rows = {row["site"]: row for row in state.newest_rows()}
    overall = rows.get("pooled") or rows.get("macro") or {}
    return {name: overall.get(name) for name in ("auroc", "accuracy")}
