"""Which synthesizer for which records: every method that is offered on every data set, by epsilon and on several splits.

Four hospitals to which the patients are dealt, who add up their sums in a secure sum with one noise (``mixture`` excepted, which
never adds hospitals up). A split is another set of held-out patients and another noise, of a simulated data set also other
patients. Utility: what classifiers that were trained on as many synthetic patients as there are training patients are worth on
the held-out ones. Fidelity: how like the held-out patients synthetic ones are, column by column and pair by pair. Attack: whether
synthetic patients are nearer to patients who took part than to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import product
from time import process_time
from typing import Any

import numpy as np

from polyclinic.config import RunConfig
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.evaluation.attacks import membership
from polyclinic.evaluation.attacks.identification import Table, closest, proximity
from polyclinic.evaluation.synthetic.classifiers import REAL, transfer
from polyclinic.evaluation.synthetic.quality import MOST_FULL, Sample, compare, features, one_row_each
from polyclinic.experiments import Asked, Findings, Say
from polyclinic.privacy.streams import generator
from polyclinic.runs.simulation import SimulatedRecords
from polyclinic_studies.generators import hospitals
from polyclinic_studies.generators.synthesizer_tables import figure, tables, targets
from polyclinic_studies.parts import Parts, outcome_of

HOSPITALS, SPLITS, GOALS_AT = 4, 5, 3.0
_COHORTS, _DRAWN = "polyclinic_studies.accuracy.cohorts", "polyclinic_studies.datasets.drawn"
#: Data set by name: what names it for a seed; 4,000 patients of diabetes-130 and ist are drawn, and 10,000 of icd are simulated.
SETS: dict[str, str] = {
    **{name: name for name in ("heart-disease", "breast-cancer", "trial", "icu")},
    "ist": f"{_DRAWN}:ist_{{}}",
    "rare": f"{_COHORTS}:rare_{{}}",
    **{name: name for name in ("eicu-demo", "mimic-hf")},
    "diabetes-130": f"{_DRAWN}:diabetes_{{}}",
    **{name: name for name in ("sprint", "digits")},
    "icd": f"{_DRAWN}:icd_{{}}",
}
#: Method by name, and its keys.
METHODS: dict[str, Mapping[str, Any]] = {
    "independent": {"model": "independent"},
    "moments": {"model": "moments"},
    "visits": {"model": "visits"},
    "latent": {"model": "latent"},
    "mixture": {"model": "mixture"},
    "marginals-mst": {"model": "marginals", "synthesis.options": "algorithm=mst"},
    "marginals-aim": {"model": "marginals"},
    "maf": hospitals.METHODS["maf"],
    "gan": {"model": "gan", "synthesis.baselines": False},
}
_TABLES = tuple(name for name in SETS if name != "icd")
#: Those of at most sixty columns, more of which ``marginals`` refuses.
_COUNTED = tuple(name for name in _TABLES if name != "digits")
#: Those with all methods of sums.
_CORE = ("heart-disease", "breast-cancer", "trial", "icu", "ist", "rare")
#: What is run, in this order: epsilons, methods and data sets. Of a thousand codes a sum of all products takes minutes. A wider
#: plan costs what it adds, since finished parts are not run again.
PLAN: tuple[tuple[tuple[float, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ((GOALS_AT,), ("independent", "moments"), _TABLES),
    ((GOALS_AT,), ("marginals-mst", "latent", "marginals-aim"), _COUNTED),
    ((GOALS_AT,), ("mixture",), _CORE),
    ((GOALS_AT,), ("visits",), ("trial", "icu", "mimic-hf", "sprint")),
    ((GOALS_AT,), ("independent", "latent"), ("icd",)),
    ((GOALS_AT,), ("maf", "gan"), ("heart-disease",)),
    ((1.0, 10.0, 0.5), ("independent", "moments", "marginals-mst"), (*_CORE, "mimic-hf", "sprint")),
)
#: Only where a method is asked for by name: those whose runs take long.
SLOW = (((GOALS_AT,), ("maf", "gan"), _TABLES[1:]),)
_QUICK = (((GOALS_AT,), ("independent", "moments"), ("breast-cancer",)),)
CLASSIFIERS = ("lr", "gbm")
#: Patients of either side, and synthetic ones, of the attacks; of more columns than that there is none, for it takes minutes.
ATTACKED, MOST_ATTACKED = 1000, 200
Measured = dict[str, float | None]


def run(asked: Asked, say: Say) -> Findings:
    """What ``PLAN`` names, ``asked.seeds`` splits each, the epsilon of the goals first."""
    parts, methods = Parts(asked.out, say), asked.select(METHODS)
    plan, splits = (_QUICK, 1) if asked.quick else ((*PLAN, *(SLOW if asked.methods else ())), asked.seeds or SPLITS)
    found: dict[str, Any] = {
        name: {"real": [], "methods": {}} for name in SETS if any(name in sets for *_, sets in plan)
    }
    for epsilons, its_methods, sets in plan:
        for epsilon, name in product(epsilons, sets):
            for split in range(splits):
                shared = shared_options(name, split)
                if len(found[name]["real"]) < splits:
                    found[name]["real"].append(parts.answer(f"{name}, real-{split}", shared, partial(_real, shared)))
                for method in (method for method in its_methods if method in methods):
                    options = run_options(shared, methods[method], epsilon)
                    part = f"{name}, {method}, {epsilon:g}-{split}"
                    cell = parts.answer(part, options, partial(_measured, options, shared))
                    by_epsilon = found[name]["methods"].setdefault(method, {})
                    by_epsilon.setdefault(f"{epsilon:g}", []).append(cell)
            say(f"{name}, epsilon {epsilon:g}, {', '.join(its_methods)}: {splits} splits")
    config = {"splits": splits, "hospitals": HOSPITALS, "methods": {name: dict(keys) for name, keys in methods.items()}}
    return Findings(config, targets(found, GOALS_AT), {"sets": found}, tables(found), {"gain": figure(found)})


def shared_options(name: str, split: int) -> dict[str, Any]:
    """The keys of all runs on a data set's split."""
    return {
        "dataset": SETS[name].format(100 + split), "sites": HOSPITALS, "partitioner": "iid", "split.seed": str(100 + split),
        "seed": 1000 + split,
    }  # fmt: skip


def run_options(shared: Mapping[str, Any], keys: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    """The configuration of a run; the hospitals of ``mixture`` cannot add up their noise."""
    one_noise = {} if keys["model"] == "mixture" else hospitals.SHARED
    return {**shared, "task": "synthesis", "privacy.epsilon": epsilon, "evaluation.every": 1000, **one_noise, **keys}


@lru_cache(maxsize=2)
def _patients(options: tuple[tuple[str, Any], ...]) -> tuple[Sample, Sample, int]:
    """Training patients, 4,000 at most, and held-out ones, one record of each; and how many training patients there are."""
    config = RunConfig.build(dict(options))
    shards = list(SimulatedRecords.of(config).shards().values())
    sides = (Rows.join([shard.train for shard in shards]), Rows.join([shard.test for shard in shards]))
    samples = []
    for rows, most in zip(sides, (MOST_FULL, 10 * MOST_FULL), strict=True):
        at = one_row_each(rows.patient, rows.patients, config.seed, most)
        samples.append(Sample.of(rows.x[at], rows.y[at], shards[0].schema))
    return samples[0], samples[1], sides[0].patients


def _real(shared: Mapping[str, Any]) -> Measured:
    """The same measures of the training patients in place of synthetic ones: what a perfect generator would reach."""
    train, held_out, patients = _patients(tuple(shared.items()))
    return {"patients": patients, "columns": len(held_out.schema.features), "events": float(np.mean(train.y == 1)),
            **_utility(train, held_out, int(shared["seed"])), **_fidelity(train, held_out)}  # fmt: skip


def _measured(options: Mapping[str, Any], shared: Mapping[str, Any]) -> Measured:
    train, held_out, _ = _patients(tuple(shared.items()))
    begun, seed = process_time(), int(shared["seed"])
    synthesizer = outcome_of(options).synthesizer
    if synthesizer is None:
        raise ConfigError(
            f"The run of model {options['model']!r} on {options['dataset']!r} ended without a synthesizer."
        )
    seconds = process_time() - begun
    drawn = synthesizer.sample(len(train.y), generator(seed, "study", "synthetic"))
    table = Sample.of(*synthesizer.layout.encoded(drawn), held_out.schema)
    return {"seconds": round(seconds, 2), **_utility(table, held_out, seed), **_fidelity(table, held_out),
            **_attacked(table, train, held_out, seed)}  # fmt: skip


def _utility(table: Sample, held_out: Sample, seed: int) -> Measured:
    """AUROC on the held-out patients by classifier; of more than two classes, of which boosting takes long, by one alone."""
    kinds = CLASSIFIERS if held_out.schema.num_classes == 2 else CLASSIFIERS[:1]
    kept = held_out.telling
    learned, test = (features(table, kept), table.y), (features(held_out, kept), held_out.y)
    judged = transfer(learned, {}, test, seed=seed, resamples=1, classifiers=kinds)[REAL]
    # Rows of one class teach nothing: chance.
    scores = {kind: judged[kind].scores["auroc"].value for kind in kinds}
    return {kind: 0.5 if score is None else score for kind, score in scores.items()}


def _fidelity(table: Sample, held_out: Sample) -> Measured:
    """``columns``: the mean distance of single columns, total variation of categories and Kolmogorov and Smirnov's of numbers;
    ``wasserstein``: of numbers, in standard deviations; ``pairs``: total variation of pairs, of which numbers are in tenths;
    ``spearman``: rank correlation of the correlations; ``codes``: R² of the frequencies of codes."""
    judged = compare(held_out, table)
    likeness = [one.get("ks", one.get("tv")) for one in judged["columns"].values()]
    alike = [value for value in likeness if value is not None]
    codes = [one["r2"] for one in judged["codes"].values()]
    return {
        "columns_apart": 1 - float(np.mean(alike)), "wasserstein": judged["means"]["wasserstein_sd"],
        "pairs_apart": None if judged["pairs"] is None else 1 - judged["pairs"],
        "spearman": judged["correlations"]["spearman"], "codes": codes[0] if codes else None,
    }  # fmt: skip


def _attacked(table: Sample, train: Sample, held_out: Sample, seed: int) -> Measured:
    """``nearer``: the share of synthetic patients nearer to one who took part than to one who did not; ``advantage``: that of
    guessing who took part by the distance to the closest synthetic patient."""
    if table.x.shape[1] > MOST_ATTACKED:
        return {"nearer": None, "advantage": None}
    tables = [Table.of(side.x[:ATTACKED], side.y[:ATTACKED], side.schema) for side in (table, train, held_out)]
    near = [proximity(side, tables[0]) for side in tables[1:]]
    guessed = membership.judge("closest synthetic row", near[0], near[1], 1e-5, None, seed)
    return {
        "nearer": closest(tables[0], tables[1], tables[2], seed).nearer_to_members.value,
        "advantage": guessed.advantage.value,
    }
