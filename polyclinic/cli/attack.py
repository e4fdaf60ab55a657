"""``polyclinic attack``: what attacks find of a finished simulated run, beside what its epsilon allows."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polyclinic.cli.risk import names
from polyclinic.cli.terminal import Json, console, loading, number, print_json, significant
from polyclinic.errors import ConfigError


def attack(
    run: Annotated[
        Path, typer.Argument(help="A finished simulated run's folder, or a folder with one.", show_default=False)
    ],
    shadows: Annotated[int, typer.Option(help="Shadow models for LiRA; 0 leaves it out.")] = 16,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="Columns that are guessed; the first twelve without.", show_default=False),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta of the lower bounds on epsilon; the run's own without.", show_default=False),
    ] = None,
    canaries: Annotated[int, typer.Option(help="Canaries of the audit beside the attacks; 0 leaves it out.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed attacks in the same way.")] = 0,
    as_json: Json = False,
) -> None:
    """Attack a run's model or generator: who took part, secret columns, gradients; with hold-out patients as the baseline."""
    _check(shadows, canaries, delta, seed)
    screen = console(as_json)
    with screen.status("Starting", spinner="line"), loading():
        from polyclinic.attacking import attack_run
        from polyclinic.runs.folder import Run
    with redirect_stdout(sys.stderr if as_json else sys.stdout), screen.status("Attacking", spinner="line") as status:
        found = attack_run(
            run, seed=seed, shadows=shadows, sensitive=names(sensitive), delta=delta, canaries=canaries,
            doing=lambda what: status.update(f"Attacking: {what}"),
        )  # fmt: skip
    if as_json:
        print_json(found)
        return
    show(screen, found)
    screen.print(f"All figures: {Run(Path(found['run'])).attacks_file}; the run's report shows them.", soft_wrap=True)


def _check(shadows: int, canaries: int, delta: float | None, seed: int) -> None:
    """Raises ConfigError for numbers that no attack can be made with."""
    if shadows and not 4 <= shadows <= 256:
        raise ConfigError(f"--shadows is {shadows}; allowed are 0 and 4 to 256.")
    if canaries and not 10 <= canaries <= 3000:
        raise ConfigError(f"--canaries is {canaries}; allowed are 0 and 10 to 3000.")
    if delta is not None and not 0 < delta < 1:
        raise ConfigError(f"--delta is {delta:g}; it must lie between 0 and 1, both excluded.")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed are whole numbers of at least 0.")


def show(screen: Console, found: dict[str, Any]) -> None:
    """Tables for people, of what ``attacks.json`` holds."""
    epsilon = found["claimed"]["epsilon"]
    claim = "claims no epsilon" if epsilon is None else f"claims ε = {significant(epsilon)}"
    screen.print(
        f"{found['members']:,} patients took part, {found['non_members']:,} did not. The run {claim}.", soft_wrap=True
    )
    table = _table("who took part?", "AUC", "advantage", "found at 1 % false", "ε at least")
    for one in found["membership"]:
        bound = one["bound"]
        table.add_row(
            one["attack"], _interval(one["auc"]), _interval(one["advantage"]), _interval(one["tpr_at_1_percent_fpr"]),
            "undefined" if bound is None else significant(bound["epsilon_lower"]),
        )  # fmt: skip
    screen.print(table)
    if found["attributes"]:
        table = _table("secret column, guessed rightly", "who took part", "others", "without the model", "difference")
        for one in found["attributes"]:
            shown = (number(one[key]["value"]) for key in ("members", "non_members", "without_model"))
            table.add_row(one["column"], *shown, _interval(one["excess"]))
        screen.print(table)
    if gradients := found["gradients"]:
        table = _table("records out of one step's gradient", "patients in it", "error, median", "recovered")
        for one in gradients["trials"]:
            table.add_row(
                "with privacy" if one["private"] else "without", str(one["batch"]), number(one["median"]),
                f"{one['recovered']:.0%}",
            )  # fmt: skip
        screen.print(table)
    if closest := found["closest"]:
        screen.print(
            f"Synthetic rows nearer to a patient who took part than to one who did not: "
            f"{_interval(closest['nearer_to_members'])}; 0.5 where neither is.",
            soft_wrap=True,
        )
    if found["identification"]:
        table = _table("by the synthetic table", "who took part", "others", "naive", "risk")
        for one in found["identification"]:
            name = one["name"] + (f": {one['column']}" if one["column"] else "") + (" (weak)" if one["weak"] else "")
            shown = (number(one[key]["value"]) for key in ("attack", "control", "naive"))
            table.add_row(name, *shown, _interval(one["risk"]))
        screen.print(table)
    if audit := found["audit"]:
        screen.print(
            f"The audit's canaries: ε is at least {significant(audit['epsilon_lower'])} at δ = {audit['delta']:g} with 95 % "
            f"confidence; claimed {significant(audit['epsilon_claimed'])}.",
            soft_wrap=True,
        )
    for one in found["left_out"]:
        screen.print(f"Left out: {one['attack']}: {one['why'].rstrip('.')}.", style="dim", soft_wrap=True)
    screen.print("An attack that finds nothing proves nothing: the bound on all attacks is ε.", style="dim")


def _interval(found: dict[str, float | None]) -> str:
    if found["value"] is None:
        return "undefined"
    return f"{found['value']:.3f} ({number(found['low'])} to {number(found['high'])})"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table
