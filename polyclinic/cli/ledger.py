"""``polyclinic ledger``: what a hospital's ledger says, whether it is true, and all of it as a file for an auditor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, console, loading, print_json, significant
from polyclinic.evaluation.privacy_text import risk_sentence, share

app = typer.Typer(no_args_is_help=True, help="A hospital's privacy ledger.")

File = Annotated[
    Path,
    typer.Argument(
        help="The ledger's SQLite file, or the folder of a hospital or run that has it.", show_default=False
    ),
]
OneSite = Annotated[str | None, typer.Option(help="One hospital of a simulation's ledger.", show_default=False)]


@app.command()
def show(
    path: File,
    site: OneSite = None,
    delta: Annotated[
        list[float] | None,
        typer.Option(help="Epsilon at this delta too, instead of at three smaller ones; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a ledger: what was spent, of what budget, on what, and by which run."""
    with loading():
        from polyclinic.privacy.ledger import Ledger
        from polyclinic.privacy.statements import detailed, statement_of, statements

    path = _file(path)
    ledgers = [Ledger.read(path, site)] if site is not None else [*Ledger.read_all(path).values()]
    found = statements(ledgers)
    if as_json or len(found) == 1 or delta:
        found = [detailed(statement, delta or ()) for statement in found]
    beside = _held_out(path)
    held_out = statements([*Ledger.read_all(beside).values()]) if beside else []
    held_out = [statement for statement in held_out if site in (None, statement["site"])]
    if as_json:
        print_json(statement_of(found) | {"held_out": statement_of(held_out) if held_out else None})
        return
    screen = console()
    for statement in held_out:
        intact = "the record is intact" if statement["intact"] else "THE RECORD HAS BEEN ALTERED"
        screen.print(f"{statement['site']}, held-out patients: {_spent(statement)}; {intact}", soft_wrap=True)
    for statement in found:
        record = "the record is intact" if statement["intact"] else ("the record has been altered", "bold red")
        screen.print(Text.assemble((statement["site"], "bold"), f": {_spent(statement)}; ", record), soft_wrap=True)
        if len(found) == 1:
            screen.print(risk_sentence(statement["risk"], statement["unit"], statement["relation"]), soft_wrap=True)
        if len(found) == 1 or delta:
            at = ", ".join(f"{_epsilon(one['epsilon'])} at δ = {one['delta']:g}" for one in statement["at"])
            screen.print(f"The same charges: ε = {at}.", soft_wrap=True)
    if len(found) > 1:
        largest = statement_of(found)
        screen.print(risk_sentence(largest["risk"], largest["unit"], largest["relation"]), soft_wrap=True)
        screen.print("Every charge of one hospital: --site SITE.")
    else:
        _print_details(screen, found[0])


@app.command()
def verify(path: File, site: OneSite = None, as_json: Json = False) -> None:
    """Recompute epsilon from a ledger's events and check that nothing was edited; exit code 1 if something is wrong."""
    with loading():
        from polyclinic.privacy.ledger_verify import Finding, verify_all
        from polyclinic.privacy.statements import statement_of

    path = _file(path)
    found = verify_all(path, site)
    beside = _held_out(path)
    held_out = [one for one in verify_all(beside) if site in (None, one["site"])] if beside else []
    if as_json:
        print_json(statement_of(found) | {"held_out": statement_of(held_out) if held_out else None})
    else:
        screen = console()
        for statement in [*found, *held_out]:
            charges = len(statement["events"])
            whose = ", held-out patients" if statement in held_out else ""
            what = f"{whose}: {charges} {'charge' if charges == 1 else 'charges'}, {_spent(statement)}; "
            number = len(statement["findings"])
            word = (f"{number} {'finding' if number == 1 else 'findings'}", "bold red") if number else "intact"
            screen.print(Text.assemble((statement["site"], "bold"), what, word), soft_wrap=True)
            for finding in statement["findings"]:
                screen.print(str(Finding(**finding)), style="red", soft_wrap=True)
    if not all(statement["intact"] for statement in [*found, *held_out]):
        raise typer.Exit(1)


@app.command()
def export(
    path: File,
    out: Annotated[Path, typer.Option(help="The file to write: .json for everything, .csv for the charges.")],
    site: OneSite = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a ledger's whole statement for an auditor, with the hashes, so that its chain can be checked elsewhere."""
    with loading():
        from polyclinic.privacy.ledger import Ledger
        from polyclinic.privacy.ledger_export import export as write

    path = _file(path)
    ledgers = [Ledger.read(path, site)] if site is not None else [*Ledger.read_all(path).values()]
    statements = write(ledgers, out, force)
    charges, intact = sum(len(one["events"]) for one in statements), all(one["intact"] for one in statements)
    if as_json:
        print_json(
            {"path": str(out), "sites": [one["site"] for one in statements], "events": charges, "intact": intact}
        )
        return
    sites = f"{len(statements)} {'hospital' if len(statements) == 1 else 'hospitals'}"
    record = "intact" if intact else "with findings, see `polyclinic ledger verify`"
    console().print(f"{out}: {charges} charges of {sites}; {record}", soft_wrap=True)


def _file(path: Path) -> Path:
    """The ledger's file: ``path``, or the one in a hospital's folder or a run's. Raises ConfigError where a folder has none."""
    if not path.is_dir():
        return path
    from polyclinic.runs.folder import Run

    places = [path / "ledger.sqlite", path / "home" / "ledger.sqlite"]
    return next((place for place in places if place.is_file()), None) or Run.open(path).ledger


def _held_out(path: Path) -> Path | None:
    """The held-out patients' own ledger, where one lies beside a ledger."""
    beside = path.with_name("held-out.sqlite")
    return beside if beside != path and beside.is_file() else None


def _print_details(screen: Console, statement: dict[str, Any]) -> None:
    room = statement["room"]
    if room is not None:
        fits = (
            f"one more release of up to ε = {significant(room['epsilon'])} by itself"
            if room["epsilon"]
            else "no further release"
        )
        screen.print(f"The budget has room for {fits} (ε's do not add: composed, releases cost less).", soft_wrap=True)
    for one in statement["outside"]:
        times = "once" if one["times"] == 1 else f"{one['times']} times"
        screen.print(f"Outside ε: {one['purpose']}, {times} in run {one['run']}.", soft_wrap=True)
    runs = [[one["run"], one["charges"], _epsilon(one["epsilon"]), _day(one["first"]), _day(one["last"])]
            for one in statement["runs"]]  # fmt: skip
    screen.print(_table(("run", "charges", "ε by itself", "first", "last"), runs))
    events = [[event[name] for name in ("seq", "run", "round", "purpose")] for event in statement["events"]]
    screen.print(_table(("seq", "run", "round", "purpose"), events))


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=None)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _spent(statement: dict[str, Any]) -> str:
    budget = "unlimited" if statement["budget"] is None else f"{statement['budget']:g}"
    risk = statement["risk"] and share(statement["risk"]["tpr_at_1_percent_fpr"])
    found = f", found at 1 % wrong: {risk}" if risk else ""
    return f"ε = {_epsilon(statement['epsilon'])} of {budget} at δ = {statement['delta']:g}{found}"


def _epsilon(value: float | None) -> str:
    return "unbounded (something left without noise)" if value is None else significant(value)


def _day(time: object) -> str:
    return str(time)[:16].replace("T", " ")
