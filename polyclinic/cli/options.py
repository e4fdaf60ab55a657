"""Options that several commands have: each is declared once, as an annotated type or as a field of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, cast, get_type_hints

import typer

Sets = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


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
