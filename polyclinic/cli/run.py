"""``polyclinic run``, here or under Flower, and ``polyclinic show``: one run, from its configuration to its table."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from polyclinic.cli.terminal import Json, assignments, console, loading, print_json
from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, without_name
from polyclinic.toml import read_toml

flower = typer.Typer(no_args_is_help=True, help="The same run under Flower's own runtime.")

Config = Annotated[Path | None, typer.Argument(help="TOML file of configuration keys.")]
_MOST_DROPOUTS = 20
Set = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
]
Dataset = Annotated[str | None, typer.Option(help="Dataset by name.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Your own tables, CSV or Parquet: a folder with a file for each hospital, or NAME=FILE; repeatable.",
    ),
]
Label = Annotated[str | None, typer.Option(help="With --data: the column of the outcome.")]
Patient = Annotated[str | None, typer.Option(help="With --data: the column that names the patient.")]
SiteColumn = Annotated[
    str | None, typer.Option("--site", help="With --data, one file: the column that names the hospital.")
]
Sites = Annotated[int | None, typer.Option(help="Number of hospitals.")]
Rounds = Annotated[int | None, typer.Option(help="Federated rounds.")]
Epsilon = Annotated[float | None, typer.Option(help="Privacy budget of each hospital.")]
Delta = Annotated[float | None, typer.Option(help="Target delta.")]
NoDp = Annotated[bool, typer.Option("--no-dp", help="Train without differential privacy.")]
Strategy = Annotated[str | None, typer.Option(help="Strategy by name or package.module:Name.")]
Task = Annotated[str | None, typer.Option(help="Task by name.")]
Model = Annotated[str | None, typer.Option(help="Model, or method of task synthesis, by name.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the simulation.")]
Out = Annotated[str | None, typer.Option(help="Folder in which the run's folder is made.")]


def run(
    config: Config = None,
    sets: Set = None,
    dataset: Dataset = None,
    data: Data = None,
    label: Label = None,
    patient: Patient = None,
    site: SiteColumn = None,
    sites: Sites = None,
    rounds: Rounds = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    no_dp: NoDp = False,
    strategy: Strategy = None,
    task: Task = None,
    model: Model = None,
    seed: Seed = None,
    workers: Annotated[int | None, typer.Option(help="Processes that train hospitals side by side.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Workers are Ray actors: local, auto, or HOST:PORT of a cluster.")
    ] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that the workers share; 0.5 is half of one.")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints that are kept, the newest.")] = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run from its last checkpoint.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also train without DP, and each hospital alone.")] = False,
    as_json: Json = False,
) -> None:
    """Train one model over several hospitals; without arguments, the embedded default."""
    given = _given({
        "dataset": dataset, "sites": sites, "rounds": rounds, "strategy": strategy, "task": task, "model": model,
        "seed": seed, "workers": workers, "ray-address": ray_address, "gpus": gpus, "out": out,
        "privacy.epsilon": epsilon, "privacy.delta": delta, "checkpoints.kept": keep,
    }, no_dp, data, {"label": label, "patient": patient, "site": site})  # fmt: skip
    screen = console(as_json)
    if resume is not None and (config is not None or sets or given or compare):
        raise ConfigError("--resume goes on with a run as it was configured; give it alone.")
    resolved = RunConfig.build(*_layers(config, sets, given))
    with screen.status("Starting", spinner="line"), loading():
        from polyclinic.cli.live import LiveProgress
        from polyclinic.federation import Federation
    # With --json, what plug-ins or Ray print must not get between a reader and the JSON.
    with redirect_stdout(sys.stderr if as_json else sys.stdout), LiveProgress(screen) as progress:
        if resume is not None:
            result = Federation.resume(resume, progress=progress)
        else:
            result = Federation.from_config(resolved).run(progress=progress, comparison=compare)
    if as_json:
        print_json(result.summary)
    else:
        _print_result(screen, result.summary)
        screen.print(f"Report: {result.folder.report}", soft_wrap=True)
    if result.summary["stopped"]:
        raise typer.Exit(BudgetRefused.exit_code)
    if (posterior := result.summary["posterior"]) and posterior["refused"]:
        raise PolyclinicError(f"{posterior['refused']} What was spent is in {result.folder.statement_file}.")


def _print_result(screen: Console, summary: dict[str, Any]) -> None:
    from polyclinic.cli.live import privacy_sentence, result_table
    from polyclinic.cli.posterior import posterior_table

    screen.print(result_table(summary, screen))
    if (posterior := summary.get("posterior")) and posterior["finished"]:
        screen.print(posterior_table(posterior))
    screen.print(privacy_sentence(summary))
    drops = summary["dropouts"]
    for drop in drops[:_MOST_DROPOUTS]:
        what = f" in round {drop['round']}: {drop['site']}: {without_name(drop['site'], drop['reason'])}"
        screen.print(Text.assemble(("Dropped out", "yellow"), what), soft_wrap=True)
    if len(drops) > _MOST_DROPOUTS:
        screen.print(f"{len(drops) - _MOST_DROPOUTS:,} more dropouts are in summary.json.", style="yellow")
    for note in summary["notes"]:
        screen.print(note, style="dim")


def show(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a folder with one.")],
    as_json: Json = False,
) -> None:
    """Print a finished run."""
    with loading():
        from polyclinic.runs.folder import Run

    summary = Run.open(run).summary_json()
    if as_json:
        print_json(summary)
    else:
        _print_result(console(), summary)
        if (posterior := summary.get("posterior")) and posterior["refused"]:
            console().print(posterior["refused"], style="yellow")


@flower.command("run")
def flower_run(
    config: Config = None,
    sets: Set = None,
    dataset: Dataset = None,
    data: Data = None,
    label: Label = None,
    patient: Patient = None,
    site: SiteColumn = None,
    sites: Sites = None,
    rounds: Rounds = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    no_dp: NoDp = False,
    strategy: Strategy = None,
    task: Task = None,
    model: Model = None,
    seed: Seed = None,
    out: Out = None,
    app_dir: Annotated[
        Path | None, typer.Option("--app", help="Folder of a Flower app; without it, Polyclinic's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """`polyclinic run` under Flower's runtime: its SuperLink and Ray simulation, the true exit status, and all stopped after."""
    from polyclinic.cli.flower import run_under_flower

    given = _given({
        "dataset": dataset, "sites": sites, "rounds": rounds, "strategy": strategy, "task": task, "model": model,
        "seed": seed, "out": out, "privacy.epsilon": epsilon, "privacy.delta": delta,
    }, no_dp, data, {"label": label, "patient": patient, "site": site})  # fmt: skip
    result = run_under_flower(_layers(config, sets, given), app_dir, console(as_json))
    if as_json:
        print_json(result.summary)
    else:
        _print_result(console(), result.summary)
        console().print(f"Run folder: {result.path}", soft_wrap=True)


def _given(
    flags: dict[str, Any], no_dp: bool, data: list[str] | None, columns: dict[str, str | None]
) -> dict[str, Any]:
    """The keys of the flags that were given. data, columns: one's own tables, and the columns of theirs that were named."""
    given = {key: value for key, value in flags.items() if value is not None}
    named = {key: value for key, value in columns.items() if value is not None}
    if named and not data:
        raise ConfigError(f"--{next(iter(named))} names a column of your own tables; give these by --data.")
    if data:
        if "dataset" in given:
            raise ConfigError(
                f"--dataset is {given['dataset']!r} but --data gives tables of your own; give one of them."
            )
        given |= {"dataset": "tables", "dataset-options": {"files": data[0] if len(data) == 1 else data, **named}}
    return given | ({"privacy.dp": False} if no_dp else {})


def _layers(config: Path | None, sets: list[str] | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The keys of a file, of ``-c`` and of flags."""
    return [read_toml(config, "configuration file") if config else {}, assignments(sets), given]
