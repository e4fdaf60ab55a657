"""Central differential privacy: what a trusted server does to hospitals' updates, before any strategy for means sees them.

Each update, the difference from the model that was sent, is clipped as a whole and weighted by a public weight; the sum
gets noise once and is divided by a public constant. The wrapped strategy is handed one model, so that all it does
(moments, momentum) is post-processing. One hospital is the unit: its update is in the sum, or counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import DpEvent
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.adaptive import count_noise, next_clip_norm, noisy_fraction, sum_noise_multiplier
from polyclinic.privacy.clipping import ClippedSum, clipped_sum, privatise
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream
from polyclinic.strategies.registry import merge_by

Vector = npt.NDArray[np.float64]
Weigh = Callable[[Message], float]


@dataclass(frozen=True)
class CentralPlan:
    """What is done to every round's updates; all of it is public.

    noise_multiplier: of a whole round, relative to its sensitivity. clip_norm: L2 norm that no update exceeds, of the
    first round where ``quantile`` is given. expected_sites: hospitals expected in a round. expected_weight: sum of their
    weights, by which every noisy sum is divided. largest_weight: no hospital has more. sample_rate: probability with which
    each hospital is in a round, independently of all else; 1 claims no amplification. quantile: share of the updates
    that should lie within the clip norm, which then follows them; None leaves it fixed.
    Raises ConfigError naming the value that is out of range.
    """

    noise_multiplier: float
    clip_norm: float
    expected_sites: float
    expected_weight: float
    largest_weight: float = 1.0
    sample_rate: float = 1.0
    quantile: float | None = None

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "clip_norm", "expected_sites", "expected_weight", "largest_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be positive and finite, got {value}.")
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate must lie in (0, 1], got {self.sample_rate}.")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ConfigError(f"quantile must lie in (0, 1), got {self.quantile}.")

    @property
    def count_std(self) -> float:
        """Standard deviation of the noise on the count of updates that were not clipped."""
        return count_noise(self.noise_multiplier, self.expected_sites)

    @property
    def sum_noise_multiplier(self) -> float:
        """The noise on the sum of updates, relative to its sensitivity."""
        if self.quantile is None:
            return self.noise_multiplier
        return sum_noise_multiplier(self.noise_multiplier, self.count_std)

    def event(self, rounds: int = 1) -> DpEvent:
        """What ``rounds`` rounds spend of one hospital's protection.

        A hospital's own batches amplify nothing here: all its steps of a round are in one update (privacy-faults, 9).
        """
        return dpsgd_event(self.sample_rate, self.noise_multiplier, rounds)


class CentralDP(Strategy):
    """``base``, any strategy that starts from a mean of models, with central differential privacy before it.

    weigh: a reply's public weight, at most ``plan.largest_weight``; all weigh 1 by default. ledger: charged for every
    round, under the name ``run``, before anything is computed from its replies; without one the caller accounts for
    ``plan.event(rounds)``. seed: of a simulation, whose noise anyone can repeat; None draws from the system's entropy.
    The metrics of training are not averaged, for they carry no noise. Raises ConfigError for a base that is no mean.
    """

    def __init__(
        self, base: Strategy, plan: CentralPlan, *, weigh: Weigh = lambda reply: 1.0, ledger: Ledger | None = None,
        run: str = "", seed: int | None = None,
    ) -> None:  # fmt: skip
        check_base(base)
        self.base = base
        self.plan = plan
        self.weigh = weigh
        self.ledger = ledger
        self.run = run
        self.seed = seed
        self.clip_norm = plan.clip_norm
        self.clip_norms: list[float] = []
        self.epsilon: float | None = None
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does; remembers the model that was sent."""
        self._sent = arrays
        return self.base.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the base makes of the model plus the noisy mean update; who did not reply counts as zero.

        The metrics are the round's clip norm and the noise's standard deviation on the mean, both public. Raises
        BudgetRefused, with nothing computed, when the ledger does.
        """
        if self._sent is None:
            raise RuntimeError("configure_train must be called before aggregate_train.")
        sent, self._sent = {name: array.numpy() for name, array in self._sent.items()}, None
        answers = [reply for reply in replies if not reply.has_error()]
        self._charge(server_round, sent, answers)
        clip_norm, plan = self.clip_norm, self.plan
        total = self._clipped(sent, answers, server_round)
        noisy = privatise(total, plan.sum_noise_multiplier, self._stream("central-noise", server_round))
        model = _moved(sent, noisy.numpy() / plan.expected_weight)
        arrays, _ = self.base.aggregate_train(server_round, [self._reply(model)])
        noise = plan.sum_noise_multiplier * total.sensitivity / plan.expected_weight
        return arrays, MetricRecord({"central-clip-norm": clip_norm, "central-noise": noise})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does."""
        return self.base.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the base does: what hospitals' policies let leave, which this privacy does not cover."""
        return self.base.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the base's settings."""
        self.base.summary()

    def _charge(self, server_round: int, sent: Mapping[str, np.ndarray], replies: Sequence[Message]) -> None:
        if self.ledger is not None:
            # Only a simulation gives the same numbers again; of a real server every aggregate is a new release.
            release = "" if self.seed is None else _digest(self.seed, self.plan, self.clip_norm, sent, replies)
            self.epsilon = self.ledger.charge(self.plan.event(), "central", self.run, server_round, release)

    def _clipped(self, sent: Mapping[str, np.ndarray], replies: Sequence[Message], server_round: int) -> ClippedSum:
        """The sum of weighted, clipped updates; moves the clip norm on where it is adaptive."""
        clip_norm, plan = self.clip_norm, self.plan
        total: Vector = np.zeros(sum(sent[name].size for name in _floats(sent)))
        unclipped = []
        for reply in replies:
            weight = self.weigh(reply)
            if not 0 <= weight <= plan.largest_weight:
                raise ConfigError(f"A weight must lie between 0 and {plan.largest_weight:g}, got {weight:g}.")
            update = _update(reply, sent)
            total += weight * clipped_sum(torch.from_numpy(update)[None], clip_norm).total.numpy()
            unclipped.append(bool(np.linalg.norm(update) <= clip_norm))
        self.clip_norms.append(clip_norm)
        if plan.quantile is not None:
            stream = self._stream("central-count", server_round)
            fraction = noisy_fraction(unclipped, plan.expected_sites, plan.count_std, stream)
            self.clip_norm = next_clip_norm(clip_norm, fraction, plan.quantile)
        return ClippedSum(torch.from_numpy(total), plan.largest_weight * clip_norm)

    def _stream(self, purpose: str, server_round: int) -> Stream:
        return system_stream() if self.seed is None else keyed_stream(self.seed, purpose, server_round)

    def _reply(self, model: Mapping[str, np.ndarray]) -> Message:
        """The one model, as a reply to the base."""
        weighted_by = str(getattr(self.base, "weighted_by_key", "num-examples"))
        content = RecordDict({
            "arrays": ArrayRecord({name: Array(value) for name, value in model.items()}),
            "metrics": MetricRecord({weighted_by: 1.0}),
        })  # fmt: skip
        return Message(content, 1, "train")


def check_base(base: Strategy) -> None:
    """Raises ConfigError when the strategy needs each hospital's model, and not only their mean."""
    if isinstance(base, CentralDP) or merge_by(base) is None:
        raise ConfigError(
            f"Central privacy releases a sum of updates, and {type(base).__name__} does not start from their mean; take "
            "fedavg, fedprox, fedavgm, fedadam, fedadagrad or fedyogi, or declare `associative = True` on a strategy that does."
        )


def _floats(model: Mapping[str, np.ndarray]) -> list[str]:
    """The arrays that training moves; counters and other whole numbers stay as they are."""
    return [name for name, value in model.items() if np.issubdtype(value.dtype, np.floating)]


def _update(reply: Message, sent: Mapping[str, np.ndarray]) -> Vector:
    """(P,) difference of the reply's model from the one sent; zero where any of it is not finite or has another shape."""
    record = next((part for part in reply.content.values() if isinstance(part, ArrayRecord)), ArrayRecord())
    parts = []
    for name in _floats(sent):
        value = record[name].numpy() if name in record else np.empty(0)
        if value.shape != sent[name].shape:
            return np.zeros(sum(sent[name].size for name in _floats(sent)))
        parts.append((value.astype(np.float64) - sent[name].astype(np.float64)).ravel())
    update: Vector = np.concatenate(parts) if parts else np.empty(0)
    return update if np.isfinite(update).all() else np.zeros_like(update)


def _moved(sent: Mapping[str, np.ndarray], step: Vector) -> dict[str, np.ndarray]:
    """The model that was sent, moved by a (P,) step, in its own types."""
    model, begin = dict(sent), 0
    for name in _floats(sent):
        value = sent[name]
        part = step[begin : begin + value.size].reshape(value.shape)
        model[name] = (value.astype(np.float64) + part).astype(value.dtype)
        begin += value.size
    return model


def _digest(seed: int, plan: CentralPlan, clip_norm: float, sent: Mapping[str, np.ndarray], replies: Any) -> str:
    """Identifies a round's release by all that decides its numbers."""
    found = sha256(repr((seed, plan, clip_norm)).encode())
    for name, value in sent.items():
        found.update(f"{name}|{value.dtype}|{value.shape}|".encode() + np.ascontiguousarray(value).tobytes())
    for reply in replies:
        found.update(f"{reply.metadata.src_node_id}|".encode() + _update(reply, sent).tobytes())
    return found.hexdigest()
