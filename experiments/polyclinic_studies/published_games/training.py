"""A critic's steps as private GANs were published: noise on the average of a batch's gradient, not on a sum of clipped patients.

DPGAN (Xie et al. 2018) adds noise to an average that nothing bounds; PPGAN (Liu et al. 2019) shortens the average first, which
one patient can still turn round; with batches of one patient that is the AC-GAN of trials (Beaulieu-Jones et al. 2019). Only
the last bounds what a patient changes. Nothing here is charged to a ledger, for nothing here keeps an epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import Stream
from polyclinic.synthesis.games.fakes import fake_rows, pairs
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.training import classification
from polyclinic.training.auditing.fixed import Fixed
from polyclinic.training.auditing.law import Finding
from polyclinic.training.local import LocalHalf, Sites, Trained
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats, Reals
from polyclinic_studies.published_games.guarantee import guarantee

Build = Callable[[], nn.Module]
# Where a site's gradient lies for ``_Given``: what ``Sites.state`` reads under the name "gradient".
_GRADIENT = "local.gradient"


@dataclass(frozen=True)
class AsPublished:
    """Critic steps on batches' averages, as a game's ``published``.

    The average gradient of a batch is shortened to ``batch_clip`` (None: left as it is) and N(0, ``noise``^2) is added to each
    of its numbers. ``words``: what the publication's guarantee comes to.
    """

    words: str
    noise: float = 0.0
    batch_clip: float | None = None

    def steps(
        self, game: Game, layout: Layout, generator: nn.Module, build: Build, arrays: Arrays, work: Sequence[SiteWork],
        settings: TrainSettings,
    ) -> list[SiteUpdate] | None:  # fmt: skip
        """As ``published_steps``; None where there is neither noise nor a clip."""
        if not (self.noise or self.batch_clip):
            return None
        return published_steps(self, game, layout, generator, build, arrays, work, settings)

    def guarantee(
        self, patients: Sequence[int], sample_rate: float, critic_steps: int, rounds: int, delta: float
    ) -> str:
        """As ``guarantee.guarantee``."""
        return guarantee(self.words, self.noise, self.batch_clip, patients, sample_rate, critic_steps, rounds, delta)

    def findings(self, subject: Fixed) -> Sequence[Finding]:
        """As ``findings.published_findings``."""
        from polyclinic_studies.published_games.findings import published_findings

        return published_findings(subject, self)


@dataclass(frozen=True)
class _Given(LocalHalf):
    """A step of each hospital's optimizer along a gradient that was made here."""

    def round(self, sites: Sites) -> Trained:
        gradient = sites.state("gradient", torch.zeros_like(sites.model))
        return Trained(sites.step(sites.model, gradient))


def published_steps(
    how: AsPublished, game: Game, layout: Layout, generator: nn.Module, build: Build, arrays: Arrays, work: Sequence[SiteWork],
    settings: TrainSettings,
) -> list[SiteUpdate]:  # fmt: skip
    """Each site's critic after ``settings.local_steps`` steps with the noise and the clip of ``how``.

    A batch is ``sample_rate`` of the site's patients, at least one, drawn without replacement at every step; noise is from
    the site's own stream. Raises ConfigError for settings with privacy, which this would not keep.
    """
    if settings.noise_multiplier:
        raise ConfigError(
            f"The game {game.name} is trained as published, which keeps no epsilon; it runs without privacy only."
        )
    one = replace(settings, local_steps=1, sample_rate=1.0, noise_multiplier=None, loss=game.loss)
    real = [layout.rows(site.rows.x, site.rows.y, site.number) for site in work]
    rngs = [np.random.default_rng(int(site.layers.uniform(1)[0] * 2**53)) for site in work]
    now, losses = list(work), []
    for _ in range(settings.local_steps):
        batches = [
            _batch(game, layout, generator, site, z, settings.sample_rate, rng)
            for site, z, rng in zip(now, real, rngs, strict=True)
        ]
        gradients, loss = _averages(build, arrays, now, batches, one)
        losses.append(loss)
        noisy = [noisy_average(how, found, site.noise) for found, site in zip(gradients, now, strict=True)]
        given = [
            replace(site, rows=batch, state={**site.state, _GRADIENT: _flat(build, gradient)})
            for site, batch, gradient in zip(now, batches, noisy, strict=True)
        ]
        updates = classification.train(build, arrays, given, replace(one, local=_Given()))
        now = [
            replace(site, own=game.clip(update.arrays), state=update.state)
            for site, update in zip(now, updates, strict=True)
        ]
    means = np.mean(losses, axis=0)
    return [
        SiteUpdate(dict(site.own), settings.local_steps, float(mean), dict(site.state))
        for site, mean in zip(now, means, strict=True)
    ]


def _batch(
    game: Game, layout: Layout, generator: nn.Module, site: SiteWork, z: Floats, rate: float, rng: np.random.Generator,
) -> Rows:  # fmt: skip
    """The real and generated rows of so many patients, of which each is as likely as any other."""
    rows = site.rows
    count = min(rows.patients, max(1, round(rate * rows.patients)))
    place = np.full(rows.patients, -1)
    place[np.argsort(site.sampling.uniform(rows.patients))[:count]] = np.arange(count)
    chosen = np.flatnonzero(place[rows.patient] >= 0)
    fakes = fake_rows(generator, game, layout, layout.labels(z[chosen]), rng)
    return pairs(game, layout, z[chosen], place[rows.patient[chosen]], count, fakes)


def _flat(build: Build, gradient: Arrays) -> Reals:
    return np.concatenate([gradient[name].ravel() for name, p in build().named_parameters() if p.requires_grad])


def _averages(
    build: Build, arrays: Arrays, work: Sequence[SiteWork], batches: Sequence[Rows], one: TrainSettings
) -> tuple[list[Arrays], list[float]]:
    """Each batch's average gradient and loss where its site is now: what a plain step of length one goes, in float64."""
    plain = replace(one, learning_rate=1.0, optimizer="sgd", momentum=0.0, weight_decay=0.0, double=True)
    exact = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in arrays.items()}
    alone = [
        replace(site, rows=batch, public_patients=max(batch.patients, 1), state={})
        for site, batch in zip(work, batches, strict=True)
    ]
    updates = classification.train(build, exact, alone, plain)
    trained = [name for name, value in exact.items() if value.dtype.kind == "f"]
    return [
        {name: np.asarray(site.own.get(name, exact[name]) - update.arrays[name]) for name in trained}
        for site, update in zip(work, updates, strict=True)
    ], [update.loss for update in updates]


def noisy_average(how: AsPublished, gradient: Arrays, noise: Stream) -> Arrays:
    """A batch's average gradient as a critic steps along it: shortened and with noise as ``how`` says."""
    norm = float(np.sqrt(sum(np.sum(value**2) for value in gradient.values())))
    scale = min(1.0, how.batch_clip / norm) if how.batch_clip and norm else 1.0
    return {
        name: scale * value + how.noise * noise.normal(value.size).reshape(value.shape)
        for name, value in gradient.items()
    }
