"""Convolutions, dropout and layers without parameters in closed form: against torch.func, Opacus and the bound."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from polyclinic.models.gan import Leading, Planes, moment_critic
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training import classification
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.engines import choose, sums
from polyclinic.training.stacked.layers import Masks, plan
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteUpdate
from tests.training.test_engines import FEATURES, made, models
from tests.training.test_stacked import SIZES, assert_equal, double, opacus, settings, start_of, work

Build = Callable[[], nn.Module]


def pictures() -> nn.Module:
    """2 x 3 pictures; of the three convolutions the second is measured by Gram matrices."""
    first = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.ZeroPad2d((0, 1, 1, 0)), nn.Conv2d(1, 4, 2), nn.LeakyReLU(0.3))
    second = (nn.Conv2d(4, 40, 3, padding="same"), nn.ReLU())
    third = nn.Conv2d(40, 3, (1, 2), stride=(1, 2), padding=(0, 1), bias=False)
    return nn.Sequential(first, *second, third, nn.Flatten(), nn.Linear(12, 3))


def planes() -> nn.Module:
    """2 x 2 pictures with two labels as planes, and a dilated kernel."""
    return nn.Sequential(
        Planes(2, 2, 2), nn.Conv2d(3, 5, 2, padding=2, dilation=3), nn.Tanh(), nn.Flatten(), nn.Linear(45, 3)
    )


def moments() -> nn.Module:
    return moment_critic(FEATURES, 3, label_columns=2)


def leading() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), Leading(4), nn.Sigmoid(), nn.Linear(4, 3))


STACKS = {"pictures": pictures, "planes": planes, "moments": moments, "leading": leading}


@pytest.mark.parametrize("max_norm", [0.3, None])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 3e-5)])
@pytest.mark.parametrize("name", STACKS)
def test_closed_form_equals_per_example(
    name: str, rows: int, max_norm: float | None, dtype: torch.dtype, tolerance: float
) -> None:
    batch = made(3, 5, rows, dtype)
    module, theta = models(STACKS[name], 3, dtype)
    assert choose(module, FEATURES) == "linear"
    ours, theirs = (sums(module, engine, max_norm, 9)(theta, batch) for engine in ("linear", "functional"))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("repeats", [1, 4])
@pytest.mark.parametrize("name", STACKS)
def test_it_equals_training_site_by_site(name: str, repeats: int) -> None:
    build, chosen = double(STACKS[name]), settings(local_steps=2)
    start = start_of(build)
    classification.check(build, start, FEATURES, "linear")
    theirs = opacus(build, start, work(SIZES, repeats), chosen)
    assert_equal(train_stacked(build, start, work(SIZES, repeats), chosen, "linear"), theirs, 1e-10)
    small = train_stacked(build, start, work(SIZES, repeats), chosen, "linear", 20_000)
    assert_equal(small, theirs, 1e-10)


scale = st.integers(-30, 30).map(lambda power: 10.0**power)


@examples(max_examples=40)
@given(
    inputs=scale, second=scale, max_norm=st.sampled_from([1e-6, 1.0, 1e3]), rows=st.sampled_from([1, 2, 3]),
    opposed=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_no_patient_adds_more_than_the_bound(
    inputs: float, second: float, max_norm: float, rows: int, opposed: bool, seed: int
) -> None:
    batch = made(2, 1, rows, torch.float32, seed)
    batch.x.mul_(inputs)
    if opposed and rows > 1:  # two rows whose gradients nearly cancel
        batch.x[0, 1] = batch.x[0, 0] * (1 + 1e-6)
        batch.y[0, 1] = (batch.y[0, 0] + 1) % 3
    module, theta = models(pictures, 2, torch.float32)
    theta[:, 20:].mul_(second)
    gradient = sums(module, "linear", max_norm, 2)(theta, batch)[0]
    assert torch.isfinite(gradient).all()
    assert bool((torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64) <= max_norm).all())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cell", [float("nan"), float("inf"), 1e38])
def test_a_patient_with_infinite_activations_leaves_the_others_alone(cell: float, rows: int) -> None:
    batch = made(2, 5, rows, torch.float32)
    module, theta = models(pictures, 2, torch.float32)
    theta[:, :16].mul_(10)
    compute = sums(module, "linear", 0.2, 99)
    without = Batch(batch.x, batch.y, batch.weight.clone(), batch.member, batch.patients, batch.one_row)
    without.weight[0, :rows] = 0
    expected = compute(theta, without)[0]
    batch.x[0, :rows] = cell
    torch.testing.assert_close(compute(theta, batch)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_gradient_that_is_finite_is_clipped_not_dropped(rows: int) -> None:
    batch = made(1, 2, rows, torch.float32)
    module, theta = models(pictures, 1, torch.float32)
    batch.x[0, :rows] *= 1e22  # its square is infinite in float32
    gradients = [sums(module, engine, 0.2, 9)(theta, batch)[0] for engine in ("linear", "functional")]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert float(gradients[0].norm()) > 0.1


def dropping(rate: float = 0.4) -> Build:
    return lambda: nn.Sequential(nn.Linear(FEATURES, 9), nn.Tanh(), nn.Dropout(rate), nn.Linear(9, 3))


def test_dropout_is_differentiated_with_the_masks_that_were_drawn() -> None:
    module, theta = models(dropping(), 2)
    batch = made(2, 4, 3)
    seeds = [5, 6]
    gradient, losses = sums(module, "linear", 0.2, 99, seeds=seeds)(theta, batch)
    masks = Masks(seeds).mask(2, 0.4, batch.x.new_zeros(2, 12, 9), batch.weight > 0)
    assert set(masks[0].unique().tolist()) == {0.0, 1 / 0.6}
    for site in range(2):
        parameters = [
            p.clone().view(q.shape).requires_grad_()
            for p, q in zip(
                theta[site].split([q.numel() for q in module.parameters()]), module.parameters(), strict=True
            )
        ]
        expected, loss = torch.zeros_like(theta[site]), 0.0
        for patient in range(4 - site):
            chosen = batch.member[site] == patient
            hidden = torch.tanh(batch.x[site, chosen] @ parameters[0].T + parameters[1]) * masks[site, chosen]
            value = nn.functional.cross_entropy(hidden @ parameters[2].T + parameters[3], batch.y[site, chosen])
            flat = torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])
            expected += flat * min(1.0, 0.2 / (float(flat.norm()) + 1e-6))
            loss += float(value.detach())
        torch.testing.assert_close(gradient[site], expected, rtol=1e-11, atol=1e-12)
        assert float(losses[site]) == pytest.approx(loss)


@pytest.mark.parametrize("repeats", [1, 4])
def test_dropout_depends_on_the_sites_own_stream_alone(repeats: int) -> None:
    build, chosen, sizes = double(dropping()), settings(), (3, 30, 50, 400)
    start = start_of(build)

    def trained(sites: slice, memory_limit: int = 1 << 30) -> list[SiteUpdate]:
        given = [replace(site, layers=keyed_stream(0, "layers", n)) for n, site in enumerate(work(sizes, repeats))]
        return train_stacked(build, start, given[sites], chosen, "linear", memory_limit)

    together, before = trained(slice(None)), torch.random.get_rng_state()
    for site in range(len(sizes)):
        assert_equal(together[site : site + 1], trained(slice(site, site + 1)), 1e-12)
    assert_equal(together, trained(slice(None), 3000), 1e-11)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = replace(work(sizes, repeats)[1], layers=keyed_stream(0, "other"))
    assert (
        train_stacked(build, start, [other], chosen, "linear")[0].arrays["0.weight"] != together[1].arrays["0.weight"]
    ).any()


def test_masks_keep_at_the_rate_and_go_on_from_row_to_row() -> None:
    real = torch.ones(1, 1000, dtype=torch.bool)
    like = torch.zeros(1, 1000, 20)
    whole = Masks([1]).mask(0, 0.3, like, real)
    assert abs(float((whole > 0).float().mean()) - 0.7) < 4 * (0.21 / 20_000) ** 0.5
    assert float(whole.max()) == pytest.approx(1 / 0.7)
    masks = Masks([1])
    parts = [masks.mask(0, 0.3, like[:, :part], real[:, :part]) for part in (7, 493, 500)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert not torch.equal(Masks([1]).mask(1, 0.3, like, real), whole)
    assert not Masks([1]).mask(0, 1.0, like, real).any()
    real[0, ::2] = False
    assert not Masks([1]).mask(0, 0.3, like, real)[0, ::2].any()


def test_dropout_that_is_off_drops_nothing() -> None:
    batch = made(2, 3, 1)
    module, theta = models(dropping(), 2)
    without, _ = models(dropping(0.0), 2)
    expected = sums(without, "linear", 0.2, 9)(theta, batch)[0]
    assert torch.equal(sums(module.eval(), "linear", 0.2, 9)(theta, batch)[0], expected)


def conv(*before: nn.Module, after: nn.Module | None = None, **options: object) -> nn.Module:
    layers = (nn.Conv2d(2, 2, 2, **options), after or nn.Flatten(), nn.Linear(4, 3))  # type: ignore[arg-type]
    return nn.Sequential(*(before or (nn.Unflatten(1, (2, 1, 3)), nn.ZeroPad2d((0, 0, 1, 0)))), *layers)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (conv(groups=2), "groups"),
        (conv(padding=1, padding_mode="circular"), "pads with something else"),
        (conv(after=nn.Flatten(0)), "Flatten joins"),
        (conv(after=nn.Flatten(2)), "Flatten joins"),
        (conv(nn.Unflatten(1, (2, 3))), "Unflatten makes"),
        (conv(nn.Identity()), "Conv2d follows"),
        (conv(after=nn.Identity()), "Linear follows"),
        (nn.Sequential(nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 3, (1, 3))), "not a row of numbers"),
        (nn.Sequential(nn.Unflatten(1, (1, 2, 3)), moment_critic(FEATURES)), "Products follows"),
        (nn.Sequential(nn.Dropout2d(0.5), nn.Linear(FEATURES, 3)), "Dropout2d is not"),
    ],
)  # fmt: skip
def test_what_has_no_closed_form_is_left_to_the_other_engines(module: nn.Module, told: str) -> None:
    found = plan(module)
    assert isinstance(found, str) and told in found


def test_a_critic_of_one_output_takes_pairs() -> None:
    build = double(lambda: nn.Sequential(*list(pictures())[:-1], nn.Linear(12, 1)))  # type: ignore[call-overload]
    start = start_of(build)
    for loss in ("logistic", "wasserstein"):
        sites = [
            [replace(site, rows=replace(site.rows, y=site.rows.y % 2)) for site in work((9, 20), 4)] for _ in range(2)
        ]
        chosen = settings(loss=loss, local_steps=2)
        assert_equal(
            train_stacked(build, start, sites[0], chosen, "linear"), opacus(build, start, sites[1], chosen), 1e-10
        )
