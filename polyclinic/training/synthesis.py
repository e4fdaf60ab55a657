"""Task synthesis at a hospital: the sum that a method asks for, or a critic's steps on pairs of real and generated rows.

Both are told what else they need in the round's question, which is public: of a method what its sum depends on, of a game
the generator. Neighbouring relation: add or remove one patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch.nn import functional

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, DataError
from polyclinic.models.tabular import logistic_shapes
from polyclinic.privacy.clipping import poisson_samples
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.streams import keyed_stream
from polyclinic.privacy.sums import exact_total
from polyclinic.synthesis.games.fakes import check_generator, fake_rows, generator_of, pairs
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import SumsMethod, clipped_total
from polyclinic.training import classification
from polyclinic.training.losses import check_loss
from polyclinic.training.modules import check_fit, load
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder

#: The one array of a sum, as a hospital sends it back.
SUM = "sum"
#: The round that a question belongs to, from 1.
ROUND = "round"
#: Hospitals keep exact sums that tell of fewer patients, whatever a coordinator asks (DataSHIELD's nfilter.tab).
LEAST = 3


def site_probabilities(arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
    """Each site's (rows, classes) probabilities under the logistic regression ``arrays``, of which no module is built: that takes
    longer than what it computes. Raises ConfigError for arrays that are none of it."""
    classes, features = arrays["0.weight"].shape
    check_fit(logistic_shapes(features, classes), arrays)
    weight, bias = (torch.from_numpy(np.array(arrays[f"0.{name}"], np.float32)) for name in ("weight", "bias"))
    inputs = (torch.from_numpy(np.nan_to_num(part.x, nan=0.0)).to(weight.dtype) for part in rows)
    return [classification.probabilities(functional.linear(x, weight, bias)).numpy() for x in inputs]


class Judged:
    """A task whose rounds end in synthetic rows."""

    def evaluate(self, build: Builder, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, classes) probabilities under a logistic regression that was fitted to synthetic rows.

        Args:
            build: Of no weight here.
            arrays: The regression's arrays.
            rows: Each site's rows.
        """
        return site_probabilities(arrays, rows)


def sum_event(settings: TrainSettings) -> DpEvent:
    """What one sum of clipped vectors costs."""
    noise = settings.noise_multiplier
    return NonPrivateDpEvent() if noise is None else gaussian_event(noise)


@dataclass(frozen=True, eq=False)
class SumsTask(Judged):
    """A round is one sum of patients' vectors. Hospitals are sent a question and no model, and answer with their sum."""

    method: SumsMethod
    question: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = "synthesis"

    def with_question(self, question: Mapping[str, np.ndarray]) -> Self:
        """The task of a round with this question. Raises ConfigError, before anything is charged, for one that no sum
        follows from."""
        task = replace(self, question=question)
        task._check_question()
        return task

    @property
    def size(self) -> int:
        """How many numbers the sum has."""
        return self.method.size(self._round, self._given)

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """One sum of clipped vectors, with Gaussian noise or everything without."""
        return sum_event(settings)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that there is no model: a sum is asked for without one.

        Args:
            build: Of no weight here.
            arrays: Must be empty.
            features: Of no weight here.
            engine: Of no weight here.
            private: Of no weight here.

        Raises:
            ConfigError: There are arrays.
        """
        if arrays:
            raise ConfigError(f"A round of sums has no model, but the message holds {', '.join(sorted(arrays))}.")

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's noisy sum by its number of patients, so that the mean by these numbers is that of all patients.

        Args:
            build: Of no weight here.
            arrays: Of no weight here: a sum has no model.
            work: Each site's part.
            settings: The settings of the round.

        Raises:
            ConfigError: A private call lacks ``public_patients``.
        """
        if settings.noise_multiplier is not None and any(site.public_patients is None for site in work):
            raise ConfigError("public_patients is missing: a private sum needs a public divisor.")
        return [self._update(site, settings) for site in work]

    def arrays_with_noise(self, build: Builder, arrays: Arrays) -> list[str]:
        """The arrays that records reach, through noise."""
        return [SUM]

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        method, rows = self.method, site.rows
        z = method.layout.rows(rows.x, rows.y, site.number)
        total = settings.max_grad_norm * clipped_total(
            method, self._round, self._given, z, rows.patient, rows.patients, settings.apart
        )
        if settings.noise_scale:
            total += settings.noise_scale * site.noise.normal(len(total))
        return SiteUpdate({SUM: total / (site.public_patients or rows.patients)}, 1, float("nan"), {})

    @property
    def _round(self) -> int:
        return int(self.question[ROUND][0])

    @property
    def _given(self) -> Arrays:
        """The question without its round, as the method asked it."""
        return {name: value for name, value in self.question.items() if name != ROUND}

    def _check_question(self) -> None:
        number = self.question.get(ROUND)
        if number is None or number.shape != (1,) or not 1 <= int(number[0]) <= self.method.rounds:
            raise ConfigError(f"The question's {ROUND!r} must be one number from 1 to {self.method.rounds}.")
        for name, value in self.question.items():
            if not np.isfinite(value).all():
                raise ConfigError(f"Array {name!r} of the question holds values that are not finite.")
        self._probe()

    def _probe(self) -> None:
        """Checks the question on made-up patients of one, two and four records.

        Their vectors must be of finite numbers and of the sum's size, the same together as alone. Else a question could
        fail by what a hospital's patients are like. Raises ConfigError where they are not.
        """
        method, given = self.method, self._given
        layout, rng, patient = method.layout, np.random.default_rng(0), np.repeat([0, 1, 2], [1, 2, 4])
        z = layout.rows(rng.uniform(-1, 1, (7, layout.features)), layout.some_labels(7))
        z[:, ~layout.numeric] = z[:, ~layout.numeric] > 0.5
        try:
            vectors = method.contributions(self._round, given, z, patient, 3)
            alone = [
                method.contributions(
                    self._round, given, z[patient == at], np.zeros((patient == at).sum(), dtype=np.int64), 1
                )
                for at in range(3)
            ]
            size = self.size
        except Exception as error:
            raise ConfigError(
                f"The question of round {self._round} is not one that {method.name} can answer: {type(error).__name__}."
            ) from error
        if not np.isfinite(vectors).all():
            raise ConfigError(f"The question of round {self._round} gives {method.name} vectors that are not finite.")
        if not np.allclose(vectors, np.concatenate(alone), rtol=1e-6, atol=1e-9):
            raise ConfigError(f"The method {method.name} mixes patients: one's rows change another's part of the sum.")
        if vectors.shape[1] != size:
            raise ConfigError(
                f"The method {method.name} sums {vectors.shape[1]} numbers, but says that it sums {size}."
            )


@dataclass(frozen=True, eq=False)
class ExactSumsTask(SumsTask):
    """``SumsTask`` whose sums without privacy are of vectors as they are, none of them clipped.

    Its method may have a function ``refusal(round, question, z, patient, patients)``, with the arguments of
    ``contributions``. It is asked only where no noise is added, and a sentence that is not empty keeps the hospital's
    sum at the hospital.
    """

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        if settings.noise_multiplier is not None:
            return super()._update(site, settings)
        method, rows = self.method, site.rows
        z = method.layout.rows(rows.x, rows.y, site.number)
        asked = (self._round, self._given, z, rows.patient, rows.patients)
        if refusal := getattr(method, "refusal", lambda *_: "")(*asked):
            raise DataError(refusal)
        vectors = partial(method.contributions, *asked[:2])
        total = exact_total(vectors, self.size, *asked[2:], method.name)
        return SiteUpdate({SUM: total / (site.public_patients or rows.patients)}, 1, float("nan"), {})


@dataclass(frozen=True, eq=False)
class GameTask(Judged):
    """A round is steps of a game's critic on every patient's real rows and as many generated ones of the same labels.

    Each step has generated rows of its own.

    question: the generator's arrays.
    clips: whether the critic's weights are kept within the game's bound here; where hospitals send gradients, the
        server does it.
    """

    game: Game
    layout: Layout
    question: Mapping[str, np.ndarray] = field(default_factory=dict)
    clips: bool = True
    name: str = "synthesis"

    def with_question(self, question: Mapping[str, np.ndarray]) -> GameTask:
        """The task of a round with this generator. Raises ConfigError, before anything is charged, for one that generates
        nothing here."""
        task = replace(self, question={name: value for name, value in question.items() if name != ROUND})
        game, layout = task.game, task.layout
        labels = np.zeros(1, dtype=np.int64)
        try:
            generator = generator_of(game, layout, task.question)
            rows = fake_rows(generator, game, layout, labels, np.random.default_rng(0))
        except Exception as error:
            raise ConfigError(
                f"The message's generator is not one of the game {game.name}: {type(error).__name__}."
            ) from error
        if not np.isfinite(rows).all():
            raise ConfigError("The message's generator gives numbers that are not finite: it has diverged.")
        check_generator(generator, game, layout)
        return task

    #: The critic's steps cost what those of private classification do.
    event = staticmethod(classification.event)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that the critic does not mix patients, and that it fits the arrays and the game's loss.

        Args:
            build: Makes the critic.
            arrays: The critic's arrays.
            features: Of no weight here: the layout has the width of a row.
            engine: How per-patient gradients are computed.
            private: Of no weight here: patients are always kept apart.

        Raises:
            ConfigError: It mixes patients or does not fit.
        """
        game, layout = self.game, self.layout
        classification.check(build, arrays, layout.width, engine)
        with torch.no_grad():
            outputs = load(build, arrays)(torch.zeros(1, layout.width)).shape[1]
        check_loss(game.loss, outputs)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's critic after its steps.

        A patient's rows and the generated ones beside them are in a batch together, and their summed gradient is
        clipped once.

        Args:
            build: Makes the critic.
            arrays: The critic's arrays, from which all sites start.
            work: Each site's part.
            settings: The settings of the round.
        """
        game, layout = self.game, self.layout
        generator = generator_of(game, layout, self.question)
        if game.published:
            own = game if self.clips else replace(game, weight_clip=None)
            published = game.published.steps(own, layout, generator, build, arrays, work, settings)
            if published is not None:
                return published
        # Batches are drawn here, so that only who is in one gets generated rows; of those the whole is then the batch.
        step_settings = replace(settings, local_steps=1, loss=game.loss, sample_rate=1.0)
        real = [layout.rows(site.rows.x, site.rows.y, site.number) for site in work]
        draws = [np.random.default_rng(int(site.layers.uniform(1)[0] * 2**53)) for site in work]
        updates: list[SiteUpdate] = []
        losses = []
        for step in range(settings.local_steps):
            now = []
            for index, (site, whole, rng) in enumerate(zip(work, real, draws, strict=True)):
                patients = site.rows.patients
                chosen = poisson_samples(patients, settings.sample_rate, 1, site.sampling)[0]
                there = chosen[site.rows.patient]
                z, patient = whole[there], (np.cumsum(chosen) - 1)[site.rows.patient[there]]
                fakes = fake_rows(generator, game, layout, layout.labels(z), rng, settings.apart)
                rows = pairs(game, layout, z, patient, int(chosen.sum()), fakes, settings.apart)
                if step:
                    site = replace(site, own=updates[index].arrays, state=updates[index].state)
                expected = settings.sample_rate * (site.public_patients or patients)
                now.append(replace(site, rows=rows, public_patients=expected, sampling=keyed_stream(0, "all")))
            updates = classification.train(build, arrays, now, step_settings)
            if self.clips:
                updates = [replace(update, arrays=game.clip(update.arrays)) for update in updates]
            losses.append([update.loss for update in updates])
        means = np.mean(losses, axis=0)
        return [
            replace(update, steps=settings.local_steps, loss=float(mean))
            for update, mean in zip(updates, means, strict=True)
        ]
