"""A two-arm trial by private GANs: Beaulieu-Jones et al. 2019 on SPRINT, here on a simulation of its form.

Target R12. The published numbers are the paper's and, for accuracies, those of its
notebook (greenelab/SPRINT_gan), on the trial's real participants, which this simulation was calibrated to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic_studies.generators import curves, stated
from polyclinic_studies.generators.transfer_figures import figures
from polyclinic_studies.generators.transfer_study import (
    Found,
    Study,
    gap,
    gaps_table,
    importance_table,
    means_table,
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
ARMS = {0: "standard", 1: "intensive"}
MONTHS = (0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27)
MEASURED = {"sbp": "systolic pressure, mmHg", "dbp": "diastolic pressure, mmHg", "medicines": "medicines"}
# Accuracy on 502 held-out participants by what trained, and Spearman of the 630 correlations.
PUBLISHED = (
    ("published: real participants", "", ".934", ".926", ".936", ".875", "1"),
    ("published: AC-GAN, not private", "∞", ".890", ".908", ".912", ".861", ".964"),
    ("published: AC-GAN, private", "2 + 0.5 stated", ".876", ".875", ".902", ".841", ".879"),
)
PUBLISHED_MEANS = (
    ("published: real participants", "129.0", "72.0", "2.27"),
    ("published: AC-GAN, not private", "128.3", "72.4", "1.96"),
    ("published: AC-GAN, private", "127.7", "73.5", "2.05"),
)
# Spearman of the classifiers' weights, of the private and the other AC-GAN's patients with those of real ones (the paper's text).
PUBLISHED_WEIGHTS = (
    ("published: AC-GAN, not private", {"lr": ".70", "rf": ".72", "svm": ".53"}),
    ("published: AC-GAN, private", {"lr": ".67", "rf": ".68", "svm": ".69"}),
)
PAPERS_GAP = {"lr": -0.058, "rf": -0.052, "svm": -0.034, "knn": -0.034}
PAPERS_SPEARMAN = 0.879
GOAL_SPEARMAN = 0.95
# Hospitals add shares of one noise to a sum that only they can open, as the server sees no single one.
SHARED = {"secure.aggregation": True, "secure.shared-noise": True}
GAME = {"synthesis.baselines": False}
# As published, each hospital names its best generators by the noisy maximum; a tenth of epsilon pays for it.
CHOOSING = {"synthesis.candidates": 10, "synthesis.selected": 3}
ACGAN, ACGAN_PLAIN = "acgan, shared noise", "acgan, not private"
SOUND: dict[str, dict[str, Any]] = {
    "moments": {"model": "moments"},
    "moments, shared noise": {"model": "moments", **SHARED},
    "mixture": {"model": "mixture"},
    "marginals, shared noise": {"model": "marginals", **SHARED},
    "independent": {"model": "independent"},
    "gan": {"model": "gan", **GAME},
    "gan, shared noise": {"model": "gan", **GAME, **SHARED},
    ACGAN: {"model": "acgan", **GAME, **CHOOSING, **SHARED},
}
WITHOUT_PRIVACY: dict[str, dict[str, Any]] = {
    "moments, not private": {"model": "moments", "privacy.dp": False},
    # Without noise there is no need to take few and long steps of the critic.
    ACGAN_PLAIN: {
        "model": "acgan", "privacy.dp": False, **GAME, **CHOOSING, "rounds": 50, "training.learning-rate": 1.0,
        "synthesis.options": "learning-rate=0.005",
    },
}  # fmt: skip
QUICK: dict[str, dict[str, Any]] = {"moments": {"model": "moments"}, "gan": {"model": "gan", "rounds": 3, **GAME}}
#: The paper's settings would be 3,000,000 critic steps of one participant; this is the architecture, for some rounds.
PAPER: dict[str, dict[str, Any]] = {
    "acgan, as published": {"model": "acgan-paper", "privacy.dp": False, **SETTINGS["acgan-paper"], **GAME}
}
SHOWN = ("moments, shared noise", "gan, shared noise", ACGAN)


def plan(asked: Asked) -> Study:
    """The runs of the experiment."""
    if asked.preset == "paper":
        methods: dict[str, dict[str, Any]] = {
            name: {**one, "rounds": 2 if asked.quick else 20, "training.local-steps": 1 if asked.quick else 50}
            for name, one in PAPER.items()
        }
    else:
        methods = dict(QUICK) if asked.quick else {**SOUND, **WITHOUT_PRIVACY}
    private = {} if asked.preset == "paper" else {"privacy.epsilon": EPSILON, "privacy.delta": DELTA}
    methods = {name: {**({} if one.get("privacy.dp") is False else private), **one} for name, one in methods.items()}
    sites = asked.hospitals or (2 if asked.quick else HOSPITALS)
    seeds = asked.seeds or (1 if asked.quick or asked.preset == "paper" else SEEDS)
    common = {"dataset": "sprint", "sites": sites, "task": "synthesis", "synthesis.quality": False}
    return Study(
        common, asked.select(methods), tuple(range(seeds)), tuple(MEASURED), 1000 if asked.quick else 0,
        ("lr", "knn") if asked.quick else ("lr", "rf", "svm", "knn"),
    )  # fmt: skip


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``."""
    parts, chosen = Parts(asked.out, say), plan(asked)
    found = study(parts, chosen)
    kinds = chosen.classifiers
    published = [
        [*row[:2], *(row[2 + i] for i, kind in enumerate(PAPERS_GAP) if kind in kinds), row[-1]] for row in PUBLISHED
    ]
    drawn = figures(parts, chosen, found, SHOWN, ARMS, MONTHS, MEASURED) | {"epsilon": stated.epochs_figure()}
    more: dict[str, Any] = {}
    if asked.preset == "sound" and ACGAN in chosen.methods:
        seed = chosen.seeds[0]
        runs = {
            name: parts.run(f"{name}-{seed}", chosen.options(name, seed))
            for name in (ACGAN, ACGAN_PLAIN) if name in chosen.methods
        }  # fmt: skip
        more = {
            "grid": curves.grid(parts, chosen.options(ACGAN, seed)),
            "chosen": {name: curves.chosen_rounds(result) for name, result in runs.items()},
        }
        drawn["candidates"] = curves.course_figure(runs)
    tables = [
        f"Accuracy on held-out participants; {len(chosen.seeds)} simulation(s), mean ± standard deviation.\n",
        score_table(found, "accuracy", published),
        "Accuracy less that of training on real participants, mean ± standard error.\n",
        gaps_table(found, "accuracy"),
        "Accuracy less that of training on real participants, first simulation, 95 % interval (paired bootstrap).\n",
        _gap_table(found, kinds),
        "Rank correlation of the weights that classifiers give to columns, mean ± standard error.\n",
        importance_table(
            found, [[name, *(of_kind[k] for k in kinds if k in of_kind)] for name, of_kind in PUBLISHED_WEIGHTS]
        ),
        means_table(found, PUBLISHED_MEANS),
        *_acgan_tables(more),
        stated.table(("AC-GAN",)),
        *([stated.guarantees(parts, chosen)] if asked.preset == "paper" else []),
    ]
    targets = _targets(found, asked) if asked.preset == "sound" else ()
    results = {"methods": [plain(one) for one in found], **more}
    return Findings(chosen.as_config(), targets, results, "\n".join(tables), drawn)


def _targets(found: list[Found], asked: Asked) -> tuple[Target, ...]:
    targets = []
    for method in dict.fromkeys(one.method for one in found):
        if "not private" in method:
            continue
        gaps = {kind: gap(found, method, kind, "accuracy") for kind in found[0].judged}
        each = {kind: [one.gap(kind, "accuracy") for one in of(found, method)] for kind in gaps}
        closer = all(value is not None and value >= PAPERS_GAP[kind] for kind, value in gaps.items())
        rank, ranks = spearman(found, method), [one.spearman for one in of(found, method)]
        targets.append(Target(
            "R12", f"{method}: accuracy less that on real, {', '.join(kind.upper() for kind in gaps)}",
            ", ".join(f"{PAPERS_GAP[kind]:+.3f}" for kind in gaps),
            ", ".join(estimate(values, signed=True) for values in each.values()),
            "closer than the paper's private GAN on all", closer, by=method, seeds=len(of(found, method)),
            margin=smallest(margin(values, PAPERS_GAP[kind]) for kind, values in each.items()),
        ))  # fmt: skip
        targets.append(Target(
            "R12", f"{method}: Spearman of correlations", f"{PAPERS_SPEARMAN}",
            estimate(ranks), f">= {GOAL_SPEARMAN}", rank is not None and rank >= GOAL_SPEARMAN, by=method, seeds=len(ranks),
            margin=margin(ranks, GOAL_SPEARMAN),
        ))  # fmt: skip
    return tuple(targets)


def _acgan_tables(more: Mapping[str, Any]) -> list[str]:
    if not more:
        return []
    chosen = "; ".join(f"{name}: {', '.join(map(str, rounds))}" for name, rounds in more["chosen"].items())
    return [
        "The AC-GAN by epsilon and clip norm, first simulation, short runs: 10 rounds with 60 generator steps each, noise of "
        "each hospital's own, no choice among generators. Accuracy less that of real participants (LR, RF), and Spearman of "
        "correlations.\n",
        curves.grid_table(more["grid"]),
        f"Rounds whose generators the hospitals chose in the first simulation (figure `candidates`): {chosen}.\n",
    ]


def _gap_table(found: list[Found], kinds: tuple[str, ...]) -> str:
    first = [one for one in found if one.seed == found[0].seed]
    rows = [["published: AC-GAN, private", *(f"{PAPERS_GAP[kind]:+.3f}" for kind in kinds)]]
    rows += [
        [one.method, *(between(one.judged[kind].minus_real["accuracy"], signed=True) for kind in kinds)]
        for one in first
    ]
    return markdown(["trained on", *(kind.upper() for kind in kinds)], rows)
