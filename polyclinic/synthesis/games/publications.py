"""DPGAN, PPGAN, the Wasserstein GANs they stand on, and medGAN: their published settings, and ones that can be private."""

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
from polyclinic.privacy.published import stated_noise
from polyclinic.synthesis.games.game import Adaptive, Game
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Arrays

# The epsilon whose noise is taken where a publication's own is not known, and the rate that its theorem is told.
_STATED, _RATE, _BATCH = 5.0, 64 / 6_000, 64
_CLIP = 1e-2
FORMS = ("table", "mlp", "dcgan", "icd")
_VOID = (
    "{} states an epsilon for the critic steps of one generator step and composes nothing; its noise for MNIST at a stated "
    "epsilon of 5 comes to more than a million ({}). Trained without privacy here."
)


def dpgan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Xie et al. 2018, with their code's networks: of ``form`` "mlp" or "dcgan" for pictures, "icd" for codes.

    "paper": weights clipped to 0.01, RMSProp 5e-5 (codes 5e-4), 5 critic steps for each of the generator's (codes 2), batch
    norm in the critic of form "mlp", which training refuses with or without privacy, and their noise. "sound": no batch norm
    in the critic, the logistic loss, Adam and the adaptive ratio of Bie, Kamath and Zhang 2023. Form "table": small networks,
    any schema.
    """
    form = _form(layout, given)
    codes = form == "icd"
    core, critic, latent = _networks(layout, form, preset == "paper")
    if preset == "paper":
        return Game(
            name="dpgan", preset=preset, core=core, critic_of=critic, loss="wasserstein", latent=latent, law="uniform",
            hard=False, unit=form != "table", weight_clip=0.01, optimizer="rmsprop", learning_rate=5e-4 if codes else 5e-5,
            schedule="constant", steps=1, batch=1024 if codes else 64, ema=0.0, noise=_published_noise(form),
            guarantee=_VOID.format("DPGAN", "docs/synthesis/games.md"),
            defaults={
                "dp": False, "rounds": 10_000, "sample-rate": 1024 / 35_000 if codes else 64 / 6_000,
                "local-steps": 2 if codes else 5, "learning-rate": 5e-4 if codes else 5e-5, "optimizer": "rmsprop",
            },
        )  # fmt: skip
    return Game(
        name="dpgan", preset=preset, core=core, critic_of=critic, loss="logistic", latent=latent, hard=form == "table",
        unit=form != "table", learning_rate=2e-4 if form == "dcgan" else 1e-3, schedule="constant", steps=2, batch=256, ema=0.99,
        adaptive=Adaptive(grace=50),
        defaults={
            "rounds": 300, "sample-rate": 0.1, "local-steps": 10, "learning-rate": 5e-4, "max-grad-norm": 1.0,
            "optimizer": "adam",
        },
    )  # fmt: skip


def _published_noise(form: str) -> float:
    """In each number of a batch's average gradient: for pictures as their code has it, for codes none (their code multiplies it
    by 0), for tables what the theorem asks at a stated epsilon of 5 for gradients no longer than 1."""
    return {"icd": 0.0, "table": stated_noise(_STATED, _RATE) / math.sqrt(_BATCH)}.get(form, 800 / 64)


def ppgan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Liu et al. 2019: DPGAN's game with SGD 5e-5, the batch's average gradient clipped. "sound": each patient's is clipped.

    "paper" states neither networks nor batch; they are DPGAN's here.
    """
    game = replace(dpgan(layout, preset, given), name="ppgan")
    if preset == "paper":
        return replace(
            game, optimizer="sgd", batch_clip=_CLIP, noise=_CLIP * stated_noise(_STATED, _RATE),
            guarantee=_VOID.format("PPGAN", "and one record moves its clipped average by 2 C"),
            defaults={**game.defaults, "optimizer": "sgd", "max-grad-norm": _CLIP},
        )  # fmt: skip
    return replace(
        game, loss="wasserstein", weight_clip=0.1, adaptive=None, optimizer="rmsprop", learning_rate=5e-4,
        defaults={**game.defaults, "optimizer": "sgd", "learning-rate": 0.05, "local-steps": 5},
    )  # fmt: skip


def wgan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Arjovsky et al. 2017: weights clipped to 0.01, RMSProp 5e-5, 5 critic steps. A reference without privacy."""
    form = _form(layout, given)
    core, critic, latent = _networks(layout, form, False)
    rate = 5e-5 if preset == "paper" else 1e-3
    return Game(
        name="wgan", preset=preset, core=core, critic_of=critic, loss="wasserstein", latent=latent,
        hard=form == "table" and preset == "sound", unit=form != "table", weight_clip=0.01 if preset == "paper" else 0.1,
        optimizer="rmsprop", learning_rate=rate, schedule="constant", steps=1, batch=64 if preset == "paper" else 256,
        ema=0.0 if preset == "paper" else 0.99, guarantee="None is claimed." if preset == "paper" else "",
        defaults={
            "dp": False, "rounds": 1000, "sample-rate": 0.1, "local-steps": 5, "learning-rate": rate, "optimizer": "rmsprop",
        },
    )  # fmt: skip


def wgan_gp(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Gulrajani et al. 2017, Adam 1e-4 (0, 0.9), with the penalty on generated rows alone, which needs no record.

    Theirs lies between real and generated rows.
    """
    game = wgan(layout, preset, given)
    return replace(
        game, name="wgan-gp", weight_clip=None, penalty=10.0, optimizer="adam", learning_rate=1e-4 if preset == "paper" else 1e-3,
        momentum=0.0, defaults={**game.defaults, "learning-rate": 1e-4 if preset == "paper" else 1e-3, "optimizer": "adam"},
    )  # fmt: skip


def medgan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Choi et al. 2017: codes come from a decoder that was learnt before; here from PUBLIC records alone.

    Option ``decoder-file``: safetensors with "weight" (codes, 128) and "bias" (codes,), as the decoder of an autoencoder has
    them that was trained on records that are not the hospitals'. Raises DataError for a file that does not fit.
    """
    if preset != "sound":
        raise ConfigError(
            "The game 'medgan' has no preset 'paper': its autoencoder learns from the records themselves without noise; "
            "allowed is sound, with a decoder of public records."
        )
    if "decoder-file" not in given:
        raise ConfigError("The game 'medgan' needs the option 'decoder-file', a decoder learnt from public records.")
    path = Path(str(given["decoder-file"]))
    return replace(dpgan(layout, preset, {"form": "icd"}), name="medgan", begin=lambda at: _decoder(path, at))


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


def _form(layout: Layout, given: Mapping[str, Any]) -> str:
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


def _networks(layout: Layout, form: str, published: bool) -> tuple[Any, Any, int]:
    """The builders of generator and critic, and the latent's width."""
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
