"""The shape of a task: what one site brings to a call, what it gets back, and the functions a task consists of.

A task works on a list of sites, of which a real hospital is one. Its ``event`` says what one call of ``train`` will
spend, so that the ledger can be charged before any record is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.noise import NoiseProcess, Participation
from polyclinic.privacy.streams import Stream, system_stream
from polyclinic.training.local import PLAIN, LocalHalf
from polyclinic.types import Arrays, Builder, under

if TYPE_CHECKING:
    from polyclinic.privacy.perturbation import Kind
    from polyclinic.training.losses import Loss

# Before the names of a site's own arrays, among what it keeps: those that it evaluates with in place of the model's.
OWN = "own."
#: The steps of all hospitals in a run that take as long as to load numba and what it compiled.
LOADING_PAYS = 4000


@dataclass(frozen=True)
class TrainSettings:
    """Public settings of one round. ``noise_multiplier`` None trains without privacy: no clipping, no noise.

    ``batching``: "poisson", or "cyclic": the batches of an epoch take turns
    ``noise``: the process of the whole run's noise, which cyclic batches need; None is independent noise at every step
    ``denoise``: "none", "kalman" or "disk", with its gain (``training.sites.optimizers``)
    ``radius``: each step ends with the trained parameters' projection onto the ball of this L2 norm; 0: it does not
    ``perturbation``: "gaussian" or "gamma", the noise of a convex task's one release
    ``release_delta``: the delta that such a release states for itself where its guarantee has one
    ``engine``: how per-patient gradients are computed ("auto", "linear", "layered", "functional", "opacus")
    ``double``: in float64 whatever the model's dtype
    ``apart``: every patient's contribution is computed by itself, so that it is the same bit for bit whoever else is
        there, as a real hospital needs. Simulations compute patients together, which is faster.
    ``device``: "cpu" or "cuda"; batches and noise are drawn on the CPU, so that both train on the same ones
    ``compiled``: whether loops that numba compiles may take the linear engine's place, as in a run that is long enough
        to load them (``LOADING_PAYS``); they round otherwise
    ``loss``: one of ``training.losses``, or an objective
    ``local``: what the strategy has hospitals do in a round
    """

    sample_rate: float
    local_steps: int
    learning_rate: float
    max_grad_norm: float
    noise_multiplier: float | None
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    radius: float = 0.0
    engine: str = "auto"
    double: bool = False
    apart: bool = False
    device: str = "cpu"
    compiled: bool = False
    batching: str = "poisson"
    noise: NoiseProcess | None = None
    denoise: str = "none"
    denoise_gain: float = 0.7
    perturbation: Kind = "gaussian"
    release_delta: float = 0.0
    loss: Loss = "cross-entropy"
    local: LocalHalf = PLAIN

    @property
    def epoch(self) -> int:
        """Cyclic batches in which every patient is once."""
        return round(1 / self.sample_rate)

    @property
    def participation(self) -> Participation:
        """How often a patient takes part in cyclic batches over the whole run."""
        steps = self.noise.steps if self.noise else self.local_steps
        return Participation(self.epoch, math.ceil(steps / self.epoch))

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise in a batch sum, of unit draws; 0 without privacy."""
        return (self.noise_multiplier or 0.0) * self.max_grad_norm


@dataclass(frozen=True)
class SiteWork:
    """One site's part of a call.

    ``public_patients``: divides batch sums (with ``sample_rate``) under privacy
    ``sampling``, ``noise``, ``layers``: the site's own streams, of batches, of noise, and of dropout and other layers
        that draw
    ``state``: what the site kept from its last round: its optimizer's tensors, and the noise process under way
    ``own``: arrays of the site's own in place of the model's, by their names
    ``beside``: what the strategy sent beside the model, by name, arrays like the model's
    ``config``: numbers that it told, by name
    ``number``: which of the run's hospitals it is, from 0
    ``round``: from 1
    """

    rows: Rows
    sampling: Stream
    noise: Stream
    public_patients: float | None = None
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    layers: Stream = field(default_factory=system_stream)
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    beside: Mapping[str, Arrays] = field(default_factory=dict)
    config: Mapping[str, float] = field(default_factory=dict)
    number: int = 0
    round: int = 1


@dataclass(frozen=True)
class SiteUpdate:
    """What a site gives back.

    ``arrays``: its new model or its sum
    ``steps``: the steps it took (equal to the steps charged)
    ``loss``: its mean training loss
    ``state``: what it keeps for its next call
    ``beside``, ``metrics``: what leaves beside the model: arrays like its, and metrics, by name
    """

    arrays: Arrays
    steps: int
    loss: float
    state: Arrays
    beside: Mapping[str, Arrays] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def own_arrays(state: Mapping[str, np.ndarray]) -> Arrays:
    """The arrays of a site's own among what it kept, by their names in the model."""
    return under(state, OWN)


class Task(Protocol):
    """The functions of a task. ``build`` makes an empty module into which arrays are loaded."""

    @property
    def name(self) -> str:
        """As in the configuration."""

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What one call of ``train`` spends at each site (add/remove one patient).

        begun: the site goes on with a release that it paid for, as a whole, when that began.
        """

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that ``train`` would not refuse the model or the arrays; called before the ledger is charged.

        Args:
            build: Makes an empty module.
            arrays: The model's arrays.
            features: The width of a row.
            engine: How per-patient gradients are computed; "auto" takes the fastest that the module allows.
            private: Whether patients must be kept apart, for a release with noise.

        Raises:
            ConfigError: ``train`` would refuse them.
        """

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's update of the same global arrays, in the order of ``work``.

        Args:
            build: Makes an empty module.
            arrays: The model's arrays, from which all sites start.
            work: Each site's part.
            settings: The settings of the round.
        """

    def evaluate(self, build: Builder, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, columns) predictions: probabilities of classes, or what the objective predicts.

        Args:
            build: Makes an empty module.
            arrays: The model's arrays.
            rows: Each site's rows.
        """
