"""Vital signs and heart failure by private GANs: the second experiment of Beaulieu-Jones et al. 2019, on a simulation.

Target R13. The published scores are the notebook's (greenelab/SPRINT_gan), which the paper calls F1 and which are areas
under the ROC curve; they are near chance from real admissions already, so that being "on par with real" says little.
Here the signs tell the diagnosis. The paper's accountant was switched off for this experiment: it states no epsilon.
"""

from __future__ import annotations

from typing import Any

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic_studies.generators import stated
from polyclinic_studies.generators.transfer_figures import figures
from polyclinic_studies.generators.transfer_study import (
    Found,
    Study,
    gap,
    gaps_table,
    of,
    plain,
    score_table,
    spearman,
    study,
)
from polyclinic_studies.parts import Parts
from polyclinic_studies.published_games.games import SETTINGS
from polyclinic_studies.tables import between, estimate, margin, smallest

EPSILON, DELTA, HOSPITALS, SEEDS = 2.5, 1e-5, 5, 12
CLASSES = {0: "no heart failure", 1: "heart failure"}
MEASURED = {
    "heart_rate": "heart rate, beats/min",
    "arterial_systolic": "arterial systolic pressure, mmHg",
    "spo2": "oxygen saturation, %",
}
PUBLISHED = (
    ("published: real admissions", "", ".593", ".581", ".597", ".570", "1"),
    ("published: AC-GAN, not private", "∞", ".567", ".538", ".538", ".516", "-"),
    ("published: AC-GAN, private", "not stated", ".593", ".615", ".588", ".563", ".560"),
)
CLASSIFIERS = ("lr", "rf", "svm", "knn")
WITHIN, GOAL_SPEARMAN = 0.05, 0.56
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
GAME = {"synthesis.baselines": False}
SOUND: dict[str, dict[str, Any]] = {
    "moments": {"model": "moments"},
    "moments, shared noise": {"model": "moments", **SHARED},
    "marginals, shared noise": {"model": "marginals", **SHARED},
    "independent": {"model": "independent"},
    "gan, shared noise": {"model": "gan", **GAME, **SHARED},
}
WITHOUT_PRIVACY: dict[str, dict[str, Any]] = {"moments, not private": {"model": "moments", "privacy.dp": False}}
QUICK: dict[str, dict[str, Any]] = {"moments": {"model": "moments"}, "gan": {"model": "gan", "rounds": 3, **GAME}}
PAPER: dict[str, dict[str, Any]] = {
    "acgan, as published": {"model": "acgan-paper", "privacy.dp": False, **SETTINGS["acgan-paper"], **GAME}
}
SHOWN = ("moments, shared noise", "gan, shared noise")


def plan(asked: Asked) -> Study:
    """The runs of the experiment."""
    private = {"privacy.epsilon": EPSILON, "privacy.delta": DELTA}
    if asked.preset == "paper":
        length = {"rounds": 2, "training.local-steps": 1} if asked.quick else {"rounds": 20, "training.local-steps": 50}
        methods = {name: {**one, **length} for name, one in PAPER.items()}
    else:
        chosen = QUICK if asked.quick else SOUND
        methods = {name: {**private, **one} for name, one in chosen.items()} | ({} if asked.quick else WITHOUT_PRIVACY)
    sites = asked.hospitals or (2 if asked.quick else HOSPITALS)
    seeds = asked.seeds or (1 if asked.quick or asked.preset == "paper" else SEEDS)
    return Study(
        {"dataset": "mimic-hf", "sites": sites, "task": "synthesis", "synthesis.quality": False}, asked.select(methods),
        tuple(range(seeds)), tuple(MEASURED),
        1000 if asked.quick else 0, ("lr", "knn") if asked.quick else CLASSIFIERS,
    )  # fmt: skip


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``."""
    parts, chosen = Parts(asked.out, say), plan(asked)
    found = study(parts, chosen)
    kinds = chosen.classifiers
    published = [[*row[:2], *(row[2 + CLASSIFIERS.index(kind)] for kind in kinds), row[-1]] for row in PUBLISHED]
    seeds = f"{len(chosen.seeds)} simulation(s), mean ± standard deviation"
    tables = [
        f"Area under the ROC curve on held-out stays; {seeds}.\n",
        score_table(found, "auroc", published),
        f"F1 on held-out stays; {seeds}.\n",
        score_table(found, "f1"),
        "AUROC less that of training on real stays, mean ± standard error.\n",
        gaps_table(found, "auroc"),
        "AUROC and F1, first simulation, with 95 % intervals (bootstrap over stays).\n",
        _interval_table(found, kinds),
        *([stated.guarantees(parts, chosen)] if asked.preset == "paper" else []),
    ]
    targets = _targets(found, asked) if asked.preset == "sound" else ()
    drawn = figures(parts, chosen, found, SHOWN, CLASSES, (1, 2, 3, 4, 5), MEASURED, "auroc")
    return Findings(chosen.as_config(), targets, {"methods": [plain(one) for one in found]}, "\n".join(tables), drawn)


def _targets(found: list[Found], asked: Asked) -> tuple[Target, ...]:
    targets = []
    for method in dict.fromkeys(one.method for one in found):
        if "not private" in method:
            continue
        gaps = [gap(found, method, kind, "auroc") for kind in found[0].judged]
        near = all(value is not None and abs(value) <= WITHIN for value in gaps)
        each = [[one.gap(kind, "auroc") for one in of(found, method)] for kind in found[0].judged]
        rank, ranks = spearman(found, method), [one.spearman for one in of(found, method)]
        targets.append(Target(
            "R13", f"{method}: AUROC less that on real, {', '.join(kind.upper() for kind in found[0].judged)}",
            "+0.000, +0.034, -0.009, -0.007" if len(gaps) == len(CLASSIFIERS) else "-",
            ", ".join(estimate(values, signed=True) for values in each), f"within {WITHIN} on all", near, by=method,
            seeds=len(ranks), margin=smallest(margin(values, end, end < 0) for values in each for end in (-WITHIN, WITHIN)),
        ))  # fmt: skip
        targets.append(Target(
            "R13", f"{method}: Spearman of correlations", f"{GOAL_SPEARMAN}",
            estimate(ranks), f"> {GOAL_SPEARMAN}", rank is not None and rank > GOAL_SPEARMAN, by=method, seeds=len(ranks),
            margin=margin(ranks, GOAL_SPEARMAN),
        ))  # fmt: skip
    return tuple(targets)


def _interval_table(found: list[Found], kinds: tuple[str, ...]) -> str:
    first = [one for one in found if one.seed == found[0].seed]
    head = [f"{kind.upper()} {word}" for kind in kinds for word in ("AUROC", "F1")]
    rows = [["real patients", *(between(first[0].real[kind].scores[m]) for kind in kinds for m in ("auroc", "f1"))]]
    rows += [
        [one.method, *(between(one.judged[kind].scores[m]) for kind in kinds for m in ("auroc", "f1"))] for one in first
    ]
    return markdown(["trained on", *head], rows)
