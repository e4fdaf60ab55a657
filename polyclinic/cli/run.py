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

Config = Annotated[Path | None, typer.Argument(help="TOML file of configuration keys.", show_default=False)]
_MOST_DROPOUTS = 20
Set = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
]


def run(
    config: Config = None,
    sets: Set = None,
    dataset: Annotated[str | None, typer.Option(help="Dataset by name.")] = None,
    sites: Annotated[int | None, typer.Option(help="Number of hospitals.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Federated rounds.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of each hospital.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None,
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Train without differential privacy.")] = False,
    strategy: Annotated[str | None, typer.Option(help="Strategy by name or package.module:Name.")] = None,
    task: Annotated[str | None, typer.Option(help="Task by name.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, or method of task synthesis, by name.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that train hospitals side by side.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Workers are Ray actors: local, auto, or HOST:PORT of a cluster.")
    ] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that the workers share; 0.5 is half of one.")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints that are kept, the newest.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder in which the run's folder is made.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run from its last checkpoint.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also train without DP, and each hospital alone.")] = False,
    as_json: Json = False,
) -> None:
    """Train one model over several hospitals; without arguments, the embedded default."""
    flags = {
        "dataset": dataset, "sites": sites, "rounds": rounds, "epsilon": epsilon, "delta": delta, "strategy": strategy,
        "task": task, "model": model, "seed": seed, "workers": workers, "ray_address": ray_address, "gpus": gpus,
        "checkpoints_kept": keep, "out": out,
    }  # fmt: skip
    given = {key: value for key, value in flags.items() if value is not None} | ({"dp": False} if no_dp else {})
    screen = console(as_json)
    if resume is not None and (config is not None or sets or given or compare):
        raise ConfigError("--resume goes on with a run as it was configured; give it alone.")
    resolved = RunConfig.build(read_toml(config, "configuration file") if config else {}, assignments(sets), given)
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
        screen.print(f"Report: {result.path / 'report.html'}", soft_wrap=True)
    if result.summary["stopped"]:
        raise typer.Exit(BudgetRefused.exit_code)
    if (posterior := result.summary["posterior"]) and posterior["refused"]:
        raise PolyclinicError(f"{posterior['refused']} What was spent is in {result.path / 'ledger.json'}.")


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
    run: Annotated[Path, typer.Argument(help="A run's folder, or a folder with one.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Print a finished run."""
    with loading():
        from polyclinic.server.run_folder import RunFolder

    summary = RunFolder.existing(run).summary()
    if as_json:
        print_json(summary)
    else:
        _print_result(console(), summary)
        if (posterior := summary.get("posterior")) and posterior["refused"]:
            console().print(posterior["refused"], style="yellow")


@flower.command("run")
def flower_run(
    app_dir: Annotated[Path, typer.Argument(help="Folder of the Flower app: a clone of Polyclinic.")] = Path(),
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """`flwr run` with the right environment, the true exit status, and the local SuperLink stopped after."""
    from polyclinic.cli.flower import run_under_flower

    result = run_under_flower(app_dir, assignments(sets), console(as_json))
    if as_json:
        print_json(result.summary)
    else:
        _print_result(console(), result.summary)
        console().print(f"Run folder: {result.path}", soft_wrap=True)
