"""Central differential privacy: what a trusted server does to hospitals' updates, before any strategy for means sees them.

Each update, the difference from the model that was sent, is clipped as a whole and weighted by a public weight. The sum
gets noise once and is divided by a public constant. The wrapped strategy is handed one model, so that all it does
(moments, momentum) is post-processing. One hospital is the unit: its update is in the sum, or counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from polyclinic.digests import array_bytes
from polyclinic.errors import ConfigError
from polyclinic.privacy.central import CentralPlan, next_clip_norm, noisy_fraction
from polyclinic.privacy.clipping import ClippedSum, clipped_sum, privatise
from polyclinic.privacy.events import PAID_BEFORE, event_to_json
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.noise import State
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream
from polyclinic.strategies.base.wrapping import Wrapping, aggregate
from polyclinic.strategies.registry import MEANS, merge_by
from polyclinic.types import Arrays, Floats

Replies = Sequence[tuple[str, Message]]


class CentralDP(Wrapping):
    """``base``, any strategy that starts from a mean of models, with central differential privacy before it.

    weights: public weights by hospital, at most ``plan.largest_weight``; all weigh 1 by default.
    name: the hospital that a reply is from, its node by default.
    ledger: charged for every round, under the name ``run``, before anything is computed from its replies; without one the
    caller accounts for ``plan.event(rounds)``.
    seed: of a simulation, whose noise anyone can repeat; None draws from the system's entropy.

    The metrics of training are not averaged, for they carry no noise. Raises ConfigError for a base that is no mean.

    Examples:
        >>> from flwr.serverapp.strategy import FedAdam
        >>> plan = CentralPlan(noise_multiplier=1.0, clip_norm=0.5, expected_sites=20, expected_weight=20)
        >>> strategy = CentralDP(FedAdam(), plan, seed=0)
        >>> strategy.clip_norm, strategy.plan.event(rounds=3)
        (0.5, SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.0), count=3))
    """

    not_saved = ("plan", "weights", "ledger")

    def __init__(
        self, base: Strategy, plan: CentralPlan, *, weights: Mapping[str, float] | None = None,
        name: Callable[[Message], str] = lambda reply: str(reply.metadata.src_node_id), ledger: Ledger | None = None,
        run: str = "", seed: int | None = None,
    ) -> None:  # fmt: skip
        check_base(base)
        super().__init__(base)
        self.plan = plan
        self.weights = weights
        self.name = name
        self.ledger = ledger
        self.run = run
        self.seed = seed
        self.clip_norm = plan.clip_norm
        self.clip_norms: list[float] = []
        self.epsilon: float | None = None
        self.joined: dict[str, int] = {}
        self.noise_state: State = {}

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
        answers = [(self.name(reply), reply) for reply in replies if not reply.has_error()]
        self._join(server_round, [name for name, _ in answers])
        self._charge(server_round, sent, answers)
        clip_norm, plan = self.clip_norm, self.plan
        total = self._clip_and_sum(sent, answers, server_round)
        model = _move_model(sent, self._add_noise(total, server_round) / plan.expected_weight)
        arrays, _ = aggregate(self.base, server_round, [self._reply(model)])
        if arrays is not None:
            # A mean makes floats of whole numbers.
            whole = {name: Array(value) for name, value in sent.items() if name not in _floats(sent)}
            arrays = ArrayRecord({**arrays, **whole})
        noise = plan.noise_scale * total.sensitivity / plan.expected_weight
        return arrays, MetricRecord({"central-clip-norm": clip_norm, "central-noise": noise})

    def _join(self, server_round: int, names: Sequence[str]) -> None:
        """Raises ConfigError, before anything is charged, for a hospital that takes part twice, too soon, or weighs too much."""
        for name in names:
            last, weight = self.joined.get(name), self._weight(name)
            if last is not None and server_round - last < self.plan.separation:
                raise ConfigError(
                    f"The hospital {name!r} took part in rounds {last} and {server_round}; the central noise allows it once "
                    f"in {self.plan.separation}."
                )
            if not 0 <= weight <= self.plan.largest_weight:
                raise ConfigError(
                    f"The weight of the hospital {name!r} must lie between 0 and {self.plan.largest_weight:g}, got {weight:g}."
                )
            self.joined[name] = server_round

    def _weight(self, name: str) -> float:
        return 1.0 if self.weights is None else self.weights.get(name, math.nan)

    def _charge(self, server_round: int, sent: Arrays, replies: Replies) -> None:
        if self.ledger is None:
            return
        event = self.plan.event() if self._to_pay(server_round, self.ledger) else PAID_BEFORE
        all_rounds = [(self.plan.event(), math.ceil(self.plan.rounds / self.plan.covers))]
        # Only a simulation gives the same numbers again; of a real server every aggregate is a new release.
        release = "" if self.seed is None else _digest(self.seed, self.plan, self.clip_norm, sent, replies)
        self.epsilon = self.ledger.charge(event, "central", self.run, server_round, release, all_rounds)

    def _to_pay(self, server_round: int, ledger: Ledger) -> bool:
        """Whether no earlier charge pays for this round, or the round is done again, with other noise."""
        if self.plan.covers == 1:
            return True
        charges = [charge for charge in ledger.events() if charge["run"] == self.run]
        paid = [charge["round"] for charge in charges if charge["event"] != event_to_json(PAID_BEFORE)]
        again = any(charge["round"] == server_round for charge in charges)
        return again or not any(server_round - round < self.plan.covers for round in paid)

    def _add_noise(self, total: ClippedSum, server_round: int) -> Floats:
        plan, stream = self.plan, self._stream("central-noise", server_round)
        if plan.process is None:
            draws = stream.normal(len(total.total))
        else:
            noise, self.noise_state = plan.process.draw(stream, self.noise_state, 1, len(total.total))
            draws = noise[0]
        return privatise(total, plan.noise_scale, draws).numpy()

    def _clip_and_sum(self, sent: Arrays, replies: Replies, server_round: int) -> ClippedSum:
        """The sum of weighted, clipped updates; moves the clip norm on where it is adaptive."""
        clip_norm, plan = self.clip_norm, self.plan
        total: Floats = np.zeros(sum(sent[name].size for name in _floats(sent)))
        unclipped = []
        for name, reply in replies:
            update = _update(reply, sent)
            clipped = clipped_sum(torch.from_numpy(update)[None], clip_norm).total.numpy()
            total += self._weight(name) * clipped
            unclipped.append(bool(np.linalg.norm(update) <= clip_norm))
        self.clip_norms.append(clip_norm)
        if plan.quantile is not None:
            stream = self._stream("central-count", server_round)
            fraction = noisy_fraction(unclipped, plan.expected_sites, plan.count_std, stream)
            self.clip_norm = next_clip_norm(clip_norm, fraction, plan.quantile)
        return ClippedSum(torch.from_numpy(total), plan.largest_weight * clip_norm)

    def _stream(self, purpose: str, server_round: int) -> Stream:
        return system_stream() if self.seed is None else keyed_stream(self.seed, purpose, server_round)

    def _reply(self, model: Arrays) -> Message:
        """The one model, as a reply to the base."""
        weighted_by = str(getattr(self.base, "weighted_by_key", "num-examples"))
        content = RecordDict({
            "arrays": ArrayRecord({name: Array(value) for name, value in model.items()}),
            "metrics": MetricRecord({weighted_by: 1.0}),
        })  # fmt: skip
        return Message(content, 1, "train")


def check_base(base: Strategy) -> None:
    """Raises ConfigError when the strategy needs each hospital's model, and not only their mean.

    Examples:
        >>> from flwr.serverapp.strategy import FedAvg, FedMedian
        >>> check_base(FedAvg())
        >>> check_base(FedMedian())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: Central privacy releases a sum of updates, and FedMedian does ...
    """
    if isinstance(base, CentralDP) or merge_by(base) is None:
        raise ConfigError(
            f"Central privacy releases a sum of updates, and {type(base).__name__} does not start from their mean; take "
            f"{', '.join(MEANS)}, or declare `associative = True` on a strategy that does."
        )


def _floats(model: Arrays) -> list[str]:
    """The arrays that training moves; counters and other whole numbers stay as they are."""
    return [name for name, value in model.items() if np.issubdtype(value.dtype, np.floating)]


def _update(reply: Message, sent: Arrays) -> Floats:
    """(P,) difference of the reply's model from the one sent; zero where any of it is not finite or has another shape."""
    record = next((part for part in reply.content.values() if isinstance(part, ArrayRecord)), ArrayRecord())
    parts = []
    for name in _floats(sent):
        value = record[name].numpy() if name in record else np.empty(0)
        if value.shape != sent[name].shape:
            return np.zeros(sum(sent[name].size for name in _floats(sent)))
        parts.append((value.astype(np.float64) - sent[name].astype(np.float64)).ravel())
    update: Floats = np.concatenate(parts) if parts else np.empty(0)
    return update if np.isfinite(update).all() else np.zeros_like(update)


def _move_model(sent: Arrays, step: Floats) -> Arrays:
    """The model that was sent, moved by a (P,) step, in its own types."""
    model, begin = dict(sent), 0
    for name in _floats(sent):
        value = sent[name]
        part = step[begin : begin + value.size].reshape(value.shape)
        model[name] = np.asarray(value.astype(np.float64) + part, dtype=value.dtype)
        begin += value.size
    return model


def _digest(seed: int, plan: CentralPlan, clip_norm: float, sent: Arrays, replies: Replies) -> str:
    """Identifies a round's release by all that decides its numbers."""
    digest = sha256(repr((seed, plan, clip_norm)).encode())
    for name, value in sent.items():
        digest.update(array_bytes(name, value))
    for name, reply in replies:
        digest.update(f"{name}|".encode() + _update(reply, sent).tobytes())
    return digest.hexdigest()
