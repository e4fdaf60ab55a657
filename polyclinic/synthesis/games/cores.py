"""Generators' networks for tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyclinic.models.gan import Generator, mlp_generator


class LabelledAffine(nn.Module):
    """For each of K labels an affine map of the latent row, a perceptron of both that begins at nothing, and a floor.

    With normal latents the maps alone are a normal distribution for each label, of any covariance where there are as many
    latents as columns; the perceptron bends it. The last ``columns`` latents are each column's own noise, of fixed
    standard deviation ``floor``: a map that is fitted to noisy moments tends to be flat in directions in which patients
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
        found = torch.einsum("nkc,nk->nc", maps, chosen) + self.floor * own
        return found if self.bend is None else found + self.bend(shared, label)
