"""The four ways to per-patient gradients, and which one a module gets.

``linear``: closed form for stacks of linear layers and convolutions, all sites at once (linear.py). ``layered``: closed forms for
the layers of other modules, all sites at once (layered.py). ``functional``: torch.func, all sites at once (per_example.py).
``opacus``: site by site with Opacus' hooks (classification.py), for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, cast, get_args

from torch import Tensor, nn

from polyclinic.errors import ConfigError, nearest
from polyclinic.training.losses import CROSS_ENTROPY, Loss
from polyclinic.training.stacked.layered import Layered, layered, layered_sums, same_as_alone
from polyclinic.training.stacked.layers import Masks, plan
from polyclinic.training.stacked.linear import linear_sums
from polyclinic.training.stacked.per_example import fits, functional_sums

Engine = Literal["linear", "layered", "functional", "opacus"]


_PENALISED = "the loss has a penalty, of which there is no closed form"
#: Of (S, P) models, a ``Batch``, and by its name a ``penalty``: (S, P) sums of (clipped) gradients and (S,) of the losses.
Sums = Callable[..., tuple[Tensor, Tensor]]


def choose(module: nn.Module, features: int, engine: str = "auto", penalised: bool = False) -> Engine:
    """The engine for the module: the first of linear, layered, functional and opacus that takes it, or the one asked for.

    features: the width of a row. penalised: whether losses have a penalty, of which there is no closed form.
    Raises ConfigError for an unknown engine, and for one that cannot take the module.
    """
    known = get_args(Engine)
    if engine not in (*known, "auto"):
        raise ConfigError(
            f"The engine {engine!r} is unknown; choose auto, {', '.join(known)}.{nearest(engine, (*known, 'auto'))}"
        )
    if engine == "opacus":
        return "opacus"
    problem: str | None = None
    if engine in ("auto", "linear"):
        layers = _PENALISED if penalised else plan(module)
        if not isinstance(layers, str):
            return "linear"
        problem = layers
    if engine != "linear":
        problem = fits(module, features)
    if engine == "functional" and problem is None:
        return "functional"
    if engine in ("auto", "layered") and problem is None:
        found = _PENALISED if penalised else layered(module)
        problem = found if isinstance(found, str) else same_as_alone(found, features)
        if problem is None:
            return "layered"
        if engine == "auto":
            return "functional"
    if engine == "auto":
        return "opacus"
    raise ConfigError(
        f"Configuration key 'training.engine' has the value {engine!r}, but {engine!r} cannot take this model: "
        f"{str(problem).rstrip('.')}; allowed are auto and opacus."
    )


def sums(
    module: nn.Module, engine: Engine, max_norm: float | None, rows_at_once: int, loss: Loss = CROSS_ENTROPY,
    seeds: Sequence[int] | None = None,
) -> Sums:  # fmt: skip
    """A function of (S, P) parameters, a batch and a penalty: (S, P) sums of (clipped) per-patient gradients, (S,) summed losses.

    seeds: of what the layers of each site draw (dropout), with the engines "linear" and "layered", from one batch to the next.
    Raises ConfigError for an engine that cannot take the module or does not stack sites.
    """
    if engine in ("linear", "layered"):
        found = plan(module) if engine == "linear" else layered(module)
        if isinstance(found, str):
            raise ConfigError(f"The engine {engine!r} cannot take this model: {found}.")
        compute = layered_sums if isinstance(found, Layered) else linear_sums
        return partial(compute, found, max_norm=max_norm, loss=loss, masks=Masks(seeds))
    if engine == "functional":
        return partial(functional_sums, module, max_norm=max_norm, rows_at_once=rows_at_once, loss=loss)
    raise ConfigError(f"The engine {cast(str, engine)!r} does not train sites together.")
