"""Flows: densities against known ones, drawing against densities, and what batch norm does to clipping."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from polyclinic.errors import ConfigError
from polyclinic.models.flows import ConditionalFlow, flow
from polyclinic.models.tabular import initialise
from polyclinic.training.auditing.densities import BatchNormStep
from polyclinic.training.modules import check_behaviour
from polyclinic_studies.flows.published import (
    clipped_sum,
    clipped_sum_at_once,
    influence,
    published_flow,
)


def jumbled(kind: str, features: int = 3, context: int = 2, seed: int = 0) -> ConditionalFlow:
    """A flow whose arrays are all away from where they begin, float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = flow(kind, features, context, transforms=2, hidden=(8,)).double()
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.4)
    return made


def test_it_begins_as_the_standard_normal() -> None:
    x = torch.linspace(-3, 3, 20, dtype=torch.float64).reshape(5, 4)
    expected = multivariate_normal(np.zeros(3)).logpdf(x[:, :3].numpy())
    for kind in ("maf", "nsf"):
        found = -flow(kind, 3, 1).double()(x)
        assert found.shape == (5, 1)
        np.testing.assert_allclose(found[:, 0].detach().numpy(), expected, rtol=1e-6)


def test_an_affine_flow_has_scipys_density() -> None:
    """Without inner layers' weights a step is u = x exp(a) + b: an independent normal, of known mean and deviation."""
    made = flow("maf", 2, transforms=1, hidden=(4,)).double()
    shift, log_scale = np.array([0.3, -1.0]), np.array([0.2, -0.4])
    last = made.steps[0].get_submodule("hyper")[-1]  # type: ignore[index]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.from_numpy(np.stack([shift, log_scale], 1).ravel()))
    x = np.random.default_rng(0).normal(size=(50, 2))
    # zuko keeps the log-scale within a soft bound: a / (1 + |a| / log 1000).
    scale = np.exp(log_scale / (1 + np.abs(log_scale) / np.log(1e3)))
    expected = multivariate_normal(-shift / scale, np.diag(scale**-2.0)).logpdf(x)
    np.testing.assert_allclose(-made(torch.from_numpy(x))[:, 0].detach().numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["maf", "nsf"])
def test_the_density_is_of_what_is_drawn(kind: str) -> None:
    """Base numbers carried to x have, by the change of variables with autograd's Jacobian, the density that is stated."""
    made = jumbled(kind)
    base = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    context = torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1, 0, 1]]
    x = made.draw(base, context)

    def there(row: Tensor, given: Tensor) -> Tensor:
        for step in made.steps:
            row = step(given)(row)
        return row

    for i in range(len(x)):
        torch.testing.assert_close(there(x[i], context[i]), base[i], atol=1e-6, rtol=1e-6)
        jacobian = torch.autograd.functional.jacobian(lambda row, i=i: there(row, context[i]), x[i])  # type: ignore[no-untyped-call]
        expected = multivariate_normal(np.zeros(3)).logpdf(base[i].numpy()) + torch.linalg.slogdet(jacobian)[1].item()
        found = -made(torch.cat([x[i], context[i]])[None]).item()
        assert found == pytest.approx(expected, abs=1e-6)
    assert not torch.allclose(made(torch.cat([x, context], 1)), made(torch.cat([x, context.flip(1)], 1)))


def test_a_density_sums_to_one() -> None:
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    for kind in ("maf", "nsf"):
        made = jumbled(kind, 1, 0)
        mass = torch.trapezoid(torch.exp(-made(grid[:, None])[:, 0]), grid)
        assert mass.item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("hidden", "whole"), [((), True), ((6,), True), ((2,), False)])
def test_a_number_depends_on_all_before_it_unless_units_are_too_few(hidden: tuple[int, ...], whole: bool) -> None:
    made = flow("maf", 5, transforms=1, hidden=hidden).double()
    draws = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=draws)
    base = torch.randn(5, dtype=torch.float64, generator=draws)
    jacobian = torch.autograd.functional.jacobian(lambda row: made.steps[0](None)(row), base)  # type: ignore[no-untyped-call]
    assert not jacobian.triu(1).any()
    assert bool((jacobian.tril() != 0).sum() == 15) is whole


def test_without_layers_it_is_a_normal_law_of_each_context() -> None:
    made = flow("maf", 4, 2, transforms=1, hidden=()).double()
    draws = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7, generator=draws)
    deviations = []
    for context in torch.eye(2, dtype=torch.float64):
        base = torch.cat([torch.zeros(1, 4), torch.eye(4)]).double()
        points = made.draw(base, context.expand(5, 2))
        mean, root = points[0], (points[1:] - points[0]).T
        deviations.append(root.diagonal())
        rows = torch.randn(6, 4, dtype=torch.float64, generator=draws)
        expected = multivariate_normal(mean.numpy(), (root @ root.T).numpy()).logpdf(rows.numpy())
        found = -made(torch.cat([rows, context.expand(6, 2)], 1))[:, 0].detach()
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert not torch.allclose(*deviations)


def test_its_arrays_are_its_parameters_alone() -> None:
    made = flow("nsf", 3, 2)
    assert set(made.state_dict()) == {name for name, _ in made.named_parameters()}
    assert any(buffer.dtype == torch.bool for buffer in made.buffers())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "mfa"}, "Did you mean 'maf'"),
        ({"transforms": 0}, "must be 1 or more"),
        ({"hidden": (0,)}, "must be 1 or more"),
        ({"activation": "sine"}, "allowed are relu, tanh, elu"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        flow(**{"kind": "maf", "features": 2} | options)  # type: ignore[arg-type]


def test_batch_norm_inverts_the_density_of_a_known_batch() -> None:
    step = BatchNormStep(2).double().train()
    x = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 3.0]], dtype=torch.float64)
    u, slope = step.call_and_ladj(x)
    np.testing.assert_allclose(u.detach().mean(0).numpy(), 0.0, atol=1e-12)
    np.testing.assert_allclose(u.detach().var(0, correction=0).numpy(), 1.0, atol=1e-4)
    expected = -0.5 * np.log(x.numpy().var(0) + 1e-5).sum()
    np.testing.assert_allclose(slope.detach().numpy(), expected)
    np.testing.assert_allclose(step.running_mean.numpy(), 0.1 * x.numpy().mean(0))


def test_the_published_flow_is_drawn_from_by_its_running_statistics_and_clipped_as_by_a_loop() -> None:
    draws = torch.Generator().manual_seed(0)
    rows = 2 * torch.randn(9, 4, generator=draws, dtype=torch.float64) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = published_flow(4, blocks=2, hidden=6).double()
    for clip in (0.5, 1e9):
        expected = clipped_sum(module.train(), rows, clip)
        np.testing.assert_allclose(clipped_sum_at_once(module, rows, clip).numpy(), expected.numpy(), atol=1e-9)
    base, _ = module.eval().whiten_rows(rows)
    np.testing.assert_allclose(module.draw(base.detach(), rows[:, :0]).numpy(), rows.numpy(), atol=1e-9)
    assert not np.allclose(base.detach().numpy(), module.train().whiten_rows(rows)[0].detach().numpy(), atol=1e-3)


def _build(batch_norm: bool) -> Callable[[], nn.Module]:
    return lambda: published_flow(3, 1, blocks=2, hidden=8, batch_norm=batch_norm)


def test_hospitals_refuse_the_published_flow_for_its_batch_norm_alone() -> None:
    for batch_norm in (False, True):
        build = _build(batch_norm)
        arrays = {name: value.numpy() for name, value in initialise(build, 0).items()}
        if batch_norm:
            with pytest.raises(ConfigError, match="mixes patients"):
                check_behaviour(build, arrays, 4)
        else:
            check_behaviour(build, arrays, 4)


def test_batch_norm_lets_one_record_move_far_more_than_the_clip() -> None:
    """Su et al. 2023 clip each record to C = 5; an outlier moved their clipped sum by 10 C with one block, 56 C with five."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 4, generator=draws, dtype=torch.float64)
    rows[0] = 8.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        apart = published_flow(4, blocks=2, hidden=10, batch_norm=False).double()
        mixed = published_flow(4, blocks=2, hidden=10).double()
    assert influence(apart, rows, 5.0).max() <= 1 + 1e-9
    found = influence(mixed, rows, 5.0)
    assert found[0] > 5
    assert found[1:].median() < found[0] / 3
