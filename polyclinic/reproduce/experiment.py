"""What an experiment is asked, what it finds, what is left in its folder, and the list of experiments."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import tomli_w
from matplotlib.figure import Figure

from polyclinic.errors import ConfigError, nearest
from polyclinic.evaluation.plots import to_svg
from polyclinic.versions import recorded_versions

Say = Callable[[str], None]
Preset = Literal["sound", "paper"]
RESULTS, TABLE, CONFIG = "results.json", "table.md", "config.toml"


@dataclass(frozen=True)
class Asked:
    """What a person asked for; 0 hospitals or seeds are the experiment's own number.

    out: the folder of results, in which finished parts are kept too.  quick: a small form, of seconds, whose numbers
    mean nothing.  federation: also one hospital against several (sprint only).  methods: by name; none are all.
    """

    out: Path
    preset: Preset = "sound"
    quick: bool = False
    hospitals: int = 0
    seeds: int = 0
    federation: bool = False
    methods: tuple[str, ...] = ()

    def chosen(self, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Those of ``methods`` that were asked for, all where none was named. Raises ConfigError for another name."""
        for name in self.methods:
            if name not in methods:
                raise ConfigError(
                    f"--method is {name!r}; this experiment has {'; '.join(methods)}.{nearest(name, methods)}"
                )
        return {name: one for name, one in methods.items() if not self.methods or name in self.methods}


@dataclass(frozen=True)
class Target:
    """One thing to be reached: what, as published, as measured here, the goal in words, and whether it is met.

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
    """What an experiment found. results: JSON.  tables: Markdown.  figures: by file name without its ending."""

    config: Mapping[str, Any]
    targets: tuple[Target, ...]
    results: Mapping[str, Any]
    tables: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment by name. module: one of this package, imported when it runs.

    Its ``run(asked, say) -> Findings``, or, with ``plain``, ``run(out, quick) -> dict``, which writes its files itself.
    """

    name: str
    title: str
    module: str
    presets: tuple[str, ...] = ("sound",)
    plain: bool = False


_LISTED = (
    Experiment(
        "sprint", "A two-arm trial by DP AC-GAN (Beaulieu-Jones et al. 2019) and by what beats it", "sprint", ("sound", "paper")
    ),
    Experiment("mimic-hf", "Vital signs and heart failure by DP AC-GAN (the same paper)", "mimic_hf", ("sound", "paper")),
    Experiment(
        "icd", "Sets of 1,071 ICD-9 codes by DPGAN (Xie et al. 2018) and PPGAN (Liu et al. 2019)", "icd", ("sound", "paper")
    ),
    Experiment("digits", "Pictures of digits, 8 x 8, by DPGAN and PPGAN", "digits", ("sound", "paper")),
    Experiment("mnist", "The same of MNIST, where its files are given", "mnist", ("sound", "paper")),
    Experiment("stated", "What DPGAN, PPGAN and the AC-GAN state of epsilon, and what it comes to", "stated", plain=True),
    Experiment("cvsim6", "A model of the circulation, its surrogate, and its parameters from patients", "cvsim6", plain=True),
    Experiment("dissimilarity", "Parameters from synthetic records under four dissimilarities", "dissimilarity", plain=True),
    Experiment("regression", "Posteriors of a nonlinear regression: exact, by flows, and by private sums", "regression"),
    Experiment("ehr-vi", "Two parameters of the circulation from private patients, and losses that keep correlations", "ehr_vi"),
    Experiment(
        "ehr-flow", "Patients after a right heart catheter by private normalizing flows (Su et al. 2023)", "ehr_flow",
        ("sound", "paper"),
    ),
    Experiment("gdp", "What normalizing flows' published epsilons come to (Su et al. 2023)", "gdp", plain=True),
)  # fmt: skip
EXPERIMENTS = {experiment.name: experiment for experiment in _LISTED}


def experiment_named(name: str) -> Experiment:
    """Raises ConfigError for a name that is not in the list."""
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}.{nearest(name, EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def reproduce(experiment: Experiment, asked: Asked, say: Say) -> dict[str, Any]:
    """Run an experiment into ``asked.out`` and return what ``--json`` prints.

    Parts that are finished there under the same settings are not run again. Raises ConfigError for what the experiment
    does not take.
    """
    _check(experiment, asked)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out is {str(asked.out)!r}, where no folder can be made: {error}.") from None
    run = import_module(f"polyclinic.reproduce.{experiment.module}").run
    if experiment.plain:
        found: dict[str, Any] = run(asked.out, asked.quick)
        return {
            "name": experiment.name,
            "preset": asked.preset,
            "targets": found.get("targets", []),
            "out": str(asked.out),
        }
    return write(experiment, asked, run(asked, say))


def write(experiment: Experiment, asked: Asked, found: Findings) -> dict[str, Any]:
    """results.json, table.md, config.toml and the figures, into ``asked.out``."""
    head = {"name": experiment.name, "preset": asked.preset, "targets": [asdict(target) for target in found.targets]}
    whole = {**head, "quick": asked.quick, "machine": platform.platform(), "versions": recorded_versions(),
             "config": dict(found.config), **found.results}  # fmt: skip
    config = tomli_w.dumps(dict(found.config))
    note = "**Short form: it shows that all parts work; its numbers mean nothing.**\n\n" if asked.quick else ""
    text = f"{note}{targets_table(found.targets)}\n{found.tables}\nSettings:\n\n```toml\n{config}```\n"
    (asked.out / RESULTS).write_text(
        json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
    (asked.out / TABLE).write_text(text, encoding="utf-8")
    (asked.out / CONFIG).write_text(config, encoding="utf-8")
    for name, figure in found.figures.items():
        (asked.out / f"{name}.svg").write_text(to_svg(figure), encoding="utf-8")
    return {**head, "out": str(asked.out)}


def targets_table(targets: tuple[Target, ...]) -> str:
    """The targets in Markdown."""
    from polyclinic.reproduce.tables import markdown

    words = {True: "yes", False: "no", None: ""}
    rows = [[t.id, t.what, t.paper, t.measured, t.goal, words[t.met]] for t in targets]
    return markdown(["target", "what", "published", "measured", "goal", "met"], rows) if rows else ""


def _check(experiment: Experiment, asked: Asked) -> None:
    if asked.preset not in experiment.presets:
        raise ConfigError(
            f"--preset is {asked.preset!r}; experiment {experiment.name!r} has {' and '.join(experiment.presets)}."
        )
    for name, value in (("hospitals", asked.hospitals), ("seeds", asked.seeds)):
        if value < 0:
            raise ConfigError(f"--{name} is {value}; it must be 1 or more, or 0 for the experiment's own number.")
        if value and experiment.plain:
            raise ConfigError(f"--{name} is {value}; experiment {experiment.name!r} has no {name}.")
    if asked.methods and experiment.plain:
        raise ConfigError(f"--method is {asked.methods[0]!r}; experiment {experiment.name!r} has no methods.")
    if asked.federation and experiment.name != "sprint":
        raise ConfigError(f"--federation is a part of experiment 'sprint', not of {experiment.name!r}.")
