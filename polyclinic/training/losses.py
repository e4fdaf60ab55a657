"""The losses that hospitals train with, each in two forms: differentiable, and with its gradient at the output.

A loss is one number a row, of outputs (..., O) and labels (...) int64. "cross-entropy": O logits, y the class; one logit is that
of class 1, of a binary label.
"logistic": one logit, y 1 or 0 (a critic's real and generated; Goodfellow et al. 2014). "wasserstein": one score, high
for y 1 (Arjovsky et al. 2017). "auxiliary": a logit of real and the logits of K labels, y = 2 * label + real, the two
entropies weighed alike (Odena et al. 2017). "discriminative": a logit of real and those of the 2 K pairs of label and real, y
as before (Hou et al. 2022). "density": one output, minus the log-density of the row itself; y is not used.
In place of a name there may be an ``Objective``, with labels as it takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from polyclinic.errors import ConfigError, nearest
from polyclinic.objectives.objective import Objective

CROSS_ENTROPY = "cross-entropy"
DENSITY = "density"
#: One of ``LOSSES`` by name, or an objective.
Loss = str | Objective
Pair = tuple[Tensor, Tensor]


def row_losses(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """(n,) losses of outputs and labels; differentiable.

    Args:
        loss: A name of a loss, or an objective.
        outputs: (n, O) the module's outputs.
        labels: (n,) labels.

    Raises:
        ConfigError: As ``check_loss``.
    """
    check_loss(loss, outputs.shape[-1])
    return loss.losses(outputs, labels) if isinstance(loss, Objective) else _DIFFERENTIABLE[loss](outputs, labels)


def losses_and_gradients(loss: Loss, outputs: Tensor, labels: Tensor) -> Pair:
    """(...) losses of outputs and labels, and their gradients at the outputs, (..., O).

    They are in closed form, but for an objective, whose losses are differentiated at the outputs.

    Args:
        loss: A name of a loss, or an objective.
        outputs: (..., O) the module's outputs.
        labels: (...) labels.

    Raises:
        ConfigError: As ``check_loss``.
    """
    check_loss(loss, outputs.shape[-1])
    if not isinstance(loss, Objective):
        return _CLOSED[loss](outputs, labels)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = loss.losses(leaf, labels)
        gradient = torch.autograd.grad(losses.sum(), leaf)[0]
    return losses.detach(), gradient


def check_loss(loss: Loss, outputs: int) -> None:
    """Raises ConfigError for an unknown loss, and for one that does not take a model of so many outputs."""
    if isinstance(loss, Objective):
        if outputs not in loss.allowed:
            raise loss.refuse(
                f"which takes a model of {' or '.join(map(str, loss.allowed))} outputs; this one has {outputs}"
            )
        return
    if loss not in _OUTPUTS:
        names = ", ".join(_OUTPUTS)
        raise ConfigError(f"The loss {loss!r} is unknown; allowed are {names}.{nearest(loss, tuple(_OUTPUTS))}")
    fits, allowed = _OUTPUTS[loss]
    if not fits(outputs):
        raise ConfigError(f"The loss {loss!r} takes a model with {allowed}; this one has {outputs}.")


def _one_or_several(outputs: Tensor, labels: Tensor) -> Tensor:
    return (_logistic if outputs.shape[-1] == 1 else _cross_entropy)(outputs, labels)


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    score = outputs[..., 0]
    return functional.binary_cross_entropy_with_logits(score, labels.to(score.dtype), reduction="none")


def _wasserstein(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[..., 0] * (1 - 2 * labels)


def _auxiliary(outputs: Tensor, labels: Tensor) -> Tensor:
    return _logistic(outputs[..., :1], labels % 2) + _cross_entropy(outputs[..., 1:], labels // 2)


def _discriminative(outputs: Tensor, labels: Tensor) -> Tensor:
    return _logistic(outputs[..., :1], labels % 2) + _cross_entropy(outputs[..., 1:], labels)


def _density(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[..., 0]


def _one_or_several_closed(outputs: Tensor, labels: Tensor) -> Pair:
    return (_logistic_closed if outputs.shape[-1] == 1 else _cross_entropy_closed)(outputs, labels)


def _cross_entropy_closed(outputs: Tensor, labels: Tensor) -> Pair:
    chances = torch.log_softmax(outputs, -1)
    label = labels[..., None]
    losses = -chances.gather(-1, label)[..., 0]
    return losses, chances.exp_().scatter_add_(-1, label, chances.new_full((), -1.0).expand(label.shape))


def _logistic_closed(outputs: Tensor, labels: Tensor) -> Pair:
    return _logistic(outputs, labels), outputs.sigmoid() - labels[..., None]


def _wasserstein_closed(outputs: Tensor, labels: Tensor) -> Pair:
    return _wasserstein(outputs, labels), (1 - 2 * labels)[..., None].to(outputs.dtype)


def _auxiliary_closed(outputs: Tensor, labels: Tensor) -> Pair:
    (real, at_real), (label, at_label) = (
        _logistic_closed(outputs[..., :1], labels % 2),
        _cross_entropy_closed(outputs[..., 1:], labels // 2),
    )
    return real + label, torch.cat([at_real, at_label], -1)


def _discriminative_closed(outputs: Tensor, labels: Tensor) -> Pair:
    (real, at_real), (pair, at_pair) = (
        _logistic_closed(outputs[..., :1], labels % 2),
        _cross_entropy_closed(outputs[..., 1:], labels),
    )
    return real + pair, torch.cat([at_real, at_pair], -1)


def _density_closed(outputs: Tensor, labels: Tensor) -> Pair:
    return _density(outputs, labels), torch.ones_like(outputs)


_DIFFERENTIABLE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    CROSS_ENTROPY: _one_or_several, "logistic": _logistic, "wasserstein": _wasserstein, "auxiliary": _auxiliary,
    "discriminative": _discriminative, DENSITY: _density,
}  # fmt: skip
_CLOSED: Mapping[str, Callable[[Tensor, Tensor], Pair]] = {
    CROSS_ENTROPY: _one_or_several_closed, "logistic": _logistic_closed, "wasserstein": _wasserstein_closed,
    "auxiliary": _auxiliary_closed, "discriminative": _discriminative_closed, DENSITY: _density_closed,
}  # fmt: skip
# Which numbers of outputs a loss takes, and how that is said.
_OUTPUTS: Mapping[str, tuple[Callable[[int], bool], str]] = {
    CROSS_ENTROPY: (lambda outputs: outputs >= 1, "an output for each class"),
    "logistic": (lambda outputs: outputs == 1, "one output"),
    "wasserstein": (lambda outputs: outputs == 1, "one output"),
    DENSITY: (lambda outputs: outputs == 1, "one output"),
    "auxiliary": (lambda outputs: outputs >= 2, "one output and another for each label"),
    "discriminative": (lambda outputs: outputs >= 3 and outputs % 2 == 1, "one output and two for each label"),
}
LOSSES = tuple(_OUTPUTS)
