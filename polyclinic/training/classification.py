"""Training by SGD, Adam or AdamW, private (DP-SGD, DP-Adam) or not, at one site or stacked for many: of a classifier, or
towards another objective.

The unit is the patient: all rows of a sampled patient are in the batch, their losses are averaged, and their summed
gradient is clipped once. Batches are Poisson samples of patients; an empty batch still adds noise and counts.
Abadi et al. 2016, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import ClassVar

import numpy as np
import torch
from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, SelfComposedDpEvent
from torch import Tensor
from torch.nn import functional

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.objectives.objective import Objective, check_rows_apart
from polyclinic.privacy.events import PAID_BEFORE, dpsgd_event, gaussian_event
from polyclinic.training.local import PLAIN
from polyclinic.training.modules import check_behaviour, check_module, load, single_thread
from polyclinic.training.sites.one_by_one import check_hooks, train_one
from polyclinic.training.stacked.engines import choose
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder

name = "classification"
#: It makes the passes of a strategy's local half, and charges them.
takes_local_halves = True
_log = getLogger(__name__)


def event(settings: TrainSettings, begun: bool = False) -> DpEvent:
    """What one round spends: the Poisson-sampled Gaussian steps of its passes, or everything without noise.

    A noise process over cyclic batches is one release of the whole run: it is paid for when it begins, and then no more.
    Raises ConfigError for such a process and a strategy that makes other passes than the configured steps.
    """
    if settings.noise_multiplier is None:
        return NonPrivateDpEvent()
    passes = settings.local.passes(settings)
    if settings.noise is not None:
        if passes != PLAIN.passes(settings):
            raise ConfigError(
                "Configuration key 'training.batching' has the value 'cyclic', but what the strategy computes of "
                "patients beside the shared model is charged for Poisson batches only; set training.batching to "
                "'poisson'."
            )
        whole = settings.noise.event(settings.noise_multiplier, settings.participation)
        return PAID_BEFORE if begun else whole
    steps = sum(local_pass.gradients for local_pass in passes if not local_pass.all_patients)
    events = [dpsgd_event(settings.sample_rate, settings.noise_multiplier, steps)] if steps else []
    for local_pass in passes:
        if local_pass.all_patients:
            noise = settings.noise_multiplier / settings.sample_rate
            events.append(SelfComposedDpEvent(gaussian_event(noise), local_pass.gradients))
    return events[0] if len(events) == 1 else ComposedDpEvent(events)


def check(build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
    """Checks that a call of ``train`` would not refuse this model or these arrays; costs no privacy.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        features: The width of a row.
        engine: How per-patient gradients are computed; "auto" takes the fastest that the module allows.
        private: Whether patients must be kept apart. Without privacy a model may do with a batch what torch can train.

    Raises:
        ConfigError: ``train`` would refuse them.
    """
    if private:
        check_behaviour(build, arrays, features)
    if choose(load(build, arrays), features, engine) == "opacus" and private:
        check_hooks(load(build, arrays), features)


def train(build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
    """Each site's update after ``settings.local_steps`` steps from ``arrays``; noise of each site from its own stream.

    All engines give the same update within rounding; ``settings.engine`` says which, or "auto" takes the fastest that
    the module allows.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays, from which all sites start.
        work: Each site's part.
        settings: The settings of the round.

    Raises:
        ConfigError: The module mixes patients, the engine cannot take it, or a private call lacks ``public_patients``.
    """
    if settings.noise_multiplier is not None and any(site.public_patients is None for site in work):
        raise ConfigError("public_patients is missing: a private batch sum needs a public divisor.")
    made = (lambda: build().double()) if settings.double else build
    module = load(made, arrays)
    if settings.noise_multiplier is not None:
        check_module(module)
    engine = choose(module, work[0].rows.x.shape[1], settings.engine, settings.local.penalises)
    _log.debug("training %d sites with the engine %s", len(work), engine)
    private = settings.noise_multiplier is not None
    with single_thread(settings.apart):
        # Only closed forms can take several patients apart together: how another module rounds in company nobody can say.
        if engine == "opacus" or (settings.apart and private and engine != "linear"):
            return [train_one(made, arrays, site, settings) for site in work]
        return train_stacked(lambda: module, arrays, work, settings, engine)


def evaluate(
    build: Builder, arrays: Arrays, rows: Sequence[Rows], predict: Callable[[Tensor], Tensor] | None = None
) -> list[np.ndarray]:
    """Each site's (rows, columns) float64 predictions under the model ``arrays``.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        rows: Each site's rows.
        predict: Makes predictions of the module's outputs; by default (rows, classes) probabilities.
    """
    module, predict = load(build, arrays).eval(), predict or probabilities
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        return [predict(module(torch.from_numpy(np.nan_to_num(part.x, nan=0.0)).to(dtype))).numpy() for part in rows]


def probabilities(outputs: Tensor) -> Tensor:
    """(rows, classes) float64 probabilities that the model's outputs, (rows, classes) logits, stand for.

    One logit is that of class 1, beside 0.
    """
    beside = functional.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs
    return functional.softmax(beside.double(), dim=1)


@dataclass(frozen=True)
class Towards:
    """The task ``classification`` of a model that is trained towards ``objective``.

    Costs, steps, clipping and noise are the same: only the loss of a row and what outputs predict are the objective's.
    """

    objective: Objective

    name: ClassVar[str] = name
    takes_local_halves: ClassVar[bool] = takes_local_halves

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """As the task's."""
        return event(settings, begun)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """As the task does; also losses and predictions must not mix rows.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            features: The width of a row.
            engine: How per-patient gradients are computed.
            private: Whether patients must be kept apart.

        Raises:
            ConfigError: The task would refuse the model, or losses or predictions mix rows.
        """
        check(build, arrays, features, engine, private)
        check_rows_apart(self.objective)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """As the task does, with the objective's loss.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays, from which all sites start.
            work: Each site's part.
            settings: The settings of the round, whose loss is replaced.
        """
        return train(build, arrays, work, replace(settings, loss=self.objective.loss))

    def evaluate(self, build: Builder, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, columns) float64 predictions.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            rows: Each site's rows.
        """
        return evaluate(build, arrays, rows, self.probabilities)

    def canary_losses(self, build: Builder, arrays: Arrays, rows: Rows) -> np.ndarray:
        """(rows,) the losses of an audit's canaries.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            rows: The canaries.
        """
        (predictions,) = self.evaluate(lambda: build().double(), arrays, [rows])
        return self.objective.losses_of(predictions, rows.y)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """(rows, columns) float64 predictions that the model's outputs stand for."""
        return self.objective.predictions(outputs.double())
