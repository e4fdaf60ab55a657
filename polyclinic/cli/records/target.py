"""Options of commands that ask a question: of a dataset's simulated hospitals, of a real one, or of a coordinator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from polyclinic.cli.options import Records, Sets
from polyclinic.cli.terminal import assignments, loading, say
from polyclinic.errors import ConfigError, without_name

if TYPE_CHECKING:
    from polyclinic.asking import Target
    from polyclinic.config import RunConfig
    from polyclinic.deployment.submitting import Coordinated

# Keys, or how they begin, that say whose records simulated hospitals have.
_OF_RECORDS = (
    "dataset", "partitioner", "alpha", "sites", "seed", "timeout", "split.", "data.label", "data.schema-file", "privacy.delta",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Records):
    """The options by which a command names whom it asks."""

    sets: Sets = None
    schema_file: Annotated[
        str, typer.Option(help="Simulation: schema or draft. Default: the dataset's own.", show_default=False)
    ] = ""
    seed: Annotated[
        int | None, typer.Option(help="Simulation: seed of the split and the noise. Default: 0.", show_default=False)
    ] = None
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Simulation: ledger to charge, made if it does not exist. Default: in --out.", show_default=False
        ),
    ] = None
    delta: Annotated[float | None, typer.Option(help="Simulation: the ledger's delta.", show_default=False)] = None
    relation: Annotated[
        str | None,
        typer.Option(help="Simulation: neighbouring relation, add-remove or replace-one.", show_default=False),
    ] = None
    budget: Annotated[
        float | None, typer.Option(help="Simulation: each hospital's lifetime epsilon.", show_default=False)
    ] = None
    hospital: Annotated[
        Path | None, typer.Option(help="Ask the real hospital of this hospital.toml.", show_default=False)
    ] = None  # fmt: skip
    coordinator: Annotated[
        Path | None,
        typer.Option(help="Ask all hospitals of the coordinator of this folder, on its machine.", show_default=False),
    ] = None

    def target(
        self, new_ledger: Callable[[], Path], more: Mapping[str, Any], as_json: bool = False
    ) -> Target | Coordinated:
        """Whom the command asks.

        Args:
            new_ledger: Where a simulation's ledger begins that the command does not name.
            more: What else of the command is for a simulation alone.
            as_json: Whether a coordinator's log goes to stderr.

        Raises:
            ConfigError: Not exactly one of dataset, hospital and coordinator is named, or an option does not go with it.
        """
        options = asdict(self)
        places = {name: options.pop(name) for name in ("dataset", "data", "hospital", "coordinator")}
        if sum(place is not None for place in places.values()) != 1:
            raise ConfigError(
                "Give exactly one of --dataset or --data (simulated hospitals), --hospital (a real one's file) and --coordinator "
                "(all of its hospitals)."
            )
        if self.dataset is None and not self.data:
            for name, value in {**options, **more}.items():
                if value not in (None, 0, ""):
                    option = {"sets": "set"}.get(name, name.replace("_", "-"))
                    raise ConfigError(f"--{option} is for a simulation; real hospitals' files and policies decide.")
        with loading():
            from polyclinic.asking import real, simulated_by

        if self.dataset is not None or self.data:
            return simulated_by(self._config(), self.ledger or new_ledger(), self.relation, self.budget)
        if self.hospital is not None:
            return real(self.hospital)
        assert self.coordinator is not None
        with loading():
            from polyclinic.deployment.coordinator import Coordinator
            from polyclinic.deployment.submitting import Coordinated

        return Coordinated(Coordinator.read(self.coordinator), lambda line: say(line, errors=as_json))

    def _config(self) -> RunConfig:
        """Where the simulated hospitals' records are. Raises ConfigError as ``run`` does, and for keys that are of a run."""
        from polyclinic.cli.runs.run import Flags
        from polyclinic.config import RunConfig

        records = {field.name: getattr(self, field.name) for field in fields(Records)}
        own: dict[str, Any] = {"seed": self.seed, "privacy.delta": self.delta}
        if self.schema_file and self.data:
            records["schema"] = Path(self.schema_file)
        elif self.schema_file:
            own["data.schema-file"] = self.schema_file
        given, sets = {key: value for key, value in own.items() if value is not None}, assignments(self.sets)
        config = RunConfig.build(sets, Flags(**records).given_keys(), given)
        for key in sets:
            if not key.startswith(_OF_RECORDS):
                raise ConfigError(f"-c {key} is of a run, and has no part in a question to hospitals.")
        return config


def print_dropouts(screen: Console, result: Mapping[str, Any]) -> None:
    """A line for each hospital that gave no answer."""
    for drop in result["dropouts"]:
        why = without_name(drop["site"], drop["reason"])
        screen.print(f"No answer of {drop['site']}: {why}", style="yellow", soft_wrap=True)
