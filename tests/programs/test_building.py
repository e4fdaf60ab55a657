"""A run's model: what its builder gets, what Python may give for it, and what is refused before anything is charged."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, traceback_of
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise
from polyclinic.naming import check_reach
from polyclinic.plugins import dataset_named
from polyclinic.programs.building import Model

Quick = Callable[..., RunResult]
HERE = __name__
MADE: list[dict[str, Any]] = []


def asking(features: int, outputs: int, schema: Schema, depth: int = 1, **more: Any) -> nn.Module:
    MADE.append({"features": features, "outputs": outputs, "schema": schema, "depth": depth, **more})
    return nn.Linear(features, outputs)


def older(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Linear(features, classes)


def needing(features: int, outputs: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.Linear(width, outputs))


class Net(nn.Module):
    """What a forward gives is what ``shape`` makes of two logits."""

    def __init__(self, features: int, outputs: int = 2, shape: str = "plain") -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(features, outputs), shape

    def forward(self, x: Tensor) -> Any:
        made: Tensor = self.layer(x)
        return {
            "plain": lambda: made, "flat": lambda: made[:, 0], "tuple": lambda: (made, x), "whole": lambda: made.argmax(1),
            "softmax": lambda: made.softmax(1), "fixed": lambda: x[:, :2], "fails": lambda: self.layer(x[:, :3]),
        }[self.shape]()  # fmt: skip


class Normed(nn.Sequential):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))


def model(**keys: Any) -> Model:
    return Model(RunConfig.build(keys))


def test_a_builder_gets_what_its_parameters_name_and_its_options() -> None:
    schema = dataset_named("breast-cancer").schema
    model(model=f"{HERE}:asking", model_options={"depth": 3, "name": "x"}).builder(30, 2, schema)()
    assert MADE.pop() == {"features": 30, "outputs": 2, "schema": schema, "depth": 3, "name": "x"}
    assert model(model=f"{HERE}:asking").asks_schema and not model(model=f"{HERE}:older").asks_schema
    assert model(model=f"{HERE}:older").builder(5, 3, None)()(torch.zeros(1, 5)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Net", "shpae='flat'", "has no option 'shpae'; allowed are outputs, shape. Did you mean 'shape'?"),
        ("older", "features=3", "has no option 'features'; allowed are none."),
        ("needing", "", "needs the option 'width'; give it in model-options, as 'width=1'."),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(name: str, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match="The model .*") as refused:
        Federation().run(model=f"{HERE}:{name}", model_options=options)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("flat", r"gives the shape \(7,\) for 7 rows; it must give one tensor .* \(7, 2\) or \(7, 1\)"),
        ("tuple", "gives a tuple of 2 for 7 rows"),
        ("whole", "gives numbers of the type int64"),
        ("fixed", "gives numbers that no trainable parameter changes"),
        ("fails", "fails on 7 made-up rows of 30 features: RuntimeError: mat1 and mat2"),
    ],
)
@pytest.mark.parametrize("dp", [True, False])
def test_outputs_that_cannot_be_trained_are_refused_before_anything_is_charged(
    quick: Quick, tmp_path: Path, shape: str, words: str, dp: bool
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        quick(model=f"{HERE}:Net", model_options={"shape": shape}, privacy={"dp": dp})
    assert not list(tmp_path.rglob("ledger*"))
    if shape == "fails":
        assert refused.value.__cause__ is not None
        assert traceback_of(refused.value.__cause__).splitlines()[1].endswith("in forward")


def test_probabilities_in_place_of_logits_are_warned_of(quick: Quick, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="polyclinic.programs.supervised"):
        quick(model=f"{HERE}:Net", model_options={"shape": "softmax"}, rounds=1, privacy={"dp": False})
        assert [record.getMessage().partition(", as of")[0] for record in caplog.records] == [
            f"The model '{HERE}:Net' gives probabilities"
        ]
        caplog.clear()
        quick(model=f"{HERE}:Net", rounds=1, privacy={"dp": False})
        assert not caplog.records


def test_a_module_is_copied_and_begins_with_the_weights_that_it_has_now(quick: Quick) -> None:
    module = Net(30)
    began = {name: value.clone() for name, value in module.state_dict().items()}
    federation = Federation.from_dataset("breast-cancer", model=module)
    with torch.no_grad():
        module.layer.weight.zero_()
    first = Model(federation.config).builder(30, 2, None)
    for seed in (0, 1):
        assert all(torch.equal(initialise(first, seed)[name], value) for name, value in began.items())
    result = quick(model=module, rounds=1, privacy={"dp": False})
    assert not module.layer.weight.any() and np.any(result.model.layer.weight.detach().numpy())


def test_partials_lambdas_and_classes_are_models(quick: Quick) -> None:
    options = {"rounds": 1, "privacy": {"dp": False}}
    by_name = quick(model=f"{HERE}:Net", model_options="outputs=1", **options)
    assert (
        quick(model=Net, model_options={"outputs": 1}, **options).summary["model_sha256"]
        == by_name.summary["model_sha256"]
    )
    by_partial = quick(model=partial(Net, outputs=1), **options)
    assert by_partial.config == by_name.config.with_values({"out": by_partial.config.out})
    held = quick(model=lambda features: nn.Sequential(nn.Linear(features, 3), nn.ReLU(), nn.Linear(3, 2)), **options)
    assert held.config.model.startswith("polyclinic.models.held:")
    with pytest.raises(ConfigError, match="which worker processes cannot see"):
        check_reach(held.config.with_values({"workers": 2}))
    with pytest.raises(ConfigError, match="an object of the Python session"):
        Federation().run(model="polyclinic.models.held:gone")


def test_batch_norm_is_refused_under_privacy_alone(quick: Quick) -> None:
    with pytest.raises(ConfigError, match="mixes patients"):
        quick(model=f"{HERE}:Normed")
    result = quick(
        model=f"{HERE}:Normed", rounds=2, sites=2, privacy={"dp": False}, training={"local_steps": 3, "sample_rate": 1.0},
        data={"standardise": "none"},
    )  # fmt: skip
    buffers = dict(result.model.named_buffers())
    assert buffers["1.running_mean"].abs().max() > 0.01 and int(buffers["1.num_batches_tracked"]) == 6
    assert result.pooled["auroc"] > 0.8


def test_one_logit_learns_as_two_whose_first_is_zero() -> None:
    from polyclinic.training.losses import losses_and_gradients, row_losses

    score, label = torch.randn(9, 1, dtype=torch.float64), torch.arange(9) % 2
    two = functional.cross_entropy(functional.pad(score, (1, 0)), label, reduction="none")
    torch.testing.assert_close(row_losses("cross-entropy", score, label), two)
    losses, slope = losses_and_gradients("cross-entropy", score, label)
    torch.testing.assert_close(losses, two)
    torch.testing.assert_close(slope, score.sigmoid() - label[:, None])


@pytest.mark.parametrize("engine", ["linear", "functional", "opacus"])
def test_a_one_logit_head_trains_privately_and_gives_two_columns(quick: Quick, engine: str) -> None:
    result = quick(model_options="outputs=1", rounds=3, training={"engine": engine, "local_steps": 3})
    assert result.model[0].weight.shape == (1, 30)
    assert result.pooled["auroc"] > 0.9 and 0 < result.privacy["epsilon"] <= 3
