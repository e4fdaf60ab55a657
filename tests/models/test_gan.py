"""Generators and critics: published sizes and shapes, what private training takes of them, and moment matching."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.models.gan import OfLabel, Planes, Products, mlp_critic, mlp_generator, moment_critic
from polyclinic.models.gan_dpgan import codes_critic, codes_generator, dcgan_generator, dpgan_generator, picture_critic
from polyclinic.models.gan_trials import MIMIC, SPRINT, Form, TrialGenerator
from polyclinic.models.tabular import initialise
from polyclinic.training import classification
from polyclinic.training.modules import check_module
from polyclinic.training.stacked.engines import choose
from polyclinic_studies.published_games.networks import trial_critic


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_ac_gan_has_the_published_parameters() -> None:
    assert parameters(TrialGenerator(SPRINT)) == 333_897
    assert parameters(trial_critic(SPRINT)) == 1_858_947
    assert (parameters(TrialGenerator(MIMIC)), parameters(trial_critic(MIMIC))) == (605_289, 2_055_555)


def test_the_ac_gan_has_the_published_shapes() -> None:
    shapes = [tuple(p.shape) for p in TrialGenerator().parameters()]
    assert shapes == [(2, 100), (256, 100), (256,), (384, 256), (384,), (256, 32, 5, 5), (256,), (1, 256, 4, 4), (1,)]
    x, shapes = torch.zeros(2, 36), []
    for layer in trial_critic():
        x = layer(x)
        shapes += [tuple(x.shape[1:])] if isinstance(layer, nn.Conv2d | nn.Linear) else []
    assert shapes == [(32, 2, 6), (64, 2, 6), (1024,), (1024,), (3,)]


@pytest.mark.parametrize("form", [SPRINT, MIMIC, Form.of(2, 7), Form.of(5, 3)])
@pytest.mark.parametrize("labels", [1, 2, 4])
def test_trials_of_any_form(form: Form, labels: int) -> None:
    rows = TrialGenerator(form, labels)(torch.rand(4, 100), torch.arange(4) % labels)
    assert rows.shape == (4, form.columns)
    assert trial_critic(form, labels)(rows).shape == (4, 1 + labels)
    critic = trial_critic(form, labels, label_columns=labels).eval()
    told = critic(torch.cat([rows, torch.zeros(4, labels)], 1))
    assert torch.equal(told, critic(torch.cat([rows, torch.ones(4, labels)], 1)))
    assert Form.of(3, 12) is SPRINT and Form.of(9, 5) is MIMIC


def test_keras_pads_an_odd_cell_to_the_right() -> None:
    critic = trial_critic()
    first = critic[2]
    nn.init.ones_(first.weight)
    x = torch.zeros(1, 36)
    x[0, 0] = 1.0  # first series, first visit
    assert critic[:3](x)[0, 0].tolist() == [[1.0, 0, 0, 0, 0, 0], [0.0] * 6]
    x = torch.zeros(1, 36)
    x[0, 14] = 1.0  # second series, third visit: the last column of one patch and the first of the next
    assert critic[:3](x)[0, 0].tolist() == [[1.0, 1.0, 0, 0, 0, 0]] * 2


GENERATORS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "trials": (TrialGenerator, 100, 36),
    "mlp": (lambda: mlp_generator(7, 5, 3, (9, 4)), 5, 7),
    "affine": (lambda: mlp_generator(7, 5, widths=()), 5, 7),
    "dpgan": (lambda: dpgan_generator(64, labels=2), 100, 64),
    "dcgan": (lambda: dcgan_generator(28, labels=10), 100, 784),
    "small dcgan": (lambda: dcgan_generator(8, latent=16), 16, 64),
    "dcgan of the paper": (lambda: dcgan_generator(28, batch_norm=True), 100, 784),
    "codes": (lambda: codes_generator(1071), 128, 1071),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_make_rows_that_depend_on_latent_and_label(name: str) -> None:
    build, latent, columns = GENERATORS[name]
    module = build().eval()
    rng = torch.Generator().manual_seed(0)
    z, label = torch.rand(6, latent, generator=rng), torch.arange(6) % 2
    rows = module(z, label)
    assert rows.shape == (6, columns) and torch.isfinite(rows).all()
    assert (rows[0] != rows[1]).any()
    labelled = getattr(module, "labels", 2) > 0
    assert torch.equal(module(z, 1 - label), rows) == (not labelled)
    if name not in ("trials", "mlp", "affine"):
        assert float(rows.detach().min()) >= 0 and float(rows.detach().max()) <= 1


def test_dpgans_sizes() -> None:
    linear = [100 * 512 + 512, 2 * (512 * 512 + 512), 512 * 784 + 784]
    assert parameters(dpgan_generator(784)) == sum(linear) + 3 * 1024
    conv = [64 * 16 + 64, 128 * 64 * 16 + 128, 128 * 49 * 1024 + 1024, 1025]
    assert parameters(picture_critic(28)) == sum(conv)
    assert parameters(codes_critic(1071)) == 1071 * 256 + 256 + 256 * 128 + 128 + 129
    deconv = [100 * 1024 + 1024, 1024 * 6272 + 6272, 128 * 64 * 16 + 64, 64 * 16 + 1]
    assert parameters(dcgan_generator(28)) == sum(deconv)
    with pytest.raises(ConfigError, match="side is 10"):
        picture_critic(10)


CRITICS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "trials": (lambda: trial_critic(Form.of(2, 4), 2, 2), 10, 3),
    "mlp": (lambda: mlp_critic(7, 1, (9, 4)), 7, 1),
    "affine": (lambda: mlp_critic(7, 3, ()), 7, 3),
    "moments": (lambda: moment_critic(7, 1, 2), 7, 1),
    "digits": (lambda: picture_critic(8, 3), 67, 1),
    "codes": (lambda: codes_critic(40), 40, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CRITICS)
def test_private_training_takes_every_critic_in_closed_form(name: str) -> None:
    build, columns, outputs = CRITICS[name]
    arrays = {key: value.numpy() for key, value in initialise(build, 0).items()}
    classification.check(build, arrays, columns, "linear")
    assert choose(build(), columns) == "linear"
    assert build()(torch.zeros(5, columns)).shape == (5, outputs)


def test_the_published_critics_of_full_size_are_taken_too() -> None:
    assert [choose(trial_critic(), 36), choose(trial_critic(MIMIC), 45), choose(picture_critic(28), 784)] == [
        "linear"
    ] * 3


@pytest.mark.parametrize("side", [8, 28])
def test_a_critic_with_batch_norm_is_refused(side: int) -> None:
    check_module(picture_critic(side))
    with pytest.raises(ConfigError, match="mixes patients"):
        check_module(picture_critic(side, batch_norm=True))


def test_planes_hold_the_label_at_every_pixel() -> None:
    picture = Planes(2, 3, 2)(torch.tensor([[1.0, 2, 3, 4, 5, 6, 0, 1]]))
    assert picture.tolist() == [[[[1, 2, 3], [4, 5, 6]], [[0, 0, 0]] * 2, [[1, 1, 1]] * 2]]


def test_products_are_of_each_label_alone() -> None:
    assert Products(3)(torch.tensor([[1.0, 2, 3]])).tolist() == [[1, 2, 3, 1, 2, 3, 4, 6, 9]]
    gated = Products(4, 2)(torch.tensor([[2.0, 3, 0, 1], [2, 3, 1, 0]]))
    assert gated.tolist() == [[0, 1, 0, 0, 0, 0, 0, 2, 3, 4, 6, 9], [1, 0, 2, 3, 4, 6, 9, 0, 0, 0, 0, 0]]
    assert Products(4, 2).width == 12 and Products(3).width == 9 and not Products(3).state_dict()


def test_a_moment_critic_tells_tables_apart_by_their_moments_alone() -> None:
    rng = np.random.default_rng(0)
    real = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 4000)
    other = rng.permuted(real, axis=0)  # the same columns without their correlation
    signs = rng.choice([-1.0, 1.0], real.shape)  # not normal, but of the same moments as the real rows
    signs = (signs - signs.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(signs.T)).T)
    signs = signs @ np.linalg.cholesky(np.cov(real.T)).T + real.mean(0)

    def gap(rows: np.ndarray) -> float:
        products = Products(2)
        means = [products(torch.from_numpy(table)).mean(0) for table in (real, rows)]
        return float((means[0] - means[1]).abs().max())

    assert gap(other) > 0.7 and gap(signs) < 0.01


def test_a_critic_of_labels_scores_each_row_by_its_own_label_and_trains_in_closed_form() -> None:
    critic = OfLabel(mlp_critic(4, 3, (8,)), 3)
    x = torch.randn(6, 4)
    scores = critic.body(x)
    for label in range(3):
        rows = torch.cat([x, nn.functional.one_hot(torch.full((6,), label), 3).float()], 1)
        torch.testing.assert_close(critic(rows), scores[:, label : label + 1])
    assert choose(critic, 7) == "layered"
