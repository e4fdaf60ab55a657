"""How the command line speaks: JSON alone on stdout, everything for people on stderr or, without --json, on stdout."""

from __future__ import annotations

import codecs
import gc
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from polyclinic.errors import ConfigError, PolyclinicError, traceback_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, all else on stderr.")]
_SPELLED = {"ε": "epsilon", "δ": "delta", "…": "..."}


class Stopped(PolyclinicError):
    """Ctrl-C; its notes are those of the KeyboardInterrupt."""

    exit_code = 130


def console(as_json: bool = False) -> Console:
    """Rich's console; it respects NO_COLOR, pipes and narrow terminals by itself.

    Text is shown as it is: names, reasons and titles are data, in which ``[red]`` is no markup.
    """
    from rich.console import Console

    return Console(stderr=as_json, highlight=False, markup=False, emoji=False)


@contextmanager
def loading() -> Iterator[None]:
    """Import within it what a command needs: torch, Flower and SciPy take a second or two.

    Modules never are garbage, so the collector does not walk them: not while they are made, nor afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def working(as_json: bool, what: str) -> Iterator[Callable[[str], None]]:
    """Show ``what`` is being done while it is; the function shows a step of it."""
    with json_alone(as_json), console(as_json).status(what, spinner="line") as status:
        yield lambda step: status.update(f"{what}: {step}")


def json_alone(as_json: bool) -> redirect_stdout[TextIO]:
    """With --json, what plug-ins and libraries print goes to stderr: it must not get between a reader and the JSON."""
    return redirect_stdout(sys.stderr if as_json else sys.stdout)


def answer(as_json: bool, value: Any, *shown: str | Text | Table) -> None:
    """Print the value as JSON or, for people, what is shown of it."""
    if as_json:
        print_json(value)
    else:
        say(*shown)


def say(*shown: str | Text | Table, errors: bool = False) -> None:
    """Print each part on stdout, or on stderr; a terminal breaks long sentences, and rich fits tables to it."""
    from rich.table import Table

    for part in shown:
        console(errors).print(part, soft_wrap=not isinstance(part, Table))


def style_lines(style: str, *sentences: str) -> list[Text]:
    """The sentences, "dim" where they need not be read at once, "yellow" where they should not be overlooked."""
    from rich.text import Text

    return [Text(sentence, style) for sentence in sentences]


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], words: Sequence[str] = ()) -> Table:
    """A table of the rows. The first column and those of ``words`` hold text, on the left, the others figures."""
    from rich.table import Column, Table

    columns = [
        Column(heading, justify="left" if not number or heading in words else "right", overflow="fold")
        for number, heading in enumerate(headings)
    ]
    made = Table(*columns, box=None)
    for row in rows:
        made.add_row(*row)
    return made


def fitting(headings: Sequence[str], rows: Iterable[Sequence[str]], screen: Console, most: int = 1000) -> int:
    """How many columns fit the screen, from the first on; two at least.

    Args:
        headings: The heading of each column.
        rows: The cells of each row.
        screen: The screen.
        most: In characters; longer text is folded at spaces.
    """
    ends, fit = 0, 0
    for heading, *cells in zip(headings, *rows, strict=True):
        word = max(map(len, heading.split()), default=0)
        ends += max(min(max(map(len, (heading, *cells))), most), word) + 2
        fit += ends <= screen.width + 2
    return max(fit, 2)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def fail(error: PolyclinicError) -> int:
    """Say the error in one sentence, with the traceback of the user's own code where that failed, and below it how to go on;
    returns its exit code."""
    from rich.text import Text

    message = str(error) if isinstance(error, Stopped) else Text.assemble(("Error:", "bold red"), f" {error}")
    screen = console(as_json=True)
    if isinstance(error, ConfigError) and error.__cause__ and (where := traceback_of(error.__cause__)):
        screen.print(where, soft_wrap=True)
    screen.print(message, *notes(error), sep="\n", soft_wrap=True)
    return error.exit_code


def notes(error: BaseException) -> list[str]:
    """What was added to an error on its way up."""
    return list(getattr(error, "__notes__", ()))


def spell_what_cannot_be_shown() -> None:
    """Let stdout and stderr write ``epsilon`` where their encoding has no ε, and ? for the rest, instead of failing."""
    codecs.register_error("polyclinic.spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="polyclinic.spell")


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELLED.get(character, "?") for character in error.object[error.start : error.end]), error.end


def number(value: float | None, digits: int = 3) -> str:
    """A figure for a table; what is undefined is said to be so."""
    return "undefined" if value is None else f"{value:.{digits}f}"


def interval(estimate: Mapping[str, float | None], digits: int = 3) -> str:
    """A value with its interval, where it has one."""
    value, low, high = (number(estimate[key], digits) for key in ("value", "low", "high"))
    return value if estimate["value"] is None or estimate["low"] is None else f"{value} ({low} to {high})"


def unless_withheld(row: Mapping[str, Any], figure: str) -> str:
    """The figure, or that the policies did not let those of this row of a summary leave."""
    from polyclinic.evaluation.privacy_text import NOT_RELEASED

    return NOT_RELEASED if row.get("released") is False else figure


def significant(value: float) -> str:
    """Four significant digits, so that a small epsilon is not shown as 0.0000."""
    return f"{value:.4g}"


def intact_or_altered(intact: bool) -> str:
    """What a ledger's chain of hashes says of its record."""
    return "the record is intact" if intact else "THE RECORD HAS BEEN ALTERED"


def assignments(sets: list[str] | None) -> dict[str, Any]:
    """What ``-c KEY=VALUE`` gave, by key. Raises ConfigError for anything else."""
    from polyclinic.config import parse_value

    return {key: parse_value(value.strip()) for key, value in pairs("-c", sets).items()}


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """Values by their keys of an option that takes KEY=VALUE. Raises ConfigError for anything else."""
    values = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{option} takes KEY=VALUE, not {text!r}.")
        values[key.strip()] = value
    return values
