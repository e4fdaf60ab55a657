"""TOML files read into checked models; what is wrong with one is said in sentences that name file, key and value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from polyclinic.errors import ConfigError, PolyclinicError, nearest
from polyclinic.files import reason

M = TypeVar("M", bound=BaseModel)
# Pydantic's words for what a value must be, and those that people use.
_WORDS = {
    "a valid integer": "a whole number", "a valid boolean": "true or false", "a valid string": "text",
    "a valid dictionary": "a table", "a valid tuple": "a list", "a valid": "a", "less than or equal to": "at most",
    "greater than or equal to": "at least", "match pattern": "match the pattern",
}  # fmt: skip


class Declared(BaseModel):
    """A table that a person writes: it does not change, and a key that is not known is refused.

    What a ``cached_property`` computed of its values stays with it: a changed copy and another process compute their own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for computed in copied.__dict__.keys() - copied._values().keys():
            del copied.__dict__[computed]
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        return super().__getstate__() | {"__dict__": self._values()}

    def _values(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in type(self).model_fields if name in self.__dict__}


def read_toml(
    path: str | Path, what: str, error: type[PolyclinicError] = ConfigError, missing: str = ""
) -> dict[str, Any]:
    """The tables and keys of a TOML file.

    Args:
        path: The file.
        what: What the file is called, such as "hospital file".
        error: What is raised where the file is missing, cannot be read, or is not TOML in UTF-8.
        missing: The sentence for a file that is missing, where another says more.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(missing or f"There is no {what} {path}.") from None
    except OSError as problem:
        raise error(f"The {what} {path} cannot be read: {reason(problem)}.") from None
    except UnicodeDecodeError as problem:
        raise error(f"The {what} {path} is not valid TOML: byte {problem.start + 1} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as problem:
        raise error(f"The {what} {path} is not valid TOML: {problem}.") from None


def read_model(
    model: type[M], path: str | Path, what: str, error: type[PolyclinicError] = ConfigError, *,
    missing: str = "", secret: bool = False,
) -> M:  # fmt: skip
    """The model in a TOML file. Errors as those of ``read_toml`` and ``build_model``.

    Args:
        model: The class of the model.
        path, what, error, missing: As in ``read_toml``.
        secret: As in ``build_model``.
    """
    return build_model(model, read_toml(path, what, error, missing), str(path), error, secret=secret)


def build_model(
    model: type[M], values: Mapping[str, Any], source: str, error: type[PolyclinicError] = ConfigError, *,
    within: tuple[str, ...] = (), secret: bool = False,
) -> M:  # fmt: skip
    """The values as a model.

    Args:
        model: The class of the model.
        values: The values by their keys, in tables as TOML has them.
        source: What the values are of, which begins the sentence of an error.
        error: What is raised for a key that is missing, unknown or impossible.
        within: The keys under which the values stand in the source.
        secret: Values may be passwords, and no sentence quotes them.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problems:
        lines = []
        for key, problem in all_problems(problems, model, secret):
            place = ".".join((*within, *key))
            lines.append(f"{source}: {f'key {place!r}: ' if place else ''}{problem}")
        raise error("\n".join(lines)) from None


def all_problems(
    problems: ValidationError, model: type[BaseModel], secret: bool = False
) -> list[tuple[tuple[str, ...], str]]:
    """The key of each problem and a sentence about it, which names the value and the nearest allowed key.

    A key that is missing is passed over where its table has an unknown one like it. Of several problems of one value the first is
    taken: a value that is none of several types fails by each.

    Args:
        problems: What pydantic found.
        model: The class that the values were to be.
        secret: Values may be passwords, and no sentence quotes them.
    """
    errors = problems.errors(include_url=False)
    strangers = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    faults: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = {}
    for error in errors:
        key = tuple(map(str, error["loc"]))
        keys = _keys_at(model, key[:-1])
        beside = [str(loc[-1]) for loc in strangers if loc[:-1] == error["loc"][:-1]]
        if error["type"] == "missing" and nearest(key[-1], beside):
            continue
        words, value = in_words(error), error["input"]
        plain = isinstance(value, int | float) or (isinstance(value, str) and repr(value) not in words)
        unknown = error["type"] == "extra_forbidden"
        hint = nearest(key[-1], keys) if unknown else ""
        is_field = not key or key[-1] in keys or unknown
        subject = "it " if words.startswith(("must ", "is ")) else ""
        sentence = f"{subject}{words}{f', got {value!r}' if plain and not secret and not unknown else ''}.{hint}"
        faults.setdefault(key if is_field else key[:-1], (key, sentence))
    return list(faults.values())


def in_words(error: ErrorDetails) -> str:
    """What pydantic found wrong with a value, in people's words, such as "must be a list"; a validator's own as they are."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    words = {"missing": "is missing", "extra_forbidden": "there is no such key"}.get(error["type"], error["msg"])
    words = re.sub(r"^\w+ should ", "must ", words)
    words = re.sub(r"(, unable to .*|, got a number.*| after validation, not .*| or instance of .*)$", "", words)
    for theirs, ours in _WORDS.items():
        words = words.replace(theirs, ours)
    return words


def _keys_at(model: type[BaseModel], key: tuple[str, ...]) -> list[str]:
    """The keys that the table under ``key`` may have."""
    models = [model]
    for part in key:
        below = [field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)]
        # A place in a list, a name in a table of tables and the kind of a union lead to no other field.
        models = [inner for field in below for inner in _models(field.annotation)] if below else models
    return [field.alias or name for inner in models for name, field in inner.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
