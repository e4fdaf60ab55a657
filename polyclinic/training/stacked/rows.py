"""What layers leave of a pass through a module, of which every row's gradient follows: its norm, and weighted sums of many.

A linear layer's gradient for one row is the outer product of the loss' gradient at its output and its input. So its
norm is the product of theirs (Goodfellow 2015, arXiv:1510.01799). A layer may meet a row several times, at positions of
a picture or at steps of a sequence, or a patient may have several rows. Then the norm comes from two small Gram
matrices (Li et al. 2022, arXiv:2110.05679), or from the sum of outer products itself where that is cheaper. S sites, B
rows, L positions, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyclinic.training.stacked.layers import Affine, Masked
from polyclinic.training.stacked.products import outer_products, rows_product

AT_ONCE = 1 << 24  # numbers in gradients built at once, where they have to be


@dataclass(frozen=True, eq=False)
class LayerRows:
    """A layer's input (S, B, inputs) and the loss' gradient at its output (S, B, outputs).

    With L positions (S, B, L, inputs) and (S, B, L, outputs); of a convolution the input is its patches.
    """

    layer: Affine
    input: Tensor
    output: Tensor

    @property
    def positions(self) -> bool:
        return self.input.dim() > 3

    def norms(self, squares: Tensor, apart: bool = False) -> tuple[Tensor, Tensor]:
        """(S, B) ``squares`` plus the squared norms of the rows' gradients; and those of their longest inputs.

        The norms at positions are added up: at least the norm of their sum. apart: each of the S bit for bit by itself.
        """
        if self.positions:
            length, output = (torch.linalg.vector_norm(value, dim=-1) for value in (self.input, self.output))
            rows = (output * (length.square() + 1).sqrt() if self.layer.bias else output * length).sum(-1)
            return squares + rows.square(), length.amax(-1).square()
        length = torch.linalg.vecdot(self.input, self.input)
        output = torch.linalg.vecdot(self.output, self.output)
        if isinstance(self.layer, Masked):
            square, mask = self.output.square(), self.layer.mask
            masked = rows_product(square, mask[None]) if apart else square @ mask
            return squares + torch.linalg.vecdot(masked, self.input.square()) + output, length
        return torch.addcmul(squares, output, length + 1 if self.layer.bias else length), length

    def together(self, index: Tensor | None = None, there: Tensor | None = None) -> Tensor:
        """(K,) squared norms of gradients summed over the rows at ``index``, (K, R), that are ``there``; None: of each row."""
        a, g = (_gather(value, index, there) for value in (self.input, self.output))
        layer, weights = self.layer, self.layer.mask if isinstance(self.layer, Masked) else None
        cheaper = 2 * a.shape[1] * (layer.inputs + layer.outputs) <= layer.inputs * layer.outputs
        # In float64, for a Gram matrix squares what cancels; a float64 module has no wider type, so there the sum is built.
        if weights is None and cheaper and a.dtype != torch.float64:
            a, g = a.double(), g.double()
            grams = torch.bmm(a, a.mT)
            return (torch.bmm(g, g.mT) * (grams + 1 if layer.bias else grams)).sum((1, 2))
        at_once = max(1, AT_ONCE // (layer.inputs * layer.outputs))
        pairs = zip(torch.split(g, at_once), torch.split(a, at_once), strict=True)
        built = (torch.bmm(some.mT, inputs) for some, inputs in pairs)
        squares = torch.cat(
            [(gradient if weights is None else gradient * weights).square().sum((1, 2)) for gradient in built]
        )
        return squares + g.sum(1).square().sum(1) if layer.bias else squares

    def add(self, total: Tensor, factors: Tensor | None) -> None:
        """Put the sums over rows of their gradients times ``factors``, (S, B), in the layer's places of ``total``, (S, P)."""
        output = self.output if factors is None else self.output * _across(factors, self.output)
        output, inputs = (value.flatten(1, -2) for value in (output, self.input))
        self.layer.weight(total).copy_(torch.bmm(output.mT, inputs))
        if self.layer.bias:
            self.layer.offset(total).copy_(output.sum(1))

    def build(self, gradients: Tensor, site: Tensor, column: Tensor) -> None:
        """Writes the gradients of some rows into the layer's columns of ``gradients``.

        Args:
            gradients: (K, P) gradients, which are changed.
            site: (K,) the site of each row.
            column: (K,) the row's place among the site's, 0 to B - 1.
        """
        a, g = (value[site, column] for value in (self.input, self.output))
        if g.dim() == 2:
            self._place(gradients, g[:, :, None] * a[:, None], g)
        else:
            self._place(gradients, torch.bmm(g.mT, a), g.sum(1))

    def build_apart(self, gradients: Tensor) -> None:
        """Put each of the S gradients, summed over its rows, in the layer's places of (S, P), bit for bit by itself."""
        output, inputs = (value.flatten(1, -2) for value in (self.output, self.input))
        self._place(gradients, outer_products(output, inputs), output.sum(1))

    def _place(self, gradients: Tensor, weight: Tensor, offset: Tensor) -> None:
        masked = isinstance(self.layer, Masked)
        self.layer.weight(gradients).copy_(weight * self.layer.mask if masked else weight)  # type: ignore[attr-defined]
        if self.layer.bias:
            self.layer.offset(gradients).copy_(offset)

    def without(self, rows: Tensor) -> LayerRows:
        """The same with zeros in these ``rows``, (S, B) bool."""
        return replace(self, input=_zero_rows(self.input, rows), output=_zero_rows(self.output, rows))


@dataclass(frozen=True, eq=False)
class BuiltRows:
    """The rows' own gradients, (S, B, p), by the p parameters of a layer from ``start`` on."""

    start: int
    gradient: Tensor

    @property
    def positions(self) -> bool:
        return False

    def norms(self, squares: Tensor, apart: bool = False) -> tuple[Tensor, Tensor]:
        own = torch.linalg.vecdot(self.gradient, self.gradient)
        return squares + own, torch.zeros_like(own)

    def together(self, index: Tensor | None = None, there: Tensor | None = None) -> Tensor:
        return _gather(self.gradient, index, there).sum(1).square().sum(-1)

    def add(self, total: Tensor, factors: Tensor | None) -> None:
        summed = self.gradient.sum(1) if factors is None else torch.bmm(factors[:, None], self.gradient)[:, 0]
        self._places(total).copy_(summed)

    def build(self, gradients: Tensor, site: Tensor, column: Tensor) -> None:
        self._places(gradients).copy_(self.gradient[site, column])

    def without(self, rows: Tensor) -> BuiltRows:
        return replace(self, gradient=_zero_rows(self.gradient, rows))

    def _places(self, flat: Tensor) -> Tensor:
        return flat[:, self.start : self.start + self.gradient.shape[-1]]


Part = LayerRows | BuiltRows


def row_norms(parts: Sequence[Part], apart: bool = False) -> tuple[Tensor, Tensor]:
    """(S, B) norms of the rows' gradients, or more where there are positions, and of each row's longest layer input."""
    like = parts[0].input if isinstance(parts[0], LayerRows) else parts[0].gradient
    squares, longest = like.new_zeros(()), like.new_zeros(())
    for part in parts:
        squares, length = part.norms(squares, apart)
        longest = torch.maximum(longest, length)
    return squares.sqrt(), longest.sqrt()


def _gather(value: Tensor, index: Tensor | None, there: Tensor | None) -> Tensor:
    """(K, R, ...) rows at ``index``, zero where not ``there``, positions like more rows; None: each row by itself."""
    if index is None or there is None:
        return value.flatten(0, 1).view(value.shape[0] * value.shape[1], -1, value.shape[-1])
    # Padding points at some other patient's row, and 0 * inf is NaN: both factors are masked.
    return torch.where(_across(there, value), value.flatten(0, 1)[index], 0.0).flatten(1, -2)


def _zero_rows(values: Tensor, rows: Tensor) -> Tensor:
    return torch.where(_across(rows, values), 0.0, values)


def _across(rows: Tensor, values: Tensor) -> Tensor:
    """(S, B) of rows, in front of (S, B, ..., n)."""
    return rows.view(*rows.shape, *[1] * (values.dim() - 2))
