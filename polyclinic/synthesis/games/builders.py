"""The games by name, whose critics can be trained privately.

Ours for tables; the AC-GAN of a trial (Beaulieu-Jones et al. 2019; greenelab/SPRINT_gan); DPGAN, PPGAN, the Wasserstein GANs that
they stand on, and medGAN, with settings under which their critics can be private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.models.gan import LabelledAffine, Leading, OfLabel, mlp_critic, moment_critic
from polyclinic.models.gan_dpgan import codes_critic, codes_generator, dcgan_generator, dpgan_generator, picture_critic
from polyclinic.models.gan_trials import Form
from polyclinic.synthesis.games.game import Adaptive, Build, Game
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays

BuildGame = Callable[[Layout, Mapping[str, Any]], Game]
FORMS = ("table", "mlp", "dcgan", "icd")
# More columns than this have too many products for a critic under noise.
_MOST_PRODUCTS = 128
_MOST_LATENTS = 128
_SMALL = 32
# Of a number in the coordinates of the front: about 0.3 of a measurement that varies as its schema says.
_FLOOR = 0.25


def gan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Our default: a critic of each label's first and second moments, against an affine generator, of normal latents.

    Its critic forgets from round to round (its decay is 0.7 a step), so that it holds mostly the last noisy difference
    and nothing goes round in circles. The generator's falling rate averages the noise. Options ``widths``: a perceptron
    beside the map; ``floor``: each column's own noise, relative to its public scale.
    """
    floor = float(given.get("floor", _FLOOR))
    widths = tuple(int(width) for width in str(given.get("widths", "")).split(",") if width.strip())
    return Game(
        name="gan", core=lambda at: _affine(at, widths, floor),
        critic_of=lambda at: _few_moments(at.label.start, 1, at.classes),
        loss="wasserstein" if layout.label.start <= _MOST_PRODUCTS else "logistic", latent=_affine_latents(layout), spread=0.7,
        fall=0.5, learning_rate=0.02, steps=10,
    )  # fmt: skip


def acgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """The AC-GAN of a trial: its critic says real or generated, and which label, as it is not shown it.

    Beaulieu-Jones et al. 2019 with the critic and the generator of ``gan`` in place of their convolutions
    (``acgan-paper`` of polyclinic-studies has both of theirs). Its classifier tells real and generated rows of each
    label apart. One that tells labels alone teaches a generator to part them more than real rows are (Hou et al. 2022,
    arXiv:2107.10060). Raises ConfigError for a table that is not trajectories of equal length alone.
    """
    trial_form(layout)

    def critic(at: Layout) -> nn.Module:
        columns = at.label.start
        return nn.Sequential(Leading(columns), *_few_moments(columns, 1 + 2 * at.classes))

    return Game(
        name="acgan", core=_affine, critic_of=critic, loss="discriminative", latent=_affine_latents(layout),
        learning_rate=3e-3, steps=20, batch=256, spread=0.7, fall=0.5,
    )  # fmt: skip


def _affine(at: Layout, widths: Sequence[int] = (), floor: float = _FLOOR) -> nn.Module:
    """A map of normal latents for each label, each column's own noise, and a perceptron where there are ``widths``."""
    columns = at.label.start
    return LabelledAffine(columns, min(columns, _MOST_LATENTS), at.classes, widths, floor)


def _affine_latents(at: Layout) -> int:
    """The map's latents and each column's own noise."""
    columns: int = at.label.start
    return columns + min(columns, _MOST_LATENTS)


def _few_moments(columns: int, outputs: int, labels: int = 0) -> nn.Sequential:
    """Linear in the moments of ``columns``, of each label where a row ends in them; a perceptron where those are too many."""
    if columns <= _MOST_PRODUCTS:
        return moment_critic(columns + labels, outputs, labels)
    return mlp_critic(columns + labels, outputs, (64,))


def trial_form(layout: Layout) -> Form:
    """The form of the layout's series. Raises ConfigError for a table that is not trajectories of equal length alone."""
    lengths = {at.stop - at.start for at in layout.trajectories}
    series = len(layout.trajectories)
    if len(lengths) != 1 or series * max(lengths) != layout.label.start:
        raise ConfigError(
            f"The game 'acgan' needs a schema of trajectories of equal length alone, none of them nullable; "
            f"{layout.schema.name!r} has other columns: use 'gan'."
        )
    return Form.of(series, max(lengths))


def dpgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Xie et al. 2018 with a critic that noise leaves something of.

    It has a score for each label (``OfLabel``), no batch norm, the logistic loss of Bie, Kamath and Zhang 2023, full
    batches and decay. Option ``form`` is "table", small networks for any schema, or one of their code's networks: "mlp"
    or "dcgan" for pictures, "icd" for codes.
    """
    form = form_of(layout, given)
    core, critic, latent = networks(layout, form)
    return Game(
        name="dpgan", core=core, critic_of=critic, loss="logistic", latent=latent, hard=form == "table",
        unit=form != "table", learning_rate=2e-4 if form == "dcgan" else 2e-3, steps=10, batch=256,
    )  # fmt: skip


def ppgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Liu et al. 2019: DPGAN's game with Wasserstein's loss and clipped weights; each patient's gradient is clipped, not a
    batch's average."""
    return replace(dpgan(layout, given), name="ppgan", loss="wasserstein", weight_clip=0.3)


def wgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Arjovsky et al. 2017 with weights clipped to 0.1 and RMSProp. A reference without privacy."""
    return replace(
        ppgan(layout, given), name="wgan", weight_clip=0.1, optimizer="rmsprop", learning_rate=1e-3, schedule="constant",
        steps=1,
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
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read as a decoder: {type(error).__name__}.") from None
    codes = layout.label.start
    shapes = {name: value.shape for name, value in arrays.items()}
    if shapes != {"weight": (codes, 128), "bias": (codes,)} or not all(np.isfinite(v).all() for v in arrays.values()):
        raise DataError(f"{path} holds {shapes}; a decoder has a finite weight ({codes}, 128) and bias ({codes},).")
    return {f"core.body.1.{name}": value.astype(np.float32) for name, value in arrays.items()}


def form_of(layout: Layout, given: Mapping[str, Any]) -> str:
    """The option ``form``, or what the layout looks like. Raises ConfigError for a form that the layout is not of."""
    binary = not layout.numeric.any() and len(layout.groups) == 1
    likely = "icd" if binary else "table"
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
    """The builders of generator and critic, and the latent's width.

    Args:
        layout: The layout of the rows.
        form: As the option ``form`` of ``dpgan``.
        published: With their batch norm, and critics that take a row's label as more of its columns.
    """
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
                return LabelledAffine(columns, _SMALL, classes, (128, 128), _FLOOR)

    def body(at: Layout, labels: int, outputs: int) -> nn.Module:
        columns = at.label.start + labels
        match form:
            case "icd":
                return codes_critic(columns, outputs)
            case "mlp" | "dcgan":
                return picture_critic(side, labels, outputs, batch_norm=published and form == "mlp")
            case _:
                return mlp_critic(columns, outputs, (64,))

    def critic(at: Layout) -> nn.Module:
        return body(at, at.classes, 1) if published else OfLabel(body(at, 0, at.classes), at.classes)

    return core, critic, {"icd": 128, "table": _SMALL + layout.label.start}.get(form, 100)


# Each game's builder, and the options that only it takes.
GAMES: Mapping[str, tuple[BuildGame, tuple[str, ...]]] = {
    "gan": (gan, ("widths", "floor")),
    "acgan": (acgan, ()),
    "dpgan": (dpgan, ("form",)),
    "ppgan": (ppgan, ("form",)),
    "wgan": (wgan, ("form",)),
    "wgan-gp": (wgan_gp, ("form",)),
    "medgan": (medgan, ("decoder-file",)),
}


def make(layout: Layout, name: str = "gan", **options: Any) -> Game:
    """The built-in game ``name``; options may be text. Raises ConfigError for an unknown name or option, for a value that is
    not allowed, and for a schema that the game is not for.
    """
    if name not in GAMES:
        raise ConfigError(f"The game {name!r} is unknown; allowed are {', '.join(GAMES)}.{nearest(name, GAMES)}")
    build, own = GAMES[name]
    game = with_options(build, own, layout, name, options)
    return replace(game, made_by=f"{make.__module__}:{make.__name__}", options={"name": name, **options})


def with_options(build: BuildGame, own: Sequence[str], layout: Layout, name: str, options: Mapping[str, Any]) -> Game:
    """What ``build`` makes of its ``own`` options, changed by those that every game takes.

    Args:
        build: Makes a game of a layout and options.
        own: The names of the options that ``build`` takes.
        layout: The layout of the rows.
        name: The game's name, for messages.
        options: All options that were given, by name.

    Raises:
        ConfigError: Neither takes an option, or a value is not of its kind.
    """
    unknown = [key for key in options if key not in (*own, *OPTIONS)]
    if unknown:
        allowed = (*own, *OPTIONS)
        raise ConfigError(
            f"The game {name!r} has no option {unknown[0]!r}; allowed are {', '.join(allowed)}.{nearest(unknown[0], allowed)}"
        )
    changed = {key.replace("-", "_"): _read(key, value) for key, value in options.items() if key in OPTIONS}
    try:
        game = build(layout, {key: options[key] for key in own if key in options})
    except ValueError:
        raise ConfigError(f"The options of the game {name!r} are {options}, of which one is not of its kind.") from None
    return replace(game, **changed)


def _read(key: str, value: Any) -> Any:
    try:
        return OPTIONS[key](value)
    except ValueError:
        raise ConfigError(f"A game's option {key!r} is {value!r}, which is not of its kind.") from None


def _truth(value: Any) -> bool:
    if str(value).lower() in ("true", "1", "yes"):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise ValueError(value)


# Options that may be given as text, by what reads them.
OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "loss": str, "law": str, "schedule": str, "optimizer": str, "learning-rate": float, "momentum": float, "steps": int,
    "batch": int, "ring": int, "ema": float, "adaptive": lambda value: Adaptive() if _truth(value) else None,
    "weight-clip": lambda value: float(value) or None, "penalty": float, "spread": float, "fall": float, "hard": _truth,
}  # fmt: skip
