"""An experiment: what one is asked, what it finds, and which the installed packages bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.experiments.targets import Target
from polyclinic.plugins import plugins, resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]


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

    def select(self, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Those of ``methods`` that were asked for, all where none was named. Raises ConfigError for another name."""
        for name in self.methods:
            if name not in methods:
                raise ConfigError(
                    f"--method is {name!r}; this experiment has {'; '.join(methods)}.{nearest(name, methods)}"
                )
        return {name: method for name, method in methods.items() if not self.methods or name in self.methods}


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
    presets: "sound", with a true epsilon; "paper", as published, whatever that keeps.
    takes: which of ``hospitals``, ``seeds`` and ``methods`` a person may ask for.
    goals: what its targets' ids stand for, in words.
    hours: of one core, about, that its full form takes; 0 for less than a minute.
    """

    title: str
    run: str
    presets: tuple[str, ...] = ("sound",)
    takes: tuple[str, ...] = ("hospitals", "seeds", "methods")
    goals: Mapping[str, str] = field(default_factory=dict)
    hours: float = 0.0

    def __call__(self, asked: Asked, say: Say) -> Findings:
        module, _, function = self.run.partition(":")
        findings: Findings = getattr(import_module(module), function)(asked, say)
        return findings

    @property
    def package(self) -> Path:
        """The folder of the package that brings it."""
        return Path(str(import_module(self.run.partition(".")[0]).__file__)).parent


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


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
