"""``polyclinic ledger``: what a hospital's ledger says, whether it is true, and all of it as a file for an auditor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.options import Force
from polyclinic.cli.terminal import Json, answer, intact_or_altered, loading, significant, table
from polyclinic.errors import count_text
from polyclinic.evaluation.privacy_text import risk_sentence, share

if TYPE_CHECKING:
    from polyclinic.privacy.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="A hospital's privacy ledger.")

File = Annotated[Path, typer.Argument(help="The ledger's SQLite file, or the folder of a hospital or run that has it.")]
OneSite = Annotated[str | None, typer.Option(help="One hospital of a simulation's ledger.")]


@app.command()
def show(
    path: File,
    site: OneSite = None,
    delta: Annotated[
        list[float] | None,
        typer.Option(help="Show epsilon at this delta too. Default: at three smaller ones; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a ledger: what was spent, of what budget, on what, and by which run."""
    with loading():
        from polyclinic.privacy.ledger import Ledger
        from polyclinic.privacy.ledger.statements import statement_of, statements, with_details

    path = _file(path)
    shown = statements(_ledgers(path, site))
    if as_json or len(shown) == 1 or delta:
        shown = [with_details(statement, delta or ()) for statement in shown]
    beside = _held_out(path)
    held_out = statements([*Ledger.read_all(beside).values()]) if beside else []
    held_out = [statement for statement in held_out if site in (None, statement["site"])]
    value = statement_of(shown)
    answer(
        as_json, value | {"held_out": statement_of(held_out) if held_out else None},
        *_describe_ledgers(shown, held_out, value, with_deltas=len(shown) == 1 or bool(delta)),
    )  # fmt: skip


@app.command()
def verify(path: File, site: OneSite = None, as_json: Json = False) -> None:
    """Recompute epsilon from a ledger's events and check that nothing was edited; exit code 1 if something is wrong."""
    with loading():
        from polyclinic.privacy.ledger.statements import statement_of
        from polyclinic.privacy.ledger.verify import Finding, verify_all

    path = _file(path)
    statements = verify_all(path, site)
    beside = _held_out(path)
    held_out = [statement for statement in verify_all(beside) if site in (None, statement["site"])] if beside else []
    lines = []
    for statement in [*statements, *held_out]:
        whose = ", held-out patients" if statement in held_out else ""
        what = f"{whose}: {count_text(len(statement['events']), 'charge')}, {_cost_text(statement)}; "
        findings = statement["findings"]
        word = (count_text(len(findings), "finding"), "bold red") if findings else "intact"
        lines.append(Text.assemble((statement["site"], "bold"), what, word))
        lines += [Text(str(Finding(**finding)), "red") for finding in findings]
    answer(as_json, statement_of(statements) | {"held_out": statement_of(held_out) if held_out else None}, *lines)
    if not all(statement["intact"] for statement in [*statements, *held_out]):
        raise typer.Exit(1)


@app.command()
def export(
    path: File,
    out: Annotated[Path, typer.Option(help="The file to write: .json for everything, .csv for the charges.")],
    site: OneSite = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a ledger's whole statement for an auditor, with the hashes, so that its chain can be checked elsewhere."""
    with loading():
        from polyclinic.privacy.ledger.verify import export as write

    statements = write(_ledgers(_file(path), site), out, force)
    charges, intact = (
        sum(len(statement["events"]) for statement in statements),
        all(statement["intact"] for statement in statements),
    )
    record = "intact" if intact else "with findings, see `polyclinic ledger verify`"
    answer(
        as_json,
        {
            "path": str(out),
            "sites": [statement["site"] for statement in statements],
            "events": charges,
            "intact": intact,
        },
        f"{out}: {count_text(charges, 'charge')} of {count_text(len(statements), 'hospital')}; {record}",
    )


def _file(path: Path) -> Path:
    """The ledger's file: ``path``, or the one in a hospital's folder or a run's. Raises ConfigError where a folder has none."""
    if not path.is_dir():
        return path
    from polyclinic.runs.folder import Run

    places = [path / "ledger.sqlite", path / "home" / "ledger.sqlite"]
    return next((place for place in places if place.is_file()), None) or Run.open(path).ledger


def _ledgers(path: Path, site: str | None) -> list[Ledger]:
    from polyclinic.privacy.ledger import Ledger

    return [Ledger.read(path, site)] if site is not None else [*Ledger.read_all(path).values()]


def _held_out(path: Path) -> Path | None:
    """The held-out patients' own ledger, where one lies beside a ledger."""
    beside = path.with_name("held-out.sqlite")
    return beside if beside != path and beside.is_file() else None


def _describe_ledgers(
    statements: list[dict[str, Any]], held_out: list[dict[str, Any]], together: dict[str, Any], with_deltas: bool
) -> Iterator[str | Text | Table]:
    for statement in held_out:
        whole = intact_or_altered(statement["intact"])
        yield f"{statement['site']}, held-out patients: {_cost_text(statement)}; {whole}"
    for statement in statements:
        record = "the record is intact" if statement["intact"] else ("the record has been altered", "bold red")
        yield Text.assemble((statement["site"], "bold"), f": {_cost_text(statement)}; ", record)
        if len(statements) == 1:
            yield risk_sentence(statement["risk"], statement["unit"], statement["relation"])
        if with_deltas:
            at = ", ".join(f"{_epsilon(bound['epsilon'])} at δ = {bound['delta']:g}" for bound in statement["at"])
            yield f"The same charges: ε = {at}."
    if len(statements) == 1:
        yield from _details(statements[0])
    else:
        yield risk_sentence(together["risk"], together["unit"], together["relation"])
        yield "Every charge of one hospital: --site SITE."


def _details(statement: dict[str, Any]) -> Iterator[str | Table]:
    room = statement["room"]
    if room is not None:
        fits = (
            f"one more release of up to ε = {significant(room['epsilon'])} by itself"
            if room["epsilon"]
            else "no further release"
        )
        yield f"The budget has room for {fits} (ε's do not add: composed, releases cost less)."
    for use in statement["outside"]:
        times = "once" if use["times"] == 1 else f"{use['times']} times"
        yield f"Outside ε: {use['purpose']}, {times} in run {use['run']}."
    runs = [(run["run"], str(run["charges"]), _epsilon(run["epsilon"]), _day(run["first"]), _day(run["last"]))
            for run in statement["runs"]]  # fmt: skip
    by_run, by_event = ("run", "charges", "ε by itself", "first", "last"), ("seq", "run", "round", "purpose")
    yield table(by_run, runs, words=by_run)
    yield table(by_event, ([str(event[name]) for name in by_event] for event in statement["events"]), words=by_event)


def _cost_text(statement: dict[str, Any]) -> str:
    budget = "unlimited" if statement["budget"] is None else f"{statement['budget']:g}"
    risk = statement["risk"] and share(statement["risk"]["tpr_at_1_percent_fpr"])
    attack = f", attack true-positive rate at 1 % false-positive rate: {risk}" if risk else ""
    return f"ε = {_epsilon(statement['epsilon'])} of {budget} at δ = {statement['delta']:g}{attack}"


def _epsilon(value: float | None) -> str:
    return "unbounded (something left without noise)" if value is None else significant(value)


def _day(time: object) -> str:
    return str(time)[:16].replace("T", " ")
