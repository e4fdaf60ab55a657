"""Training towards each objective: the three engines agree, a patient is bounded and computed apart, and outputs are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from polyclinic.config import RunConfig
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import logistic, mlp
from polyclinic.objectives.objective import WithHead, made_up_labels, with_head
from polyclinic.privacy.streams import keyed_stream
from polyclinic.programs import program_of
from polyclinic.programs.building import Model
from polyclinic.training.classification import Towards
from polyclinic.training.losses import row_losses
from polyclinic.training.stacked.engines import choose
from polyclinic.training.task import SiteWork
from tests.objectives.cohorts import schema
from tests.objectives.test_objectives import TAKEN, made
from tests.training.test_stacked import assert_equal, settings, start_of

FEATURES = 4


def builder(name: str, model: str = "mlp") -> Callable[[], nn.Module]:
    objective = made(name)
    build = with_head(Model(RunConfig(model=model, hidden="6")).builder(FEATURES, objective.outputs, None), objective)
    return lambda: build().double()


def work(name: str, sizes: tuple[int, ...] = (7, 30), repeats: int = 2) -> list[SiteWork]:
    sites = []
    for site, patients in enumerate(sizes):
        rng = np.random.default_rng(site)
        patient = rng.permutation(np.repeat(np.arange(patients), repeats))
        labels = rng.permutation(made_up_labels(made(name).labels, len(patient)))
        rows = Rows(2 * rng.normal(size=(len(patient), FEATURES)), labels, patient, patients)
        streams = (keyed_stream(0, stream, site) for stream in ("batches", "noise"))
        sites.append(SiteWork(rows, *streams, patients + 0.5))
    return sites


@pytest.mark.parametrize("noise_multiplier", [0.7, None])
@pytest.mark.parametrize("name", TAKEN)
def test_the_engines_agree(name: str, noise_multiplier: float | None) -> None:
    build, chosen = builder(name), settings(noise_multiplier=noise_multiplier)
    task, start = Towards(made(name)), start_of(builder(name))
    theirs = task.train(build, start, work(name), replace(chosen, engine="opacus"))
    fastest = choose(build(), FEATURES)
    assert fastest == ("layered" if made(name).head() else "linear")
    for engine in {fastest, "functional"}:
        assert_equal(task.train(build, start, work(name), replace(chosen, engine=engine)), theirs, 1e-9)


@pytest.mark.parametrize("name", TAKEN)
def test_patients_apart_make_the_same_model_and_one_moves_it_no_further_than_the_norm(name: str) -> None:
    build, task = builder(name, "logistic"), Towards(made(name))
    start = start_of(build)
    chosen = settings(noise_multiplier=0.0, max_grad_norm=0.1, sample_rate=1.0, local_steps=1, learning_rate=1.0)
    (together,) = task.train(build, start, work(name, (30,)), chosen)
    (apart,) = task.train(build, start, work(name, (30,)), replace(chosen, apart=True))
    assert_equal([apart], [together], 1e-9)
    (site,) = work(name, (30,))
    fewer = replace(site, rows=site.rows.of_patients(np.arange(30) != 3))
    (without,) = task.train(build, start, [fewer], replace(chosen, apart=True))
    moved = np.concatenate([(apart.arrays[key] - without.arrays[key]).ravel() for key in start]) * 30.5
    assert 0 < np.linalg.norm(moved) <= 0.1 + 1e-9


def test_another_number_of_outputs_is_refused_before_anything_is_charged() -> None:
    config = RunConfig(
        objective="quantile", objective_options={"levels": [0.1, 0.9]}, model="tests.objectives.test_training:wide"
    )
    with pytest.raises(
        ConfigError, match=r"the shape \(7, 5\) for 7 rows; it must give one tensor.* of the shape \(7, 2\)"
    ):
        program_of(config).check(schema("days"))
    with pytest.raises(ConfigError, match="'quantile', which takes a model of 3 outputs; this one has 2"):
        row_losses(made("quantile"), torch.zeros(4, 2), torch.zeros(4))


def wide(features: int, classes: int, widths: Sequence[int]) -> nn.Module:
    """A model that gives five numbers whatever is asked for."""
    return logistic(features, 5)


def test_the_head_stands_behind_the_model_and_passes_its_representation_on() -> None:
    build = builder("ordinal")
    whole = build()
    assert isinstance(whole, WithHead) and whole.representation == f"0.{mlp(FEATURES, 1, (6,)).representation}"
    assert whole.get_submodule(whole.representation) is whole[0][1]
    assert "1.rising" in whole.state_dict()
    Towards(made("ordinal")).check(build, start_of(build), FEATURES)
