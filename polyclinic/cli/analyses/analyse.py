"""What the commands of all analyses have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.options import Sets
from polyclinic.cli.runs.run import Flags, carry_out, layers
from polyclinic.cli.terminal import Json
from polyclinic.config import RunConfig
from polyclinic.files import write_file


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the records are, what may be spent, and what is done with the configuration."""

    dataset: Annotated[str | None, typer.Option(help="Dataset by name.")] = None
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="Your own tables, as `polyclinic run` takes them; repeatable."),
    ] = None
    label: Annotated[str | None, typer.Option(help="With --data: the column of the outcome.")] = None
    patient: Annotated[str | None, typer.Option(help="With --data: the column that names the patient.")] = None
    site: Annotated[str | None, typer.Option(help="With --data, one file: the column that names the hospital.")] = None
    schema: Annotated[
        Path | None, typer.Option(help="With --data: the public schema of the tables, in place of a draft.")
    ] = None
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of each hospital.")] = None
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None
    no_dp: Annotated[bool, typer.Option("--no-dp", help="Exact sums, without differential privacy.")] = False
    rounds: Annotated[int | None, typer.Option(help="Federated rounds.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation.")] = None
    out: Annotated[str | None, typer.Option(help="Folder in which the run's folder is made.")] = None
    sets: Sets = None
    config_out: Annotated[
        Path | None,
        typer.Option(
            help="Write the configuration into this TOML file, for `polyclinic coordinator submit` or `polyclinic run`, and run "
            "nothing."
        ),
    ] = None
    as_json: Json = False


def analyse(task: str, given: Mapping[str, Any], options: Options) -> None:
    """Carry out the analysis ``task`` with the ``task-options`` that were given, those that are None left out.

    Raises ConfigError for options that it does not take.
    """
    values = vars(options) | {"sets": None, "config_out": None, "as_json": None}
    flags = Flags(**{name: value for name, value in values.items() if value is not None}, task=task).given()
    flags["task-options"] = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    config = RunConfig.build(*layers(None, options.sets, flags))
    if options.config_out is not None:
        write_file(options.config_out, config.toml())
        typer.echo(f"Wrote {options.config_out}.")
        return
    carry_out(config, options.as_json)
