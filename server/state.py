"""A run as its rounds see it: what all of them have in common, and what each of them changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.assessment import Predictions
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import check_told, from_text, run_digest
from polyclinic.programs import Program
from polyclinic.releases.measured import Noised
from polyclinic.server.accounts import LOST, Account
from polyclinic.server.exchange.learning import Learning
from polyclinic.server.exchange.sites import Exchange, Site, node_title
from polyclinic.strategies.central import CentralDP
from polyclinic.types import Arrays
from polyclinic.wire.arrays import to_record
from polyclinic.wire.messages import LOCAL, STANDARDISER, STATISTICS


@dataclass(frozen=True, eq=False)
class Run:
    """What all rounds have in common.

    ``home``: where simulated hospitals keep what they keep
    ``ledger``: charged for what secure sums tell of whole hospitals, None where they tell nothing that is paid for
    ``privacy``: None without noise
    ``answered``: nodes that told who they are and are not asked again
    ``pending``: messages to others that may yet be answered, by node
    ``learning``: what the program's half at the server has learned, where it has one
    ``central``: what adds noise for whole hospitals, where the run has that
    """

    grid: Grid
    sites: Sequence[Site]
    strategy: Strategy
    program: Program
    name: str
    home: str
    ledger: Ledger | None = None
    privacy: PrivacyPlan | None = None
    answered: frozenset[int] = frozenset()
    pending: Mapping[int, str] = field(default_factory=dict)
    learning: Learning | None = None
    central: CentralDP | None = None

    @property
    def config(self) -> RunConfig:
        return self.program.config


@dataclass
class RunState:
    """All that the next round depends on, and the history so far (``rows``, ``dropouts``); what a checkpoint stands for.

    ``strategy_metrics``: by round, the metrics that the strategy returned of training and of evaluation, and what
        ``evaluation.function`` found
    ``stopped``: why there will be no further round though some were left
    ``unchanged``: the rounds that changed no model, and why
    ``sampled``: the round for which each site was last asked
    ``trained``: the last whose reply came
    ``hospital_epsilon``: what central noise has spent so far of a whole hospital's protection
    ``epsilon``: what each site said of its ledger last, in a private run alone
    ``accounts``: what the server knows beside that of real hospitals' spending
    ``run``, ``plan``: the run's name and the charges that it declares
    ``local``: the arrays that stay at hospitals; here they are as they were at first
    ``classes``: the label's paid counts, of task synthesis
    ``hospitals``: what each real one said of itself when it enrolled (``Site.as_dict``)
    ``strategy_config``: the strategy's ConfigRecord of training, which goes on from round to round as in Flower's own loop
    ``released``: of each hospital that was asked for metrics, whether its policy let them leave
    ``predictions``: of the newest evaluation, by site, as far as policies let them leave; in no checkpoint. None where
        there was none since the run began or was resumed.
    ``saved``: the round of the newest checkpoint
    ``score_counts``: the noised score counts of the newest evaluation, by site; in no checkpoint
    ``held_out``: the epsilon of held-out patients, as each site said last
    ``held_out_accounts``: as ``accounts``, of their ledgers
    ``withheld``: why a site let no metrics leave, as each said last
    """

    arrays: Arrays
    standardiser: tuple[np.ndarray, np.ndarray] | None = None
    public_patients: dict[str, float] = field(default_factory=dict)
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    round: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    strategy_metrics: list[dict[str, Any]] = field(default_factory=list)
    dropouts: list[dict[str, Any]] = field(default_factory=list)
    epsilon: dict[str, float] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    patients: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str | None = None
    unchanged: list[dict[str, Any]] = field(default_factory=list)
    sampled: dict[str, int] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    hospital_epsilon: float | None = None
    accounts: dict[str, Account] = field(default_factory=dict)
    run: str = ""
    plan: str = ""
    local: list[str] = field(default_factory=list)
    classes: list[float] = field(default_factory=list)
    hospitals: dict[str, dict[str, Any]] = field(default_factory=dict)
    strategy_config: dict[str, Any] = field(default_factory=dict)
    released: dict[str, bool] = field(default_factory=dict)
    predictions: dict[str, Predictions] | None = None
    score_counts: dict[str, Noised] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    held_out_accounts: dict[str, Account] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)
    saved: int = 0

    @property
    def private(self) -> bool:
        """Whether patients are protected by noise: by the run's configuration, whatever a hospital says."""
        return self.noise_multiplier is not None

    def account(self, site: str) -> Account:
        """What the server knows of a real hospital's spending."""
        return self.accounts.setdefault(site, Account(run_digest(self.run), self.plan))

    def ask(self, exchange: Exchange, request: str, first: DpEvent, later: DpEvent) -> None:
        """Notes what a private ``request`` costs the real hospitals that it was sent to, unless they refused it.

        Args:
            exchange: The replies, and who dropped out.
            request: By which name accounts know what was asked, which begins with its kind.
            first: The charge at a hospital that is asked for such a thing for the first time in this run.
            later: The charge at the others.
        """
        kind = request.split()[0]
        for site in [site for site, _ in (*exchange.replies, *exchange.dropped) if not site.simulated]:
            account = self.account(site.name)
            if site in exchange.refusals:
                account.refuse(request)
            else:
                account.ask(request, later if account.has(kind) else first)

    def ask_lost(self, config: RunConfig, counting: DpEvent, first: DpEvent, later: DpEvent) -> None:
        """Notes what may have been asked after this checkpoint, of which a run that goes on knows nothing.

        Args:
            config: The run's configuration, with the rounds that a checkpoint may have missed.
            counting: The charge for the sums before the first round.
            first: The charge for a hospital's first round.
            later: The charge for each later one.
        """
        for name in self.hospitals:
            account = self.account(name)
            if not account.has(STATISTICS):
                account.ask(f"{STATISTICS} {LOST}", counting)
            for number in range(self.round + 1, min(self.round + config.checkpoints.rounds_lost, config.rounds) + 1):
                begun = account.has("train") or number > self.round + 1
                account.ask(f"train {number} {LOST}", later if begun else first)

    def hear(self, site: str, record: ConfigRecord, request: str | None = None) -> None:
        """Notes what a site says of its ledger in answer to ``request``.

        Args:
            site: The site's name.
            record: What it says: ``epsilon`` and, at a real hospital, ``charged``.
            request: By which name accounts know what was asked; None for what costs nothing.

        Raises:
            PolyclinicError: What it says makes no sense.
        """
        wrong = f"what {site} says of its ledger cannot be read"
        try:
            epsilon = float(record["epsilon"])  # type: ignore[arg-type]
            charged = str(record["charged"]) if "charged" in record else None
            if charged is not None:
                check_told(from_text(charged), self.hospitals.get(site, {}).get("relation", "add-remove"))
        except (LookupError, TypeError, ValueError, RecursionError):
            raise PolyclinicError(wrong) from None
        if not epsilon >= 0 or (self.private and math.isinf(epsilon)):
            raise PolyclinicError(f"{wrong}: its epsilon must be a finite number of at least 0, got {epsilon}")
        if self.private:
            self.epsilon[site] = epsilon
            if charged is not None:
                self.account(site).hear(request, charged)

    def welcome(self, site: Site) -> Site:
        """A real hospital at its place, by which strategies know it: its own where it was here before, else a new one."""
        places = {name: int(hospital["index"]) for name, hospital in self.hospitals.items()}
        placed = replace(site, index=places.get(site.name, max(places.values(), default=-1) + 1))
        self.hospitals[site.name] = placed.as_dict()
        return placed

    def name_of(self, node: int, names: Mapping[int, str]) -> str:
        """The hospital of a node by its name where it took part, else the node as ``names`` of the SuperLink have it."""
        return next(
            (name for name, hospital in self.hospitals.items() if hospital["node"] == node), node_title(node, names)
        )

    def impostor(self, site: Site) -> str | None:
        """Why it is not who took part under its name: a node is known by its key, a name is its own word."""
        hospital = self.hospitals.get(site.name)
        if hospital is None or hospital["node"] == site.node:
            return None
        return (
            f"another node took part in this run under that name: it is node {site.node}, the other is node {hospital['node']}; "
            "one that has a new key is in the next run again. `polyclinic coordinator nodes` lists the names under which their "
            "keys were registered."
        )

    def tell(self, number: int, absent: Sequence[tuple[str, str]]) -> None:
        """Note who cannot take part from round ``number`` on, and why; what was said of it last is not said again."""
        last = {drop["site"]: drop["reason"] for drop in self.dropouts}
        self.dropouts += [
            {"round": number, "site": name, "reason": why} for name, why in absent if last.get(name) != why
        ]

    def miss(self, number: int, present: Iterable[str]) -> None:
        """Note of each real hospital of the run that is not ``present`` in round ``number`` that it missed it, and why."""
        if not self.hospitals:
            return
        last = {drop["site"]: drop["reason"] for drop in self.dropouts}
        noted = {drop["site"] for drop in self.dropouts if drop["round"] == number}.union(present)
        away = [name for name in self.hospitals if name not in noted]
        self.dropouts += [{"round": number, "site": name, "reason": last.get(name, "it is away")} for name in away]

    def drop(self, number: int, dropped: Sequence[tuple[Site, str]]) -> None:
        """Note who dropped out of round ``number``, and why; once, though it may do so from training and evaluation alike."""
        before = takewhile(lambda drop: drop["round"] == number, reversed(self.dropouts))
        noted = {(drop["site"], drop["reason"]) for drop in before}
        self.dropouts += [
            {"round": number, "site": site.name, "reason": reason}
            for site, reason in dropped
            if (site.name, reason) not in noted
        ]

    def leave(self, number: int, reason: str) -> None:
        """Note why round ``number`` changes no model."""
        self.unchanged.append({"round": number, "reason": reason})

    def note_metrics(self, number: int, phase: str, metrics: Mapping[str, Any] | None) -> None:
        """Keeps the metrics that the strategy or ``evaluation.function`` returned of a round.

        Args:
            number: The round.
            phase: "train" or "evaluate" for the strategy's, "server" for those of ``evaluation.function``.
            metrics: The metrics by name; nothing is kept where there are none.
        """
        if not metrics:
            return
        if not self.strategy_metrics or self.strategy_metrics[-1]["round"] != number:
            self.strategy_metrics.append({"round": number})
        self.strategy_metrics[-1][phase] = dict(metrics)

    def newest_rows(self) -> list[dict[str, Any]]:
        """The rows of the round that is done."""
        rows = takewhile(lambda row: row["round"] == self.round, reversed(self.rows))
        return list(rows)[::-1]

    @property
    def model(self) -> Arrays:
        """The arrays that strategies see and hospitals send: all but the local ones."""
        return {name: value for name, value in self.arrays.items() if name not in self.local}

    def beside(self) -> dict[str, ArrayRecord]:
        """What every site's message carries beside the model."""
        records = {}
        if self.standardiser is not None:
            mean, std = self.standardiser
            records[STANDARDISER] = to_record({"mean": mean, "std": std})
        if self.local:
            records[LOCAL] = to_record({name: self.arrays[name] for name in self.local})
        return records
