"""Training many sites at once: agreement with the site-by-site trainer, and no dependence on how sites are stacked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from opacus.layers import DPGRU
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.privacy.noise import noise_process
from polyclinic.privacy.streams import keyed_stream
from polyclinic.strategies.fedprox import Proximal
from polyclinic.training import classification
from polyclinic.training.stacked.engines import Engine, choose
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays

Build = Callable[[], nn.Module]


class Convolution(nn.Module):
    """A one-dimensional convolution over the columns, group norm, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.norm(self.convolution(x[:, None]))).flatten(1))
        return out


class Coded(nn.Module):
    """The first column as a code with an embedding, the others beside it; layer norm; a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(9)
        self.head = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = x[:, 0].abs().clamp(max=4).long()
        out: torch.Tensor = self.head(self.norm(torch.cat([self.embedding(code), x[:, 1:]], 1)))
        return out


class Recurrent(nn.Module):
    """The columns as three steps of two values through a gated recurrent unit, in the form that Opacus can take too."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = DPGRU(2, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.unit(x.reshape(len(x), 3, 2))[0][:, -1])
        return out


MODULES: dict[str, tuple[Engine, Build]] = {
    "logistic": ("linear", lambda: logistic(6, 3)),
    "mlp": ("linear", lambda: mlp(6, 3, (8, 5))),
    "nested": (
        "linear",
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 7, bias=False), nn.ReLU()), nn.GELU(), logistic(7, 3)),
    ),
    "mlp-functional": ("functional", lambda: mlp(6, 3, (8, 5))),
    "convolution": ("functional", Convolution),
    "embedding": ("functional", Coded),
    "gru": ("functional", Recurrent),
}  # fmt: skip
SIZES = (1, 40, 7, 300)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors here are too small to be worth a second thread, which only waits on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def double(build: Build) -> Build:
    return lambda: build().double()


def settings(**changes: object) -> TrainSettings:
    values: dict[str, object] = {
        "sample_rate": 0.3, "local_steps": 4, "learning_rate": 0.2, "max_grad_norm": 0.4, "noise_multiplier": 0.7,
    }  # fmt: skip
    return TrainSettings(**(values | changes))  # type: ignore[arg-type]


def rows(patients: int, repeats: int, seed: int) -> Rows:
    """Patients of 1 to ``repeats`` rows each (powers of two: their inverses are exact), in mixed order."""
    rng = np.random.default_rng(seed)
    counts = 2 ** rng.integers(0, int(np.log2(repeats)) + 1, patients)
    patient = rng.permutation(np.repeat(np.arange(patients), counts))
    x = 2 * rng.normal(size=(len(patient), 6))
    x[rng.random(x.shape) < 0.02] = np.nan
    return Rows(x, rng.integers(0, 3, len(patient)), patient, patients)


def work(
    sizes: Sequence[int], repeats: int = 1, turn: int = 0, states: Sequence[Arrays] | None = None, public: bool = True
) -> list[SiteWork]:
    return [
        SiteWork(
            rows(size, repeats, site), keyed_stream(0, "batches", site, turn), keyed_stream(0, "noise", site, turn),
            size + 0.5 if public else None, states[site] if states else {},
        )
        for site, size in enumerate(sizes)
    ]  # fmt: skip


def start_of(build: Build, seed: int = 3) -> Arrays:
    return {name: value.numpy() for name, value in initialise(build, seed).items()}


def assert_equal(ours: Sequence[SiteUpdate], theirs: Sequence[SiteUpdate], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.steps, list(a.arrays), set(a.state)) == (b.steps, list(b.arrays), set(b.state))
        np.testing.assert_allclose(a.loss, b.loss, rtol=tolerance, atol=tolerance)
        for name, value in b.arrays.items():
            assert a.arrays[name].dtype == value.dtype and a.arrays[name].shape == value.shape
            np.testing.assert_allclose(a.arrays[name], value, rtol=tolerance, atol=tolerance)
        for name, value in b.state.items():
            assert a.state[name].dtype == value.dtype and a.state[name].shape == value.shape
            np.testing.assert_allclose(a.state[name], value, rtol=tolerance, atol=tolerance)


def opacus(
    build: Callable[[], nn.Module], arrays: Arrays, sites: Sequence[SiteWork], chosen: TrainSettings
) -> list[SiteUpdate]:
    """The reference: site by site with Opacus' per-example gradients."""
    return classification.train(build, arrays, sites, replace(chosen, engine="opacus"))


@pytest.mark.parametrize("noise_multiplier", [0.7, None])
@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize("name", MODULES)
def test_it_equals_training_site_by_site(name: str, repeats: int, noise_multiplier: float | None) -> None:
    engine, build = MODULES[name]
    start = start_of(double(build))
    chosen = settings(noise_multiplier=noise_multiplier)
    theirs = opacus(double(build), start, work(SIZES, repeats), chosen)
    ours = train_stacked(double(build), start, work(SIZES, repeats), chosen, engine)
    assert_equal(ours, theirs, 1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize("engine", ["auto", "opacus"])
@pytest.mark.parametrize("name", MODULES)
def test_a_gpu_trains_on_the_same_batches_and_noise(name: str, engine: str, repeats: int, optimizer: str) -> None:
    build = double(MODULES[name][1])
    start = start_of(build)
    chosen = settings(optimizer=optimizer, engine=engine)
    here = classification.train(build, start, work(SIZES, repeats), chosen)
    there = classification.train(build, start, work(SIZES, repeats), replace(chosen, device="cuda"))
    assert_equal(there, here, 1e-6)


@pytest.mark.gpu
def test_dropout_on_a_gpu_does_not_depend_on_the_stack() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def sites() -> list[SiteWork]:
        return [replace(site, layers=keyed_stream(0, "layers", place)) for place, site in enumerate(work(SIZES))]

    chosen = settings(device="cuda")
    together = classification.train(build, start_of(build), sites(), chosen)
    again = classification.train(build, start_of(build), sites(), chosen)
    assert_equal(together, again, 0.0)
    apart = [classification.train(build, start_of(build), [site], chosen)[0] for site in sites()]
    assert_equal(together, apart, 1e-6)


OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "weight_decay": 0.1},
    "momentum": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "proximal": {"optimizer": "sgd", "momentum": 0.5, "local": Proximal(0.8)},
    "rmsprop": {"optimizer": "rmsprop", "weight_decay": 0.1},
    "rmsprop with momentum": {"optimizer": "rmsprop", "momentum": 0.9},
    "kalman": {"denoise": "kalman", "denoise_gain": 0.4, "momentum": 0.5},
    "disk": {"denoise": "disk", "denoise_gain": 0.6, "optimizer": "adam"},
    "noise over time": {"batching": "cyclic", "sample_rate": 0.5, "noise": noise_process("sqrt-toeplitz", 20)},
}


@pytest.mark.parametrize("engine", ["linear", "functional"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_rounds_with_kept_state_equal_site_by_site(optimizer: str, engine: Engine) -> None:
    build = double(lambda: mlp(6, 3, (5,)))
    chosen = settings(**OPTIMIZERS[optimizer])
    updates = {}
    for trainer in ("stacked", "site"):
        arrays, states = start_of(build), None
        for turn in range(2):
            sites = work((5, 30), turn=turn, states=states)
            updates[trainer] = (
                opacus(build, arrays, sites, chosen)
                if trainer == "site"
                else train_stacked(build, arrays, sites, chosen, engine)
            )
            arrays, states = updates[trainer][1].arrays, [update.state for update in updates[trainer]]
    assert_equal(updates["stacked"], updates["site"], 1e-10)


def test_kept_state_passes_from_one_path_to_the_other() -> None:
    build, chosen = double(lambda: logistic(6, 3)), settings(optimizer="adam")
    first = opacus(build, start_of(build), work((20,)), chosen)
    then = [
        trainer(first[0].arrays, work((20,), turn=1, states=[first[0].state]))
        for trainer in (
            lambda arrays, sites: opacus(build, arrays, sites, chosen),
            lambda arrays, sites: train_stacked(build, arrays, sites, chosen, "linear"),
        )
    ]
    assert_equal(then[1], then[0], 1e-12)


@pytest.mark.parametrize("engine", ["linear", "functional"])
def test_sites_of_one_to_thousands_of_patients_train_together(engine: Engine) -> None:
    build = double(lambda: mlp(6, 3, (4,)))
    sizes, chosen = (5000, 1, 60, 2, 900), settings(sample_rate=0.05, local_steps=3)
    theirs = opacus(build, start_of(build), work(sizes), chosen)
    assert_equal(train_stacked(build, start_of(build), work(sizes), chosen, engine), theirs, 1e-10)


@pytest.mark.parametrize("noise_multiplier", [0.7, None])
@pytest.mark.parametrize("engine", ["linear", "functional"])
def test_empty_batches_are_steps(engine: Engine, noise_multiplier: float | None) -> None:
    build, chosen = double(lambda: mlp(6, 3, (4,))), settings(sample_rate=1e-9, noise_multiplier=noise_multiplier)
    start = start_of(build)
    ours = train_stacked(build, start, work((3, 20), 4), chosen, engine)
    assert_equal(ours, opacus(build, start, work((3, 20), 4), chosen), 1e-12)
    assert all(np.isnan(update.loss) and update.steps == 4 for update in ours)
    moved = [bool(np.any(ours[0].arrays[name] != start[name])) for name in start]
    assert moved == [noise_multiplier is not None] * len(start)


@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize("engine", ["linear", "functional"])
def test_how_sites_are_stacked_does_not_matter(engine: Engine, repeats: int) -> None:
    build, sizes = (lambda: mlp(6, 3, (8,))), (3, 50, 700, 20, 21, 22, 400, 90)
    start = start_of(build)
    together = train_stacked(build, start, work(sizes, repeats), settings(), engine)
    alone = [train_stacked(build, start, [site], settings(), engine)[0] for site in work(sizes, repeats)]
    assert_equal(together, alone, 2e-6)


@pytest.mark.parametrize("noise_multiplier", [0.7, None])
@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize("engine", ["linear", "functional"])
def test_a_small_memory_limit_changes_nothing(engine: Engine, repeats: int, noise_multiplier: float | None) -> None:
    build, chosen = double(lambda: mlp(6, 3, (8,))), settings(noise_multiplier=noise_multiplier, local_steps=2)
    start, sizes = start_of(build), (1, 12, 3, 40)
    whole = train_stacked(build, start, work(sizes, repeats), chosen, engine)
    for limit in (1, 20_000):
        assert_equal(train_stacked(build, start, work(sizes, repeats), chosen, engine, limit), whole, 1e-11)


def test_frozen_parameters_and_buffers_go_back_as_they_came() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((6,), 2.0))
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
            self.body.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(torch.tanh(self.body(x * self.scale)))
            return out

    build = double(Partly)
    start = start_of(build)
    ours = train_stacked(build, start, work((9, 30)), settings(), choose(build(), 6))  # type: ignore[arg-type]
    assert_equal(ours, opacus(build, start, work((9, 30)), settings()), 1e-10)
    for update in ours:
        assert {name for name in start if np.array_equal(start[name], update.arrays[name])} == {"body.weight", "scale"}


def test_a_private_call_without_a_public_divisor_is_refused() -> None:
    build = MODULES["mlp"][1]
    with pytest.raises(ConfigError, match="public_patients is missing"):
        classification.train(build, start_of(build), work((4, 5), public=False), settings())
    classification.train(build, start_of(build), work((4, 5), public=False), settings(noise_multiplier=None))


def test_dropout_follows_the_sites_own_streams_and_leaves_global_state() -> None:
    build = double(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    start, before = start_of(build), torch.random.get_rng_state()

    def trained(key: str) -> np.ndarray:
        site = replace(work((30,))[0], layers=keyed_stream(0, "layers", key))
        return train_stacked(build, start, [site], settings(), "functional")[0].arrays["0.weight"]

    assert np.array_equal(trained("a"), trained("a")) and not np.array_equal(trained("a"), trained("b"))
    assert torch.equal(torch.random.get_rng_state(), before)
    sites = [replace(site, layers=keyed_stream(0, "layers", n)) for n, site in enumerate(work((30, 40)))]
    together = train_stacked(build, start, sites, settings(), "functional")
    sites = [replace(site, layers=keyed_stream(0, "layers", n)) for n, site in enumerate(work((30, 40)))]
    assert_equal(together, [train_stacked(build, start, [site], settings(), "functional")[0] for site in sites], 1e-12)


def test_modules_that_mix_patients_are_refused() -> None:
    build = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    with pytest.raises(ConfigError, match="mixes patients"):
        classification.train(build, start_of(build), work((4,)), settings())


@pytest.mark.slow
def test_ten_thousand_tiny_sites_are_each_trained_as_if_alone() -> None:
    build, start = double(lambda: logistic(6, 3)), start_of(double(lambda: logistic(6, 3)))
    sizes = [1 + site % 3 for site in range(10_000)]
    chosen = settings(local_steps=2)
    together = train_stacked(build, start, work(sizes), chosen, "linear")
    some = [0, 1, 2, 4_999, 9_999]
    alone = [train_stacked(build, start, [work(sizes)[site]], chosen, "linear")[0] for site in some]
    assert_equal([together[site] for site in some], alone, 1e-12)
    assert len({update.arrays["0.weight"].tobytes() for update in together}) == len(together)  # each its own noise
