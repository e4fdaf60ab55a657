"""How the command line speaks: JSON alone on stdout, everything for people on stderr or, without --json, on stdout."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from polyclinic.errors import PolyclinicError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, all else on stderr.")]


def console(as_json: bool = False) -> Console:
    """Rich's console; it respects NO_COLOR, pipes and narrow terminals by itself."""
    return Console(stderr=as_json, highlight=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def fail(error: PolyclinicError) -> int:
    """Say the error in one sentence; returns its exit code."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]Error:[/] {escape(str(error))}")
    return error.exit_code


def number(value: float | None, digits: int = 3) -> str:
    """A figure for a table; what is undefined is said to be so."""
    return "undefined" if value is None else f"{value:.{digits}f}"
