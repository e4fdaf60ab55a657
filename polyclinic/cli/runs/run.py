"""``polyclinic run``, here or under Flower, and ``polyclinic show``: one run, from its configuration to its table."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from polyclinic.cli.options import Config, Records, Sets, with_options
from polyclinic.cli.terminal import Json, assignments, console, loading, print_json
from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, without_name
from polyclinic.toml import read_toml

flower = typer.Typer(no_args_is_help=True, help="The same run under Flower's own runtime.")

_MOST_DROPOUTS = 20


@dataclass(frozen=True, kw_only=True)
class Shared(Records):
    """Options of runs and analyses that stand for configuration keys: where the records are, and what may be spent."""

    rounds: Annotated[int | None, typer.Option(help="Federated rounds.")] = None
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of each hospital.")] = None
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Without differential privacy: no noise is added.")] = False
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation.")] = None
    out: Annotated[str | None, typer.Option(help="Folder in which to make the run's folder.")] = None


@dataclass(frozen=True, kw_only=True)
class Flags(Shared):
    """Options of a run that stand for configuration keys."""

    time: Annotated[
        str | None,
        typer.Option(help="With --data, several rows a patient: the column of a visit's time, with --steps."),
    ] = None
    steps: Annotated[
        int | None, typer.Option(help="With --time: how many of a patient's latest visits are the steps of a sequence.")
    ] = None
    strategy: Annotated[str | None, typer.Option(help="Strategy by name or package.module:Name.")] = None
    task: Annotated[str | None, typer.Option(help="Task by name.")] = None
    model: Annotated[str | None, typer.Option(help="Model, or method of task synthesis, by name.")] = None

    def given_keys(self) -> dict[str, Any]:
        """The keys of the flags that were given. Raises ConfigError for flags that do not go together."""
        if self.no_dp and self.epsilon is not None:
            raise ConfigError(f"--no-dp is given, but --epsilon is {self.epsilon:g}; give one of them.")
        values = asdict(self) | {"no_dp": False if self.no_dp else None}
        data = values.pop("data")
        columns = {name: value for name in _COLUMNS if (value := values.pop(name))}
        under = {name: str(value.resolve()) for name in _FILES if (value := values.pop(name))}
        if (columns or under) and not data:
            flag = next(iter(columns | under)).replace("_", "-")
            raise ConfigError(f"--{flag} is for your own tables; give these by --data.")
        if under and "schema" not in under:
            raise ConfigError(f"--{next(iter(under))} makes records of a public schema; name it by --schema.")
        if under and columns:
            name = next(iter(columns))
            raise ConfigError(
                f"--{name.replace('_', '-')} is for a draft; with --schema the schema says what columns are"
                f"{_BY_SCHEMA.get(name, '')}."
            )
        if data and self.dataset:
            raise ConfigError(f"--dataset is {self.dataset!r} but --data gives tables of your own; give one of them.")
        if data:
            from polyclinic.ehr.datasets.tables import absolute  # takes pandas, which --help does without
            from polyclinic.plugins import TABLES

            files = absolute(data[0]) if len(data) == 1 else [absolute(place) for place in data]
            described = [place.endswith(".toml") for place in data]
            if any(described) and (columns or under or not all(described)):
                raise ConfigError(
                    "--data names a hospital.toml, whose schema says what the columns are; give such files alone."
                )
            values |= {
                "dataset": _HOSPITALS if any(described) or under else TABLES,
                "dataset-options": {"files": files, **columns, **under},
            }
        return {_KEYS.get(name, name): value for name, value in values.items() if value is not None}


_HOSPITALS = "polyclinic.client.home.simulated:hospitals"
_FILES = ("schema", "mapping", "cohort")
_COLUMNS = ("label", "patient", "site", "leave_out", "missing", "time", "steps")
_BY_SCHEMA = {
    name: f': leave the option out, and write role = "{role}" at the column in the schema'
    for name, role in {"label": "label", "patient": "patient_id", "site": "site", "leave_out": "ignore"}.items()
} | {
    "missing": ': leave the option out, write missing = ["..."] at the column in a mapping file, and give that by --mapping'
}
_KEYS = {"epsilon": "privacy.epsilon", "delta": "privacy.delta", "no_dp": "privacy.dp"}


@with_options(Flags)
def run(
    config: Config = None,
    sets: Sets = None,
    *,
    options: Flags,
    workers: Annotated[int | None, typer.Option(help="Processes that train hospitals side by side.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Use Ray actors as workers: local, auto, or HOST:PORT of a cluster.")
    ] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs that the workers share; 0.5 is half of one.")] = None,
    keep: Annotated[int | None, typer.Option(help="How many of the newest checkpoints to keep.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to continue from its last checkpoint.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train without DP, and at each hospital alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train one model over several hospitals; without arguments, the embedded default."""
    more = {"workers": workers, "ray-address": ray_address, "gpus": gpus, "checkpoints.keep": keep}
    given = options.given_keys() | {key: value for key, value in more.items() if value is not None}
    if resume is not None and (config is not None or sets or given or compare):
        raise ConfigError("--resume goes on with a run as it was configured; give it alone.")
    resolved = RunConfig.build(*layers(config, sets, given))
    carry_out(resolved, as_json, resume, compare)


def carry_out(config: RunConfig, as_json: bool, resume: Path | None = None, compare: bool = False) -> None:
    """Run what a command asks for, and print what came of it.

    Args:
        config: The run's configuration.
        as_json: Whether the summary is printed as JSON, alone on stdout.
        resume: The folder of a run that goes on in place of ``config``.
        compare: Whether the run also trains without privacy, and each hospital alone.

    Raises:
        PolyclinicError: The run fails, or its analysis was refused. typer.Exit: It stopped before its last round; exit code 3.
    """
    screen = console(as_json)
    with loading():
        from polyclinic.evaluation.report import stand_by
    stand_by()
    with screen.status("Starting", spinner="line"), loading():
        from polyclinic.cli.runs.live import LiveProgress
        from polyclinic.federation import Federation
    # With --json, what plug-ins or Ray print must not get between a reader and the JSON.
    with redirect_stdout(sys.stderr if as_json else sys.stdout), LiveProgress(screen) as progress:
        if resume is not None:
            result = Federation.resume(resume, progress=progress)
        else:
            result = Federation.from_config(config).run(progress=progress, comparison=compare)
    if as_json:
        print_json(result.summary)
    else:
        _print_result(screen, result.summary)
        screen.print(f"Report: {result.folder.report}", soft_wrap=True)
    if result.summary["stopped"]:
        raise typer.Exit(BudgetRefused.exit_code)
    if refused := (result.summary.get("analysis") or {}).get("refused"):
        raise PolyclinicError(f"{refused} What was spent is in {result.folder.statement_file}.")


def _print_result(screen: Console, summary: dict[str, Any]) -> None:
    from polyclinic.cli.runs.live import analysis_tables, calibration_sentence, privacy_sentence, result_table

    screen.print(result_table(summary, screen))
    for table in analysis_tables(summary.get("analysis") or {}, screen):
        screen.print(table)
    if calibration := calibration_sentence(summary):
        screen.print(calibration)
    screen.print(privacy_sentence(summary))
    drops = summary["dropouts"]
    for drop in drops[:_MOST_DROPOUTS]:
        what = f" in round {drop['round']}: {drop['site']}: {without_name(drop['site'], drop['reason'])}"
        screen.print(Text.assemble(("Dropped out", "yellow"), what), soft_wrap=True)
    if len(drops) > _MOST_DROPOUTS:
        screen.print(f"{len(drops) - _MOST_DROPOUTS:,} more dropouts are in summary.json.", style="yellow")
    for number, note in enumerate(summary["notes"]):
        screen.print(note, style="yellow" if number < summary.get("cautions", 0) else "dim")


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a folder that holds one.")],
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
        if refused := (summary.get("analysis") or {}).get("refused"):
            console().print(refused, style="yellow")


@flower.command("run")
@with_options(Flags)
def flower_run(
    config: Config = None,
    sets: Sets = None,
    *,
    options: Flags,
    app_dir: Annotated[
        Path | None, typer.Option("--app", help="Folder of a Flower app. Default: Polyclinic's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """`polyclinic run` under Flower's runtime: its SuperLink and Ray simulation, the true exit status, and all stopped after."""
    from polyclinic.cli.runs.flower import run_under_flower

    result = run_under_flower(layers(config, sets, options.given_keys()), app_dir, console(as_json))
    if as_json:
        print_json(result.summary)
    else:
        _print_result(console(), result.summary)
        console().print(f"Run folder: {result.path}", soft_wrap=True)


def layers(config: Path | None, sets: list[str] | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The keys of a command's configuration, of which a later layer replaces those of an earlier one.

    Args:
        config: The configuration file; None without.
        sets: What ``-c`` gave, each KEY=VALUE; None without.
        given: The keys that flags gave.

    Raises:
        ConfigError: The file cannot be read, or what ``-c`` gave is no KEY=VALUE.
    """
    return [read_toml(config, "configuration file") if config else {}, assignments(sets), given]
