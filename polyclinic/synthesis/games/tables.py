"""Games for tables: our default, and the AC-GAN of a trial (Beaulieu-Jones et al. 2019; greenelab/SPRINT_gan)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.models.gan import Leading, mlp_critic, moment_critic
from polyclinic.models.gan_trials import LATENT, Form, TrialGenerator, trial_critic
from polyclinic.synthesis.games.cores import LabelledAffine
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout

# More columns than this have too many products for a critic under noise.
_MOST_PRODUCTS = 128
_MOST_LATENTS = 128
# Of a number in the coordinates of the front: about 0.3 of a measurement that varies as its schema says.
_FLOOR = 0.25


def gan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """Our default: a critic of each label's first and second moments, against an affine generator, of normal latents.

    Its critic forgets from round to round (its decay is 0.7 a step), so that it holds mostly the last noisy difference and
    nothing goes round in circles; what averages the noise is the generator's falling rate. Options ``widths``: a perceptron
    beside the map; ``floor``: each column's own noise, relative to its public scale.
    """
    if preset != "sound":
        raise ConfigError(f"The game 'gan' has no preset {preset!r}, for it is no publication's; allowed is sound.")
    columns = layout.label.start
    few = columns <= _MOST_PRODUCTS
    latent = min(columns, _MOST_LATENTS)
    floor = float(given.get("floor", _FLOOR))
    widths = tuple(int(width) for width in str(given.get("widths", "")).split(",") if width.strip())

    def critic(at: Layout) -> nn.Module:
        return moment_critic(at.width, 1, at.classes) if few else mlp_critic(at.width, 1, (64,))

    return Game(
        name="gan", preset=preset, core=lambda at: LabelledAffine(at.label.start, latent, at.classes, widths, floor),
        critic_of=critic, loss="wasserstein" if few else "logistic", latent=latent + columns, spread=0.7, fall=0.5,
        learning_rate=0.02, steps=10,
        defaults={
            "rounds": 30, "sample-rate": 1.0, "local-steps": 1, "learning-rate": 1.0, "max-grad-norm": 5.0,
            "optimizer": "sgd", "weight-decay": 0.7,
        } if few else {
            "rounds": 100, "sample-rate": 0.2, "local-steps": 5, "learning-rate": 0.2, "max-grad-norm": 1.0,
            "optimizer": "sgd", "momentum": 0.5,
        },
    )  # fmt: skip


def acgan(layout: Layout, preset: str, given: Mapping[str, Any]) -> Game:
    """The AC-GAN of a trial: its critic says real or generated, and which label, as it is not shown it.

    "paper": the published networks (333,897 and 1,858,947 parameters for 3 series of 12 visits) and steps of one pair, clipped
    to 1e-4 with as much noise; in short, 6,000 critic steps of 3,000,000. "sound": the published generator against a critic of
    a few thousand parameters, for noise grows with the root of their number.
    Raises ConfigError for a table that is not trajectories of equal length alone.
    """
    form = _trial_form(layout)

    def published(at: Layout) -> nn.Module:
        return trial_critic(form, at.classes, at.classes)

    def small(at: Layout) -> nn.Module:
        return nn.Sequential(Leading(at.label.start), *mlp_critic(at.label.start, 1 + at.classes, (64,)))

    def core(at: Layout) -> nn.Module:
        return TrialGenerator(form, at.classes)

    if preset == "paper":
        return Game(
            name="acgan", preset=preset, core=core, critic_of=published, loss="auxiliary", latent=LATENT, law="uniform",
            hard=False, learning_rate=2e-4, schedule="constant", steps=100, batch=2, ema=0.0, batch_clip=1e-4, noise=1e-4,
            guarantee="Trained without privacy here. The publication's own settings come to epsilon 1.47 at delta 1e-5 for a "
            "participant added or removed and to 2.56 for one replaced, where 2 is claimed; its selection of epochs has noise "
            "of a fixed seed, which protects nobody.",
            defaults={
                "dp": False, "rounds": 60, "sample-rate": 1 / 6_000, "local-steps": 100, "learning-rate": 2e-4,
                "max-grad-norm": 1e-4, "optimizer": "adam",
            },
        )  # fmt: skip
    return Game(
        name="acgan", preset=preset, core=core, critic_of=small, loss="auxiliary", latent=LATENT, law="uniform",
        learning_rate=1e-3, steps=5, batch=200, spread=0.7, fall=0.5,
        defaults={
            "rounds": 200, "sample-rate": 0.1, "local-steps": 5, "learning-rate": 0.2, "max-grad-norm": 1.0,
            "optimizer": "sgd", "momentum": 0.5, "weight-decay": 0.01,
        },
    )  # fmt: skip


def _trial_form(layout: Layout) -> Form:
    lengths = {at.stop - at.start for at in layout.trajectories}
    series = len(layout.trajectories)
    if len(lengths) != 1 or series * max(lengths) != layout.label.start:
        raise ConfigError(
            f"The game 'acgan' needs a schema of trajectories of equal length alone, none of them nullable; "
            f"{layout.schema.name!r} has other columns: use 'gan'."
        )
    return Form.of(series, max(lengths))
