"""The AC-GAN of a trial's trajectories: Beaulieu-Jones et al. 2019, as their SPRINT_gan code has it (greenelab/SPRINT_gan).

A row is series after series, each of them visit after visit: SPRINT's 3 x 12, MIMIC-III's 9 x 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

LATENT = 100


@dataclass(frozen=True)
class Form:
    """``series`` x ``visits``, drawn from 32 channels of ``seed`` cells, enlarged ``up`` times, then by a ``stride``."""

    series: int
    visits: int
    seed: tuple[int, int]
    up: tuple[int, int]
    stride: int

    @classmethod
    def of(cls, series: int, visits: int) -> Form:
        """The published form for SPRINT's and MIMIC-III's shapes; for another, seeds of its own shape, doubled."""
        published = {(form.series, form.visits): form for form in (SPRINT, MIMIC)}
        return published.get((series, visits), cls(series, visits, (series, visits), (2, 2), 2))

    @property
    def columns(self) -> int:
        return self.series * self.visits


SPRINT = Form(3, 12, (3, 4), (2, 6), 2)
MIMIC = Form(9, 5, (9, 5), (6, 6), 6)


class TrialGenerator(nn.Module):
    """(latent (n, 100), label (n,) int64) to (n, series * visits); the label's embedding multiplies the latent row."""

    def __init__(self, form: Form = SPRINT, labels: int = 2) -> None:
        super().__init__()
        height, width = form.seed
        self.embedding = nn.Embedding(labels, LATENT)
        self.dense = nn.Sequential(
            nn.Linear(LATENT, 256), nn.ReLU(), nn.Linear(256, 32 * height * width), nn.ReLU(),
            nn.Unflatten(1, (32, height, width)), nn.Upsample(scale_factor=form.up),
        )  # fmt: skip
        edge = max(4 - form.stride, 0) // 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(32, 256, 5, padding=2), nn.ReLU(), nn.Conv2d(256, 1, 4, form.stride, edge), nn.Flatten()
        )
        glorot(self)

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        out: Tensor = self.convolutions(self.dense(latent * self.embedding(label)))
        return out


def glorot(module: nn.Module) -> None:
    """Keras' initial values: uniform weights by Glorot and Bengio 2010, and zero offsets."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.xavier_uniform_(part.weight)
        if isinstance(part, nn.Linear | nn.Conv2d) and part.bias is not None:
            with torch.no_grad():
                part.bias.zero_()
