"""A run as its rounds see it: what all of them have in common, and what each of them changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.arrays import Arrays, to_record
from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.assessment import Predictions
from polyclinic.messages import LOCAL, STANDARDISER
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger_terms import check_told, from_text
from polyclinic.server.sites import Site


@dataclass(frozen=True, eq=False)
class Run:
    """What all rounds have in common. ``home``: where simulated hospitals keep what they keep; ``ledger``: charged for what
    secure sums tell of whole hospitals, None where they tell nothing that is paid for; ``privacy``: None without noise;
    ``known``: nodes that told who they are and are not asked again; ``pending``: messages to others that may yet be answered,
    by node."""

    grid: Grid
    sites: Sequence[Site]
    strategy: Strategy
    config: RunConfig
    name: str
    home: str
    ledger: Ledger | None = None
    privacy: PrivacyPlan | None = None
    known: frozenset[int] = frozenset()
    pending: Mapping[int, str] = field(default_factory=dict)


@dataclass
class RunState:
    """All that the next round depends on, and the history so far (``rows``, ``dropouts``); what a checkpoint stands for.

    ``stopped``: why there will be no further round though some were left. ``unchanged``: the rounds that changed no model,
    and why. ``sampled``: the round for which each site was
    last asked; ``trained``: the last whose reply came. ``hospital_epsilon``: what central noise has spent so far of a whole
    hospital's protection. ``charged``: how often real hospitals were charged what, as they told last. ``local``: the arrays
    that stay at hospitals; here they are as they were at first. ``classes``: the label's paid counts, of task synthesis.
    ``hospitals``: what each real one said of itself when it enrolled (``Site.told``).
    ``told``: the strategy's ConfigRecord of training, which goes on from round to round as in Flower's own loop.
    ``predictions``: of the newest evaluation, by site, as far as policies let them leave; None where there was none since the
    run began or was resumed. They are in no checkpoint.
    """

    arrays: Arrays
    standardiser: tuple[np.ndarray, np.ndarray] | None = None
    public_patients: dict[str, float] = field(default_factory=dict)
    noise_multiplier: float | None = None
    learning_rate: float | None = None
    round: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
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
    charged: dict[str, str] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)
    classes: list[float] = field(default_factory=list)
    hospitals: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    predictions: dict[str, Predictions] | None = None

    def hear(self, site: str, told: ConfigRecord) -> None:
        """Note what a site says of its ledger. Raises PolyclinicError if it makes no sense."""
        try:
            epsilon = float(told["epsilon"])  # type: ignore[arg-type]
            if not epsilon >= 0:
                raise ValueError("an epsilon is a number and not negative")
            if "charged" in told:
                check_told(from_text(str(told["charged"])), self.hospitals.get(site, {}).get("relation", "add-remove"))
                self.charged[site] = str(told["charged"])
            self.epsilon[site] = epsilon
        except (LookupError, TypeError, ValueError, RecursionError):
            raise PolyclinicError(f"what {site} says of its ledger cannot be read") from None

    def welcome(self, site: Site) -> Site:
        """A real hospital at its place, by which strategies know it: its own where it was here before, else a new one."""
        places = {name: int(told["index"]) for name, told in self.hospitals.items()}
        placed = replace(site, index=places.get(site.name, max(places.values(), default=-1) + 1))
        self.hospitals[site.name] = placed.told()
        return placed

    def impostor(self, site: Site) -> str | None:
        """Why it is not who took part under its name: a node is known by its key, a name is its own word."""
        told = self.hospitals.get(site.name)
        if told is None or told["node"] == site.node:
            return None
        return "another node took part in this run under that name; one that has a new key is in the next run again"

    def tell(self, number: int, absent: Sequence[tuple[str, str]]) -> None:
        """Note who cannot take part from round ``number`` on, and why; what was said of it last is not said again."""
        last = {drop["site"]: drop["reason"] for drop in self.dropouts}
        self.dropouts += [
            {"round": number, "site": name, "reason": why} for name, why in absent if last.get(name) != why
        ]

    def drop(self, number: int, dropped: Sequence[tuple[Site, str]]) -> None:
        """Note who dropped out of round ``number``, and why."""
        self.dropouts += [{"round": number, "site": site.name, "reason": reason} for site, reason in dropped]

    def leave(self, number: int, reason: str) -> None:
        """Note why round ``number`` changes no model."""
        self.unchanged.append({"round": number, "reason": reason})

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
        found = {}
        if self.standardiser is not None:
            mean, std = self.standardiser
            found[STANDARDISER] = to_record({"mean": mean, "std": std})
        if self.local:
            found[LOCAL] = to_record({name: self.arrays[name] for name in self.local})
        return found
