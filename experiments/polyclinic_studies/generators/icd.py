"""Sets of ICD-9 codes, which DPGAN (Xie et al. 2018) and PPGAN (Liu et al. 2019) generate, by methods of sums.

Target R15. DPGAN shows dimension-wise probability and prediction on MIMIC-III as figures, and PPGAN no result of its own, so
that what is published are the measures and not numbers. At some epsilon the frequency of a code is had best by counting it
with noise: what a generator is for is what that cannot know, which codes go together and how many a patient has. Simulated
patients are of a network of comorbidity, a family that no method here fits; the others are the real ones of two open demos,
dealt to the hospitals anew with each seed. The games are here for ``--preset paper`` alone: in the minutes of this experiment
they would be no fair trial of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polyclinic.evaluation.figures.canvas import INK, MUTED, PALETTE, label_axes, legend, panels
from polyclinic.evaluation.figures.synthetic import plot_probabilities
from polyclinic.evaluation.synthetic.codes import co_occurrence, per_patient, predictions, probabilities
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic_studies.generators import stated
from polyclinic_studies.generators.patients import hospitals_of, synthesizer_of
from polyclinic_studies.parts import Parts
from polyclinic_studies.published_games.games import SETTINGS
from polyclinic_studies.tables import estimate, margin, mean, number

EPSILON, DELTA, HOSPITALS, SEEDS = 2.5, 1e-5, 5, 12
MOST = 20
GOAL_RMSE = 0.01
GAME = {"synthesis.baselines": False}
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
INDEPENDENT = "independent"
SOUND: dict[str, dict[str, Any]] = {
    INDEPENDENT: {"model": "independent"},
    "independent, shared noise": {"model": "independent", **SHARED},
    "latent": {"model": "latent"},
    "latent, shared noise": {"model": "latent", **SHARED},
}
QUICK: dict[str, dict[str, Any]] = {INDEPENDENT: {"model": "independent"}, "latent": {"model": "latent"}}
PAPER: dict[str, dict[str, Any]] = {
    "dpgan, as published": {"model": "dpgan-paper", "privacy.dp": False, **SETTINGS["dpgan-paper"], **GAME},
    "ppgan, as published": {"model": "ppgan-paper", "privacy.dp": False, **SETTINGS["ppgan-paper"], **GAME},
}
HELD_OUT = "real, held out"
#: Patients -> the dataset's name or place, and how it is dealt to hospitals.
SETS = {
    "simulated": {"dataset": "polyclinic_studies.datasets.icd:FIFTH", "partitioner": "natural"},
    "MIMIC and eICU demos": {"dataset": "polyclinic_studies.datasets.icd_demos:DATASET", "partitioner": "iid"},
}
SIMULATED, REAL = SETS
Codes = NDArray[np.bool_]


@dataclass(frozen=True)
class Plan:
    """The runs of the experiment. codes: how many, the most frequent, are predicted.  rows: synthetic; 0 as many as real."""

    common: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    codes: int
    rows: int

    def of(self, name: str) -> Plan:
        """The same plan of another set of ``SETS``."""
        return replace(self, common={**self.common, **SETS[name]})

    def options(self, method: str, seed: int) -> dict[str, Any]:
        """The configuration of one run."""
        return {**self.common, **self.methods[method], "seed": seed}


@dataclass(frozen=True)
class Judged:
    """One method at one seed, against the real patients that trained it.

    rmse, r2: of dimension-wise probability.  f1: mean over codes of dimension-wise prediction on held-out patients, a code
    that the synthetic table forgot counting 0; real_f1: of training on real patients.  codes_f1: of each code, real and
    synthetic.  together, excess: co-occurrence errors (l1), of joint frequencies and of what exceeds chance.  length: mean
    number of codes; lengths_apart: Wasserstein distance of the numbers' distributions.
    """

    method: str
    seed: int
    epsilon: float | None
    rmse: float
    r2: float | None
    f1: float | None
    real_f1: float | None
    codes_f1: Sequence[Sequence[float | None]]
    together: float | None
    excess: float | None
    length: float
    real_length: float
    lengths_apart: float


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``."""
    parts, chosen = Parts(asked.out, say), plan(asked)
    names = SETS if asked.preset == "sound" and not asked.quick else (SIMULATED,)
    sets = {name: [one for seed in chosen.seeds for one in _seed(parts, chosen.of(name), name, seed)] for name in names}
    found = sets[SIMULATED]
    tables = [
        f"Against the real patients that trained; {len(chosen.seeds)} seed(s), mean ± standard error: another simulation, or "
        "of the demos another deal to the hospitals and other noise. F1: of the "
        f"{chosen.codes} commonest codes, each told from the others by a logistic regression, on held-out patients; a code that "
        "a synthetic table forgot counts 0. Co-occurrence: sum of absolute errors over all pairs by the sum of the real values; "
        "beyond chance, of what exceeds the product of frequencies, of which independent codes have none. Held-out patients show "
        "what sampling alone does.\n",
        *(f"Patients: {name}.\n\n{_table(own)}" for name, own in sets.items()),
        stated.table(("DPGAN", "PPGAN")),
        *([stated.guarantees(parts, chosen)] if asked.preset == "paper" else []),
    ]
    targets = [one for name, own in sets.items() for one in _targets(name, own, chosen, asked)]
    targets = targets if asked.preset == "sound" else []
    config = {"seeds": list(chosen.seeds), "codes": chosen.codes, "rows": chosen.rows, "common": dict(chosen.common),
              "methods": {name: dict(one) for name, one in chosen.methods.items()}}  # fmt: skip
    results = {name: [asdict(one) for one in own] for name, own in sets.items()}
    return Findings(config, tuple(targets), results, "\n".join(tables), _figures(parts, chosen, found))


def plan(asked: Asked) -> Plan:
    """The runs of the experiment."""
    if asked.preset == "paper":
        length = {"rounds": 2, "training.local-steps": 1} if asked.quick else {"rounds": 20, "training.local-steps": 50}
        methods: dict[str, dict[str, Any]] = {name: {**one, **length} for name, one in PAPER.items()}
    else:
        methods = {
            name: {"privacy.epsilon": EPSILON, "privacy.delta": DELTA, **one}
            for name, one in (QUICK if asked.quick else SOUND).items()
        }
    sites = asked.hospitals or (1 if asked.quick else HOSPITALS)
    seeds = asked.seeds or (1 if asked.quick or asked.preset == "paper" else SEEDS)
    common = {**SETS[SIMULATED], "task": "synthesis", "synthesis.quality": False, "sites": sites}
    return Plan(
        common, asked.select(methods), tuple(range(seeds)), 10 if asked.quick else MOST, 2000 if asked.quick else 0
    )


def codes_of(options: Mapping[str, Any]) -> tuple[Layout, Codes, Codes]:
    """The layout, and the code tables of the patients who train and of those held out."""
    shards = hospitals_of(options)
    train, test = (
        np.concatenate([side.x for side in sides]) > 0.5
        for sides in ([s.train for s in shards], [s.test for s in shards])
    )
    return Layout.of(shards[0].schema), train, test


def drawn(synthesizer: Synthesizer, rows: int, seed: int) -> Codes:
    """(rows, J) a synthetic code table: a code is there where its number is above one half, as ``Layout.decode`` has it."""
    found: Codes = synthesizer.layout.encoded(synthesizer.sample(rows, generator(seed, "reproduce")))[0] > 0.5
    return found


def _seed(parts: Parts, chosen: Plan, name: str, seed: int) -> list[Judged]:
    return [_one(parts, chosen, name, method, seed) for method in (*chosen.methods, HELD_OUT)]


def _one(parts: Parts, chosen: Plan, patients: str, method: str, seed: int) -> Judged:
    name = f"{patients}, {method}-{seed}"
    if method == HELD_OUT:
        options = chosen.options(next(iter(chosen.methods)), seed)
        settings: dict[str, Any] = {"common": dict(chosen.common), "seed": seed}
        found = Judged(**parts.answer(name, settings, partial(_held_out, options, seed)))
    else:
        options = chosen.options(method, seed)
        result = parts.run(name, options)
        settings = {"run": result.path.name, "rows": chosen.rows, "codes": chosen.codes}
        found = Judged(**parts.answer(name, settings, partial(_judge, chosen, options, result, method, seed)))
    parts.say(f"{name}: F1 {number(found.f1)} of {number(found.real_f1)}, co-occurrence {number(found.together)}")
    return found


def _judge(chosen: Plan, options: Mapping[str, Any], result: Any, method: str, seed: int) -> Any:
    layout, train, test = codes_of(options)
    table = drawn(synthesizer_of(result, layout), chosen.rows or len(train), seed)
    told = predictions(train, table, test, chosen.codes)
    pairs = [[real, synthetic] for real, synthetic in zip(told.real, told.synthetic, strict=True)]
    return asdict(_measured(method, seed, result.summary["privacy"]["epsilon"], train, table, told.mean_absent_zero,
                            told.mean_real, pairs))  # fmt: skip


def _held_out(options: Mapping[str, Any], seed: int) -> Any:
    _, train, test = codes_of(options)
    return asdict(_measured(HELD_OUT, seed, None, train, test, None, None, []))


def _measured(
    method: str, seed: int, epsilon: float | None, train: Codes, table: Codes, f1: float | None, real_f1: float | None,
    pairs: Sequence[Sequence[float | None]],
) -> Judged:  # fmt: skip
    shares, joint, lengths = probabilities(train, table), co_occurrence(train, table), per_patient(train, table)
    return Judged(
        method, seed, epsilon, shares.rmse, shares.r2, f1, real_f1, pairs, joint.l1, joint.excess_l1, lengths.mean_synthetic,
        lengths.mean_real, lengths.wasserstein,
    )  # fmt: skip


def _of(found: Sequence[Judged], method: str) -> list[Judged]:
    return [one for one in found if one.method == method]


def _table(found: Sequence[Judged]) -> str:
    rows = []
    for method in dict.fromkeys(one.method for one in found):
        own = _of(found, method)
        spent = [one.epsilon for one in own if one.epsilon is not None]
        budget = "" if method == HELD_OUT else f"{max(spent):.3g}" if spent else "∞"
        real = [one.real_f1 for one in found if one.method != HELD_OUT]
        f1 = f"{estimate(real)} (trained on real)" if method == HELD_OUT else estimate([one.f1 for one in own])
        rows.append([
            method, budget, estimate([one.rmse for one in own], 4), estimate([one.r2 for one in own]), f1,
            estimate([one.together for one in own]), estimate([one.excess for one in own]),
            estimate([one.length for one in own], 2), estimate([one.lengths_apart for one in own], 2),
        ])  # fmt: skip
    head = ["patients", "ε", "probability, RMSE", "R²", "prediction, F1", "co-occurrence", "beyond chance", "codes a patient",
            "codes a patient, Wasserstein"]  # fmt: skip
    return markdown(head, rows)


def _targets(patients: str, found: Sequence[Judged], chosen: Plan, asked: Asked) -> list[Target]:
    """A method's measures against those of independent codes with the same kind of noise, by pairs of one seed."""
    targets = []
    for method in chosen.methods:
        own = _of(found, method)
        base = _of(found, method.replace("latent", INDEPENDENT))
        rmse = mean([one.rmse for one in own])
        goal = (
            "" if method.startswith(INDEPENDENT) else f"<= {GOAL_RMSE}"
        )  # what the others are held against has no goal
        targets.append(Target(
            "R15", f"{patients}, {method}: RMSE of dimension-wise probability", "-", estimate([one.rmse for one in own], 4),
            goal, None if rmse is None else rmse <= GOAL_RMSE, by=f"{patients}, {method}", seeds=len(own),
            margin=margin([one.rmse for one in own], GOAL_RMSE, least=False),
        ))  # fmt: skip
        if method.startswith(INDEPENDENT) or not base:
            continue
        for words, better, values in (
            ("dimension-wise prediction, F1", 1, [(a.f1, b.f1) for a, b in zip(own, base, strict=True)]),
            ("co-occurrence error", -1, [(a.together, b.together) for a, b in zip(own, base, strict=True)]),
            (
                "codes a patient, Wasserstein",
                -1,
                [(a.lengths_apart, b.lengths_apart) for a, b in zip(own, base, strict=True)],
            ),
        ):
            ahead = [None if a is None or b is None else better * (a - b) for a, b in values]
            average = mean(ahead)
            targets.append(Target(
                "R15", f"{patients}, {method}: {words}", "-", estimate([a for a, _ in values]),
                f"better than independent: {estimate([b for _, b in values])}; by {estimate(ahead, signed=True)}",
                None if average is None else average > 0, by=f"{patients}, {method}", seeds=len(ahead), margin=margin(ahead, 0.0),
            ))  # fmt: skip
    return targets


def _figures(parts: Parts, chosen: Plan, found: Sequence[Judged]) -> dict[str, Figure]:
    """Of the first simulation."""
    seed = chosen.seeds[0]
    methods = list(chosen.methods)
    layout, train, _ = codes_of(chosen.options(methods[0], seed))
    tables = {
        method: drawn(
            synthesizer_of(parts.run(f"{SIMULATED}, {method}-{seed}", chosen.options(method, seed)), layout),
            chosen.rows or len(train),
            seed,
        )
        for method in methods
    }
    first = {one.method: one for one in found if one.seed == seed}
    return {
        "probabilities": plot_probabilities({name: probabilities(train, one) for name, one in tables.items()}, len(train)),
        "predictions": _plot_predictions({method: first[method] for method in methods}),
        "codes-a-patient": _plot_lengths({"real": train, **tables}),
        "epsilon": stated.steps_figure(),
    }  # fmt: skip


def _plot_predictions(found: Mapping[str, Judged]) -> Figure:
    """F1 of each code as real and as synthetic patients teach it (the papers' dimension-wise prediction)."""
    words = "F1 on held-out patients, a point a code; a code that a table forgot lies on the bottom line."
    figure, row = panels("Codes told from the others", words, list(found), 0.9 + 2.9 * len(found), 4.0)
    for axes, one, i in zip(row, found.values(), range(len(found)), strict=True):
        points = [(real, synthetic or 0.0) for real, synthetic in one.codes_f1 if real is not None]
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, zorder=1)
        x, y = np.array(points or [(0.0, 0.0)]).T
        axes.scatter(
            x,
            y,
            s=12,
            color=PALETTE[i % len(PALETTE)],
            alpha=0.6,
            linewidths=0,
            zorder=2,
            clip_on=False,
        )
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_aspect("equal")
        label_axes(axes, "trained on real", "trained on synthetic" if i == 0 else "")
    return figure


def _plot_lengths(tables: Mapping[str, Codes]) -> Figure:
    """Share of patients by number of codes."""
    figure, (axes,) = panels("Codes a patient", "Share of patients with so many codes.", width=6.4, height=3.6)
    longest = max(int(table.sum(axis=1).max()) for table in tables.values())
    for i, (name, table) in enumerate(tables.items()):
        shares = np.bincount(table.sum(axis=1), minlength=longest + 1) / len(table)
        axes.plot(
            shares[:41], color=INK if name == "real" else PALETTE[(i - 1) % len(PALETTE)], label=name, linewidth=1.8
        )
    label_axes(axes, "codes")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure
