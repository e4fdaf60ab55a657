"""Options of commands that ask a question: of a dataset's simulated hospitals, or of a real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.terminal import loading
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.querying import Target

Dataset = Annotated[str | None, typer.Option(help="Simulation: dataset by name.", show_default=False)]
Sites = Annotated[int, typer.Option(help="Simulation: number of hospitals; 0 is the dataset's own.")]
Seed = Annotated[int, typer.Option(help="Simulation: seed of the split and the noise.")]
Delta = Annotated[float | None, typer.Option(help="Simulation: the ledger's delta.", show_default=False)]
Neighbours = Annotated[str | None, typer.Option(help="Simulation: add-remove or replace-one.", show_default=False)]
Budget = Annotated[float | None, typer.Option(help="Simulation: each hospital's lifetime epsilon.", show_default=False)]


def target_of(
    dataset: str | None, hospital: Path | None, ledger: Path | None, options: Mapping[str, Any],
    new_ledger: Callable[[], Path], more: Mapping[str, Any],
) -> Target:  # fmt: skip
    """Whom a command asks.

    Args:
        options: Of a simulation, as ``querying.simulated`` takes them.
        new_ledger: Where a simulation's ledger begins that the command does not name.
        more: What else of the command is for a simulation alone.

    Raises:
        ConfigError: Neither or both of dataset and hospital are named, or an option does not go with a hospital.
    """
    if (dataset is None) == (hospital is None):
        raise ConfigError("Give exactly one of --dataset (simulated hospitals) and --hospital (a real one's file).")
    with loading():
        from polyclinic.querying import real, simulated

    if hospital is None:
        assert dataset is not None
        return simulated(dataset, ledger or new_ledger(), **options)
    for name, value in {**options, "ledger": ledger, **more}.items():
        if value not in (None, 0, ""):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is for a simulation; a real hospital's file and policy decide.")
    return real(hospital)
