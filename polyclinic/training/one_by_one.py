"""One site's training with Opacus' GradSampleModule: for modules that stacking cannot take, and to check the others.

Where patients are to be computed apart, one after the other goes through the module alone, and nothing of Opacus is needed.

The unit is the patient: all rows of a sampled patient are in the batch, their losses are averaged, and their summed
gradient is clipped once. An empty batch still adds noise and counts. Abadi et al. 2016, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.privacy.clipping import ClippedSum, clipped_sum, privatise
from polyclinic.training.denoising import GradientFilter
from polyclinic.training.draws import Draws
from polyclinic.training.losses import row_losses
from polyclinic.training.modules import flat_parameters, load, noised_only, seeded
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays


def train_one(build: Callable[[], nn.Module], arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
    """The site's update after ``settings.local_steps`` steps from ``arrays``; noise from the site's own stream."""
    with seeded(int(site.layers.uniform(1)[0] * 2**53), settings.device):
        return _train(build, arrays, site, settings)


def _train(build: Callable[[], nn.Module], arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
    private = settings.noise_multiplier is not None
    plain = module = load(build, {**arrays, **site.own, **site.begin}).to(settings.device)
    if private and not settings.apart:
        from opacus import GradSampleModule  # Opacus takes a second to load

        # "mean" would divide by the private number of rows in the batch; losses are weighted and summed here instead.
        module = GradSampleModule(plain, loss_reduction="sum", strict=True)
    parameters = [p for p in plain.parameters() if p.requires_grad]
    origin = _split(flat_parameters(plain, {**arrays, **site.own}), parameters)
    control = _split(flat_parameters(plain, site.control), parameters)
    optimizer = _optimizer(parameters, settings)
    _restore(optimizer, site.kept)

    x = torch.from_numpy(np.nan_to_num(site.rows.x, nan=0.0)).to(settings.device, parameters[0].dtype)
    y = torch.from_numpy(site.rows.y).to(settings.device)
    patient = site.rows.patient
    divisor = settings.sample_rate * (site.public_patients if site.public_patients else site.rows.patients)
    losses: list[float] = []
    draws = Draws(site, settings, sum(p.numel() for p in parameters))
    denoiser = GradientFilter([site.kept], settings, _flat(parameters)[None])
    for _ in range(settings.local_steps):
        here = _flat(parameters)
        _put(parameters, denoiser.ahead(here[None])[0])
        batch = np.flatnonzero(draws.batches(1)[0])
        position = np.full(site.rows.patients, -1)
        position[batch] = np.arange(len(batch))
        rows = np.flatnonzero(position[patient] >= 0)
        member = torch.from_numpy(position[patient[rows]]).to(settings.device)
        if private:
            clipped, loss = _clipped(module, parameters, x[rows], y[rows], member, len(batch), settings)
            flat = privatise(clipped, settings.noise_multiplier or 0.0, draws.noise(1)[0])
            gradient = _split(flat.to(parameters[0].dtype), parameters)
        else:
            gradient, loss = _plain(module, parameters, x[rows], y[rows], member, len(batch), settings.loss)
        _put(parameters, here)
        estimate = denoiser.filtered(torch.cat([total.flatten() for total in gradient])[None] / divisor)[0]
        for p, total, pull, shift in zip(parameters, _split(estimate, parameters), origin, control, strict=True):
            p.grad = total + settings.proximal_mu * (p.detach() - pull) + shift
        optimizer.step()
        denoiser.moved(_flat(parameters)[None] - here)
        if len(batch):
            losses.append(loss / len(batch))
    return SiteUpdate(noised_only(plain, arrays), settings.local_steps, float(np.mean(losses)) if losses else float("nan"),
                      _state(optimizer) | draws.kept() | denoiser.kept()[0])  # fmt: skip


def _plain(
    module: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor, member: Tensor, patients: int, loss: str,
) -> tuple[list[Tensor], float]:  # fmt: skip
    """Sum over the batch's patients of their gradients, and their summed loss."""
    if patients == 0:
        return [torch.zeros_like(p) for p in parameters], 0.0
    summed = _backward(module, x, y, member, patients, loss)
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters], summed


def _clipped(
    module: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor, member: Tensor, patients: int,
    settings: TrainSettings,
) -> tuple[ClippedSum, float]:  # fmt: skip
    """Sum over the batch's patients of their clipped gradients, and their summed loss; patients apart one after the other."""
    per_patient, loss = parameters[0].new_zeros(0, sum(p.numel() for p in parameters)), 0.0
    if settings.apart:
        places = torch.split(torch.argsort(member, stable=True), torch.bincount(member, minlength=patients).tolist())
        total, losses = per_patient.new_zeros(per_patient.shape[1], dtype=torch.float64), 0.0
        for own in places:
            gradient, loss = _plain(module, parameters, x[own], y[own], member[own] * 0, 1, settings.loss)
            total += clipped_sum(torch.cat([part.flatten() for part in gradient])[None], settings.max_grad_norm).total
            losses += loss
        return ClippedSum(total, settings.max_grad_norm), losses
    if patients:
        # Opacus' backward hooks want an input that has a gradient.
        loss = _backward(module, x.requires_grad_(), y, member, patients, settings.loss)
        rows = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)  # type: ignore[attr-defined]
        for p in parameters:
            p.grad_sample = None  # type: ignore[attr-defined]
        per_patient = rows.new_zeros(patients, rows.shape[1]).index_add_(0, member, rows)
    return clipped_sum(per_patient, settings.max_grad_norm), loss


def _backward(module: nn.Module, x: Tensor, y: Tensor, member: Tensor, patients: int, loss: str) -> float:
    """The patients' summed loss, each one's the mean of its rows', after its gradients are computed."""
    weight = 1.0 / torch.bincount(member, minlength=patients)[member].to(x.dtype)
    summed = (row_losses(loss, module(x), y) * weight).sum()
    module.zero_grad(set_to_none=True)
    torch.autograd.backward(summed)
    return float(summed.detach())


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def _split(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    pieces = torch.split(flat, [p.numel() for p in parameters])
    return [piece.reshape(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


def _put(parameters: list[nn.Parameter], flat: Tensor) -> None:
    with torch.no_grad():
        for p, piece in zip(parameters, _split(flat, parameters), strict=True):
            p.copy_(piece)


def _optimizer(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            parameters, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
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
        if not index.isdigit():  # not the optimizer's
            continue
        slots.setdefault(int(index), {})[label] = torch.from_numpy(np.array(value))
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
