"""What the commands of all analyses have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.options import Sets
from polyclinic.cli.runs.run import Flags, Shared, carry_out, layers
from polyclinic.cli.terminal import Json
from polyclinic.config import RunConfig
from polyclinic.files import write_file


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """What every analysis takes: a run's options, and what is done with the configuration."""

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
    """Carry out an analysis, or write its configuration.

    Args:
        task: The analysis's name, the value of ``task``.
        given: The ``task-options`` that were given; those that are None are left out.
        options: The run's options, and what is done with the configuration.

    Raises:
        ConfigError: An option that the analysis does not take.
    """
    flags = Flags(**{field.name: getattr(options, field.name) for field in fields(Shared)}, task=task).given_keys()
    flags["task-options"] = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    config = RunConfig.build(*layers(None, options.sets, flags))
    if options.config_out is not None:
        write_file(options.config_out, config.toml())
        typer.echo(f"Wrote {options.config_out}.")
        return
    carry_out(config, options.as_json)
