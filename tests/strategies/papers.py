"""Algorithms of the papers, written out with autograd on one vector of numbers, and what they work on.

Nothing of the library's training is used: each is what its paper's listing says, hospital by hospital and step by step. All are
of the perceptron ``MODEL``: 30 features, three tanh units, two classes, whose parameters are one vector of 101 numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.streams import keyed_stream

MODEL: dict[str, Any] = {"model": "mlp", "hidden": "3"}
FEATURES, UNITS, CLASSES = 30, 3, 2
BODY = UNITS * FEATURES + UNITS
SIZE = BODY + CLASSES * UNITS + CLASSES
HEAD = torch.arange(SIZE) >= BODY

Models = dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """A federation: its hospitals' rows by name, who took part in each round, and the numbers of its run."""

    rows: dict[str, Rows]
    rounds: Sequence[Sequence[str]]
    start: Tensor
    steps: int
    rate: float

    def loss(self, site: str, model: Tensor) -> Tensor:
        """The mean cross-entropy of the hospital's patients."""
        return functional.cross_entropy(self.outputs(site, model)[0], torch.from_numpy(self.rows[site].y))

    def outputs(self, site: str, model: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the hospital's patients, and what the hidden layer makes of them."""
        x = torch.from_numpy(np.nan_to_num(self.rows[site].x, nan=0.0)).double()
        first, bias, second, last = torch.split(model, [UNITS * FEATURES, UNITS, CLASSES * UNITS, CLASSES])
        hidden = torch.tanh(x @ first.view(UNITS, FEATURES).T + bias)
        return hidden @ second.view(CLASSES, UNITS).T + last, hidden

    def slope(self, site: str, model: Tensor) -> Tensor:
        """The gradient of ``loss``."""
        return gradient_at(lambda point: self.loss(site, point), model)

    def mean(self, models: Models) -> Tensor:
        """By the hospitals' numbers of patients."""
        sizes = {site: self.rows[site].patients for site in models}
        return sum((sizes[site] * model for site, model in models.items()), torch.zeros(SIZE)) / sum(sizes.values())


def gradient_at(objective: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    point = point.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(point), point)
    return found


def feddyn(trial: Trial, alpha: float) -> tuple[Tensor, Models]:
    """Acar et al. 2021, Algorithm 1, the exact minimisation replaced by gradient steps on its objective."""
    theta, h = trial.start, torch.zeros(SIZE).double()
    slopes = {site: torch.zeros(SIZE).double() for site in trial.rows}
    for active in trial.rounds:
        models = {}
        for site in active:

            def objective(point: Tensor, site: str = site, sent: Tensor = theta) -> Tensor:
                return trial.loss(site, point) - slopes[site] @ point + alpha / 2 * ((point - sent) ** 2).sum()

            models[site] = theta
            for _ in range(trial.steps):
                models[site] = models[site] - trial.rate * gradient_at(objective, models[site])
            slopes[site] = slopes[site] - alpha * (models[site] - theta)
        h = h - alpha / len(trial.rows) * sum(models[site] - theta for site in active)
        theta = sum(models.values(), torch.zeros(SIZE)) / len(active) - h / alpha
    return theta, slopes


def fednova(trial: Trial, fewest: int) -> tuple[Tensor, Models]:
    """Wang et al. 2020, equation 6 and section 4: p_i are shares of patients, tau_eff their mean number of steps."""
    theta, numbers = trial.start, list(trial.rows)
    for number, active in enumerate(trial.rounds, start=1):
        steps, ways = {}, {}
        for site in active:
            draw = float(keyed_stream(0, "fednova", numbers.index(site), number).uniform(1)[0])
            steps[site] = fewest + int(draw * (trial.steps - fewest + 1)) if fewest else trial.steps
            model, gradients = theta, []
            for _ in range(steps[site]):
                gradients.append(trial.slope(site, model))
                model = model - trial.rate * gradients[-1]
            ways[site] = torch.stack(gradients).mean(0)
        effective = trial.mean({site: torch.full((SIZE,), float(steps[site])) for site in active})
        theta = theta - trial.rate * effective * trial.mean(ways)
    return theta, {}


def fedrep(trial: Trial, head_steps: int) -> tuple[Tensor, Models]:
    """Collins et al. 2021, Algorithm 1: steps on the head under the shared body, then on the body under the new head."""
    theta, heads = trial.start, {site: trial.start for site in trial.rows}
    for active in trial.rounds:
        models = {}
        for site in active:
            model = torch.where(HEAD, heads[site], theta)
            for _ in range(head_steps):
                model = model - trial.rate * trial.slope(site, model) * HEAD
            for _ in range(trial.steps - head_steps):
                model = model - trial.rate * trial.slope(site, model) * ~HEAD
            heads[site] = models[site] = model
        theta = torch.where(HEAD, trial.start, trial.mean(models))
    return theta, {site: head[HEAD] for site, head in heads.items()}


def fedper(trial: Trial) -> tuple[Tensor, Models]:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: body and head take each step together."""
    theta, heads = trial.start, {site: trial.start for site in trial.rows}
    for active in trial.rounds:
        models = {}
        for site in active:
            model = torch.where(HEAD, heads[site], theta)
            for _ in range(trial.steps):
                model = model - trial.rate * trial.slope(site, model)
            heads[site] = models[site] = model
        theta = torch.where(HEAD, trial.start, trial.mean(models))
    return theta, {site: head[HEAD] for site, head in heads.items()}


def apfl(trial: Trial, alpha: float, adaptive: bool) -> tuple[Tensor, Models]:
    """Deng et al. 2020, Algorithm 1, and equation 10: all gradients of a step are at what the step before it left."""
    theta = trial.start
    own: Models = {}
    mixed: Models = {}
    shares = {site: torch.tensor(alpha).double() for site in trial.rows}
    for active in trial.rounds:
        models = {}
        for site in active:
            # A hospital that is new goes on from what it was sent.
            w, v, share = theta, own.get(site, theta), shares[site]
            for _ in range(trial.steps):

                def mixture(v: Tensor, share: Tensor, site: str = site, w: Tensor = w) -> Tensor:
                    return trial.loss(site, share * v + (1 - share) * w)

                of_v = gradient_at(partial(mixture, share=share), v)
                of_share = gradient_at(partial(mixture, v), share)
                w, v = w - trial.rate * trial.slope(site, w), v - trial.rate * of_v
                share = (share - trial.rate * of_share).clamp(0, 1) if adaptive else share
            models[site], own[site], shares[site] = w, v, share
            mixed[site] = share * v + (1 - share) * w
        theta = trial.mean(models)
    return theta, mixed


def mr_mtl(trial: Trial, pull: float) -> tuple[Tensor, Models]:
    """Liu et al. 2022, Algorithm A1: each hospital's own model on its loss plus pull / 2 times the distance to the mean."""
    mean = trial.start
    own: Models = {}
    for active in trial.rounds:
        for site in active:

            def objective(point: Tensor, site: str = site, mean: Tensor = mean) -> Tensor:
                return trial.loss(site, point) + pull / 2 * ((point - mean) ** 2).sum()

            # A hospital that is new goes on from what it was sent.
            model = own.get(site, mean)
            for _ in range(trial.steps):
                model = model - trial.rate * gradient_at(objective, model)
            own[site] = model
        mean = trial.mean({site: own[site] for site in active})
    return mean, own


def per_fedavg(trial: Trial, inner: float) -> tuple[Tensor, Models]:
    """Fallah et al. 2020, Algorithm 1 with the first-order gradient (FO)."""
    theta, adapted = trial.start, {}
    for active in trial.rounds:
        models = {}
        for site in active:
            adapted[site] = theta - inner * trial.slope(site, theta)
            model = theta
            for _ in range(trial.steps):
                model = model - trial.rate * trial.slope(site, model - inner * trial.slope(site, model))
            models[site] = model
        theta = trial.mean(models)
    return theta, adapted


def moon(trial: Trial, weight: float, temperature: float) -> tuple[Tensor, Models]:
    """Li et al. 2021c, Algorithm 1 and equation 3; before its first round a hospital's last model is the one it was sent."""
    theta = trial.start
    last: Models = {}
    for active in trial.rounds:
        models = {}
        for site in active:
            far = last.get(site, theta)

            def objective(point: Tensor, site: str = site, near: Tensor = theta, far: Tensor = far) -> Tensor:
                z = trial.outputs(site, point)[1]
                similar = [
                    functional.cosine_similarity(z, trial.outputs(site, other)[1]) / temperature
                    for other in (near, far)
                ]
                contrast = -torch.log_softmax(torch.stack(similar), 0)[0].mean()
                return trial.loss(site, point) + weight * contrast

            model = theta
            for _ in range(trial.steps):
                model = model - trial.rate * gradient_at(objective, model)
            models[site] = last[site] = model
        theta = trial.mean(models)
    return theta, last
