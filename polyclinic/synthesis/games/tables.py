"""Games for tables: our default, and the AC-GAN of a trial (Beaulieu-Jones et al. 2019; greenelab/SPRINT_gan)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.models.gan import Leading, mlp_critic, moment_critic
from polyclinic.models.gan_trials import LATENT, Form, TrialGenerator
from polyclinic.synthesis.games.cores import LabelledAffine
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout

# More columns than this have too many products for a critic under noise.
_MOST_PRODUCTS = 128
_MOST_LATENTS = 128
# Of a number in the coordinates of the front: about 0.3 of a measurement that varies as its schema says.
_FLOOR = 0.25


def gan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """Our default: a critic of each label's first and second moments, against an affine generator, of normal latents.

    Its critic forgets from round to round (its decay is 0.7 a step), so that it holds mostly the last noisy difference and
    nothing goes round in circles; what averages the noise is the generator's falling rate. Options ``widths``: a perceptron
    beside the map; ``floor``: each column's own noise, relative to its public scale.
    """
    columns = layout.label.start
    few = columns <= _MOST_PRODUCTS
    latent = min(columns, _MOST_LATENTS)
    floor = float(given.get("floor", _FLOOR))
    widths = tuple(int(width) for width in str(given.get("widths", "")).split(",") if width.strip())

    def critic(at: Layout) -> nn.Module:
        return moment_critic(at.width, 1, at.classes) if few else mlp_critic(at.width, 1, (64,))

    return Game(
        name="gan", core=lambda at: LabelledAffine(at.label.start, latent, at.classes, widths, floor),
        critic_of=critic, loss="wasserstein" if few else "logistic", latent=latent + columns, spread=0.7, fall=0.5,
        learning_rate=0.02, steps=10,
    )  # fmt: skip


def acgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    """The AC-GAN of a trial: its critic says real or generated, and which label, as it is not shown it.

    The published generator stands against a critic of a few thousand parameters, for noise grows with the root of their number.
    Raises ConfigError for a table that is not trajectories of equal length alone.
    """
    form = trial_form(layout)

    def small(at: Layout) -> nn.Module:
        return nn.Sequential(Leading(at.label.start), *mlp_critic(at.label.start, 1 + at.classes, (64,)))

    def core(at: Layout) -> nn.Module:
        return TrialGenerator(form, at.classes)

    return Game(
        name="acgan", core=core, critic_of=small, loss="auxiliary", latent=LATENT, law="uniform",
        learning_rate=1e-3, steps=5, batch=200, spread=0.7, fall=0.5,
    )  # fmt: skip


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
