"""What the sections of the configuration share: how a key is written, and the kinds of numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from polyclinic.config.reading import as_text
from polyclinic.errors import ConfigError, decimal_hint, nearest
from polyclinic.toml import Declared, in_words

Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1)]
#: Text, which in Python may also be given as the mapping, list or number that it writes.
Written = Annotated[str, BeforeValidator(as_text)]


def with_dashes(name: str) -> str:
    return name.replace("_", "-")


class Keys(Declared):
    """Immutable keys, written with dashes outside Python and with underscores inside.

    Raises ConfigError, one sentence, for a key that there is not and for a value that it cannot have.
    """

    model_config = ConfigDict(alias_generator=with_dashes, populate_by_name=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # so that types of keyword arguments are those of the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(self._sentence(error)) from None

    @classmethod
    def _sentence(cls, error: ValidationError) -> str:
        first = error.errors()[0]
        message = in_words(first)
        message += decimal_hint(first["input"]) if first["type"] == "float_parsing" else ""
        message += "" if message.endswith((".", "?")) else "."
        if not first["loc"]:
            return f"Impossible configuration: {message}"
        key = cls._key(first["loc"])
        if first["type"] == "extra_forbidden":
            keys = [cls._key((name,)) for name in cls.model_fields]
            return f"Unknown configuration key {key!r}.{nearest(key, keys)}"
        return f"Configuration key {key!r} has the value {first['input']!r}, which {message}"

    @classmethod
    def _key(cls, path: tuple[int | str, ...]) -> str:
        """A key's full name: a section's class is named as the section."""
        return ".".join((cls.__name__.lower(), *(with_dashes(str(part)) for part in path)))

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if isinstance(value, bool) and cls.model_fields[name].annotation in (int, float):
            raise ValueError("must be a number")
        return value


def flat_keys(values: Mapping[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """Dashed keys, with ``section.key`` for what a mapping or a section's model holds; of a model what it was given.

    Raises ConfigError for a key that is written in two ways.

    Examples:
        >>> flat_keys({"rounds": 3, "privacy": {"max_grad_norm": 1.0}, "secure.bits": 20}, ("privacy", "secure"))
        {'rounds': 3, 'privacy.max-grad-norm': 1.0, 'secure.bits': 20}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = with_dashes(key)
        if name in sections and isinstance(value, Declared):
            value = {field: getattr(value, field) for field in value.model_fields_set}
        inside = name in sections and isinstance(value, Mapping)
        pairs = (
            [(f"{name}.{with_dashes(str(inner))}", content) for inner, content in value.items()]
            if inside
            else [(name, value)]
        )
        for inner, content in pairs:
            if inner in flat:
                raise ConfigError(f"Configuration key {inner!r} is given twice.")
            flat[inner] = content
    return flat


def nested_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` as a mapping of the section's keys, in the order of ``flat``.

    Examples:
        >>> nested_keys({"rounds": 3, "secure.bits": 20})
        {'rounds': 3, 'secure': {'bits': 20}}
    """
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, dot, inner = key.partition(".")
        if dot:
            nested.setdefault(section, {})[inner] = value
        else:
            nested[key] = value
    return nested


def noise_known(value: str) -> str:
    """``value``, the name of a noise process. Raises ValueError for an unknown one."""
    from polyclinic.privacy.noise import NOISE

    if value not in NOISE:
        raise ValueError(f"must be one of {', '.join(NOISE)}.{nearest(value, NOISE)}")
    return value
