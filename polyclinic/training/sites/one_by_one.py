"""One site's training with Opacus' GradSampleModule: for modules that stacking cannot take, and to check the others.

Where patients are to be computed apart, one after the other goes through the module alone, and nothing of Opacus is needed.

The unit is the patient: all rows of a sampled patient are in the batch, their losses are averaged, and their summed
gradient is clipped once. An empty batch still adds noise and counts. Abadi et al. 2016, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.errors import failing
from polyclinic.privacy.clipping import ClippedSum, clipped_sum, privatise
from polyclinic.training.local import Penalty
from polyclinic.training.losses import Loss
from polyclinic.training.modules import load, seeded, split_flat
from polyclinic.training.representation import penalised_losses
from polyclinic.training.sites import Running, TrainedSites
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Ints, Reals


def train_one(build: Builder, arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
    """The site's update after ``settings.local_steps`` steps from ``arrays``; noise from the site's own stream.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays.
        site: The site's part.
        settings: The settings of the round.
    """
    with seeded(int(site.layers.uniform(1)[0] * 2**53), settings.device):
        return _train(build, arrays, site, settings)


def _train(build: Builder, arrays: Arrays, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
    return _Alone(load(build, {**arrays, **site.own}).to(settings.device), arrays, site, settings).updates()[0]


def check_hooks(module: nn.Module, features: int) -> None:
    """Raises ConfigError for a module of which Opacus' hooks, the engine that is left, give no row's gradient."""
    from opacus import GradSampleModule  # Opacus takes a second to load

    first = next(module.parameters())
    rows = torch.linspace(-1, 1, 3 * features, dtype=first.dtype).reshape(3, features)
    with failing("No engine gives each patient's gradient of this model, and Opacus says"), seeded(0):
        hooked = GradSampleModule(module.train(), loss_reduction="sum", strict=True)
        torch.autograd.backward(hooked(rows).sum())
        lacking = [
            name for name, value in module.named_parameters() if value.requires_grad and not _is_by_row(value, 3)
        ]
        if lacking:
            raise ValueError(f"{lacking[0]} has no gradient of each row")


def _is_by_row(parameter: torch.nn.Parameter, rows: int) -> bool:
    gradient = getattr(parameter, "grad_sample", None)
    return isinstance(gradient, Tensor) and gradient.shape == (rows, *parameter.shape)


class _Alone(TrainedSites):
    """One hospital, whose gradients are computed by autograd."""

    def __init__(self, module: nn.Module, arrays: Arrays, site: SiteWork, settings: TrainSettings) -> None:
        super().__init__(module, arrays, [site], settings)
        self._private = settings.noise_multiplier is not None
        self._hooked: nn.Module = module
        if self._private and not settings.apart:
            from opacus import GradSampleModule  # Opacus takes a second to load

            # "mean" would divide by the private number of rows in the batch; losses are weighted and summed here instead.
            self._hooked = GradSampleModule(module, loss_reduction="sum", strict=True)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        dtype = self._parameters[0].dtype
        self._x = torch.from_numpy(np.nan_to_num(site.rows.x, nan=0.0)).to(settings.device, dtype)
        labels = torch.from_numpy(site.rows.y)
        self._y = labels.to(settings.device, dtype if labels.is_floating_point() else labels.dtype)
        self._rows = site.rows

    def _buffers(self) -> Arrays:
        # No noise would cover what records leave in a buffer.
        buffers = {} if self._private else dict(self._module.named_buffers())
        return {
            name: value.cpu().numpy().astype(self._arrays[name].dtype)
            for name, value in buffers.items() if name in self._arrays
        }  # fmt: skip

    def _sums(self, running: Running, models: Tensor, penalty: Penalty | None) -> tuple[Tensor, Reals, Ints]:
        with torch.no_grad():
            for name, piece in split_flat(models[0], self._module).items():
                self._module.get_parameter(name).copy_(piece)
        (draws,), settings, patient = running.draws, running.settings, self._rows.patient
        batch = np.flatnonzero(draws.batches(1)[0])
        position = np.full(self._rows.patients, -1)
        position[batch] = np.arange(len(batch))
        rows = np.flatnonzero(position[patient] >= 0)
        some = _Batch(self._x[rows], self._y[rows], torch.from_numpy(position[patient[rows]]).to(settings.device))
        losses = _Losses(self._hooked, self._module, settings.loss, penalty)
        if self._private:
            clipped, loss = _clip(losses, self._parameters, some, len(batch), settings)
            total = privatise(clipped, settings.noise_multiplier or 0.0, draws.noise(1)[0]).to(models.dtype)
        else:
            parts, loss = _plain(losses, self._parameters, some, len(batch))
            total = torch.cat([part.flatten() for part in parts])
        return total[None].to(models), np.array([loss]), np.array([len(batch)])


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows of a batch: x (B, F), y (B,) or (B, columns), and each row's patient among those of the batch, (B,)."""

    x: Tensor
    y: Tensor
    member: Tensor

    def part(self, rows: Tensor) -> _Batch:
        return _Batch(self.x[rows], self.y[rows], self.member[rows])


@dataclass(frozen=True, eq=False)
class _Losses:
    """The patients' losses under a module, and with a penalty where the half has one.

    module: What is called, with Opacus' hooks where gradients are had by them. plain: The same without them.
    """

    module: nn.Module
    plain: nn.Module
    loss: Loss
    penalty: Penalty | None

    def backward(self, batch: _Batch, patients: int) -> float:
        """The patients' summed loss, each one's the mean of its rows', after its gradients are computed."""
        weight = 1.0 / torch.bincount(batch.member, minlength=patients)[batch.member].to(batch.x.dtype)
        others = [flat[0] for flat in self.penalty.models] if self.penalty else []
        x, y = batch.x, batch.y
        rows = penalised_losses(self.plain, lambda: self.module(x), x, y, self.loss, self.penalty, others)
        summed = (rows * weight).sum()
        self.module.zero_grad(set_to_none=True)
        torch.autograd.backward(summed)
        return float(summed.detach())


def _plain(losses: _Losses, parameters: list[nn.Parameter], batch: _Batch, patients: int) -> tuple[list[Tensor], float]:
    """Sum over the batch's patients of their gradients, and their summed loss."""
    if patients == 0:
        return [torch.zeros_like(p) for p in parameters], 0.0
    summed = losses.backward(batch, patients)
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters], summed


def _clip(
    losses: _Losses, parameters: list[nn.Parameter], batch: _Batch, patients: int, settings: TrainSettings
) -> tuple[ClippedSum, float]:
    """Sum over the batch's patients of their clipped gradients, and their summed loss; patients apart one after the other."""
    per_patient, loss, member = parameters[0].new_zeros(0, sum(p.numel() for p in parameters)), 0.0, batch.member
    if settings.apart:
        places = torch.split(torch.argsort(member, stable=True), torch.bincount(member, minlength=patients).tolist())
        total, summed = per_patient.new_zeros(per_patient.shape[1], dtype=torch.float64), 0.0
        for rows in places:
            own = batch.part(rows)
            gradient, loss = _plain(losses, parameters, replace(own, member=own.member * 0), 1)
            total += clipped_sum(torch.cat([part.flatten() for part in gradient])[None], settings.max_grad_norm).total
            summed += loss
        return ClippedSum(total, settings.max_grad_norm), summed
    if patients:
        # Opacus' backward hooks want an input that has a gradient.
        loss = losses.backward(replace(batch, x=batch.x.requires_grad_()), patients)
        rows = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)  # type: ignore[attr-defined]
        for p in parameters:
            p.grad_sample = None  # type: ignore[attr-defined]
        per_patient = rows.new_zeros(patients, rows.shape[1]).index_add_(0, member, rows)
    return clipped_sum(per_patient, settings.max_grad_norm), loss
