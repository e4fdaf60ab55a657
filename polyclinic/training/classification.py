"""Classification by SGD or Adam, private (DP-SGD, DP-Adam) or not, with per-patient gradients from Opacus.

The unit is the patient: all rows of a sampled patient are in the batch, their losses are averaged, and their summed
gradient is clipped once. Batches are Poisson samples of patients; an empty batch still adds noise and counts.
Abadi et al. 2016, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from dp_accounting import DpEvent, NonPrivateDpEvent
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.clipping import clipped_sum, poisson_sample, privatise
from polyclinic.privacy.streams import Stream
from polyclinic.training.task import Arrays, SiteUpdate, SiteWork, TrainSettings

name = "classification"


def event(settings: TrainSettings) -> DpEvent:
    """What one round spends: ``local_steps`` Poisson-sampled Gaussian steps, or everything without noise."""
    if settings.noise_multiplier is None:
        return NonPrivateDpEvent()
    return dpsgd_event(settings.sample_rate, settings.noise_multiplier, settings.local_steps)


def check_module(module: nn.Module) -> None:
    """Raises ConfigError for a module whose output for one patient depends on the others in the batch (batch norm)."""
    problems = ModuleValidator.validate(module, strict=False)
    tracking = [
        label for label, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._NormBase) and (part.track_running_stats or _mixes(part))
    ]  # fmt: skip
    if problems or tracking:
        found = ", ".join(tracking) or str(problems[0]).splitlines()[0]
        raise ConfigError(
            f"The model mixes patients within a batch ({found}), so clipping one patient does not bound its influence; "
            "use group or layer normalisation, or none."
        )


def _mixes(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm)


def train(
    build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
) -> list[SiteUpdate]:
    """Each site's update after ``settings.local_steps`` steps from ``arrays``; (P,) noise of each site from its own stream.

    Raises ConfigError for a module that mixes patients, or a private call without ``public_patients``.
    """
    updates = []
    for site in work:
        with _seeded(int(site.layers.uniform(1)[0] * 2**53)):
            updates.append(_train_site(build, arrays, site, settings))
    return updates


def _train_site(build: Callable[[], nn.Module], arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
    private = settings.noise_multiplier is not None
    if private and site.public_patients is None:
        raise ConfigError("public_patients is missing: a private batch sum needs a public divisor.")
    plain = load(build, arrays)
    check_module(plain)
    # "mean" would divide by the private number of rows in the batch; losses are weighted and summed here instead.
    module = GradSampleModule(plain, loss_reduction="sum", strict=True) if private else plain
    parameters = [p for p in plain.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]
    optimizer = _optimizer(parameters, settings)
    _restore(optimizer, site.optimizer_state)

    x = torch.from_numpy(np.nan_to_num(site.rows.x, nan=0.0)).to(parameters[0].dtype)
    x.requires_grad_(private)  # Opacus' backward hooks want an input that has a gradient
    y = torch.from_numpy(site.rows.y)
    patient = site.rows.patient
    divisor = settings.sample_rate * (site.public_patients if site.public_patients else site.rows.patients)
    losses: list[float] = []
    for _ in range(settings.local_steps):
        batch = poisson_sample(site.rows.patients, settings.sample_rate, site.sampling)
        position = np.full(site.rows.patients, -1)
        position[batch] = np.arange(len(batch))
        rows = np.flatnonzero(position[patient] >= 0)
        member = torch.from_numpy(position[patient[rows]])
        gradient, loss = _batch_gradient(module, parameters, x[rows], y[rows], member, len(batch), settings, site.noise)
        for p, total, origin in zip(parameters, gradient, start, strict=True):
            p.grad = total / divisor + settings.proximal_mu * (p.detach() - origin)
        optimizer.step()
        if len(batch):
            losses.append(loss / len(batch))
    return SiteUpdate(_noised_only(plain, arrays), settings.local_steps, float(np.mean(losses)) if losses else float("nan"),
                      _state(optimizer))  # fmt: skip


def _batch_gradient(
    module: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor, member: Tensor, patients: int,
    settings: TrainSettings, noise: Stream,
) -> tuple[list[Tensor], float]:  # fmt: skip
    """Sum over the batch's patients of their (clipped) gradients, plus noise when private; and their summed loss."""
    shapes = [p.shape for p in parameters]
    if patients == 0:
        per_patient = torch.zeros(0, sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        loss = 0.0
    else:
        weight = 1.0 / torch.bincount(member, minlength=patients)[member].to(x.dtype)
        summed = (functional.cross_entropy(module(x), y, reduction="none") * weight).sum()
        loss = float(summed.detach())
        module.zero_grad(set_to_none=True)
        torch.autograd.backward(summed)
        if settings.noise_multiplier is None:
            return [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters], loss
        rows = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)  # type: ignore[attr-defined]
        for p in parameters:
            p.grad_sample = None  # type: ignore[attr-defined]
        per_patient = torch.zeros(patients, rows.shape[1], dtype=rows.dtype).index_add_(0, member, rows)
    if settings.noise_multiplier is None:
        return [torch.zeros_like(p) for p in parameters], loss
    flat = privatise(clipped_sum(per_patient, settings.max_grad_norm), settings.noise_multiplier, noise)
    pieces = torch.split(flat.to(parameters[0].dtype), [shape.numel() for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)], loss


def check(build: Callable[[], nn.Module], arrays: Arrays, features: int) -> None:
    """Raises ConfigError when a call of ``train`` would refuse this model or these arrays; costs no privacy.

    Besides the module's parts its behaviour is probed with made-up rows: changing one row may change no other row's
    output, neither in the same batch nor in a later one.
    """
    module = load(build, arrays)
    check_module(module)
    probe = torch.linspace(-1, 1, 4 * features, dtype=next(module.parameters()).dtype).reshape(4, features)
    changed = probe.clone()
    changed[0] = 7.0
    first, second = load(build, arrays), load(build, arrays)
    before, after = _outputs(first, probe), _outputs(second, changed)
    if not torch.allclose(before[1:], after[1:], rtol=1e-4, atol=1e-6):
        raise ConfigError("The model mixes patients within a batch: one row's values change another row's output.")
    later = _outputs(first, probe), _outputs(second, probe)
    if not torch.equal(*later) or any(
        not torch.equal(one, other) for one, other in zip(first.buffers(), second.buffers(), strict=True)
    ):
        raise ConfigError(
            "The model remembers records between batches: an earlier batch's values change a later output or a buffer, "
            "so clipping one patient does not bound its influence; keep nothing of the input in the module."
        )


def _outputs(module: nn.Module, rows: Tensor) -> Tensor:
    """The outputs of a training step's forward pass, whose backward pass is run too: hooks may keep things in both."""
    with _seeded(0):  # the same for every probe, so that dropout drops the same units
        found = torch.as_tensor(module.train()(rows))
        if found.requires_grad:
            torch.autograd.backward(found.sum())
    module.zero_grad(set_to_none=True)
    return found.detach()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Layers that draw from torch's global generator (dropout) draw from ``seed`` within, and leave no trace outside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def evaluate(build: Callable[[], nn.Module], arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
    """Each site's (rows, classes) float64 probabilities under the model ``arrays``."""
    module = load(build, arrays).eval()
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        return [
            functional.softmax(
                module(torch.from_numpy(np.nan_to_num(part.x, nan=0.0)).to(dtype)).double(), dim=1
            ).numpy()
            for part in rows
        ]


def load(build: Callable[[], nn.Module], arrays: Arrays) -> nn.Module:
    """A module holding ``arrays``. Raises ConfigError when names, shapes or finiteness do not fit."""
    module = build()
    expected = module.state_dict()
    if set(expected) != set(arrays):
        raise ConfigError(f"The model's arrays are {sorted(arrays)}; this hospital's model has {sorted(expected)}.")
    for label, value in expected.items():
        if tuple(arrays[label].shape) != tuple(value.shape):
            raise ConfigError(f"Array {label!r} has shape {arrays[label].shape}; allowed is {tuple(value.shape)}.")
        if not np.isfinite(arrays[label]).all():
            raise ConfigError(f"Array {label!r} holds values that are not finite; the global model has diverged.")
    module.load_state_dict(
        {label: torch.from_numpy(np.array(arrays[label])).to(v.dtype) for label, v in expected.items()}
    )
    return module


def _noised_only(module: nn.Module, received: Arrays) -> Arrays:
    """The trained parameters; buffers go back as they came, since whatever wrote to them added no noise."""
    trained = {label for label, p in module.named_parameters() if p.requires_grad}
    return {label: value if label in trained else received[label] for label, value in dump(module).items()}


def dump(module: nn.Module) -> Arrays:
    return {label: value.detach().cpu().numpy().copy() for label, value in module.state_dict().items()}


def _optimizer(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    if settings.optimizer in ("adam", "adamw"):
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


def _state(optimizer: torch.optim.Optimizer) -> Arrays:
    """The optimizer's tensors by ``parameter.name``; they are functions of noisy gradients, yet stay at the site."""
    return {
        f"{index}.{label}": torch.as_tensor(value).detach().cpu().numpy().copy()
        for index, slots in optimizer.state_dict()["state"].items()
        for label, value in slots.items()
        if value is not None
    }


def _restore(optimizer: torch.optim.Optimizer, state: Mapping[str, np.ndarray]) -> None:
    if not state:
        return
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        index, label = key.split(".", 1)
        slots.setdefault(int(index), {})[label] = torch.from_numpy(np.array(value))
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
