"""What a module makes of rows before its last layers, where it names the part that makes it.

A module names it by an attribute ``representation``: the name of the submodule whose output it is, (rows, width).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyclinic.errors import ConfigError
from polyclinic.training.local import Penalty
from polyclinic.training.losses import Loss, row_losses
from polyclinic.training.modules import check_behaviour, load, split_flat
from polyclinic.types import Arrays, Builder

Call = Callable[[Callable[[], Tensor]], tuple[Tensor, Tensor]]


def check_representation(module: nn.Module) -> None:
    """Raises ConfigError for a module that names no submodule as its ``representation``."""
    name = getattr(module, "representation", None)
    if not isinstance(name, str) or name not in dict(module.named_modules()):
        raise ConfigError(
            "The model names no representation; set its attribute 'representation' to the name of the submodule whose output "
            "stands for a row, as 'body'."
        )


def check_penalised(build: Builder, arrays: Arrays, features: int, engine: str = "auto") -> None:
    """Checks that a penalty on the module's representation can be computed.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        features: The width of a row.
        engine: How per-patient gradients are computed.

    Raises:
        ConfigError: The module names no representation, its representation mixes patients, or the engine takes no
            penalty.
    """
    from polyclinic.training.stacked.engines import choose  # it imports this module

    check_representation(build())
    choose(load(build, arrays), features, engine, penalised=True)
    check_behaviour(lambda: _Both(build()), {f"whole.{name}": value for name, value in arrays.items()}, features)


class _Both(nn.Module):
    """A module's outputs and its representation, side by side."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        with represented(self.whole) as call:
            return torch.cat(call(lambda: self.whole(x)), 1)


@contextmanager
def represented(module: nn.Module) -> Iterator[Call]:
    """A function that runs a call of the module and returns its outputs and the representation made on the way."""
    seen: list[Tensor] = []

    def call(run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        seen.clear()
        outputs = run()
        return outputs, seen[-1].flatten(1)

    part = module.get_submodule(str(module.representation))
    handle = part.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        yield call
    finally:
        handle.remove()


def represent_by(module: nn.Module, flat: Tensor, x: Tensor) -> Tensor:
    """(rows, width) what the module makes of rows with other parameters; its own are left as they are.

    Args:
        module: The module, which names its representation.
        flat: (P,) the parameters.
        x: (rows, features) rows.
    """
    with represented(module) as call:
        return call(lambda: functional_call(module, split_flat(flat, module), (x,)))[1]


def penalised_losses(
    module: nn.Module, run: Callable[[], Tensor], x: Tensor, y: Tensor, loss: Loss, penalty: Penalty | None,
    others: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """(rows,) losses of the module's outputs, and the penalty's term where there is one.

    Args:
        module: The module, which names its representation where there is a penalty.
        run: Makes the outputs of ``x``.
        x: (rows, features) rows.
        y: (rows,) labels.
        loss: A name of a loss, or an objective.
        penalty: The penalty; None for none.
        others: The penalty's models of one hospital, (P,) each.
    """
    if penalty is None:
        return row_losses(loss, run(), y)
    with represented(module) as represent:
        outputs, own = represent(run)
    with torch.no_grad():
        theirs = [represent_by(module, flat, x) for flat in others]
    return row_losses(loss, outputs, y) + penalty.term(own, theirs)
