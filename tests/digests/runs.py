"""The short runs whose results are kept as digests: at least one of every kind of run that the configuration knows."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]

_SHORT: Options = {
    "dataset": "breast-cancer",
    "rounds": 2,
    "sites": 3,
    "privacy.patients-per-site": 90,
    "privacy.delta": 1e-3,
}
_STEPS: Options = {"training.local-steps": 2}
_CYCLIC: Options = {**_STEPS, "training.batching": "cyclic", "training.sample-rate": 0.25}
_OF_SITES: Options = {
    **_STEPS,
    "privacy.dp": False,
    "central.epsilon": 2.0,
    "central.delta": 1e-3,
    "data.standardise": "none",
}
_ROWS: Options = {"task": "synthesis", "dataset": "trial", "synthesis.rows": 100, "synthesis.quality": False}
_GAME: Options = {**_ROWS, "synthesis.baselines": False, "training.learning-rate": 1.0, "privacy.max-grad-norm": 10.0}
_POSTERIOR: Options = {
    "task": "posterior",
    "dataset": "trial",
    "posterior.columns": "age, male, controlled",
    "privacy.epsilon": 5.0,
}
_SURVIVAL: Options = {"dataset": "benchmarks.utility.cohorts:rossi", "privacy.patients-per-site": 140}
_ANALYSIS: Options = {"dataset": "trial", "privacy.epsilon": 5.0, "rounds": 4, "privacy.patients-per-site": 180}

#: What each run sets beside the defaults.
RUNS: dict[str, Options] = {
    name: _SHORT | options
    for name, options in {
        "logistic": _STEPS,
        "mlp": {**_STEPS, "model": "mlp", "training.momentum": 0.9, "training.weight-decay": 0.01},
        "without privacy": {**_STEPS, "privacy.dp": False},
        "sampled batches": {
            **_STEPS,
            "training.sample-rate": 0.3,
            "training.optimizer": "adam",
            "training.learning-rate": 0.01,
        },
        "private metrics": {**_STEPS, "evaluation.metrics": "private"},
        "measured scaling": {
            **_STEPS,
            "data.standardise": "measured",
            "privacy.epsilon": 8.0,
            "privacy.patients-per-site": 0,
        },
        "newton": {"training.optimizer": "newton", "rounds": 3, "privacy.patients-per-site": 0},
        "pictures": {**_STEPS, "dataset": "digits", "rounds": 1},
        "fedprox": {**_STEPS, "strategy": "fedprox", "strategy-options": "proximal-mu=0.1"},
        "fedadam": {**_STEPS, "strategy": "fedadam"},
        "scaffold": {**_STEPS, "strategy": "scaffold"},
        "ditto": {**_STEPS, "strategy": "ditto"},
        "fedbn": {**_STEPS, "strategy": "fedbn", "model": "tests.strategies.test_personal:deep"},
        "local layers": {**_STEPS, "model": "mlp", "strategy": "fedper", "strategy-options": "layers=2.*"},
        "qfedavg": {**_STEPS, "strategy": "qfedavg", "privacy.dp": False},
        "half precision": {**_STEPS, "upload.form": "difference", "upload.precision": "half"},
        "output perturbation": {"task": "output-perturbation", "rounds": 1},
        "objective perturbation": {"task": "objective-perturbation", "rounds": 1},
        "exponential mechanism": {"task": "exponential-mechanism", "rounds": 1},
        "projected steps": {**_STEPS, "training.radius": 0.5},
        "banded noise": {**_CYCLIC, "training.noise": "sqrt-toeplitz"},
        "tree noise": {**_CYCLIC, "training.noise": "tree"},
        "central privacy": _OF_SITES,
        "central tree noise": {**_OF_SITES, "central.noise": "tree"},
        "secure sum": {**_STEPS, "secure.aggregation": True},
        "shared noise": {"secure.aggregation": True, "secure.shared-noise": True, "training.optimizer": "sgd"},
        "moments": {**_ROWS, "model": "moments"},
        "visits": {**_ROWS, "model": "visits"},
        "independent": {**_ROWS, "model": "independent", "rounds": 1},
        "latent": {**_ROWS, "model": "latent", "rounds": 3},
        "mixture": {**_ROWS, "model": "mixture", "rounds": 1},
        "marginals": {**_ROWS, "model": "marginals", "rounds": 3, "synthesis.options": "bins=4, model=2048"},
        "gan": {**_GAME, "model": "gan"},
        "dpgan": {**_GAME, "model": "dpgan"},
        "flow of records": {
            **_ROWS,
            "synthesis.baselines": False,
            "model": "maf",
            "synthesis.options": "transforms=2, hidden=8",
        },
        "posterior": _POSTERIOR,
        "shape functions": {"model": "ebm", "data.standardise": "public"},
        "regression": {**_ANALYSIS, "task": "regression", "task-options": "formula=controlled ~ age + male"},
        "survival": {**_ANALYSIS, **_SURVIVAL, "task": "survival", "rounds": 1},
        "cox": {
            **_ANALYSIS,
            **_SURVIVAL,
            "task": "cox",
            "task-options": "terms=prio, intervals=3",
            "privacy.epsilon": 20.0,
        },
        "components": {
            **_ANALYSIS,
            "task": "components",
            "rounds": 2,
            "task-options": {"columns": "age, male, diabetes"},
        },
        "clusters": {**_ANALYSIS, "task": "clusters"},
        "effect": {**_ANALYSIS, "task": "effect", "task-options": "treatment=intensive, covariates=age+male"},
        "posterior by a flow": {**_POSTERIOR, "posterior.options": "method=flow, draws=4, hidden=4"},
    }.items()
}
#: Runs that are broken off after their first round and resumed must give what they give in one go.
RESUMED = ("scaffold", "moments", "tree noise")
