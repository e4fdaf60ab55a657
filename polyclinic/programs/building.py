"""How a run's model is built: its builder gets by name what it asks for, of the run, of the schema and of ``model-options``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from polyclinic.config import RunConfig
from polyclinic.config.keys import with_dashes
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, failing, nearest
from polyclinic.plugins import model_named
from polyclinic.types import Builder

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """A run's model, as its configuration names it."""

    config: RunConfig

    @cached_property
    def made_by(self) -> Callable[..., nn.Module] | nn.Module:
        """What the name stands for: a function or a class that makes a module, or a module, which is copied."""
        return model_named(self.config.model)

    @property
    def asks_schema(self) -> bool:
        """Whether the builder has a parameter ``schema``, so that it makes no model of any number of features."""
        return "schema" in self._parameters

    @cached_property
    def _parameters(self) -> Mapping[str, Parameter]:
        from torch import nn

        if isinstance(self.made_by, nn.Module):
            return {}
        try:
            return signature(self.made_by).parameters
        except (TypeError, ValueError):  # it cannot be called, or is written in C
            raise self._refusal("makes no torch module: it must be a function, a class or a torch nn.Module") from None

    def builder(self, features: int, outputs: int, schema: Schema | None) -> Builder:
        """A function that makes empty modules.

        Args:
            features: The width of a row.
            outputs: How many numbers the objective takes of the model, for its parameters ``outputs`` and ``classes``.
            schema: Of the rows; None only where the builder does not ask for it.

        Raises:
            ConfigError: for options that the model does not take, or lacks. What is returned raises it where nothing of the
                kind can be built.
        """
        from torch import nn

        made_by, options = self.made_by, self.config.builder_options
        if isinstance(made_by, nn.Module):
            check_options(self.config.model, lambda: None, options, (), "model-options")
            return lambda: deepcopy(made_by)
        given = {"features": features, "classes": outputs, "widths": self.config.widths, "schema": schema}
        if "outputs" in self._parameters:
            options = {"outputs": outputs} | options
        check_options(self.config.model, made_by, options, given, "model-options")
        arguments = {name: value for name, value in given.items() if name in self._parameters} | options

        def build() -> nn.Module:
            what = f"Configuration key 'model' has the value {self.config.model!r}"
            with failing(f"{what}, which does not build a torch module from ({', '.join(arguments)})"):
                module = made_by(**arguments)
            if not isinstance(module, nn.Module):
                raise self._refusal(f"must build a torch nn.Module, not a {type(module).__name__}")
            return module

        return build

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"Configuration key 'model' has the value {self.config.model!r}, which {reason}.")


def check_options(model: str, make: Any, options: Mapping[str, Any], given: Collection[str], key: str) -> None:
    """Check that ``make`` has the options and lacks none, before its own TypeError says so in Python's words.

    Args:
        model: Its name, for the error's message.
        make: What makes the model; nothing is checked of what cannot be called.
        options: By parameter.
        given: Parameters that are no options, since others fill them.
        key: Of the configuration, that holds the options.

    Raises:
        ConfigError: for an option that ``make`` does not have, or one that it lacks.
    """
    taken = [part for part in signature(make).parameters.values() if part.name not in given] if callable(make) else []
    names = [part.name for part in taken if part.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    unknown = [name for name in options if name not in names]
    if unknown and callable(make) and not any(part.kind is Parameter.VAR_KEYWORD for part in taken):
        options_taken = [with_dashes(name) for name in names]
        raise ConfigError(
            f"The model {model!r} has no option {with_dashes(unknown[0])!r}; allowed are {', '.join(options_taken) or 'none'}."
            f"{nearest(with_dashes(unknown[0]), options_taken)}"
        )
    lacking = [
        part.name
        for part in taken
        if part.name in names and part.default is Parameter.empty and part.name not in options
    ]
    if lacking:
        raise ConfigError(
            f"The model {model!r} needs the option {with_dashes(lacking[0])!r}; give it in {key}, as "
            f"'{with_dashes(lacking[0])}=1'."
        )
