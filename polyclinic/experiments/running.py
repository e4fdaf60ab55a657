"""One experiment run into its folder: results.json, table.md, config.toml and figures."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

import polyclinic
from polyclinic.errors import ConfigError
from polyclinic.experiments.commits import commit_of
from polyclinic.experiments.experiment import Asked, Experiment, Findings, Say, experiment_named, markdown
from polyclinic.experiments.targets import Target
from polyclinic.files import NewFile, write_files
from polyclinic.wire.versions import recorded_versions

RESULTS, TABLE, CONFIG = "results.json", "table.md", "config.toml"


def reproduce(name: str, asked: Asked, say: Say) -> dict[str, Any]:
    """Runs the experiment ``name`` into ``asked.out`` and returns what ``--json`` prints.

    Parts that are finished there under the same settings are not run again.

    Args:
        name: The experiment's name.
        asked: The folder, the form and the preset, and how many hospitals, seeds and methods.
        say: Called with each line of progress.

    Raises:
        ConfigError: The experiment does not take what is asked.
    """
    return carry_out(name, experiment_named(name), asked, say)


def carry_out(name: str, experiment: Experiment, asked: Asked, say: Say) -> dict[str, Any]:
    """Runs an experiment that need not be installed, as ``reproduce`` does.

    Args:
        name: The experiment's name.
        experiment: The experiment.
        asked: As in ``reproduce``.
        say: Called with each line of progress.

    Raises:
        ConfigError: The experiment does not take what is asked, or no folder can be made.
    """
    _check(name, experiment, asked)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out is {str(asked.out)!r}, where no folder can be made: {error}.") from None
    commit = commit_of((Path(polyclinic.__file__).parent, experiment.package))
    return write(name, asked, experiment(asked, say), commit)


def write(name: str, asked: Asked, findings: Findings, commit: str | None = None) -> dict[str, Any]:
    """Writes results.json, table.md, config.toml and the figures into ``asked.out``; returns what ``--json`` prints.

    Args:
        name: The experiment's name.
        asked: What was asked of it.
        findings: What it found.
        commit: The commit of the code that found it; None where it is not known.
    """
    from polyclinic.evaluation.figures.canvas import to_svg

    judged = [target.judge(asked.quick, asked.preset) for target in findings.targets]
    head = {"name": name, "preset": asked.preset, "targets": [asdict(target) for target in judged]}
    whole = {**head, "quick": asked.quick, "commit": commit, "machine": platform.platform(), "versions": recorded_versions(),
             "config": dict(findings.config), **findings.results}  # fmt: skip
    config = tomli_w.dumps(dict(findings.config))
    note = "**Short form: it shows that all parts work; its numbers mean nothing.**\n\n" if asked.quick else ""
    targets = [*filter(None, [target_table(judged)])]
    text = note + "\n".join([*targets, findings.tables, f"Settings:\n\n```toml\n{config}```\n"])
    files = {
        RESULTS: json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        TABLE: text,
        CONFIG: config,
    }
    files |= {f"{figure_name}.svg": to_svg(figure) for figure_name, figure in findings.figures.items()}
    write_files({asked.out / file_name: NewFile(content) for file_name, content in files.items()})
    return {**head, "out": str(asked.out)}


def target_table(targets: Sequence[Target]) -> str:
    """The targets of one experiment, judged, in Markdown; empty without any."""
    head = ["target", "what", "published", "measured", "over", "goal", "verdict"]
    rows = [[t.id, t.what, t.paper, t.measured, t.repeats, t.goal, t.verdict] for t in targets]
    return markdown(head, rows) if rows else ""


def _check(name: str, experiment: Experiment, asked: Asked) -> None:
    if asked.preset not in experiment.presets:
        raise ConfigError(f"--preset is {asked.preset!r}; experiment {name!r} has {' and '.join(experiment.presets)}.")
    for option, value in (("hospitals", asked.hospitals), ("seeds", asked.seeds)):
        if value < 0:
            raise ConfigError(f"--{option} is {value}; it must be 1 or more, or 0 for the experiment's own number.")
        if value and option not in experiment.takes:
            raise ConfigError(f"--{option} is {value}; experiment {name!r} has no {option}.")
    if asked.methods and "methods" not in experiment.takes:
        raise ConfigError(f"--method is {asked.methods[0]!r}; experiment {name!r} has no methods.")
