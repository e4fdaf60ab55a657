"""Options of commands that ask a question: of a dataset's simulated hospitals, of a real one, or of a coordinator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from polyclinic.cli.terminal import loading, say
from polyclinic.errors import ConfigError, without_name

if TYPE_CHECKING:
    from polyclinic.asking import Target
    from polyclinic.deployment.asking import Coordinated


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The options by which a command names whom it asks."""

    dataset: Annotated[str | None, typer.Option(help="Simulation: dataset by name.", show_default=False)] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Simulation: your own tables, as `polyclinic run` takes them; repeatable.",
            show_default=False,
        ),
    ] = None
    label: Annotated[str | None, typer.Option(help="With --data: the column of the outcome.", show_default=False)] = (
        None
    )
    patient: Annotated[
        str | None, typer.Option(help="With --data: the column that names the patient.", show_default=False)
    ] = None
    site: Annotated[
        str | None, typer.Option(help="With --data, one file: the column that names the hospital.", show_default=False)
    ] = None
    schema_file: Annotated[
        str, typer.Option(help="Simulation: schema or draft; the dataset's own by default.", show_default=False)
    ] = ""
    sites: Annotated[int, typer.Option(help="Simulation: number of hospitals; 0 is the dataset's own.")] = 0
    seed: Annotated[int, typer.Option(help="Simulation: seed of the split and the noise.")] = 0
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Simulation: ledger to charge, begun if there is none; by default in --out.", show_default=False
        ),
    ] = None
    delta: Annotated[float | None, typer.Option(help="Simulation: the ledger's delta.", show_default=False)] = None
    relation: Annotated[str | None, typer.Option(help="Simulation: add-remove or replace-one.", show_default=False)] = (
        None
    )
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
                    option = name.replace("_", "-")
                    raise ConfigError(f"--{option} is for a simulation; real hospitals' files and policies decide.")
        with loading():
            from polyclinic.asking import real, simulated

        if self.dataset is not None or self.data:
            dataset, more_keys = self._records()
            return simulated(
                dataset, self.ledger or new_ledger(), relation=self.relation, budget=self.budget, sites=self.sites,
                seed=self.seed, privacy={"delta": self.delta or 0.0}, **more_keys,
            )  # fmt: skip
        if self.hospital is not None:
            return real(self.hospital)
        assert self.coordinator is not None
        with loading():
            from polyclinic.deployment.asking import Coordinated
            from polyclinic.deployment.coordinator import Coordinator

        return Coordinated(Coordinator.read(self.coordinator), lambda line: say(line, errors=as_json))

    def _records(self) -> tuple[str, dict[str, Any]]:
        """The simulated hospitals' dataset, and the configuration keys that go with it. Raises ConfigError as ``run`` does."""
        from polyclinic.cli.runs.run import Flags

        schema = Path(self.schema_file) if self.data and self.schema_file else None
        flags = Flags(
            dataset=self.dataset, data=self.data, label=self.label, patient=self.patient, site=self.site, schema=schema,
        ).given()  # fmt: skip
        keys = (
            {"dataset_options": flags["dataset-options"]} if self.data else {"data": {"schema_file": self.schema_file}}
        )
        return flags["dataset"], keys


def print_dropouts(screen: Console, result: Mapping[str, Any]) -> None:
    """A line for each hospital that gave no answer."""
    for drop in result["dropouts"]:
        why = without_name(drop["site"], drop["reason"])
        screen.print(f"No answer of {drop['site']}: {why}", style="yellow", soft_wrap=True)
