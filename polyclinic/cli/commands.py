"""The commands by name. Each is loaded when it is chosen, so that ``polyclinic --help`` waits for none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, cast

import click
import typer
from typer.core import TyperGroup

import polyclinic
from polyclinic.cli.terminal import Stopped, loading, notes
from polyclinic.errors import ConfigError, decimal_hint

# The first paragraph of each command's help, in the order of --help: what a newcomer needs comes first.
COMMANDS = {
    "run": "Train one model over several hospitals; without arguments, the embedded default.",
    "sweep": (
        "Run every combination of the values that -c lists: -c privacy.epsilon=0.5,1,3 -c strategy=fedavg,fedprox --seeds 20."
    ),
    "show": "Print a finished run.",
    "report": "Write the report of a run, or one page of several runs side by side: a file that needs no network.",
    "predict": "Predict the label of new rows or visits with a finished run's model. Nothing is sent or charged.",
    "export": "Write a finished run's model as one file with its preprocessing: raw columns in, probabilities out.",
    "evaluate": (
        "Judge a finished run's model on records with labels. The figures are exact, NOT private, and for who holds the records."
    ),
    "datasets": "Datasets by name: what there is, what one holds, and fetching its files.",
    "regress": (
        "A regression table of all hospitals' patients, under privacy or exact; or each hospital's own, and their meta-analysis."
    ),
    "audit": "Attack the training with canaries and check its sensitivity, noise and sampling: epsilon is at least so much.",
    "attack": (
        "Attack a run's model or generator: who took part, secret columns, gradients; with hold-out patients as the baseline."
    ),
    "query": "Ask hospitals for one statistic, with noise; each charges its ledger first.",
    "describe": (
        "Describe patients in one table, by hospital or group: counts, missing, means, quartiles, standardised differences."
    ),
    "components": "Principal components: eigenvalues, explained variance and loadings, and what noise does to them.",
    "clusters": "k-means: centres in the columns' units, how many patients are nearest to each, and how far they lie from it.",
    "cohort": "Count the rows and patients that each step of a hospital's cohort leaves.",
    "prepare": (
        "Make a draft schema better: quantiles as bounds, vocabularies, centres and spreads; paid for in each ledger first."
    ),
    "synthesize": "Draw synthetic records from a finished run, which costs no further privacy, and certify what they are.",
    "combine": "Fit a regression to each of several synthetic sets and combine them into one table, which costs no privacy.",
    "effect": (
        "Estimate the average effect of a treatment on an outcome, with its balance and an interval that counts the noise."
    ),
    "quality": (
        "Judge a run's synthetic patients beside held-out real ones: "
        "columns, correlations, courses, codes, rules, what they teach."
    ),
    "serve": "Show runs in a browser, live while they train; read-only. Ends with Ctrl-C.",
    "reproduce": "Run an experiment of an installed package: results.json, table.md, config.toml and figures in --out.",
    "account": "The epsilon of DP-SGD, or the noise that a target epsilon needs, and the risk of a patient in plain numbers.",
    "identity": (
        "Print a hospital's public key, for the known-hospitals of the others' policies; made in its home if there is none."
    ),
    "risk": "Say how many patients stand alone in a table, by which columns, and what its classes tell of sensitive ones.",
    "link": "Attack a table: join it to an outside one, and count the people who are found; of names none is printed.",
    "anonymize": (
        "Write a k-anonymous table: coarser quasi-identifiers, few suppressed rows, the least loss that reaches the target."
    ),
    "coarsen": "Write records made coarser by public rules, and beside them the schema that they fit.",
    "plugins": "List every name that the configuration knows, the package that brings it, and why one cannot be used.",
    "new": (
        "Write a package of one strategy, task, program, dataset or model into the folder NAME: code, entry point, test, README."
    ),
    "survival": "Survival curves with intervals, medians and a log-rank test of groups, by counts on a public grid of time.",
    "cox": "Hazard ratios of all hospitals' patients: Cox's regression within hospitals, or with privacy by constant hazards.",
    "ledger": "A hospital's privacy ledger.",
    "schema": "The public description of records: draft it, check it.",
    "review": "Blinded review: can clinicians tell synthetic patients from real ones?",
    "simulate": "Run a Flower app, unmodified, at many simulated nodes: what `flwr run` does, without its waiting.",
    "flower": "The same run under Flower's own runtime.",
    "coordinator": "A coordinator: its certificate, its SuperLink, its nodes and its runs.",
    "hospital": "A hospital: its policy, its node's key, its node, and how it stands.",
}
# Where a command is: one of its own name in this folder, unless it says more here. A group is called ``app``.
_PLACES = {
    "show": "runs.run:show", "evaluate": "runs.predict:evaluate", "export": "runs.predict:export",
    "flower": "runs.run:flower", "datasets": "records.datasets:app", "schema": "records.schema:app",
    "review": "records.review:app", "link": "records.risk:link", "coarsen": "records.anonymize:coarsen",
    "coordinator": "nodes.coordinator:app", "hospital": "nodes.hospital:app", "identity": "nodes.hospital:identity",
    "ledger": "ledger:app", "plugins": "plugin:plugins", "components": "analyses.exploration:components",
    "clusters": "analyses.exploration:clusters",
}  # fmt: skip
_PLACES |= {
    name: f"{folder}.{name}:{name}"
    for folder, names in {
        "runs": (
            "run",
            "sweep",
            "predict",
            "report",
            "audit",
            "attack",
            "synthesize",
            "quality",
            "serve",
            "reproduce",
            "simulate",
        ),
        "records": ("query", "describe", "cohort", "prepare", "risk", "anonymize"),
        "analyses": ("regress", "effect", "survival", "cox", "combine"),
    }.items()
    for name in names
}


class Lazy(Mapping[str, click.Command]):
    """The commands of ``COMMANDS``, each imported when it is first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            if name not in COMMANDS:
                raise KeyError(name)
            module, attribute = _PLACES.get(name, f"{name}:{name}").split(":")
            with loading():
                command = getattr(import_module(f"polyclinic.cli.{module}"), attribute)
            holder = typer.Typer()
            if isinstance(command, typer.Typer):
                holder.add_typer(command, name=name)
            else:
                holder.command(name)(command)
            self._loaded[name] = typer.main.get_group(holder).commands[name]
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": {}})
        self.commands = cast(dict[str, click.Command], Lazy())

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the help as plain text: typer's boxes take three times as long to import as typer.

        It is printed here, where typer prints its boxes; what a formatter holds typer shows only after ``--help``.
        """
        plain = ctx.make_formatter()
        click.Group.format_help(self, ctx, plain)
        click.echo(plain.getvalue(), nl=False)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command's name and the first paragraph of its help, without loading the command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command; typer itself would swallow a KeyboardInterrupt and what it has to say."""
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            value = (
                error.message.split("'")[1]
                if isinstance(error.param and error.param.type, click.types.FloatParamType)
                else ""
            )
            if (point := decimal_hint(value)) and error.param:
                raise ConfigError(
                    f"{error.param.opts[0]} has the value {value!r}, which must be a number{point}."
                ) from None
            raise
        except KeyboardInterrupt as stop:
            stopped = Stopped(str(stop) or "Stopped.")
            for note in notes(stop):
                stopped.add_note(note)
            raise stopped from None


app = typer.Typer(
    name="polyclinic", cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Federated learning for health records, with an epsilon that is true.",
)  # fmt: skip


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
