"""The short runs whose results are kept as digests: at least one of every kind of run that the configuration knows."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]

_SHORT: Options = {"dataset": "breast-cancer", "rounds": 2, "sites": 3, "patients-per-site": 90}
_STEPS: Options = {"local-steps": 2}
_CYCLIC: Options = {**_STEPS, "batching": "cyclic", "sample-rate": 0.25}
_OF_SITES: Options = {**_STEPS, "dp": False, "central-epsilon": 2.0, "central-delta": 1e-3, "standardise": "none"}
_ROWS: Options = {"task": "synthesis", "dataset": "trial", "synthetic-rows": 100, "quality": False}
_GAME: Options = {**_ROWS, "baselines": False, "learning-rate": 1.0, "max-grad-norm": 10.0}
_POSTERIOR: Options = {"task": "posterior", "dataset": "trial", "columns": "age, male, controlled", "epsilon": 5.0}

#: What each run sets beside the defaults.
RUNS: dict[str, Options] = {
    name: _SHORT | options
    for name, options in {
        "logistic": _STEPS,
        "mlp": {**_STEPS, "model": "mlp", "momentum": 0.9, "weight-decay": 0.01},
        "without privacy": {**_STEPS, "dp": False},
        "sampled batches": {**_STEPS, "sample-rate": 0.3, "optimizer": "adam", "learning-rate": 0.01},
        "private metrics": {**_STEPS, "metrics": "private"},
        "measured scaling": {**_STEPS, "standardise": "measured", "epsilon": 8.0, "patients-per-site": 0},
        "pictures": {**_STEPS, "dataset": "digits", "rounds": 1},
        "fedprox": {**_STEPS, "strategy": "fedprox", "strategy-options": "proximal-mu=0.1"},
        "fedadam": {**_STEPS, "strategy": "fedadam"},
        "scaffold": {**_STEPS, "strategy": "scaffold"},
        "ditto": {**_STEPS, "strategy": "ditto"},
        "fedbn": {**_STEPS, "strategy": "fedbn", "model": "tests.strategies.test_personal:deep"},
        "local layers": {**_STEPS, "model": "mlp", "local-layers": "2.*"},
        "qfedavg": {**_STEPS, "strategy": "qfedavg", "dp": False},
        "half precision": {**_STEPS, "upload": "difference", "upload-precision": "half"},
        "output perturbation": {"task": "output-perturbation", "rounds": 1},
        "objective perturbation": {"task": "objective-perturbation", "rounds": 1},
        "banded noise": {**_CYCLIC, "noise": "sqrt-toeplitz"},
        "tree noise": {**_CYCLIC, "noise": "tree"},
        "central privacy": _OF_SITES,
        "central tree noise": {**_OF_SITES, "central-noise": "tree"},
        "secure sum": {**_STEPS, "secure-aggregation": True},
        "shared noise": {"secure-aggregation": True, "shared-noise": True},
        "moments": {**_ROWS, "model": "moments"},
        "independent": {**_ROWS, "model": "independent", "rounds": 1},
        "latent": {**_ROWS, "model": "latent", "rounds": 3},
        "mixture": {**_ROWS, "model": "mixture", "rounds": 1},
        "marginals": {**_ROWS, "model": "marginals", "rounds": 3, "method-options": "bins=4, picks=2, model=2048"},
        "gan": {**_GAME, "model": "gan"},
        "dpgan": {**_GAME, "model": "dpgan"},
        "flow of records": {**_ROWS, "baselines": False, "model": "maf", "method-options": "transforms=2, hidden=8"},
        "posterior": _POSTERIOR,
        "posterior by a flow": {**_POSTERIOR, "method-options": "method=flow, draws=4, hidden=4"},
    }.items()
}
#: Runs that are broken off after their first round and resumed must give what they give in one go.
RESUMED = ("scaffold", "moments", "tree noise")
