"""Pictures of digits by DPGAN (Xie et al. 2018) and PPGAN (Liu et al. 2019), at an epsilon that is true.

Target R14. Neither paper prints a number: their results are pictures, curves of loss and PPGAN's "generate score". What can
be reproduced is that they run, and who ranks where; beside them stands what their stated epsilon comes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic.errors import ConfigError
from polyclinic.evaluation.synthetic.classifiers import REAL, Judged, transfer
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.plugins import dataset_named
from polyclinic_studies.generators import stated
from polyclinic_studies.generators.figures import plot_judged, plot_pictures
from polyclinic_studies.generators.patients import Patients, hospitals_of, real_patients, synthesizer_of, synthetic
from polyclinic_studies.generators.pictures import (
    fit_classifier,
    frechet_distance,
    generate_score,
    inception_score,
    label_agreement,
)
from polyclinic_studies.generators.transfer_study import read_judged
from polyclinic_studies.parts import Parts
from polyclinic_studies.published_games.games import SETTINGS
from polyclinic_studies.tables import mean, number, spread

EPSILON, DELTA, SEEDS = 10.0, 1e-5, 3
# Accuracy on MNIST at epsilon 10 of a DPGAN with what it lacked (Bie et al. 2023), on another and larger data set.
MODERN, WITHIN = 0.95, 0.015
GAME = {"synthesis.baselines": False}
# Networks of some thousand parameters, as noise grows with the root of their number; and what a processor does in minutes.
SMALL = {"synthesis.options": "form=table", "rounds": 60}
GAMES = ("dpgan", "ppgan", "dpgan-paper", "ppgan-paper")
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
SOUND: dict[str, dict[str, Any]] = {
    "moments": {"model": "moments"},
    "moments, shared noise": {"model": "moments", **SHARED},
    "latent": {"model": "latent"},
    "independent": {"model": "independent"},
    "dpgan": {"model": "dpgan", **SMALL, **GAME},
    "ppgan": {"model": "ppgan", **SMALL, **GAME},
}
QUICK: dict[str, dict[str, Any]] = {"moments": {"model": "moments"}, "gan": {"model": "gan", "rounds": 3, **GAME}}
PAPER: dict[str, dict[str, Any]] = {
    "dpgan, as published": {"model": "dpgan-paper", "privacy.dp": False, **SETTINGS["dpgan-paper"], **GAME},
    "ppgan, as published": {"model": "ppgan-paper", "privacy.dp": False, **SETTINGS["ppgan-paper"], **GAME},
}
SYSTEMS = ("DPGAN", "PPGAN")


@dataclass(frozen=True)
class Plan:
    """The runs of the experiment."""

    common: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    classifiers: tuple[str, ...]
    rows: int

    def at(self, seed: int) -> list[str]:
        """The methods of a seed: the games at the first alone, as they take long."""
        return [one for one in self.methods if seed == self.seeds[0] or self.methods[one]["model"] not in GAMES]

    def options(self, method: str, seed: int) -> dict[str, Any]:
        """The configuration of one run."""
        return {**self.common, **self.methods[method], "seed": seed}


@dataclass(frozen=True)
class Drawn:
    """One method at one seed: accuracy of what its pictures teach, and what a classifier of real ones says of them."""

    method: str
    seed: int
    epsilon: float | None
    real: Mapping[str, Judged]
    judged: Mapping[str, Judged]
    inception: float | None
    real_inception: float | None
    agreement: float | None
    frechet: float | None


def run(asked: Asked, say: Say) -> Findings:
    """The experiment with scikit-learn's digits, into ``asked.out``."""
    return pictures("digits", asked, say)


def run_mnist(asked: Asked, say: Say) -> Findings:
    """The same with MNIST. Raises ConfigError without its files."""
    return pictures("mnist", asked, say)


def pictures(dataset: str, asked: Asked, say: Say) -> Findings:
    """The experiment with a dataset of square pictures. Raises ConfigError where its files are not given."""
    if not dataset_named(dataset).available():
        raise ConfigError(
            f"Experiment {dataset!r} needs the files of dataset {dataset!r}, which are not here: `polyclinic datasets show "
            f"{dataset}` says what they are; 'digits' is the same experiment with pictures that come with scikit-learn."
        )
    parts, chosen = Parts(asked.out, say), plan(dataset, asked)
    found = [_one(parts, chosen, method, seed) for seed in chosen.seeds for method in chosen.at(seed)]
    scores = _generate_scores(found, chosen)
    tables = [
        f"On held-out pictures; {len(chosen.seeds)} seed(s), mean ± standard deviation. Inception score, Fréchet distance and "
        "agreement are by a small classifier of real pictures: they compare these rows and nothing else. PPGAN's generate score "
        f"places a run among these rows, real ones included ({', '.join(scores)}), and is not monotone.\n",
        _table(found, chosen, scores),
        stated.table(SYSTEMS),
        *([stated.guarantees(parts, chosen)] if asked.preset == "paper" else []),
    ]
    targets = _targets(found, chosen, asked) if asked.preset == "sound" else ()
    results = {"methods": [asdict(one) for one in found], "generate score": scores}
    config = {"seeds": list(chosen.seeds), "rows": chosen.rows, "classifiers": list(chosen.classifiers),
              "common": dict(chosen.common), "methods": {name: dict(one) for name, one in chosen.methods.items()}}  # fmt: skip
    return Findings(config, targets, results, "\n".join(tables), _figures(parts, chosen, found))


def plan(dataset: str, asked: Asked) -> Plan:
    """The runs of the experiment."""
    if asked.preset == "paper":
        length = {"rounds": 2, "training.local-steps": 1} if asked.quick else {"rounds": 20, "training.local-steps": 50}
        methods: dict[str, dict[str, Any]] = {name: {**one, **length} for name, one in PAPER.items()}
    else:
        methods = {
            name: {"privacy.epsilon": EPSILON, "privacy.delta": DELTA, **one}
            for name, one in (QUICK if asked.quick else SOUND).items()
        }
    common: dict[str, Any] = {
        "dataset": dataset,
        "task": "synthesis",
        "synthesis.quality": False,
        "partitioner": "iid",
        "sites": asked.hospitals,
    }
    seeds = asked.seeds or (1 if asked.quick or asked.preset == "paper" else SEEDS)
    return Plan(
        common, asked.chosen(methods), tuple(range(seeds)), ("lr", "knn") if asked.quick else ("lr", "rf", "svm", "knn"),
        500 if asked.quick else 0,
    )  # fmt: skip


def _one(parts: Parts, chosen: Plan, method: str, seed: int) -> Drawn:
    name, options = f"{method}-{seed}", chosen.options(method, seed)
    result = parts.run(name, options)
    settings = {"run": result.path.name, "rows": chosen.rows, "classifiers": list(chosen.classifiers)}
    answer = parts.answer(name, settings, partial(_judge, chosen, result, method, seed))
    judged = {side: {kind: read_judged(one) for kind, one in answer[side].items()} for side in ("real", "judged")}
    found = Drawn(**{**answer, **judged})
    parts.say(f"{name}: inception score {number(found.inception, 2)}, accuracy {spread(_accuracies(found))}")
    return found


def _judge(chosen: Plan, result: Any, method: str, seed: int) -> Any:
    real = real_patients(hospitals_of(chosen.options(method, seed)))
    table = synthetic(synthesizer_of(result, real.layout), chosen.rows or len(real.train.y), seed)[1]
    found = transfer(
        (real.train.x, real.train.y), {method: (table.x, table.y)}, (real.test.x, real.test.y), seed=seed,
        classifiers=chosen.classifiers,
    )  # fmt: skip
    classifier = fit_classifier((real.train.x + 1) / 2, real.train.y, seed)
    pixels, held = (table.x + 1) / 2, (real.test.x + 1) / 2
    probabilities = classifier.probabilities(pixels)
    return asdict(Drawn(
        method, seed, result.summary["privacy"]["epsilon"], found[REAL], found[method], inception_score(probabilities),
        inception_score(classifier.probabilities(held)), label_agreement(probabilities, table.y),
        frechet_distance(classifier.features(held), classifier.features(pixels)),
    ))  # fmt: skip


def _accuracies(one: Drawn) -> list[float | None]:
    return [judged.scores["accuracy"].value for judged in one.judged.values()]


def _of(found: Sequence[Drawn], method: str) -> list[Drawn]:
    return [one for one in found if one.method == method]


def _generate_scores(found: Sequence[Drawn], chosen: Plan) -> dict[str, float | None]:
    inception = {method: mean([one.inception for one in _of(found, method)]) for method in chosen.methods}
    inception |= {"real": mean([one.real_inception for one in found])}
    return generate_score({name: value for name, value in inception.items() if value is not None})


def _table(found: Sequence[Drawn], chosen: Plan, scores: Mapping[str, float | None]) -> str:
    def row(name: str, epsilon: str, sides: Sequence[Mapping[str, Judged]], rest: Sequence[str]) -> list[str]:
        own = [spread([side[kind].scores["accuracy"].value for side in sides]) for kind in chosen.classifiers]
        return [name, epsilon, *own, *rest, number(scores.get(name.removesuffix(" pictures")))]

    seeds = _of(found, next(iter(chosen.methods)))
    rows = [
        row(
            "real pictures",
            "",
            [one.real for one in seeds],
            [spread([one.real_inception for one in seeds], 2), "0", "1"],
        )
    ]
    for method in chosen.methods:
        own = _of(found, method)
        spent = [one.epsilon for one in own if one.epsilon is not None]
        rest = [
            spread([one.inception for one in own], 2),
            spread([one.frechet for one in own], 1),
            spread([one.agreement for one in own]),
        ]
        rows.append(row(method, f"{max(spent):.3g}" if spent else "∞", [one.judged for one in own], rest))
    kinds = [f"{kind.upper()} accuracy" for kind in chosen.classifiers]
    return markdown(
        ["pictures", "ε", *kinds, "inception score", "Fréchet distance", "label agreement", "generate score"], rows
    )


def _targets(found: Sequence[Drawn], chosen: Plan, asked: Asked) -> tuple[Target, ...]:
    best = {method: mean([_best(one) for one in _of(found, method)]) for method in chosen.methods}
    inception = {method: mean([one.inception for one in _of(found, method)]) for method in chosen.methods}

    def less(values: Mapping[str, float | None], first: str, second: str) -> float | None:
        a, b = values.get(first), values.get(second)
        return None if a is None or b is None else a - b

    targets = [
        Target(
            "R14", f"{method}: accuracy of the best classifier on real pictures, epsilon {EPSILON:g}", f"{MODERN} on MNIST",
            number(value), f">= {MODERN - WITHIN:.3f}" if method == "dpgan" else "", None
            if asked.quick or value is None or method != "dpgan"
            else value >= MODERN - WITHIN,
        )
        for method, value in best.items()
    ]  # fmt: skip
    if "ppgan" in chosen.methods:
        ranks = less(inception, "ppgan", "dpgan")
        targets.append(Target(
            "R14", "ppgan less dpgan, inception score", "above 0, as a figure", number(ranks, 2, signed=True),
            "above 0: the ranking that PPGAN shows", None if asked.quick or ranks is None else ranks > 0,
        ))  # fmt: skip
    return tuple(targets)


def _best(one: Drawn) -> float | None:
    return max((value for value in _accuracies(one) if value is not None), default=None)


def _figures(parts: Parts, chosen: Plan, found: Sequence[Drawn]) -> dict[str, Figure]:
    """Of the first seed."""
    seed = chosen.seeds[0]
    methods = list(chosen.methods)
    real: Patients = real_patients(hospitals_of(chosen.options(methods[0], seed)))
    side = round(np.sqrt(real.train.x.shape[1]))
    tables = {"real": real.train} | {
        method: synthetic(
            synthesizer_of(parts.run(f"{method}-{seed}", chosen.options(method, seed)), real.layout), 2000, seed
        )[1]
        for method in methods
    }
    shown = {name: ((one.x.reshape(-1, side, side) + 1) / 2, one.y) for name, one in tables.items()}
    first = [one for one in found if one.seed == seed]
    bars = {"real": first[0].real} | {one.method: one.judged for one in first}
    return {
        "pictures": plot_pictures(shown), "transfer": plot_judged(bars, "accuracy", 0.1), "epsilon": stated.steps_figure(),
    }  # fmt: skip
