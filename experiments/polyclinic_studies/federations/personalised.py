"""Personalised and corrected strategies against FedAvg on hospitals of skewed labels, without privacy and at epsilon 3.

Two federations of real patients: heart disease at its four hospitals as they are, and the International Stroke Trial dealt to
eight hospitals by a Dirichlet draw for each class. Every strategy is run on the same deals of the same seeds, so that
differences are paired. Options and learning rates come from ``choose``, which uses other seeds and wrote
``personalised-choices.json``: ``python -m polyclinic_studies.federations.personalised OUT`` runs it again.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedAvg
from matplotlib.figure import Figure
from torch import nn

from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.experiments import Asked, Findings, Say, markdown
from polyclinic.plugins import dataset_named
from polyclinic.privacy.ledger import Ledger, spent_all
from polyclinic.runs.simulation import check_simulation, simulated_patients
from polyclinic.server.federate import Places, federate
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.strategies.fednova import FedNova
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import BLUE, GREEN, GREY

#: Seeds are reported in blocks of this many; a second block (``--seeds 24``) checks what the first one claims.
BLOCK = 12
CHOOSING_SEEDS = (1000, 1001)
RATES = (0.1, 0.3, 1.0)
#: A difference counts where it is this many standard errors from zero.
ERRORS = 3.0
EPSILON = 3.0
ROUNDS = 20
CHOICES = Path(__file__).with_name("personalised-choices.json")
_HERE = "polyclinic_studies.federations.personalised"
PRIVACY = ("no DP", "ε = 3")
METRICS = {"accuracy": "accuracy", "auroc": "AUROC"}


class UnequalFedAvg(FedAvg):
    """FedAvg whose hospitals take the unequal numbers of steps that FedNova's take: what FedNova corrects."""

    associative = True
    Local = FedNova.Local


def normalised_mlp(features: int, classes: int, widths: Sequence[int]) -> nn.Module:
    """The MLP of the other strategies with a layer normalisation, which FedBN keeps at hospitals."""
    width = widths[0]
    return nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, classes))


@dataclass(frozen=True)
class Split:
    """A federation of real patients: its name, and the configuration keys that make it."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A strategy under a name.

    option: The option whose value ``choose`` takes from ``grid``. fixed: Further ``strategy-options``.
    normalised: Whether the model has a layer normalisation.
    """

    strategy: str
    option: str = ""
    grid: tuple[float, ...] = ()
    fixed: str = ""
    normalised: bool = False


@dataclass(frozen=True)
class Choice:
    """A learning rate, and the value of the strategy's option where it has one; the mean accuracy of all that was tried."""

    rate: float
    value: float | None = None
    tried: dict[str, float] = field(default_factory=dict, hash=False)

    @property
    def words(self) -> str:
        """The rate and the value, separated by a comma."""
        return ", ".join(f"{one:g}" for one in (self.rate, self.value) if one is not None)


@dataclass(frozen=True)
class Claim:
    """A paper's claim: ``winner`` is better than ``loser`` where hospitals differ. private: only claimed with privacy."""

    paper: str
    winner: str
    loser: str
    private: bool = False


Rows = dict[str, dict[str, dict[str, list[dict[str, Any]]]]]  # split, privacy, way, seeds

SPLITS = (
    Split("heart disease", {"dataset": "heart-disease", "privacy.delta": 1e-3, "training.sample-rate": 0.2}),
    Split("stroke", {
        "dataset": "ist", "partitioner": "dirichlet", "alpha": 0.3, "sites": 8, "privacy.delta": 1e-5,
        "training.sample-rate": 0.05,
    }),
)  # fmt: skip
WAYS = {
    "FedAvg": Way("fedavg"),
    "FedProx": Way("fedprox", "proximal-mu", (0.01, 0.1, 1.0)),
    "SCAFFOLD": Way("scaffold"),
    "FedDyn": Way("feddyn", "alpha", (0.03, 0.3, 3.0)),
    "MOON": Way("moon", "weight", (0.1, 1.0, 5.0)),
    "FedAvg, unequal steps": Way(f"{_HERE}:UnequalFedAvg", fixed="fewest-steps=1"),
    "FedNova, unequal steps": Way("fednova", fixed="fewest-steps=1"),
    "FedAvg, layer norm": Way("fedavg", normalised=True),
    "FedBN, layer norm": Way("fedbn", normalised=True),
    "FedPer": Way("fedper"),
    "FedRep": Way("fedrep", "head-steps", (1, 2, 4)),
    "APFL": Way("apfl", "alpha", (0.25, 0.5, 0.75)),
    "Ditto": Way("ditto", "pull", (0.1, 0.5, 2.0)),
    "MR-MTL": Way("mr-mtl", "pull", (0.1, 0.5, 2.0)),
    "Per-FedAvg": Way("per-fedavg", "inner-rate", (0.1, 0.3, 1.0)),
    "alone": Way("mr-mtl", fixed="pull=0"),
}
CLAIMS = (
    Claim("Li et al. 2020 (FedProx)", "FedProx", "FedAvg"),
    Claim("Karimireddy et al. 2020 (SCAFFOLD)", "SCAFFOLD", "FedAvg"),
    Claim("Acar et al. 2021 (FedDyn)", "FedDyn", "FedAvg"),
    Claim("Acar et al. 2021 (FedDyn)", "FedDyn", "SCAFFOLD"),
    Claim("Li et al. 2021 (MOON)", "MOON", "FedAvg"),
    Claim("Wang et al. 2020 (FedNova)", "FedNova, unequal steps", "FedAvg, unequal steps"),
    Claim("Li et al. 2021 (FedBN)", "FedBN, layer norm", "FedAvg, layer norm"),
    Claim("Arivazhagan et al. 2019 (FedPer)", "FedPer", "FedAvg"),
    Claim("Collins et al. 2021 (FedRep)", "FedRep", "FedAvg"),
    Claim("Collins et al. 2021 (FedRep)", "FedRep", "FedPer"),
    Claim("Deng et al. 2020 (APFL)", "APFL", "FedAvg"),
    Claim("Deng et al. 2020 (APFL)", "APFL", "alone"),
    Claim("Li et al. 2021 (Ditto)", "Ditto", "FedAvg"),
    Claim("Fallah et al. 2020 (Per-FedAvg)", "Per-FedAvg", "FedAvg"),
    Claim("Liu et al. 2022 (MR-MTL)", "MR-MTL", "FedAvg", private=True),
    Claim("Liu et al. 2022 (MR-MTL)", "MR-MTL", "alone", private=True),
    Claim("Liu et al. 2022 (MR-MTL)", "MR-MTL", "Ditto", private=True),
)


def configuration(split: Split, way: Way, choice: Choice, private: bool, seed: int, rounds: int) -> dict[str, Any]:
    """The configuration keys of one run."""
    options = [way.fixed] if way.fixed else []
    if way.option:
        options.append(f"{way.option}={choice.value:g}")
    model = f"{_HERE}:normalised_mlp" if way.normalised else "mlp"
    privacy = {"privacy.epsilon": EPSILON} if private else {"privacy.dp": False}
    return {
        **split.options, **privacy, "model": model, "hidden": "32", "strategy": way.strategy,
        "strategy-options": ", ".join(options), "training.learning-rate": choice.rate, "training.momentum": 0.0,
        "training.local-steps": 5,
        "rounds": rounds, "evaluation.every": rounds, "seed": seed,
    }  # fmt: skip


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form trains three rounds with two seeds, on heart disease alone."""
    seeds = range(asked.seeds or (2 if asked.quick else BLOCK))
    splits, rounds = (SPLITS[:1], 3) if asked.quick else (SPLITS, ROUNDS)
    parts, choices, ways = Parts(asked.out, say), read_choices(), asked.select({name: {} for name in WAYS})
    rows: Rows = {split.name: {terms: {way: [] for way in ways} for terms in PRIVACY} for split in splits}
    for split in splits:
        for seed in seeds:
            say(f"{split.name}: seed {seed}")
            for terms in PRIVACY:
                for name in ways:
                    choice = choices[split.name][terms][name]
                    options = configuration(split, WAYS[name], choice, terms != PRIVACY[0], seed, rounds)
                    measured = _measured(parts, f"{split.name} {terms} {name} {seed}", options)
                    rows[split.name][terms][name].append({"seed": seed} | measured)
    config = {
        "seeds": len(seeds), "rounds": rounds, "splits": {split.name: split.options for split in splits},
        "choices": {
            split.name: {terms: {way: choices[split.name][terms][way].words for way in ways} for terms in PRIVACY}
            for split in splits
        },
    }  # fmt: skip
    floors = {split.name: [floor(split, seed) for seed in seeds] for split in splits}
    figures = {"differences": plot(blocks(rows)[0])}
    return Findings(config, (), {"floors": floors, "rows": rows}, tables(rows, floors), figures)


def measure(options: dict[str, Any]) -> dict[str, float | None]:
    """One run's means over hospitals, of the model that each evaluates with; the largest epsilon of their ledgers; the noise.

    It is ``Federation.run`` without the report, whose intervals take as long as the training.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    config = RunConfig.build(options)
    check_simulation(config)
    patients = simulated_patients(config)
    app = AppReference("polyclinic.client_app")
    with tempfile.TemporaryDirectory() as home, LocalGrid(app, len(patients), config.flat(), None, patients) as grid:
        outcome = federate(grid, config, "personalised", Places(Path(home)))
        spent = spent_all([*Ledger.read_all(Path(home) / "ledger.sqlite").values()]) if outcome.privacy else []
    mean = next(row for row in outcome.state.newest_rows() if row["site"] == "macro")
    noise = outcome.privacy.noise_multiplier if outcome.privacy else None
    return {name: mean[name] for name in ("accuracy", "auroc", "loss")} | {
        "epsilon": max(spent, default=None), "noise_multiplier": noise,
    }  # fmt: skip


def _measured(parts: Parts, name: str, options: dict[str, Any]) -> dict[str, float | None]:
    """``measure``, or what it found before under the same configuration."""
    found: dict[str, float | None] = parts.answer(name, options, lambda: measure(options))
    return found


def choose(parts: Parts, split: Split, terms: str, name: str, rounds: int = ROUNDS) -> Choice:
    """The learning rate and the value of the option with the largest mean accuracy over ``CHOOSING_SEEDS``."""
    reached: dict[Choice, float] = {}
    for rate, value in itertools.product(RATES, WAYS[name].grid or (None,)):
        tried = Choice(rate, value)
        found = [
            _measured(
                parts,
                f"choice {split.name} {terms} {name} {rate} {value} {seed}",
                configuration(split, WAYS[name], tried, terms != PRIVACY[0], seed, rounds),
            )["accuracy"]
            for seed in CHOOSING_SEEDS
        ]
        reached[tried] = fmean(known or 0.0 for known in found)  # A model that diverged has no accuracy.
    chosen = max(reached, key=reached.__getitem__)
    return replace(chosen, tried={tried.words: round(one, 4) for tried, one in reached.items()})


def choose_all(folder: Path, say: Say) -> None:
    """Run ``choose`` for every way, and write ``personalised-choices.json``."""
    parts, found = Parts(folder, say), dict[str, Any]()
    for split in SPLITS:
        for terms in PRIVACY:
            say(f"{split.name}, {terms}")
            choices = {name: choose(parts, split, terms, name) for name in WAYS}
            found.setdefault(split.name, {})[terms] = {
                name: {"rate": choice.rate, "value": choice.value, "tried": choice.tried}
                for name, choice in choices.items()
            }
    CHOICES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_choices() -> dict[str, dict[str, dict[str, Choice]]]:
    """The choices by split, privacy and way, as ``choose_all`` wrote them."""
    found = json.loads(CHOICES.read_text(encoding="utf-8"))
    return {
        split: {terms: {name: Choice(**one) for name, one in ways.items()} for terms, ways in by_privacy.items()}
        for split, by_privacy in found.items()
    }


def blocks(rows: Rows) -> list[Rows]:
    """The rows of each ``BLOCK`` of seeds apart."""
    count = max(len(runs) for split in rows.values() for ways in split.values() for runs in ways.values())
    return [
        {
            split: {terms: {way: runs[first : first + BLOCK] for way, runs in ways.items()} for terms, ways in by.items()}
            for split, by in rows.items()
        }
        for first in range(0, count, BLOCK)
    ]  # fmt: skip


def floor(split: Split, seed: int) -> float:
    """Mean accuracy over hospitals of always giving the commoner label of a hospital's own training patients."""
    options = split.options
    dataset = dataset_named(options["dataset"])
    partitioner = options.get("partitioner", dataset.default_partitioner)
    shards = load_shards(dataset, options.get("sites", 0), partitioner, seed, options.get("alpha", 1.0))
    return fmean(float((shard.test.y == np.bincount(shard.train.y).argmax()).mean()) for shard in shards)


def tables(rows: Rows, floors: dict[str, list[float]]) -> str:
    """Of each block of seeds a table for each split, and the papers' claims, in Markdown."""
    parts = []
    for number, block in enumerate(blocks(rows)):
        for split, by_privacy in block.items():
            seeds = [row["seed"] for row in next(iter(by_privacy[PRIVACY[0]].values()))]
            known = floors[split][number * BLOCK : (number + 1) * BLOCK]
            parts += [
                f"{split}, seeds {seeds[0]} to {seeds[-1]}; each hospital's own commoner label has accuracy {fmean(known):.3f}\n",
                split_table(by_privacy),
            ]
        for metric, words in METRICS.items():
            parts += [f"The papers' claims, by the difference in mean {words}\n", claims_table(block, metric)]
    return "\n".join(parts)


def split_table(by_privacy: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Of each way mean accuracy, its paired difference from FedAvg, mean AUROC, the noise, and the largest epsilon."""
    head = ["strategy"]
    for terms in PRIVACY:
        head += [f"accuracy, {terms}", "minus FedAvg", "AUROC"]
    lines = []
    for name in by_privacy[PRIVACY[0]]:
        cells = [name]
        for terms in PRIVACY:
            ways = by_privacy[terms]
            cells += [_with_error(_values(ways[name], "accuracy"))]
            cells += [_with_error(differences(ways, name, "FedAvg"), True) if {name, "FedAvg"} <= {*ways} else "-"]
            cells += [_with_error(_values(ways[name], "auroc"))]
        private = by_privacy[PRIVACY[1]][name]
        cells.append(f"{fmean(row['noise_multiplier'] for row in private):.2f}")
        lines.append([*cells, f"{max(row['epsilon'] for row in private):.3f}"])
    return markdown([*head, "noise multiplier", "largest ε of a ledger"], lines)


def claims_table(rows: Rows, metric: str) -> str:
    """Whether each paper's direction is seen: the paired difference in the mean of ``metric``, and a word for it."""
    head = ["paper", "claim", *(f"{split}, {terms}" for split in rows for terms in PRIVACY)]
    lines = []
    for claim in CLAIMS:
        cells = [claim.paper, f"{claim.winner} > {claim.loser}"]
        for by_privacy in rows.values():
            for terms in PRIVACY:
                known = {claim.winner, claim.loser} <= {*by_privacy[terms]}
                if not known or (claim.private and terms == PRIVACY[0]):
                    cells.append("-")
                else:
                    apart = differences(by_privacy[terms], claim.winner, claim.loser, metric)
                    cells.append(f"{verdict(apart)}: {_with_error(apart, True)}")
        lines.append(cells)
    return markdown(head, lines)


def differences(ways: dict[str, list[dict[str, Any]]], one: str, other: str, metric: str = "accuracy") -> list[float]:
    """``one`` minus ``other`` at each seed."""
    pairs = zip(_values(ways[one], metric), _values(ways[other], metric), strict=True)
    return [first - second for first, second in pairs]


def verdict(apart: Sequence[float]) -> str:
    """``seen`` where the mean is ``ERRORS`` standard errors above zero, ``reversed`` where below, else ``not seen``."""
    center, error = fmean(apart), standard_error(apart)
    return "seen" if center > ERRORS * error else "reversed" if center < -ERRORS * error else "not seen"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; infinite for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.inf


def _values(runs: Sequence[dict[str, Any]], metric: str) -> list[float]:
    return [math.nan if row[metric] is None else row[metric] for row in runs]


def _with_error(values: Sequence[float], signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{fmean(values):{sign}.3f} ± {standard_error(values):.3f}"


def plot(rows: Rows) -> Figure:
    """The difference from FedAvg in mean accuracy of each way, with ``ERRORS`` standard errors."""
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axis, (split, by_privacy) in zip(axes, rows.items(), strict=True):
        for terms, colour, shift in zip(PRIVACY, (GREEN, BLUE), (-0.15, 0.15), strict=True):
            ways = by_privacy[terms]
            names = [name for name in ways if name != "FedAvg" and "FedAvg" in ways]
            apart = [differences(ways, name, "FedAvg") for name in names]
            axis.errorbar(
                [fmean(one) for one in apart], [place + shift for place in range(len(names))],
                xerr=[min(ERRORS * standard_error(one), 1.0) for one in apart], fmt="o", color=colour, label=terms,
            )  # fmt: skip
            axis.set_yticks(range(len(names)), names)
        axis.axvline(0, color=GREY, linewidth=0.8)
        axis.set(title=split, xlabel="mean accuracy over hospitals, minus FedAvg's")
    axes[0].invert_yaxis()
    axes[-1].legend(frameon=False)
    return figure


if __name__ == "__main__":
    choose_all(Path(sys.argv[1]), print)
