"""Parts of generators and critics, and small ones of any width.

A generator's forward takes (latent (n, L), label (n,) int64) and gives (n, columns). A critic is a plain stack, without
batch norm, from (n, columns) rows to (n, outputs): hospitals train it, and each patient must count alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Leading(nn.Module):
    """The first ``columns`` of each row: (n, any) to (n, columns), for a critic that does not see the label."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.columns]


class Planes(nn.Module):
    """Rows as pictures: (n, height * width + labels) to (n, 1 + labels, height, width), each label column a whole plane.

    Mirza and Osindero 2014 (conditional GAN), as convolutions take a label.
    """

    def __init__(self, height: int, width: int, labels: int = 0) -> None:
        super().__init__()
        self.height, self.width, self.labels = height, width, labels

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.height * self.width
        picture = x[:, :pixels].reshape(-1, 1, self.height, self.width)
        planes = x[:, pixels : pixels + self.labels, None, None].expand(-1, -1, self.height, self.width)
        return torch.cat([picture, planes], 1)


class OfLabel(nn.Module):
    """A critic that scores a row by the output of its own label: (n, features + labels) to (n, 1).

    ``body`` gives (n, labels) scores of (n, features); a row ends in its one-hot label. As one more input of a perceptron a label
    does little more than shift the score, so that a generator does not learn what rows of that label lack. Miyato and Koyama 2018
    (arXiv:1802.05637), without the part of the score that all labels share.
    """

    def __init__(self, body: nn.Module, labels: int) -> None:
        super().__init__()
        self.body, self.labels = body, labels

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.body(x[:, : -self.labels])
        return (scores * x[:, -self.labels :]).sum(1, keepdim=True)


class Products(nn.Module):
    """Appends the products of a row's columns, squares among them, of which a linear critic compares the means.

    Without a label a row of f columns becomes its f columns and their f (f + 1) / 2 products. With one it becomes the
    label, and both for each label, zero for the others. A linear critic then compares each label's first and second
    moments. ``width``: the columns of what comes out.

    Args:
        columns: Of a row; the last ``label_columns`` of them are a one-hot label.
        label_columns: 0 for rows without a label.
    """

    first: Tensor
    second: Tensor

    def __init__(self, columns: int, label_columns: int = 0) -> None:
        super().__init__()
        self.features, self.labels = columns - label_columns, label_columns
        first, second = torch.triu_indices(self.features, self.features)
        # Constants, not arrays of the model.
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        moments = self.features + len(first)
        self.width = label_columns + label_columns * moments if label_columns else moments

    def forward(self, x: Tensor) -> Tensor:
        features, label = x[:, : self.features], x[:, self.features :]
        moments = torch.cat([features, features[:, self.first] * features[:, self.second]], 1)
        if not self.labels:
            return moments
        return torch.cat([label, (label[:, :, None] * moments[:, None]).flatten(1)], 1)


class Generator(nn.Module):
    """A stack that takes the latent row, with the one-hot of one of ``labels`` beside it where there are any."""

    def __init__(self, body: nn.Module, labels: int = 0) -> None:
        super().__init__()
        self.body, self.labels = body, labels

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        if self.labels:
            latent = torch.cat([latent, functional.one_hot(label, self.labels).to(latent.dtype)], 1)
        out: Tensor = self.body(latent)
        return out


def mlp_generator(columns: int, latent: int = 16, labels: int = 0, widths: Sequence[int] = (64, 64)) -> Generator:
    """Return a perceptron with a linear output: (n, latent) and (n,) to (n, columns).

    Args:
        columns: The width of a generated row.
        latent: The width of a latent row.
        labels: The number of labels; 0 for rows without one.
        widths: Units of the hidden layers.
    """
    return Generator(mlp_critic(latent + labels, columns, widths), labels)


def mlp_critic(columns: int, outputs: int = 1, widths: Sequence[int] = (32,)) -> nn.Sequential:
    """Return a perceptron, small by default, for noise grows with the root of its parameters: (n, columns) to (n, outputs).

    Args:
        columns: The width of a row, its one-hot label included.
        outputs: The number of scores.
        widths: Units of the hidden layers.
    """
    layers: list[nn.Module] = []
    sizes = (columns, *widths)
    for inputs, units in pairwise(sizes):
        layers += [nn.Linear(inputs, units), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def moment_critic(columns: int, outputs: int = 1, label_columns: int = 0) -> nn.Sequential:
    """Return a critic that is linear in the columns and their products, of each label: it matches first and second moments.

    Args:
        columns: The width of a row, its one-hot label included.
        outputs: The number of scores.
        label_columns: The columns of the one-hot label, the last of a row; 0 for rows without one.
    """
    products = Products(columns, label_columns)
    return nn.Sequential(products, nn.Linear(products.width, outputs))


class LabelledAffine(nn.Module):
    """For each of K labels an affine map of the latent row, a perceptron of both that begins at nothing, and a floor.

    With normal latents the maps alone are a normal distribution for each label, of any covariance where there are as
    many latents as columns; the perceptron bends it. The last ``columns`` latents are each column's own noise, of fixed
    standard deviation ``floor``. A map that is fitted to noisy moments tends to be flat in directions in which patients
    hardly differ, and no measurement is as exact as that.

    (n, latent + columns) and (n,) int64 to (n, columns).
    """

    def __init__(
        self, columns: int, latent: int, labels: int, widths: Sequence[int] = (), floor: float = 0.0, begin: float = 0.5
    ) -> None:
        super().__init__()
        self.latent, self.floor = latent, floor
        self.weight = nn.Parameter(begin * torch.eye(columns, latent).repeat(labels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(labels, columns))
        self.bend: Generator | None = None
        if widths:
            self.bend = mlp_generator(columns, latent, labels, widths)
            last = [part for part in self.bend.modules() if isinstance(part, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        shared, own = latent[:, : self.latent], latent[:, self.latent :]
        # All labels' maps and then the row's own: faster than a matrix for each row.
        maps = torch.einsum("nl,kcl->nkc", shared, self.weight) + self.bias
        chosen = nn.functional.one_hot(label, len(self.bias)).to(latent)
        features = torch.einsum("nkc,nk->nc", maps, chosen) + self.floor * own
        return features if self.bend is None else features + self.bend(shared, label)
