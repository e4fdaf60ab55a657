"""Options that several commands have: each is declared once, as an annotated type or as a field of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

Config = Annotated[Path | None, typer.Argument(help="TOML file of configuration keys.", show_default=False)]
Sets = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@dataclass(frozen=True, kw_only=True)
class Records:
    """Where records of simulated hospitals are."""

    dataset: Annotated[str | None, typer.Option(help="Dataset by name.")] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Your own tables, CSV or Parquet: a folder with a file for each hospital, or NAME=FILE; or a hospital.toml for "
            "each hospital; repeatable.",
        ),
    ] = None
    label: Annotated[str | None, typer.Option(help="With --data: the column of the outcome.")] = None
    patient: Annotated[str | None, typer.Option(help="With --data: the column that names the patient.")] = None
    site: Annotated[str | None, typer.Option(help="With --data, one file: the column that names the hospital.")] = None
    leave_out: Annotated[
        list[str] | None, typer.Option(help="With --data: column that is not a feature; repeatable.")
    ] = None
    missing: Annotated[
        list[str] | None,
        typer.Option(help="With --data: text that marks a missing cell, beside the usual ones; repeatable."),
    ] = None
    schema: Annotated[
        Path | None, typer.Option(help="With --data: the public schema of the tables, in place of a draft.")
    ] = None
    mapping: Annotated[
        Path | None, typer.Option(help="With --data and --schema: how the tables' columns become the schema's.")
    ] = None
    cohort: Annotated[
        Path | None, typer.Option(help="With --data and --schema: the steps that choose the tables' rows.")
    ] = None
    sites: Annotated[int | None, typer.Option(help="Number of hospitals.")] = None


def with_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of the dataclass ``kind`` as options, in the place of its parameter ``options``."""
    types = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_shared(**given: Any) -> None:
            options = kind(**{option.name: given.pop(option.name) for option in shared})
            command(**given, options=options)

        signature, parameters = inspect.signature(command, eval_str=True), []
        for own in signature.parameters.values():
            parameters += shared if own.name == "options" else [own.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        cast(Any, with_shared).__signature__ = signature.replace(parameters=parameters)
        return with_shared

    return decorate
