"""DPGAN's generators and critics: Xie et al. 2018 (arXiv:1802.06739), as their code has them (illidanlab/dpgan).

Pictures of side 28 or 8 as rows of pixels in [0, 1], and sets of diagnosis codes as rows of 0 and 1. A generator may
have batch norm, for it sees no record.
"""

from __future__ import annotations

from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.models.gan import Generator, Planes

_SLOPE = 0.1


def dpgan_generator(columns: int, latent: int = 100, labels: int = 0) -> Generator:
    """Return the MLP, latent-512-512-512-columns, with batch norm: (n, latent) and (n,) to (n, columns) in [0, 1].

    Args:
        columns: The width of a generated row.
        latent: The width of a latent row.
        labels: The number of labels; 0 for rows without one.
    """
    layers: list[nn.Module] = []
    for inputs in (latent + labels, 512, 512):
        layers += [nn.Linear(inputs, 512), nn.BatchNorm1d(512), nn.LeakyReLU(_SLOPE)]
    return Generator(nn.Sequential(*layers, nn.Linear(512, columns), nn.Sigmoid()), labels)


def dcgan_generator(side: int, latent: int = 100, labels: int = 0, batch_norm: bool = False) -> Generator:
    """Return two linear layers and two transposed convolutions: (n, latent) and (n,) to (n, side * side) in [0, 1].

    Args:
        side: Of the picture, a multiple of 4.
        latent: The width of a latent row.
        labels: The number of labels; 0 for rows without one.
        batch_norm: DPGAN's has batch norm; Bie et al. 2023 do without.

    Raises:
        ConfigError: For a side that is not a multiple of 4.
    """
    seed = _quarter(side)
    layers: list[nn.Module] = [
        nn.Linear(latent + labels, 1024), *_norm_layers(nn.BatchNorm1d(1024), batch_norm), nn.ReLU(),
        nn.Linear(1024, 128 * seed * seed), *_norm_layers(nn.BatchNorm1d(128 * seed * seed), batch_norm), nn.ReLU(),
        nn.Unflatten(1, (128, seed, seed)),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), *_norm_layers(nn.BatchNorm2d(64), batch_norm), nn.ReLU(),
        nn.ConvTranspose2d(64, 1, 4, 2, 1), nn.Sigmoid(), nn.Flatten(),
    ]  # fmt: skip
    return Generator(nn.Sequential(*layers), labels)


def picture_critic(side: int, labels: int = 0, outputs: int = 1, batch_norm: bool = False) -> nn.Sequential:
    """Return two convolutions and two linear layers: (n, side * side + labels) to (n, outputs); each label is a plane.

    Args:
        side: Of the picture, a multiple of 4.
        labels: The number of labels; 0 for rows without one.
        outputs: The number of scores.
        batch_norm: As in the published ``mlp.py``, which mixes patients, so that private training refuses it.

    Raises:
        ConfigError: For a side that is not a multiple of 4.
    """
    quarter = _quarter(side)
    return nn.Sequential(
        Planes(side, side, labels),
        nn.Conv2d(1 + labels, 64, 4, 2, 1), nn.LeakyReLU(_SLOPE),
        nn.Conv2d(64, 128, 4, 2, 1), *_norm_layers(nn.BatchNorm2d(128), batch_norm), nn.LeakyReLU(_SLOPE),
        nn.Flatten(), nn.Linear(128 * quarter * quarter, 1024), nn.LeakyReLU(_SLOPE), nn.Linear(1024, outputs),
    )  # fmt: skip


def codes_generator(codes: int, latent: int = 128, labels: int = 0) -> Generator:
    """Return latent-128-128 with batch norm, then the decoder 128-codes: (n, latent) and (n,) to (n, codes) in [0, 1].

    The published decoder is trained on records without noise beforehand; this one begins as any layer does.

    Args:
        codes: The size of the vocabulary.
        latent: The width of a latent row.
        labels: The number of labels; 0 for rows without one.
    """
    code = nn.Sequential(nn.Linear(latent + labels, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128))
    return Generator(nn.Sequential(code, nn.Linear(128, codes), nn.Sigmoid()), labels)


def codes_critic(columns: int, outputs: int = 1) -> nn.Sequential:
    """columns-256-128-outputs: (n, columns), codes and label alike, to (n, outputs)."""
    return nn.Sequential(
        nn.Linear(columns, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, outputs)
    )  # fmt: skip


def _norm_layers(layer: nn.Module, batch_norm: bool) -> list[nn.Module]:
    return [layer] if batch_norm else []


def _quarter(side: int) -> int:
    if side < 4 or side % 4:
        raise ConfigError(f"A picture's side is {side}; allowed are multiples of 4.")
    return side // 4
