"""DPGAN, PPGAN, the AC-GAN of a trial and the Wasserstein GANs with the networks and settings of their publications.

They keep no epsilon, so they train without privacy, in simulations and audits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from polyclinic.models.gan_trials import LATENT, TrialGenerator
from polyclinic.synthesis.games.builders import form_of, networks, trial_form, with_options
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic_studies.published_games.claims import stated_noise
from polyclinic_studies.published_games.networks import trial_critic
from polyclinic_studies.published_games.training import AsPublished

# The epsilon whose noise is taken where a publication's own is not known, and the rate that its theorem is told.
_STATED, _RATE, _BATCH = 5.0, 64 / 6_000, 64
_CLIP = 1e-2
_VOID = (
    "{} states an epsilon for the critic steps of one generator step and composes nothing; its noise for MNIST at a stated "
    "epsilon of 5 comes to more than a million ({}). Trained without privacy here."
)
_ACGAN = (
    "Trained without privacy here. The publication's own settings come to epsilon 1.47 at delta 1e-5 for a participant added or "
    "removed and to 2.56 for one replaced, where 2 is claimed; its selection of epochs has noise of a fixed seed, which protects "
    "nobody."
)
#: Configuration keys under which each trains as published, but for the number of rounds; codes have their own.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "acgan-paper": {
        "rounds": 60, "training.sample-rate": 1 / 6_000, "training.local-steps": 100, "training.learning-rate": 2e-4,
        "privacy.max-grad-norm": 1e-4,
        "training.optimizer": "adam",
    },
    "dpgan-paper": {
        "rounds": 10_000, "training.sample-rate": 64 / 6_000, "training.local-steps": 5,
        "training.learning-rate": 5e-5, "training.optimizer": "rmsprop",
    },
    "ppgan-paper": {
        "rounds": 10_000, "training.sample-rate": 64 / 6_000, "training.local-steps": 5,
        "training.learning-rate": 5e-5, "privacy.max-grad-norm": 0.01,
    },
    "wgan-paper": {
        "rounds": 1000, "training.sample-rate": 0.1, "training.local-steps": 5, "training.learning-rate": 5e-5,
        "training.optimizer": "rmsprop",
    },
    "wgan-gp-paper": {
        "rounds": 1000, "training.sample-rate": 0.1, "training.local-steps": 5, "training.learning-rate": 1e-4,
        "training.optimizer": "adam",
    },
}  # fmt: skip


def dpgan(layout: Layout, **options: Any) -> Game:
    """Xie et al. 2018: weights clipped to 0.01, RMSProp 5e-5 (codes 5e-4), 5 critic steps for each of the generator's (codes 2),
    and their noise. The critic of form "mlp" has batch norm, which training refuses with or without privacy."""
    return with_options(_dpgan, ("form",), layout, "dpgan-paper", options)


def ppgan(layout: Layout, **options: Any) -> Game:
    """Liu et al. 2019: SGD 5e-5, the batch's average gradient clipped. Networks and batch, which are not stated, are DPGAN's."""
    return with_options(_ppgan, ("form",), layout, "ppgan-paper", options)


def wgan(layout: Layout, **options: Any) -> Game:
    """Arjovsky et al. 2017: weights clipped to 0.01, RMSProp 5e-5, 5 critic steps. A reference without privacy."""
    return with_options(_wgan, ("form",), layout, "wgan-paper", options)


def wgan_gp(layout: Layout, **options: Any) -> Game:
    """Gulrajani et al. 2017: Adam 1e-4 (0, 0.9), with the penalty on generated rows alone."""
    return with_options(_wgan_gp, ("form",), layout, "wgan-gp-paper", options)


def acgan(layout: Layout, **options: Any) -> Game:
    """Beaulieu-Jones et al. 2019: the published networks (333,897 and 1,858,947 parameters for 3 series of 12 visits) and steps
    of one pair, clipped to 1e-4 with as much noise; in short, 6,000 critic steps of 3,000,000.

    Raises ConfigError for a table that is not trajectories of equal length alone.
    """
    return with_options(_acgan, (), layout, "acgan-paper", options)


def _dpgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    form = form_of(layout, given)
    codes = form == "icd"
    core, critic, latent = networks(layout, form, published=True)
    return Game(
        name="dpgan-paper", core=core, critic_of=critic, loss="wasserstein", latent=latent, law="uniform", hard=False,
        unit=form != "table", weight_clip=0.01, optimizer="rmsprop", learning_rate=5e-4 if codes else 5e-5,
        schedule="constant", steps=1, batch=1024 if codes else 64, ema=0.0,
        published=AsPublished(_VOID.format("DPGAN", "docs/synthesis/games.md"), _noise(form)),
    )  # fmt: skip


def _noise(form: str) -> float:
    """In each number of a batch's average gradient: for pictures as their code has it, for codes none (their code multiplies it
    by 0), for tables what the theorem asks at a stated epsilon of 5 for gradients no longer than 1."""
    return {"icd": 0.0, "table": stated_noise(_STATED, _RATE) / math.sqrt(_BATCH)}.get(form, 800 / 64)


def _ppgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    words = _VOID.format("PPGAN", "and one record moves its clipped average by 2 C")
    return replace(
        _dpgan(layout, given), name="ppgan-paper", optimizer="sgd",
        published=AsPublished(words, _CLIP * stated_noise(_STATED, _RATE), _CLIP),
    )  # fmt: skip


def _wgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    form = form_of(layout, given)
    core, critic, latent = networks(layout, form)
    return Game(
        name="wgan-paper", core=core, critic_of=critic, loss="wasserstein", latent=latent, hard=False, unit=form != "table",
        weight_clip=0.01, optimizer="rmsprop", learning_rate=5e-5, schedule="constant", steps=1, batch=64, ema=0.0,
        published=AsPublished("None is claimed."),
    )  # fmt: skip


def _wgan_gp(layout: Layout, given: Mapping[str, Any]) -> Game:
    return replace(
        _wgan(layout, given), name="wgan-gp-paper", weight_clip=None, penalty=10.0, optimizer="adam", learning_rate=1e-4,
        momentum=0.0,
    )  # fmt: skip


def _acgan(layout: Layout, given: Mapping[str, Any]) -> Game:
    form = trial_form(layout)

    def core(at: Layout) -> nn.Module:
        return TrialGenerator(form, at.classes)

    def critic(at: Layout) -> nn.Module:
        return trial_critic(form, at.classes, at.classes)

    return Game(
        name="acgan-paper", core=core, critic_of=critic, loss="auxiliary", latent=LATENT, law="uniform", hard=False,
        learning_rate=2e-4, schedule="constant", steps=100, batch=2, ema=0.0, published=AsPublished(_ACGAN, 1e-4, 1e-4),
    )  # fmt: skip
