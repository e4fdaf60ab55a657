"""Experiments that packages bring: what one is asked, what it finds, and what is left in its folder.

A package names its experiments as entry points of the group ``polyclinic.experiments``; ``polyclinic reproduce`` lists them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from polyclinic.errors import ConfigError, nearest
from polyclinic.files import NewFile, write_files
from polyclinic.plugins import plugins, resolve
from polyclinic.wire.versions import recorded_versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]
RESULTS, TABLE, CONFIG = "results.json", "table.md", "config.toml"


@dataclass(frozen=True)
class Asked:
    """What a person asks of an experiment; 0 hospitals or seeds are its own number.

    out: the folder of results, in which finished parts stay too.  quick: a small form, of seconds, whose numbers mean nothing.
    methods: by name; none are all.
    """

    out: Path
    preset: str = "sound"
    quick: bool = False
    hospitals: int = 0
    seeds: int = 0
    methods: tuple[str, ...] = ()

    def chosen(self, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Those of ``methods`` that were asked for, all where none was named. Raises ConfigError for another name."""
        for name in self.methods:
            if name not in methods:
                raise ConfigError(
                    f"--method is {name!r}; this experiment has {'; '.join(methods)}.{nearest(name, methods)}"
                )
        return {name: method for name, method in methods.items() if not self.methods or name in self.methods}


@dataclass(frozen=True)
class Target:
    """A result to be reached: what it is, as published, as measured here, the goal in words, and whether it is met.

    met: ``None`` where there is no goal, or where what was run (the short form) cannot tell.
    """

    id: str
    what: str
    paper: str
    measured: str
    goal: str
    met: bool | None


@dataclass(frozen=True, eq=False)
class Findings:
    """What an experiment finds. results: JSON.  tables: Markdown.  figures: by file name without its ending."""

    config: Mapping[str, Any]
    targets: tuple[Target, ...]
    results: Mapping[str, Any]
    tables: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment, called with what is asked of it and with what hears of its progress.

    run: ``package.module:function`` of ``(Asked, Say) -> Findings``, imported when the experiment runs.
    presets: "sound", with a true epsilon; "paper", as published, whatever that keeps.  takes: which of ``hospitals``,
    ``seeds`` and ``methods`` a person may ask for.
    """

    title: str
    run: str
    presets: tuple[str, ...] = ("sound",)
    takes: tuple[str, ...] = ("hospitals", "seeds", "methods")

    def __call__(self, asked: Asked, say: Say) -> Findings:
        module, _, function = self.run.partition(":")
        findings: Findings = getattr(import_module(module), function)(asked, say)
        return findings


def experiments() -> dict[str, Experiment]:
    """All experiments of the installed packages by name. Raises ConfigError for one that does not load."""
    names = [plugin.name for plugin in plugins() if plugin.group == "experiments" and not plugin.problem]
    return {name: experiment_named(name) for name in names}


def experiment_named(name: str) -> Experiment:
    """Raises ConfigError for a name that no installed package brings."""
    experiment = resolve("experiments", name)
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"The experiment {name!r} is a {type(experiment).__name__}, not a polyclinic Experiment.")
    return experiment


def reproduce(name: str, asked: Asked, say: Say) -> dict[str, Any]:
    """Run the experiment ``name`` into ``asked.out`` and return what ``--json`` prints.

    Parts that are finished there under the same settings are not run again. Raises ConfigError for what the experiment
    does not take.
    """
    experiment = experiment_named(name)
    _check(name, experiment, asked)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out is {str(asked.out)!r}, where no folder can be made: {error}.") from None
    return write(name, asked, experiment(asked, say))


def write(name: str, asked: Asked, findings: Findings) -> dict[str, Any]:
    """results.json, table.md, config.toml and the figures, into ``asked.out``."""
    from polyclinic.evaluation.figures.canvas import to_svg

    head = {"name": name, "preset": asked.preset, "targets": [asdict(target) for target in findings.targets]}
    whole = {**head, "quick": asked.quick, "machine": platform.platform(), "versions": recorded_versions(),
             "config": dict(findings.config), **findings.results}  # fmt: skip
    config = tomli_w.dumps(dict(findings.config))
    note = "**Short form: it shows that all parts work; its numbers mean nothing.**\n\n" if asked.quick else ""
    targets = [*filter(None, [_targets(findings.targets)])]
    text = note + "\n".join([*targets, findings.tables, f"Settings:\n\n```toml\n{config}```\n"])
    files = {
        RESULTS: json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        TABLE: text,
        CONFIG: config,
    }
    files |= {f"{figure_name}.svg": to_svg(figure) for figure_name, figure in findings.figures.items()}
    write_files({asked.out / file_name: NewFile(content) for file_name, content in files.items()})
    return {**head, "out": str(asked.out)}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _targets(targets: Sequence[Target]) -> str:
    words = {True: "yes", False: "no", None: ""}
    rows = [[t.id, t.what, t.paper, t.measured, t.goal, words[t.met]] for t in targets]
    return markdown(["target", "what", "published", "measured", "goal", "met"], rows) if rows else ""


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
