"""How a strategy is made from a run's configuration, and which of them average models.

The round loop samples hospitals itself, from the run's seed, so a strategy is always told to take every node it sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from polyclinic.errors import ConfigError
from polyclinic.strategies import BUILT_IN
from polyclinic.strategies.base.state import holders, unsaved_attributes
from polyclinic.training.local import PLAIN, LocalHalf

# They count on a mod at hospitals that clips, without which their noise is for a clip that did not happen; and what does not.
_CLIP_AT_CLIENTS = {
    flower.DifferentialPrivacyClientSideFixedClipping: flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyClientSideAdaptiveClipping: flower.DifferentialPrivacyServerSideAdaptiveClipping,
}
_WEIGHTED_MEANS = {flower.FedAvg, flower.FedProx, flower.FedAvgM, flower.FedAdam, flower.FedAdagrad, flower.FedYogi}
# The names of those that begin with the mean of models.
MEANS = [name for name, strategy in BUILT_IN.items() if strategy.mean]

# The loop's cohort decides who takes part; without these Flower would sample again, or wait for ever for a second node.
_EVERY_NODE = {
    "fraction_train": 1.0, "fraction_evaluate": 1.0, "min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1,
}  # fmt: skip

#: Types of fields of a local half that are checked, in words and as what a value may be.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "float": ("a number", (int, float)), "int": ("a whole number", (int,)), "bool": ("true or false", (bool,)),
    "str": ("a text", (str,)),
}  # fmt: skip


def merge_by(strategy: Strategy) -> str | None:
    """The metric by which models may be averaged before ``aggregate_train`` sees them; None where it needs each one.

    A strategy of one's own whose first step is the mean weighted by its ``weighted_by_key`` declares
    ``associative = True``.

    Examples:
        >>> merge_by(flower.FedAdam()), merge_by(flower.FedMedian())
        ('num-examples', None)
    """
    # A function of one's own for metrics wants every hospital's.
    plain = getattr(strategy, "train_metrics_aggr_fn", aggregate_metricrecords) is aggregate_metricrecords
    associative = getattr(strategy, "associative", type(strategy) in _WEIGHTED_MEANS and plain)
    return str(getattr(strategy, "weighted_by_key", "num-examples")) if associative else None


def _accepted_arguments(kind: type[Strategy]) -> tuple[list[str], bool]:
    """The keyword arguments that a class takes, those included that it hands on to its parents; whether any other goes, too."""
    names: list[str] = []
    for part in kind.__mro__:
        if "__init__" in vars(part):
            parameters = list(inspect.signature(vars(part)["__init__"]).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                return names, False
    return names, True


def counts_hospitals(kind: type[Strategy]) -> bool:
    """Whether the strategy is told how many hospitals there are, so that none may come later.

    Examples:
        >>> from polyclinic.strategies.scaffold import Scaffold
        >>> counts_hospitals(Scaffold), counts_hospitals(flower.FedAvg)
        (True, False)
    """
    return "hospitals" in _accepted_arguments(kind)[0]


def local_half_of(kind: type[Strategy], options: Mapping[str, Any]) -> LocalHalf:
    """What the strategy has hospitals do in a round, with its fields from ``options``; plain steps where it has no ``Local``.

    Raises ConfigError for a ``Local`` that is no such half, or that refuses its options.

    Examples:
        >>> from polyclinic.strategies.ditto import Ditto
        >>> local_half_of(Ditto, {"pull": 0.5}), local_half_of(flower.FedAvg, {}) == PLAIN
        (Ditto.Local(pull=0.5), True)
    """
    half = getattr(kind, "Local", None)
    if half is None:
        return PLAIN
    if not (isinstance(half, type) and issubclass(half, LocalHalf)):
        raise ConfigError(f"{kind.__name__}.Local must be a subclass of polyclinic.training.local.LocalHalf.")
    try:
        made = half(**{name: value for name, value in options.items() if name in _fields(kind)})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy-options do not make a {kind.__name__}: {error}.") from None
    for field in fields(made) if is_dataclass(made) else ():
        declared = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        if declared in _TYPES and type(value := getattr(made, field.name)) not in _TYPES[declared][1]:
            raise ConfigError(
                f"strategy-options gives {field.name.replace('_', '-')!r} the value {value!r}, which must be "
                f"{_TYPES[declared][0]}."
            )
    if made.sends and kind.aggregate_train.__module__.startswith("flwr."):
        raise ConfigError(
            f"{kind.__name__}.Local sends {', '.join(made.sends)} beside the model, which Flower's aggregate_train of "
            f"{kind.__name__} does not expect; override aggregate_train to take it out of the replies."
        )
    return made


def _fields(kind: type[Strategy]) -> list[str]:
    """The options of the strategy's local half."""
    half = getattr(kind, "Local", None)
    return [field.name for field in fields(half)] if is_dataclass(half) else []


def make_strategy(kind: type[Strategy], options: dict[str, Any], run_values: Mapping[str, Any]) -> Strategy:
    """An instance with ``options`` as its keyword arguments, and of what the run tells those that it takes.

    Args:
        kind: The strategy's class.
        options: By parameter of the class, or of its local half.
        run_values: What the run tells every strategy, by parameter; an option goes before it.

    Raises:
        ConfigError: naming an argument it does not take, and for a strategy that the round loop cannot do justice to.

    Examples:
        >>> make_strategy(flower.FedAvgM, {"server_momentum": 0.5}, run_values={}).server_momentum
        0.5
        >>> make_strategy(flower.FedAvgM, {"fraction_train": 0.5}, run_values={})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: strategy-options names 'fraction-train', which the round loop ...
    """
    if kind.start is not Strategy.start:
        raise ConfigError(
            f"The strategy {kind.__name__} has a start of its own, which the round loop would not call; put what it does into "
            "configure_train and aggregate_train, or run it in a Flower app of its own by `polyclinic simulate`."
        )
    accepted, open_ended = _accepted_arguments(kind)
    if ours := sorted(set(options) & {*_EVERY_NODE, "hospitals"}):
        name = ours[0].replace("_", "-")
        raise ConfigError(
            f"strategy-options names {name!r}, which the round loop decides; use participation.fraction or "
            f"participation.min-sites."
        )
    of_half = _fields(kind)
    unknown = [name for name in options if name not in (*accepted, *of_half) and not open_ended]
    if unknown:
        takes = [name for name in dict.fromkeys((*accepted, *of_half)) if name not in {*_EVERY_NODE, "hospitals"}]
        allowed = ", ".join(name.replace("_", "-") for name in takes)
        raise ConfigError(
            f"strategy-options names {unknown[0]!r}, which {kind.__name__} does not take; it takes {allowed}."
        )
    defaults = {name: value for name, value in {**run_values, **_EVERY_NODE}.items() if name in accepted}
    own = {name: value for name, value in options.items() if name in accepted or name not in of_half}
    try:
        made = kind(**{**defaults, **own})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy-options do not make a {kind.__name__}: {error}.") from None
    for _, holder in holders(made):
        for clipped, instead in _CLIP_AT_CLIENTS.items():
            if not isinstance(holder, clipped):
                continue
            raise ConfigError(
                f"The strategy {kind.__name__} counts on a mod at hospitals that clips their models; for privacy of whole "
                f"hospitals take central.epsilon, or Flower's {instead.__name__}."
            )
    if lost := unsaved_attributes(made):
        raise ConfigError(
            f"The strategy {kind.__name__} has {', '.join(lost)}, which no checkpoint can hold; give the strategy the methods "
            "state() and restore(state), or name in not_saved what a resumed run makes anew."
        )
    return made
