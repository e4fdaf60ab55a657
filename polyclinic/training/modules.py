"""Modules and arrays: a builder's module filled with a run's arrays and read out again, and what a module may not do.

Clipping one patient bounds that patient's influence only where the module keeps patients apart.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.errors import ConfigError, failing
from polyclinic.types import Arrays, Builder

# What computes several steps at once, of which no patient's gradient can be told, and what to take instead.
_HIDING: dict[type[nn.Module], str] = {
    nn.GRU: "opacus.layers.DPGRU", nn.LSTM: "opacus.layers.DPLSTM", nn.RNN: "opacus.layers.DPRNN",
    nn.MultiheadAttention: "polyclinic.models.sequences.Attention",
}  # fmt: skip
_ROW_BY_ROW = {nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GroupNorm}


def load(build: Builder, arrays: Arrays) -> nn.Module:
    """A module holding ``arrays``. Raises ConfigError when names, shapes or finiteness do not fit."""
    with torch.random.fork_rng(devices=[]):  # a new module's own initial values come from the global generator
        module = build()
    expected = module.state_dict()
    check_fit({label: tuple(value.shape) for label, value in expected.items()}, arrays)
    module.load_state_dict(
        {label: torch.from_numpy(np.array(arrays[label])).to(v.dtype) for label, v in expected.items()}
    )
    return module


def check_fit(expected: Mapping[str, tuple[int, ...]], arrays: Arrays) -> None:
    """Raises ConfigError where the names or shapes of ``arrays`` are not the ``expected`` ones, or a number is not finite."""
    if set(expected) != set(arrays):
        raise ConfigError(
            f"The model's arrays are {', '.join(sorted(arrays))}; this hospital's model has {', '.join(sorted(expected))}."
        )
    for label, shape in expected.items():
        if tuple(arrays[label].shape) != shape:
            raise ConfigError(f"Array {label!r} has shape {arrays[label].shape}; allowed is {shape}.")
        if not np.isfinite(arrays[label]).all():
            raise ConfigError(f"Array {label!r} holds values that are not finite; the global model has diverged.")


def split_flat(flat: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Views of (..., P) as the module's trainable parameters, by name."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    pieces = torch.split(flat, [p.numel() for p in trained.values()], dim=-1)
    return {
        name: piece.view((*piece.shape[:-1], *p.shape))
        for (name, p), piece in zip(trained.items(), pieces, strict=True)
    }


def flat_parameters(module: nn.Module, given: Mapping[str, np.ndarray]) -> Tensor:
    """(P,) of the trainable parameters in their order, in their type and on their device: what is given by name, else 0."""
    parts = [
        torch.from_numpy(np.array(given[name])).reshape(p.shape).to(p) if name in given else torch.zeros_like(p)
        for name, p in module.named_parameters() if p.requires_grad
    ]  # fmt: skip
    return torch.cat([part.detach().flatten() for part in parts])


@dataclass(frozen=True, eq=False)
class _Itself:
    """Equal to the same object alone, which it keeps alive so that no other comes to have its address."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def structure(module: nn.Module) -> Hashable:
    """All of a module but the values of its arrays: two that are equal compute alike, though two unequal ones may as well.

    An attribute that is no plain value counts by its identity.
    """
    places: dict[int, int] = {}  # the same part, or array, under two names is not two like ones

    def plain(value: object) -> Hashable:
        if isinstance(value, (bool, int, float, complex, str, bytes, type(None), torch.dtype)):
            return type(value), value
        if isinstance(value, nn.Parameter | Tensor):
            place = places.setdefault(id(value), len(places))
            return place, tuple(value.shape), value.dtype, value.device, value.requires_grad
        if isinstance(value, dict):
            return type(value), tuple((plain(key), plain(each)) for key, each in value.items())
        if isinstance(value, slice):
            return slice, value.start, value.stop, value.step
        if isinstance(value, list | tuple):
            return type(value), tuple(map(plain, value))
        if isinstance(value, set | frozenset):
            return type(value), frozenset(map(plain, value))
        return _Itself(value)

    return tuple(
        (
            name, type(part), places.setdefault(id(part), len(places)),
            *((key, plain(value)) for key, value in vars(part).items() if key != "_modules"),
        )
        for name, part in module.named_modules(remove_duplicate=False)
    )  # fmt: skip


def dump(module: nn.Module) -> Arrays:
    return {label: value.detach().cpu().numpy().copy() for label, value in module.state_dict().items()}


def normalisation_arrays(module: nn.Module) -> list[str]:
    """The names of the arrays of batch, instance, layer, group and RMS normalisation, in the module's order."""
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
    inside = {
        f"{label}.{name}" if label else name
        for label, part in module.named_modules() if isinstance(part, kinds)
        for name in part.state_dict()
    }  # fmt: skip
    return [name for name in module.state_dict() if name in inside]


def matching_arrays(module: nn.Module, patterns: str) -> list[str]:
    """The names of the arrays that match one of ``patterns``, separated by spaces, as ``head.* *.bias``.

    Without patterns those of the module's last layer. Raises ConfigError for a pattern that no array matches.
    """
    names = list(module.state_dict())
    if not patterns.strip():
        layer = names[-1].rpartition(".")[0]
        return [name for name in names if name.rpartition(".")[0] == layer]
    wanted: set[str] = set()
    for pattern in patterns.split():
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ConfigError(
                f"strategy-options names the layers {pattern!r}, which no array of the model matches; they are "
                f"{', '.join(names)}."
            )
        wanted.update(matching)
    return [name for name in names if name in wanted]


def check_outputs(build: Builder, arrays: Arrays, features: int, outputs: Collection[int]) -> Tensor:
    """What the module makes of (7, features) made-up rows.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        features: The width of a row.
        outputs: The numbers of outputs O that are allowed.

    Raises:
        ConfigError: That is not one (7, O) tensor of real numbers that the module's parameters change.
    """
    module, allowed = load(build, arrays).train(), " or ".join(f"(7, {number})" for number in outputs)
    rows = torch.linspace(-1, 1, 7 * features).reshape(7, features)
    with seeded(0), failing(f"The model fails on 7 made-up rows of {features} features"):
        made = module(rows.to(next(module.parameters(), rows).dtype))
    if not isinstance(made, Tensor):
        inside = f" of {len(made)}" if isinstance(made, tuple | list | dict) else ""
        problem = f"a {type(made).__name__}{inside}"
    elif not made.is_floating_point():
        problem = f"numbers of the type {str(made.dtype).removeprefix('torch.')}"
    elif made.shape not in {(7, number) for number in outputs}:
        problem = f"the shape {tuple(made.shape)}"
    elif not made.requires_grad:
        problem = "numbers that no trainable parameter changes"
    else:
        return made.detach()
    raise ConfigError(
        f"The model gives {problem} for 7 rows; it must give one tensor of real numbers of the shape {allowed}, before any "
        "softmax or sigmoid."
    )


def are_probabilities(outputs: Tensor) -> bool:
    """Whether (n, O) outputs look like probabilities, as of a softmax or a sigmoid, where a loss takes logits."""
    inside = bool((outputs >= 0).all() and (outputs <= 1).all() and outputs.any())
    return inside and (
        outputs.shape[1] == 1 or torch.allclose(outputs.sum(1), torch.ones(len(outputs)).to(outputs), atol=1e-4)
    )


def check_module(module: nn.Module) -> None:
    """Raises ConfigError for a module whose output for one patient depends on the others in the batch (batch norm), and
    for one that per-patient gradients cannot be had of."""
    problems = _refused_by_opacus(module)
    tracking = [
        label for label, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm)
        or (isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats)
    ]  # fmt: skip
    hidden = [kind for part in module.modules() for kind in _HIDING if isinstance(part, kind)]
    if hidden and not tracking:
        raise ConfigError(
            f"The model has nn.{hidden[0].__name__}, which hides each patient's gradient; use {_HIDING[hidden[0]]} in its place."
        )
    if problems or tracking:
        reason = ", ".join(tracking) or str(problems[0]).splitlines()[0]
        raise ConfigError(
            f"The model mixes patients within a batch ({reason}), so clipping one patient does not bound its influence; "
            "use group or layer normalisation, or none."
        )


def _refused_by_opacus(module: nn.Module) -> list[Any]:
    """What Opacus' validators say against the module; they have nothing against layers that take row by row."""
    if module.training and all(type(part) in _ROW_BY_ROW for part in module.modules() if part._parameters):
        return []
    from opacus.validators import ModuleValidator  # Opacus takes a second to load

    return list(ModuleValidator.validate(module, strict=False))


def check_behaviour(build: Builder, arrays: Arrays, features: int) -> None:
    """Checks that the arrays fit, and that the module neither mixes patients nor remembers them.

    Besides the module's parts its behaviour is probed in float64 on made-up batches of 1, 2 and 7 rows. Outputs and
    gradients of rows together must be those of each row alone. What was seen in earlier batches may change neither them
    nor any parameter or buffer. Each parameter is moved a little: where two layers begin at zero, neither shows what
    the other does. A probe can find carelessness; it cannot prove that code written to deceive behaves.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        features: The width of a row.

    Raises:
        ConfigError: The arrays do not fit, or the module mixes or remembers patients.
    """
    module = load(build, arrays)
    check_module(module)
    trained = {p.data_ptr() for p in module.parameters()}
    arrays = arrays | {
        name: arrays[name] + 0.01 * np.cos(np.arange(1.0, value.numel() + 1)).reshape(value.shape)
        for name, value in module.state_dict().items() if value.data_ptr() in trained
    }  # fmt: skip
    with failing("The model fails on made-up rows in float64, in which its patients are compared"):
        _check_apart(lambda: load(lambda: build().double(), arrays), arrays, features)


def _check_apart(made: Builder, arrays: Arrays, features: int) -> None:
    dtype = torch.float64
    batches = [torch.linspace(-1, 1, rows * features, dtype=dtype).reshape(rows, features) for rows in (7, 2, 1)]
    others = [batch.flip(0) * 3.0 + 0.5 for batch in batches]
    for batch in batches:
        if not _rows_stay_apart(made, batch) or _moved_by_a_far_row(made, batch):
            raise ConfigError(
                "The model mixes patients within a batch: one row's values change another row's output or gradient."
            )
    first, second = made(), made()
    for own, other in zip(batches, others, strict=True):
        _probe(first, own)
        _probe(second, other)
    same = all(torch.equal(a, b) for a, b in zip(_probe(first, batches[0]), _probe(second, batches[0]), strict=True))
    states = [{**dump(module), **_parameters(module)} for module in (first, second)]
    if (
        not same
        or any(not np.array_equal(states[0][name], states[1][name]) for name in states[0])
        or any(not np.array_equal(value, arrays[name].astype(np.float64)) for name, value in _parameters(first).items())
    ):
        raise ConfigError(
            "The model remembers records between batches: an earlier batch's values change a later output, gradient, "
            "parameter or buffer, so clipping one patient does not bound its influence; keep nothing of the input in the "
            "module."
        )


def _rows_stay_apart(made: Builder, batch: Tensor) -> bool:
    """Whether rows together give the outputs, and the summed gradient, of each row alone."""
    with seeded(0):
        begun = torch.random.get_rng_state()
        together = _probe(made(), batch, fork=False)
        draws = not torch.equal(torch.random.get_rng_state(), begun)
    if draws:  # alone, a row would be given other draws; together, its neighbours' values must not matter
        for row in range(len(batch)):
            changed = batch.clone()
            changed[row] = 7.0
            others = torch.arange(len(batch)) != row
            if not torch.allclose(_probe(made(), changed)[0][others], together[0][others], rtol=1e-6, atol=1e-9):
                return False
        return True
    alone = [_probe(made(), batch[row : row + 1], offset=row) for row in range(len(batch))]
    parts = [
        torch.cat([part[0] for part in alone]),
        *(torch.stack(p).sum(0) for p in zip(*(a[1:] for a in alone), strict=True)),
    ]
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(together, parts, strict=True))


def _moved_by_a_far_row(made: Builder, batch: Tensor) -> bool:
    """Whether a row far from the others changes their outputs, as where exponents are shifted by the largest of all rows."""
    far = batch.clone()
    far[0] = 1e4 * far[0] + 1e4
    with suppress(Exception):  # a model may refuse such a row
        return not torch.allclose(_probe(made(), far)[0][1:], _probe(made(), batch)[0][1:], rtol=1e-6, atol=1e-9)
    return False


def _probe(module: nn.Module, rows: Tensor, offset: int = 0, fork: bool = True) -> list[Tensor]:
    """The outputs and the parameters' gradients of one training step's forward and backward pass; dropout left out."""
    module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    with seeded(0) if fork else nullcontext():
        outputs = torch.as_tensor(module(rows))
        # Each row with a weight of its own, so that gradients of different rows do not stand in for each other.
        weight = torch.cos(torch.arange(offset, offset + len(outputs), dtype=outputs.dtype) + 1.0)
        weight = weight.reshape(-1, *([1] * (outputs.dim() - 1)))
        if outputs.requires_grad:
            torch.autograd.backward((torch.tanh(outputs) * weight).sum())
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters() if p.requires_grad
    ]
    module.zero_grad(set_to_none=True)
    return [outputs.detach(), *gradients]


def _parameters(module: nn.Module) -> Arrays:
    """The parameters themselves, which a hook on ``state_dict`` cannot alter."""
    return {name: p.detach().cpu().numpy().copy() for name, p in module.named_parameters()}


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Layers that draw from torch's global generators (dropout) draw from ``seed`` within, and leave no trace outside."""
    with kept_apart(device):
        reseed(seed, device)
        yield


def kept_apart(device: str = "cpu") -> AbstractContextManager[None]:
    """What is drawn within from torch's global generators, of the CPU and of ``device``, leaves no trace outside."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if device == "cuda" else [])


@contextmanager
def single_thread(active: bool) -> Iterator[None]:
    """torch computes with one thread within, if ``active``: several would cut arrays in places that depend on their sizes."""
    before = torch.get_num_threads()
    if active:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if active:
            torch.set_num_threads(before)


def reseed(seed: int, device: str = "cpu") -> None:
    """Seed the generators that ``kept_apart`` keeps apart; only within it."""
    torch.default_generator.manual_seed(seed)
    if device == "cuda":
        torch.cuda.manual_seed(seed)
