"""What a simulated run is shown beside: the same hospitals without privacy and each alone, and simple methods of synthesis.

The first two say what federation gains and what privacy costs, so both are fitted as well as they can be. The methods have the
same epsilon as the game beside them.
Only for simulations: these are extra trainings on the same patients, which no budget of the run covers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.config import RunConfig
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
from polyclinic.training.preparation import standardise

METHODS = ("moments", "independent")
# What a method of synthesis shares with the game: the patients, and the terms of privacy.
_SHARED = (
    "dataset", "sites", "partitioner", "alpha", "seed", "workers", "ray-address", "timeout", "data.schema-file",
    "privacy.dp", "privacy.epsilon", "privacy.delta", "privacy.overlap", "privacy.patients-per-site",
    "privacy.statistics-share", "synthesis.rows",
)  # fmt: skip
GridFor = Callable[[RunConfig], LocalGrid]
#: By site, and ``pooled``, its metrics.
Metrics = dict[str, dict[str, float | None]]
#: Of hospitals' names: the metrics of one model of all their patients.
Measure = Callable[[Sequence[str]], Metrics]


def compare(run: Run, grid_for: GridFor, sites: tuple[Site, ...], progress: Progress | None = None) -> dict[str, Any]:
    """Return the metrics of models without privacy, by site: ``without_dp`` (with its pooled metrics) and ``alone``.

    Where the program can, the run's model is fitted until it converges (``training.converged``), without privacy. It is
    fitted to all hospitals' patients together, and to each hospital's, who needs no noise to learn from its own
    patients. Else the run is repeated without privacy, and with each hospital alone.

    Args:
        run: The finished run.
        grid_for: From a configuration to the simulated hospitals that train under it.
        sites: The run's hospitals.
        progress: Shows what is under way; None shows nothing.
    """
    watcher, names, config = progress or Progress(), [site.name for site in sites], run.config()
    measure = _by_fitting(run, config, sites) or _by_repeating(config, grid_for)
    watcher.on_step(f"comparison: 1 of {len(names) + 1}, all patients without DP")
    without, alone = measure(names), {}
    for number, name in enumerate(names, start=2):
        watcher.on_step(f"comparison: {number} of {len(names) + 1}, {name} alone")
        alone[name] = measure([name]).get(name, {})
    return {
        "without_dp": {
            "pooled": without.get("pooled", {}),
            "sites": {name: row for name, row in without.items() if name not in OVERALL},
        },
        "alone": {"sites": alone},
    }


def _by_repeating(config: RunConfig, grid_for: GridFor) -> Measure:
    """The run again: without privacy of several hospitals, as it was of one alone."""
    config = config.with_values({"central.epsilon": 0.0, "secure.aggregation": False, "secure.noise": 0.0})
    single = {"participation.min-sites": 1, "participation.sites": 0, "participation.min-separation": 1}

    def measure(names: Sequence[str]) -> Metrics:
        if len(names) > 1:
            return _metrics(config.with_values({"privacy.dp": False}), grid_for)
        return _metrics(config.with_values(single), grid_for, names[0])

    return measure


def _by_fitting(run: Run, config: RunConfig, sites: Sequence[Site]) -> Measure | None:
    """The run's model fitted to the patients of the hospitals until it converges; None where the program cannot."""
    schema, program = sites[0].schema, program_of(config)
    task = program.converging_task(schema)
    if task is None:
        return None
    simulation = run.simulation("compare a simulation")
    rows = {site.name: simulation.rows(site.name) for site in sites}
    judge = judge_of(program.objective(schema))

    def measure(names: Sequence[str]) -> Metrics:
        train = Rows.join([rows[name][0] for name in names])
        scale = scale_of(train)
        model = fit(task, program.builder(schema), program.first(schema), standardise(train, scale), config.seed)
        held_out = [standardise(rows[name][1], scale) for name in names]
        labels, scores = [part.y for part in held_out], program.scores(schema, model, held_out)
        pairs = dict(zip(names, zip(labels, scores, strict=True), strict=True))
        pairs["pooled"] = np.concatenate(labels), np.concatenate(scores)
        return {name: _keep_titled(judge.exact(*pair)) for name, pair in pairs.items()}

    return measure


def beside(config: RunConfig, grid_for: GridFor, progress: Progress | None = None) -> dict[str, dict[str, Any]]:
    """Return for each simple method of synthesis its pooled ``auroc`` and ``accuracy``, or ``error``: why it has none.

    The metrics are computed as those of the adversarial game's own generator.

    Args:
        config: The run's configuration, of which the methods share the patients and the terms of privacy.
        grid_for: From a configuration to the simulated hospitals that train under it.
        progress: Shows what is under way; None shows nothing.
    """
    watcher, flat = progress or Progress(), config.flat()
    by_method: dict[str, dict[str, Any]] = {}
    for number, method in enumerate(METHODS, start=1):
        watcher.on_step(f"baseline {number} of {len(METHODS)}: {method}")
        try:
            simple = RunConfig.build({key: flat[key] for key in _SHARED} | {"task": "synthesis", "model": method})
            rows = _metrics(simple, grid_for)
        except PolyclinicError as error:
            by_method[method] = {"error": str(error)}
        else:
            overall = rows.get("pooled") or rows.get("macro") or {}
            by_method[method] = {name: overall.get(name) for name in ("auroc", "accuracy")}
    return by_method


def _metrics(config: RunConfig, grid_for: GridFor, only: str = "") -> Metrics:
    """By site the metrics after the last round of a training of all hospitals, or of ``only`` one."""
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as home, grid_for(config) as grid:
        state = federate(
            grid, config, "comparison", Places(Path(home)), choose=lambda site: only in ("", site.name)
        ).state
    return {row["site"]: _keep_titled(row) for row in state.newest_rows()}


def _keep_titled(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if name in TITLES}
