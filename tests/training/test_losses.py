"""The losses' two forms against each other and against values worked out by hand; the engines with each of them."""

import math

import pytest
import torch
from torch import Tensor

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import mlp
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training import classification
from polyclinic.training.losses import LOSSES, losses_and_gradients, row_losses
from polyclinic.training.stacked.engines import choose, sums
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteWork
from tests.training.test_engines import made, models
from tests.training.test_stacked import assert_equal, double, opacus, settings, start_of

OUTPUTS = {"cross-entropy": 3, "logistic": 1, "wasserstein": 1, "auxiliary": 3, "discriminative": 5, "density": 1}
LABELS = {"cross-entropy": 3, "logistic": 2, "wasserstein": 2, "auxiliary": 4, "discriminative": 4, "density": 2}


def some(loss: str, shape: tuple[int, ...], scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(*shape, OUTPUTS[loss], generator=generator, dtype=torch.float64)
    return outputs, torch.randint(0, LABELS[loss], shape, generator=generator)


def test_every_loss_is_tested() -> None:
    assert set(LOSSES) == set(OUTPUTS)


@pytest.mark.parametrize("scale", [1.0, 50.0, 1000.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_closed_form_is_the_derivative(loss: str, scale: float) -> None:
    outputs, labels = some(loss, (40,), scale)
    outputs.requires_grad_()
    expected = row_losses(loss, outputs, labels)
    value, gradient = losses_and_gradients(loss, outputs.detach(), labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), outputs)[0], rtol=1e-13, atol=1e-13)
    stacked = losses_and_gradients(loss, outputs.detach().view(2, 20, -1), labels.view(2, 20))
    assert torch.equal(stacked[0].flatten(), value) and torch.equal(stacked[1].flatten(0, 1), gradient)


def test_values_by_hand() -> None:
    outputs, real = torch.tensor([[2.0], [2.0]]), torch.tensor([1, 0])
    told = row_losses("logistic", outputs, real).tolist()
    assert told == pytest.approx([math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))])
    assert row_losses("wasserstein", outputs, real).tolist() == [-2.0, 2.0]
    # y = 5: real, of label 2 of three; log 2 for the even logit, log 3 for the even labels.
    told = row_losses("auxiliary", torch.zeros(1, 4), torch.tensor([5])).tolist()
    assert told == pytest.approx([math.log(2) + math.log(3)])
    gradient = losses_and_gradients("auxiliary", torch.zeros(1, 4), torch.tensor([5]))[1]
    torch.testing.assert_close(gradient, torch.tensor([[-1 / 2, 1 / 3, 1 / 3, -2 / 3]]))
    # y = 2: generated, of label 1 of two; log 2 for the even logit, log 4 for the even pairs.
    told = row_losses("discriminative", torch.zeros(1, 5), torch.tensor([2])).tolist()
    assert told == pytest.approx([math.log(2) + math.log(4)])
    gradient = losses_and_gradients("discriminative", torch.zeros(1, 5), torch.tensor([2]))[1]
    torch.testing.assert_close(gradient, torch.tensor([[1 / 2, 1 / 4, 1 / 4, -3 / 4, 1 / 4]]))


@pytest.mark.parametrize(
    ("loss", "outputs", "told"),
    [
        ("wassertein", 1, "'wassertein' is unknown.*Did you mean 'wasserstein'"),
        ("logistic", 2, "'logistic' takes a model with one output; this one has 2"),
        ("auxiliary", 1, "'auxiliary' takes a model with one output and another for each label; this one has 1"),
        ("discriminative", 4, "'discriminative' takes a model with one output and two for each label; this one has 4"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(loss: str, outputs: int, told: str) -> None:
    for form in (row_losses, losses_and_gradients):
        with pytest.raises(ConfigError, match=told):
            form(loss, torch.zeros(2, outputs), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("max_norm", [0.3, None])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_stacking_engines_agree(loss: str, max_norm: float | None, rows: int) -> None:
    batch = made(3, 7, rows)
    batch.y.remainder_(LABELS[loss])
    module, theta = models(lambda: mlp(6, OUTPUTS[loss], (8,)), 3)
    ours, theirs = (sums(module, engine, max_norm, 4, loss)(theta, batch) for engine in ("linear", "functional"))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise_multiplier", [0.7, None])
@pytest.mark.parametrize("loss", LOSSES)
def test_pairs_of_rows_train_as_site_by_site(loss: str, noise_multiplier: float | None) -> None:
    def work() -> list[SiteWork]:
        found = []
        for site, patients in enumerate((9, 30)):
            x, y = some(loss, (2 * patients,), 1.0)
            x = torch.cat([x, torch.ones(len(x), 6 - x.shape[1])], 1)
            shard = Rows(x.numpy(), y.numpy(), torch.arange(patients).repeat(2).numpy(), patients)
            streams = (keyed_stream(0, name, site) for name in ("batches", "noise"))
            found.append(SiteWork(shard, *streams, patients + 0.5))
        return found

    build = double(lambda: mlp(6, OUTPUTS[loss], (8,)))
    chosen, start = settings(loss=loss, noise_multiplier=noise_multiplier), start_of(build)
    theirs = opacus(build, start, work(), chosen)
    for engine in ("linear", "functional"):
        assert_equal(train_stacked(build, start, work(), chosen, engine), theirs, 1e-10)  # type: ignore[arg-type]
    assert_equal(classification.train(build, start, work(), chosen), theirs, 1e-10)


@pytest.mark.parametrize("engine", ["auto", "linear", "functional", "opacus"])
def test_a_model_of_one_output_is_a_model(engine: str) -> None:
    build = lambda: mlp(6, 1, (4,))  # noqa: E731
    start = start_of(build)
    classification.check(build, start, 6, engine)
    assert choose(build(), 6, engine) == ("linear" if engine == "auto" else engine)
