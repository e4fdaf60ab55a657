"""The commands. Each reads its input, calls the library, and prints a table or JSON; the work is done elsewhere."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import polyclinic
from polyclinic.cli import coordinator, hospital, ledger, review, schema
from polyclinic.cli.account import account
from polyclinic.cli.anonymize import anonymize, coarsen
from polyclinic.cli.attack import attack
from polyclinic.cli.audit import audit
from polyclinic.cli.cohort import cohort, flow_table
from polyclinic.cli.identity import identity
from polyclinic.cli.new import new
from polyclinic.cli.plugin import plugins
from polyclinic.cli.prepare import prepare
from polyclinic.cli.quality import quality
from polyclinic.cli.query import query
from polyclinic.cli.report import report
from polyclinic.cli.reproduce import reproduce
from polyclinic.cli.risk import link, risk
from polyclinic.cli.serve import serve
from polyclinic.cli.synthesize import synthesize
from polyclinic.cli.terminal import Commands, Json, assignments, console, loading, print_json
from polyclinic.config import RunConfig, read_toml
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, without_name

app = typer.Typer(
    name="polyclinic", cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Federated learning for health records, with an epsilon that is true.",
)  # fmt: skip
datasets_app = typer.Typer(help="Datasets by name: what there is, what one holds, and fetching its files.")
flower_app = typer.Typer(no_args_is_help=True, help="The same run under Flower's own runtime.")
app.add_typer(datasets_app, name="datasets")
app.add_typer(ledger.app, name="ledger")
app.add_typer(schema.app, name="schema")
app.add_typer(review.app, name="review")
app.add_typer(flower_app, name="flower")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(hospital.app, name="hospital")
app.command()(audit)
app.command()(attack)
app.command()(query)
app.command()(cohort)
app.command()(prepare)
app.command()(synthesize)
app.command()(quality)
app.command()(report)
app.command()(serve)
app.command()(reproduce)
app.command()(account)
app.command()(identity)
for look in (risk, link, anonymize, coarsen, plugins, new):
    app.command()(look)

Config = Annotated[Path | None, typer.Argument(help="TOML file of configuration keys.", show_default=False)]
_MOST_DROPOUTS = 20
Set = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyclinic {polyclinic.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning for health records, with an epsilon that is true."""


@app.command()
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
    resolved = RunConfig.build(read_toml(config) if config else {}, assignments(sets), given)
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


@app.command()
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


@datasets_app.callback(invoke_without_command=True)
def datasets(context: typer.Context, as_json: Json = False) -> None:
    """List the datasets."""
    if context.invoked_subcommand is None:
        _list_datasets(as_json)


@datasets_app.command("list")
def datasets_list(as_json: Json = False) -> None:
    """List the datasets."""
    _list_datasets(as_json)


def _list_datasets(as_json: bool) -> None:
    from polyclinic.plugins import checked, dataset_named
    from polyclinic.plugins import plugins as known

    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        named = [checked(plugin) for plugin in known() if plugin.group == "datasets"]
    for plugin in named:
        if plugin.problem:
            console(as_json=True).print(f"Left out: {plugin.name} of {plugin.whose}: {plugin.problem}.", soft_wrap=True)
    found = [dataset_named(plugin.name) for plugin in named if not plugin.problem]
    rows = [{"name": d.name, "sites": len(d.natural_sites) or d.default_sites, "patients": d.patients, "rows": d.rows,
             "available": d.available(), "licence": d.licence} for d in found]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    table = Table(box=None)
    for heading in ("name", "sites", "patients", "rows", "available", "licence"):
        table.add_column(heading, justify="left" if heading in ("name", "licence", "available") else "right")
    for row in rows:
        table.add_row(*(("yes" if v else "no") if isinstance(v, bool) else str(v) for v in row.values()))
    console().print(table)


@datasets_app.command("show")
def datasets_show(name: str, as_json: Json = False) -> None:
    """Describe one dataset: task, hospitals, columns with their public bounds, licence, citation."""
    from polyclinic.plugins import dataset_named

    found = dataset_named(name)
    if as_json:
        print_json({"name": found.name, "title": found.title, "sites": list(found.natural_sites), "patients": found.patients,
                    "rows": found.rows, "available": found.available(), "licence": found.licence,
                    "citation": found.citation, "description": found.description, "schema": found.schema.as_dict(),
                    "flow": found.flow.as_list() if found.flow else None})  # fmt: skip
        return
    screen = console()
    screen.print(Text.assemble((found.title, "bold"), f" ({found.name})\n{found.description}"))
    shown, more = found.natural_sites[:20], len(found.natural_sites[20:])
    sites = ", ".join(shown) + (f" and {more} more" if more else "") or "none of its own"
    screen.print(f"Licence: {found.licence}\nCite: {found.citation}\nSites: {sites}")
    table = Table(box=None)
    for heading in ("column", "kind", "role", "unit", "public bounds or categories"):
        table.add_column(heading)
    for column in found.schema.columns:
        public = f"{column.bounds[0]:g} to {column.bounds[1]:g}" if column.bounds else ", ".join(column.categories)
        table.add_row(column.name, column.kind, column.role, column.unit, public)
    screen.print(table)
    if found.flow:
        screen.print(flow_table(found.flow))


@datasets_app.command("fetch")
def datasets_fetch(name: str, as_json: Json = False) -> None:
    """Bring a dataset's files here, checked by sha256."""
    from polyclinic.plugins import dataset_named

    found = dataset_named(name)
    path = found.fetch() if found.fetch is not None else None
    if as_json:
        print_json({"name": found.name, "path": str(path) if path else None})
    else:
        console().print(
            f"{found.name}: {path}" if path else f"{found.name} comes with Polyclinic; there is nothing to fetch."
        )


@flower_app.command("run")
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
