"""The four ways to per-patient gradients, and which one a module gets.

``linear``: closed form for stacks of linear layers and convolutions, all sites at once (linear.py)
``layered``: closed forms for the layers of other modules, all sites at once (layered.py)
``functional``: torch.func, all sites at once (per_example.py)
``opacus``: site by site with Opacus' hooks (classification.py), for the rest
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Literal, cast, get_args

from torch import Tensor, nn

from polyclinic.errors import ConfigError, nearest
from polyclinic.training.losses import CROSS_ENTROPY, Loss
from polyclinic.training.modules import structure
from polyclinic.training.stacked.layered import find_layers, layered_sums, same_as_alone
from polyclinic.training.stacked.layers import Masks, plan
from polyclinic.training.stacked.linear import linear_sums
from polyclinic.training.stacked.per_example import fits, functional_sums

Engine = Literal["linear", "layered", "functional", "opacus"]


# What was learned by trying modules, by their structure, features, and what was asked for: a module's code does not change.
_tried: dict[tuple[Hashable, int, str, bool], tuple[Engine | None, str]] = {}
_REMEMBERED = 64
_PENALISED = "the loss has a penalty, of which there is no closed form"
#: Of (S, P) models, a ``Batch``, and by its name a ``penalty``: (S, P) sums of (clipped) gradients and (S,) of the losses.
Sums = Callable[..., tuple[Tensor, Tensor]]


def choose(module: nn.Module, features: int, engine: str = "auto", penalised: bool = False) -> Engine:
    """The engine for the module: the first of linear, layered, functional and opacus that takes it, or the one asked for.

    Args:
        module: The module.
        features: The width of a row.
        engine: The engine that is asked for; "auto" takes the first.
        penalised: Whether losses have a penalty, of which there is no closed form.

    Raises:
        ConfigError: The engine is unknown, or cannot take the module.
    """
    engines = get_args(Engine)
    if engine not in (*engines, "auto"):
        raise ConfigError(
            f"The engine {engine!r} is unknown; choose auto, {', '.join(engines)}.{nearest(engine, (*engines, 'auto'))}"
        )
    if engine == "opacus":
        return "opacus"
    taken, problem = _find_engine(module, features, engine, penalised)
    if taken is not None:
        return taken
    raise ConfigError(
        f"Configuration key 'training.engine' has the value {engine!r}, but {engine!r} cannot take this model: "
        f"{str(problem).rstrip('.')}; allowed are auto and opacus."
    )


def _find_engine(module: nn.Module, features: int, engine: str, penalised: bool) -> tuple[Engine | None, str]:
    """The engine that takes the module, as ``choose``; or None, and what is in the way of the one asked for."""
    problem: str | None = None
    if engine in ("auto", "linear"):
        layers = _PENALISED if penalised else plan(module)
        if not isinstance(layers, str):
            return "linear", ""
        problem = layers
    if engine == "linear":
        return None, problem or ""
    key = (structure(module), features, engine, penalised)
    if key not in _tried:
        if len(_tried) >= _REMEMBERED:
            _tried.clear()
        _tried[key] = _try(module, features, engine, penalised)
    return _tried[key]


def _try(module: nn.Module, features: int, engine: str, penalised: bool) -> tuple[Engine | None, str]:
    problem = fits(module, features)
    if problem is not None or engine == "functional":
        return ("opacus" if engine == "auto" else None, problem) if problem is not None else ("functional", "")
    closed = _PENALISED if penalised else find_layers(module)
    problem = closed if isinstance(closed, str) else same_as_alone(closed, features)
    if problem is None:
        return "layered", ""
    return ("functional" if engine == "auto" else None), problem


def sums(
    module: nn.Module, engine: Engine, max_norm: float | None, rows_at_once: int, loss: Loss = CROSS_ENTROPY,
    seeds: Sequence[int] | None = None,
) -> Sums:  # fmt: skip
    """A function of (S, P) parameters, a batch and a penalty that sums (clipped) per-patient gradients.

    Args:
        module: The module.
        engine: "linear", "layered" or "functional".
        max_norm: The clipping norm of a patient's gradient; None does not clip.
        rows_at_once: With "functional", how many rows of each site have gradients at one time.
        loss: A name of a loss, or an objective.
        seeds: Of what the layers of each site draw (dropout), with the engines "linear" and "layered", from one batch
            to the next.

    Returns:
        The function, which gives (S, P) sums and (S,) summed losses.

    Raises:
        ConfigError: The engine cannot take the module or does not stack sites.
    """
    if engine == "linear":
        layers = plan(module)
        if isinstance(layers, str):
            raise ConfigError(f"The engine 'linear' cannot take this model: {layers}.")
        return partial(linear_sums, layers, max_norm=max_norm, loss=loss, masks=Masks(seeds))
    if engine == "layered":
        closed = find_layers(module)
        if isinstance(closed, str):
            raise ConfigError(f"The engine 'layered' cannot take this model: {closed}.")
        return partial(layered_sums, closed, max_norm=max_norm, loss=loss, masks=Masks(seeds))
    if engine == "functional":
        return partial(functional_sums, module, max_norm=max_norm, rows_at_once=rows_at_once, loss=loss)
    raise ConfigError(f"The engine {cast(str, engine)!r} does not train sites together.")
