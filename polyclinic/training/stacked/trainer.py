"""Classification at many simulated hospitals at once: what classification.train does site by site, on stacked tensors.

Batches are Poisson samples of patients, an empty one still adds noise and counts, noise and sampling come from each
site's own stream in the order of its steps. Neighbouring relation: add or remove one patient. Abadi et al. 2016,
Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.training.denoising import GradientFilter
from polyclinic.training.draws import Draws
from polyclinic.training.modules import flat_parameters, kept_apart, load, reseed
from polyclinic.training.stacked.batches import Batch, Table, batch_parts, build_table, group_sites, patient_blocks
from polyclinic.training.stacked.engines import Engine, Sums, sums
from polyclinic.training.stacked.layers import plan
from polyclinic.training.stacked.optimizers import apply_step, dump_state, restore_state
from polyclinic.training.stacked.per_example import split_flat
from polyclinic.training.stacked.propagation import held_by_pictures
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Bools, Floats, Ints

MEMORY_LIMIT = 1 << 30
CACHE = 1 << 24
PART = 1 << 28  # of one large site's batch, beside which its records are in memory too
# Patients apart in a block: powers of two, so that no part of a block is left over when the processor takes several at once.
FEWEST, MOST = 16, 256
GPU_SHARE = 8


def train_stacked(
    build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings,
    engine: Engine, memory_limit: int = MEMORY_LIMIT,
) -> list[SiteUpdate]:  # fmt: skip
    """Each site's update after ``settings.local_steps`` steps from ``arrays``, in the order of ``work``.

    engine: "linear" or "functional", as ``gradients.choose`` says. memory_limit: about how many bytes of gradients,
    activations and noise to hold at one time; it changes the result by rounding only.
    Raises ConfigError for a module that the engine cannot take.
    """
    on_gpu = settings.device == "cuda"
    with kept_apart(settings.device):  # a new module draws from the global generator, and so does dropout
        module = load(build, arrays)
        draws = _draws_itself(module, work[0].rows.x.shape[1])
        if on_gpu:
            memory_limit = torch.cuda.get_device_properties(0).total_memory // GPU_SHARE
        with torch.device(settings.device) if on_gpu else nullcontext():  # the context slows every call a little
            return _train(module.to(settings.device), draws, arrays, work, settings, engine, memory_limit)


def _train(
    module: nn.Module, draws: bool, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings,
    engine: Engine, memory_limit: int,
) -> list[SiteUpdate]:  # fmt: skip
    """``draws``: whether the module's layers draw random numbers themselves."""
    private = settings.noise_multiplier is not None
    row_bytes = _row_bytes(module, engine, private, work[0].rows.x.shape[1])
    updates: dict[int, SiteUpdate] = {}
    # What a step holds is read several times over, fastest while it is in the processor's cache.
    held = min(memory_limit, CACHE) if settings.device == "cpu" else memory_limit
    part = held if engine == "functional" or settings.device != "cpu" else min(memory_limit, PART)
    groups = group_sites(work, settings.sample_rate, row_bytes, held)
    if settings.apart or (draws and engine != "linear"):
        groups = [[index] for group in groups for index in group]  # what its layers draw must not depend on the stack
    for group in groups:
        rows_at_once = max(1, part // (row_bytes * len(group)))
        some = [work[index] for index in group]
        seeds = [int(site.layers.uniform(1)[0] * 2**53) for site in (some if draws else some[:1])]
        reseed(seeds[0], settings.device)
        compute = sums(module, engine, settings.max_grad_norm if private else None, rows_at_once, settings.loss, seeds)
        cut = partial(batch_parts, rows_at_once=rows_at_once)
        if settings.apart and private:
            cut = partial(patient_blocks, at_once=_patients_at_once(module, row_bytes, held))
        trained = _train_group(module, arrays, some, settings, compute, cut, memory_limit)
        updates.update(zip(group, trained, strict=True))
    return [updates[index] for index in range(len(work))]


def _patients_at_once(module: nn.Module, row_bytes: int, memory: int) -> Callable[[int], int]:
    """Of how many patients apart a block is, by the rows that each has a place for; never by how many there are."""
    gradient = 24 * sum(p.numel() for p in module.parameters())

    def patients(rows: int) -> int:
        fitting = max(1, min(memory // (rows * row_bytes), PART // gradient))
        # One with many rows must not end the hospital's memory, which would be seen.
        fewest = FEWEST if FEWEST * max(rows * row_bytes, gradient * (rows > 1)) <= MEMORY_LIMIT else 1
        return min(max(1 << fitting.bit_length() - 1, fewest), MOST) if fewest > 1 else 1

    return patients


def _draws_itself(module: nn.Module, features: int) -> bool:
    """Whether layers such as dropout take random numbers from torch's global generator."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        module(torch.zeros(2, features, dtype=next(module.parameters()).dtype))
        return not torch.equal(before, torch.random.get_rng_state())


def _row_bytes(module: nn.Module, engine: Engine, private: bool, features: int) -> int:
    """What one row of a batch holds at most: its gradient, built and added up; or the inputs and outputs of layers."""
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    widths = sum(sum(p.shape) for p in module.parameters() if p.dim() == 2)
    layers = plan(module) if engine == "linear" else ""
    if engine == "functional" and private:
        numbers = 2 * sum(sizes)
    else:
        numbers = 4 * (
            widths if isinstance(layers, str) else max(widths, held_by_pictures(layers, sum(sizes), features))
        )
    return max(1, numbers) * next(module.parameters()).element_size()


def _train_group(
    module: nn.Module, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings, compute: Sums,
    cut: Callable[[Table, Bools], Iterator[Batch]], memory_limit: int,
) -> list[SiteUpdate]:  # fmt: skip
    parameters = [p for p in module.parameters() if p.requires_grad]
    dtype, shapes = parameters[0].dtype, [p.shape for p in parameters]
    origin = _flat_models(module, arrays, [site.own for site in work])
    begin = _flat_models(module, arrays, [{**site.own, **site.begin} for site in work])
    theta = begin.expand(len(work), -1).clone()
    controlled = any(site.control for site in work)
    control = _flat_models(module, {}, [site.control for site in work])
    state = restore_state([site.kept for site in work], [p.numel() for p in parameters], settings, dtype)
    table = build_table(work, dtype, settings.device)
    divisor = torch.tensor(
        [settings.sample_rate * (site.public_patients or site.rows.patients) for site in work], dtype=dtype
    )[:, None]
    losses, sampled = [], []
    draws = [Draws(site, settings, theta.shape[1]) for site in work]
    denoiser = GradientFilter([site.kept for site in work], settings, theta)
    for chosen, noise in _draws(draws, work, settings, theta.shape[1], dtype, memory_limit):
        gradient, loss = _sum_parts(compute, denoiser.ahead(theta), cut(table, chosen))
        losses.append(loss.double().cpu().numpy())
        sampled.append(np.bincount(table.site[chosen], minlength=len(work)))
        if noise is not None:
            gradient.add_(noise.to(gradient.device), alpha=settings.noise_scale)
        gradient = denoiser.filtered(gradient / divisor)
        if settings.proximal_mu:
            gradient.add_(theta - origin, alpha=settings.proximal_mu)
        if controlled:
            gradient.add_(control)
        before = theta.clone() if denoiser.looks_ahead else None
        apply_step(theta, gradient, state, settings)
        if before is not None:
            denoiser.moved(theta - before)
    kept = [
        own | drawn.kept() | filtered
        for own, drawn, filtered in zip(dump_state(state, shapes, settings), draws, denoiser.kept(), strict=True)
    ]
    means = _means(np.array(losses), np.array(sampled))
    trained = {
        name: value.numpy().astype(arrays[name].dtype) for name, value in split_flat(theta.cpu(), module).items()
    }
    names = list(module.state_dict())
    return [
        SiteUpdate(
            {name: trained[name][site] if name in trained else arrays[name] for name in names},
            settings.local_steps, means[site], kept[site],
        )
        for site in range(len(work))
    ]  # fmt: skip


def _flat_models(module: nn.Module, arrays: Arrays, own: Sequence[Mapping[str, np.ndarray]]) -> Tensor:
    """(S, P): ``arrays`` with each site's own in their place; (1, P) where no site has any."""
    if not any(own):
        return flat_parameters(module, arrays)[None]
    return torch.stack([flat_parameters(module, {**arrays, **theirs}) for theirs in own])


def _draws(
    draws: Sequence[Draws], work: Sequence[SiteWork], settings: TrainSettings, parameters: int, dtype: torch.dtype,
    memory_limit: int,
) -> Iterator[tuple[Bools, Tensor | None]]:  # fmt: skip
    """For each step, which patients it samples, (patients of all sites,), and its noise of unit scale, (S, P) or None."""
    noisy = settings.noise_multiplier is not None
    held = sum(site.rows.patients for site in work) + noisy * parameters * len(work)
    at_once = max(1, memory_limit // (8 * held + 1))
    for begin in range(0, settings.local_steps, at_once):
        steps = min(at_once, settings.local_steps - begin)
        chosen = np.concatenate([site.batches(steps) for site in draws], axis=1)
        noise = _noise(draws, steps, parameters, dtype) if noisy else None
        for step in range(steps):
            yield chosen[step], None if noise is None else noise[step]


def _noise(draws: Sequence[Draws], steps: int, parameters: int, dtype: torch.dtype) -> Tensor:
    """(steps, S, P) noise of unit scale, each site's from its own stream."""
    noise = torch.empty(steps, len(draws), parameters, dtype=dtype, device="cpu")
    for index, site in enumerate(draws):
        noise[:, index] = torch.from_numpy(site.noise(steps))
    return noise


def _sum_parts(compute: Sums, theta: Tensor, parts: Iterator[Batch]) -> tuple[Tensor, Tensor]:
    gradient, loss = compute(theta, next(parts))
    for part in parts:
        more, more_loss = compute(theta, part)
        gradient, loss = gradient.add_(more), loss + more_loss
    return gradient, loss


def _means(losses: Floats, sampled: Ints) -> list[float]:
    """Each site's mean over the steps with patients of the loss per patient; NaN without such a step. Both (steps, S)."""
    per_patient = np.where(sampled > 0, losses / np.maximum(sampled, 1), 0.0)
    steps = (sampled > 0).sum(0)
    return [
        float(total / count) if count else float("nan") for total, count in zip(per_patient.sum(0), steps, strict=True)
    ]
