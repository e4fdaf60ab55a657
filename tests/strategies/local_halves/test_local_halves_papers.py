"""The strategies with a half at hospitals against their papers' algorithms: the federation's model and the hospitals' own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from polyclinic.ehr.datasets import load_shards
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise, mlp
from polyclinic.plugins import dataset_named
from polyclinic.privacy.streams import torch_seed
from polyclinic.training.preparation import standardise
from polyclinic.training.task import OWN
from polyclinic.types import Arrays
from polyclinic.wire.messages import site_home
from tests.strategies import papers
from tests.strategies.papers import CLASSES, FEATURES, HEAD, MODEL, SIZE, UNITS, Models, Trial

Quick = Callable[..., RunResult]
Algorithm = Callable[[Trial], tuple[Tensor, Models]]
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
EXACT: dict[str, Any] = {
    **MODEL, "privacy.dp": False, "training.sample-rate": 1.0, "rounds": 5, "training.local-steps": 4,
    "training.learning-rate": 0.2, "training.momentum": 0.0,
    "partitioner": "dirichlet", "alpha": 0.5, "evaluation.every": 5,
}  # fmt: skip


def flat(arrays: Arrays) -> Tensor:
    return torch.from_numpy(np.concatenate([np.ravel(arrays[name]) for name in NAMES])).double()


def trial_of(result: RunResult) -> Trial:
    """What the run did, from its files and the dataset."""
    config = result.config
    shards = load_shards(
        dataset_named(config.dataset), config.sites or 4, config.partitioner, config.seed, config.alpha
    )
    scale = result.arrays["standardiser.mean"].numpy(), result.arrays["standardiser.std"].numpy()
    rows = {shard.site: standardise(shard.train, scale) for shard in shards}
    told = result.rounds[result.rounds.bytes_up.notna()]
    rounds = [list(told[told["round"] == number].site) for number in range(1, config.rounds + 1)]
    start = initialise(lambda: mlp(FEATURES, CLASSES, (UNITS,)), torch_seed(config.seed, "model"))
    return Trial(
        rows, rounds, flat({name: value.numpy() for name, value in start.items()}), config.training.local_steps,
        float(config.training.learning_rate),
    )  # fmt: skip


def kept(result: RunResult, site: str) -> Arrays:
    """What a hospital kept of the last round in which it took part."""
    files = sorted(site_home(result.path / "sites", site).glob("optimizer-*.safetensors"))
    return load_file(files[-1])


def own_model(arrays: Arrays) -> Tensor:
    return flat({name: arrays[OWN + name] for name in NAMES})


def own_head(arrays: Arrays) -> Tensor:
    assert {name for name in arrays if name.startswith(OWN)} == {OWN + "2.weight", OWN + "2.bias"}
    return torch.from_numpy(np.concatenate([np.ravel(arrays[OWN + name]) for name in NAMES[2:]])).double()


def own_vector(name: str) -> Callable[[Arrays], Tensor]:
    return lambda arrays: torch.from_numpy(arrays[f"local.{name}"]).double()


# Strategy, its options, the paper's algorithm, and what a hospital keeps.
CASES: list[tuple[str, str, Algorithm, Callable[[Arrays], Tensor] | None]] = [
    ("feddyn", "", partial(papers.feddyn, alpha=0.1), own_vector("drift")),
    ("feddyn", "alpha=0.7", partial(papers.feddyn, alpha=0.7), own_vector("drift")),
    ("fednova", "", partial(papers.fednova, fewest=0), None),
    ("fednova", "fewest-steps=1", partial(papers.fednova, fewest=1), None),
    ("fedrep", "", partial(papers.fedrep, head_steps=2), own_head),
    ("fedrep", "head-steps=3, layers=2.*", partial(papers.fedrep, head_steps=3), own_head),
    ("fedper", "", papers.fedper, own_head),
    ("apfl", "", partial(papers.apfl, alpha=0.5, adaptive=False), own_model),
    ("apfl", "alpha=0.3, adaptive=true", partial(papers.apfl, alpha=0.3, adaptive=True), own_model),
    ("mr-mtl", "pull=0.5", partial(papers.mr_mtl, pull=0.5), own_model),
    ("per-fedavg", "inner-rate=0.4", partial(papers.per_fedavg, inner=0.4), own_model),
    ("moon", "", partial(papers.moon, weight=1.0, temperature=0.5), own_vector("last")),
    ("moon", "weight=3, temperature=0.2", partial(papers.moon, weight=3.0, temperature=0.2), own_vector("last")),
]


# Each with all hospitals or with two of them in a round, and those with one line above with both.
ONCE = [name for name, *_ in CASES if [case[0] for case in CASES].count(name) == 1]
TRIALS = [pytest.param(*case, 2 * bool(case[1]), id=f"{case[0]}-{case[1] or 'usual'}") for case in CASES] + [
    pytest.param(*case, 2 - 2 * bool(case[1]), id=f"{case[0]}-another-cohort") for case in CASES if case[0] in ONCE
]


@pytest.mark.parametrize(("name", "options", "algorithm", "own", "cohort"), TRIALS)
def test_it_is_the_papers_algorithm(
    quick: Quick, name: str, options: str, algorithm: Algorithm, own: Callable[[Arrays], Tensor] | None, cohort: int
) -> None:
    result = quick(strategy=name, strategy_options=options, participation={"sites": cohort}, **EXACT)
    trial = trial_of(result)
    assert all(len(active) == (cohort or 4) for active in trial.rounds)
    expected, theirs = algorithm(trial)
    found = flat({label: result.arrays[label].numpy() for label in NAMES})
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (found - trial.start)[~HEAD].norm() > 0.1, "it learned"
    for site in {site for active in trial.rounds for site in active}:
        if own is None:
            continue
        torch.testing.assert_close(own(kept(result, site)), theirs[site], atol=2e-5, rtol=1e-4)


def test_the_papers_algorithms_differ_from_each_other_and_from_fedavg(quick: Quick) -> None:
    """What agrees with one of them to 2e-5 does not agree with another."""
    trial = trial_of(quick(strategy="fedavg", participation={"sites": 2}, **EXACT))
    ends = [papers.fednova(trial, fewest=0)[0], *(algorithm(trial)[0] for _, _, algorithm, _ in CASES)]
    # FedNova of equal steps is FedAvg, and APFL's shared model is FedAvg's too.
    distinct = [end for place, end in enumerate(ends) if all((end - other).norm() > 1e-3 for other in ends[:place])]
    assert len(ends[0]) == SIZE and len(distinct) == len(ends) - 3
