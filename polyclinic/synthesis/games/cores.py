"""Generators' networks for tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyclinic.models.gan import Generator, mlp_generator


class LabelledAffine(nn.Module):
    """For each of K labels an affine map of the latent row, and a perceptron of both that begins at nothing.

    With normal latents the maps alone are a normal distribution for each label, of any covariance where there are as many
    latents as columns; the perceptron bends it. (n, L) and (n,) int64 to (n, columns).
    """

    def __init__(self, columns: int, latent: int, labels: int, widths: Sequence[int] = (), begin: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(begin * torch.eye(columns, latent).repeat(labels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(labels, columns))
        self.bend: Generator | None = None
        if widths:
            self.bend = mlp_generator(columns, latent, labels, widths)
            last = [part for part in self.bend.modules() if isinstance(part, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        labels = len(self.bias)
        # All labels' maps and then the row's own: faster than a matrix for each row.
        maps = torch.einsum("nl,kcl->nkc", latent, self.weight) + self.bias
        own = nn.functional.one_hot(label, labels).to(latent)
        found = torch.einsum("nkc,nk->nc", maps, own)
        return found if self.bend is None else found + self.bend(latent, label)
