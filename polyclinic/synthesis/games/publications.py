"""DPGAN, PPGAN, the Wasserstein GANs they stand on, and medGAN, with settings under which their critics can be private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.models.gan import mlp_critic, mlp_generator
from polyclinic.models.gan_dpgan import codes_critic, codes_generator, dcgan_generator, dpgan_generator, picture_critic
from polyclinic.synthesis.games.game import Adaptive, Build, Game
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays

FORMS = ("table", "mlp", "dcgan", "icd")


def dpgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Xie et al. 2018 with their code's networks: of ``form`` "mlp" or "dcgan" for pictures, "icd" for codes, or "table", small
    networks for any schema. Without batch norm in the critic; the logistic loss, Adam and the adaptive ratio are those of Bie,
    Kamath and Zhang 2023.
    """
    form = form_of(layout, given)
    core, critic, latent = networks(layout, form)
    return Game(
        name="dpgan", core=core, critic_of=critic, loss="logistic", latent=latent, hard=form == "table",
        unit=form != "table", learning_rate=2e-4 if form == "dcgan" else 1e-3, schedule="constant", steps=2, batch=256, ema=0.99,
        adaptive=Adaptive(grace=50),
    )  # fmt: skip


def ppgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Liu et al. 2019: DPGAN's game with clipped weights; each patient's gradient is clipped, not a batch's average."""
    return replace(
        dpgan(layout, given), name="ppgan", loss="wasserstein", weight_clip=0.1, adaptive=None, optimizer="rmsprop",
        learning_rate=5e-4,
    )  # fmt: skip


def wgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Arjovsky et al. 2017 with weights clipped to 0.1 and RMSProp. A reference without privacy."""
    form = form_of(layout, given)
    core, critic, latent = networks(layout, form)
    return Game(
        name="wgan", core=core, critic_of=critic, loss="wasserstein", latent=latent, hard=form == "table", unit=form != "table",
        weight_clip=0.1, optimizer="rmsprop", learning_rate=1e-3, schedule="constant", steps=1, batch=256, ema=0.99,
    )  # fmt: skip


def wgan_gp(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Gulrajani et al. 2017, with the penalty on generated rows alone, which needs no record; theirs lies between real and
    generated rows."""
    return replace(
        wgan(layout, given),
        name="wgan-gp",
        weight_clip=None,
        penalty=10.0,
        optimizer="adam",
        learning_rate=1e-3,
        momentum=0.0,
    )


def medgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Choi et al. 2017: codes come from a decoder that was learnt before; here from PUBLIC records alone.

    Option ``decoder-file``: safetensors with "weight" (codes, 128) and "bias" (codes,), as the decoder of an autoencoder has
    them that was trained on records that are not the hospitals'. Raises DataError for a file that does not fit.
    """
    if "decoder-file" not in given:
        raise ConfigError("The game 'medgan' needs the option 'decoder-file', a decoder learnt from public records.")
    path = Path(str(given["decoder-file"]))
    return replace(dpgan(layout, {"form": "icd"}), name="medgan", begin=lambda at: _decoder(path, at))


def _decoder(path: Path, layout: Layout) -> Arrays:
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read as a decoder: {type(error).__name__}.") from None
    codes = layout.label.start
    shapes = {name: value.shape for name, value in found.items()}
    if shapes != {"weight": (codes, 128), "bias": (codes,)} or not all(np.isfinite(v).all() for v in found.values()):
        raise DataError(f"{path} holds {shapes}; a decoder has a finite weight ({codes}, 128) and bias ({codes},).")
    return {f"core.body.1.{name}": value.astype(np.float32) for name, value in found.items()}


def form_of(layout: Layout, given: Mapping[str, Any]) -> str:
    """The option ``form``, or what the layout looks like. Raises ConfigError for a form that the layout is not of."""
    binary = not layout.numeric.any() and len(layout.groups) == 1
    likely = "icd" if binary else "dcgan" if _side(layout) else "table"
    form = str(given.get("form", likely))
    if form not in FORMS:
        raise ConfigError(f"A game's form is {form!r}; allowed are {', '.join(FORMS)}.{nearest(form, FORMS)}")
    if form in ("mlp", "dcgan") and not _side(layout):
        raise ConfigError(
            f"The form {form!r} is for pictures: as many continuous columns as a square has whose side is a multiple of 4; "
            f"schema {layout.schema.name!r} is none: use 'table' or 'icd'."
        )
    if form == "icd" and not binary:
        raise ConfigError(
            f"The form 'icd' is for codes and yes-or-no columns alone; schema {layout.schema.name!r} has others: use 'table'."
        )
    return form


def _side(layout: Layout) -> int:
    """The side of a picture, 0 for a table that is none."""
    columns = layout.label.start
    side = math.isqrt(columns)
    whole = layout.numeric[:columns].all() and not layout.trajectories and side * side == columns
    return side if whole and side >= 8 and side % 4 == 0 else 0


def networks(layout: Layout, form: str, published: bool = False) -> tuple[Build, Build, int]:
    """The builders of generator and critic, and the latent's width; ``published``: with their batch norm."""
    side = _side(layout)

    def core(at: Layout) -> nn.Module:
        columns, classes = at.label.start, at.classes
        match form:
            case "icd":
                return codes_generator(columns, 128, classes)
            case "mlp":
                return dpgan_generator(columns, 100, classes)
            case "dcgan":
                return dcgan_generator(side, 100, classes, batch_norm=published)
            case _:
                return mlp_generator(columns, 32, classes, (128, 128))

    def critic(at: Layout) -> nn.Module:
        match form:
            case "icd":
                return codes_critic(at.width)
            case "mlp" | "dcgan":
                return picture_critic(side, at.classes, batch_norm=published and form == "mlp")
            case _:
                return mlp_critic(at.width, 1, (64,))

    return core, critic, {"icd": 128, "table": 32}.get(form, 100)
