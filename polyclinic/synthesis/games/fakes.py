"""Generated rows, and the table of real and generated rows in which a hospital's critic training is classification."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import fill_module
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats, Ints

_AT_ONCE = 1 << 14


def generator_of(game: Game, layout: Layout, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """The game's generator with ``arrays`` in it.

    Args:
        game: The game.
        layout: The layout of the rows.
        arrays: The generator's arrays by name.

    Raises:
        ValueError: Names or shapes differ.
    """
    return fill_module(lambda: game.generator(layout), arrays)


def with_labels(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(n, D) rows of features and labels.

    Args:
        features: (n, D - K) features.
        labels: (n,) classes, int64.
        classes: K.
    """
    return torch.cat([features, nn.functional.one_hot(labels, classes).to(features)], 1)


def fake_rows(
    generator: nn.Module, game: Game, layout: Layout, labels: Ints, rng: np.random.Generator, apart: bool = False,
) -> Floats:  # fmt: skip
    """(n, D) generated rows of the given labels; float64. What the module keeps of its batches is left alone.

    Args:
        generator: The game's generator.
        game: The game, which draws the latents.
        layout: The layout of the rows.
        labels: (n,) classes.
        rng: The source of the latents.
        apart: Generate each row by itself, so that its rounding does not depend on how many there are.
    """
    at_once = 1 if apart else _AT_ONCE
    generator.eval()
    rows = np.empty((len(labels), layout.width))
    with torch.no_grad():
        for begin in range(0, len(labels), at_once):
            some = torch.tensor(np.asarray(labels[begin : begin + at_once], dtype=np.int64))
            # A copy, as torch aligns its own arrays alike.
            features = generator(game.latents(len(some), rng).clone(), some)
            rows[begin : begin + len(some)] = with_labels(features, some, layout.classes).numpy()
    return rows


def check_generator(generator: nn.Module, game: Game, layout: Layout) -> None:
    """Checks that a generator neither mixes rows nor remembers them. Probed on made-up rows.

    A patient's generated row must follow from that patient's label alone, or clipping a pair would not bound what the
    patient changes.

    Args:
        generator: The game's generator.
        game: The game, which draws the latents.
        layout: The layout of the rows.

    Raises:
        ConfigError: The generator mixes rows or remembers them.
    """
    labels, latents = torch.arange(8) % layout.classes, game.latents(8, np.random.default_rng(0))
    others = torch.full_like(labels, layout.classes - 1), game.latents(8, np.random.default_rng(1))
    mine = torch.arange(8) < 4

    def draw_features(is_own: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)
            features: Tensor = generator(
                torch.where(is_own[:, None], latents, others[1]), torch.where(is_own, labels, others[0])
            )
            return features

    generator.eval()
    together = draw_features(mine | ~mine)
    for selected in (mine, ~mine):
        if not torch.allclose(
            draw_features(selected)[selected], together[selected], rtol=1e-4, atol=1e-6, equal_nan=True
        ):
            raise ConfigError("The game's generator mixes rows: one patient's label changes another's generated row.")
    if not torch.allclose(draw_features(mine | ~mine), together, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigError("The game's generator remembers rows: those drawn before change later ones.")


def pairs(
    game: Game, layout: Layout, z: Floats, patient: Ints, patients: int, fakes: Floats, apart: bool = False,
) -> Rows:  # fmt: skip
    """What ``training.classification.train`` trains the critic on: real rows and generated ones of the same patients.

    x is (2n, D) in the coordinates of the game's front, a patient's rows together; y is as the game's loss has it.
    Adding or removing a patient adds or removes that patient's real and generated rows, whose summed gradient is
    clipped once.

    Args:
        game: The game, with its front and its loss.
        layout: The layout of the rows.
        z: (n, D) real rows.
        patient: (n,) the patient of each row.
        patients: The number of patients.
        fakes: (n, D) generated rows, in the order of ``z``.
        apart: As in ``fake_rows``.
    """
    order = np.argsort(patient, kind="stable")
    both = np.stack([z[order], fakes[order]], axis=1).reshape(2 * len(z), z.shape[1])
    real = np.tile(np.array([1, 0]), len(z))
    y = 2 * layout.labels(both) + real if game.loss in ("auxiliary", "discriminative") else real
    front = game.front(layout)
    x = np.concatenate([front.rows(row[None]) for row in both]) if apart and len(both) else front.rows(both)
    return Rows(x, y.astype(np.int64), np.repeat(patient[order], 2), patients)
