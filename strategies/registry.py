"""How a strategy is made from a run's configuration, and which of them average models.

The round loop samples hospitals itself, from the run's seed, so a strategy is always told to take every node it sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from polyclinic.errors import ConfigError
from polyclinic.strategies import BUILT_IN

_WEIGHTED_MEANS = {flower.FedAvg, flower.FedProx, flower.FedAvgM, flower.FedAdam, flower.FedAdagrad, flower.FedYogi}
# The names of those that begin with the mean of models.
MEANS = [
    name for name, place in BUILT_IN.items() if place.partition(":")[2] in {kind.__name__ for kind in _WEIGHTED_MEANS}
]

# The loop's cohort decides who takes part; without these Flower would sample again, or wait for ever for a second node.
_EVERY_NODE = {
    "fraction_train": 1.0, "fraction_evaluate": 1.0, "min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1,
}  # fmt: skip


def merge_by(strategy: Strategy) -> str | None:
    """The metric by which models may be averaged before ``aggregate_train`` sees them; None where it needs each one.

    A strategy of one's own whose first step is the mean weighted by its ``weighted_by_key`` declares
    ``associative = True``.
    """
    associative = getattr(strategy, "associative", type(strategy) in _WEIGHTED_MEANS)
    return str(getattr(strategy, "weighted_by_key", "num-examples")) if associative else None


def _accepted(kind: type[Strategy]) -> tuple[list[str], bool]:
    """The keyword arguments that a class takes, those included that it hands on to its parents; whether any other goes, too."""
    found: list[str] = []
    for part in kind.__mro__:
        if "__init__" in vars(part):
            parameters = list(inspect.signature(vars(part)["__init__"]).parameters.values())[1:]
            found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                return found, False
    return found, True


def make_strategy(kind: type[Strategy], options: dict[str, Any], told: Mapping[str, Any]) -> Strategy:
    """An instance with ``options`` as its keyword arguments, and of what the run tells those that it takes.

    Raises ConfigError naming an argument it does not take.
    """
    accepted, open_ended = _accepted(kind)
    if ours := sorted(set(options) & {*_EVERY_NODE, "hospitals"}):
        name = ours[0].replace("_", "-")
        raise ConfigError(
            f"strategy-options names {name!r}, which the round loop decides; use fraction-train or min-sites."
        )
    unknown = [name for name in options if name not in accepted and not open_ended]
    if unknown:
        allowed = ", ".join(name.replace("_", "-") for name in accepted if name not in {*_EVERY_NODE, "hospitals"})
        raise ConfigError(
            f"strategy-options names {unknown[0]!r}, which {kind.__name__} does not take; it takes {allowed}."
        )
    defaults = {name: value for name, value in {**told, **_EVERY_NODE}.items() if name in accepted}
    try:
        return kind(**{**defaults, **options})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy-options do not make a {kind.__name__}: {error}.") from None
