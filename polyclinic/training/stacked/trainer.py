"""Classification at many simulated hospitals at once: what classification.train does site by site, on stacked tensors.

Batches are Poisson samples of patients, an empty one still adds noise and counts, noise and sampling come from each
site's own stream in the order of its steps. Neighbouring relation: add or remove one patient. Abadi et al. 2016,
Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.training.local import Penalty
from polyclinic.training.modules import kept_apart, load, reseed
from polyclinic.training.sites import Running, TrainedSites
from polyclinic.training.sites.draws import Draws
from polyclinic.training.stacked.batches import Batch, Table, batch_parts, build_table, group_sites, patient_blocks
from polyclinic.training.stacked.engines import Engine, Sums, sums
from polyclinic.training.stacked.layered import Layered, find_layers, held_by_layers
from polyclinic.training.stacked.layers import Plan, plan
from polyclinic.training.stacked.looped import in_turn, loop_layers, looped_noise, looped_sums, takes
from polyclinic.training.stacked.propagation import held_by_pictures
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Bools, Builder, Ints, Reals

MEMORY_LIMIT = 1 << 30
CACHE = 1 << 24
PART = 1 << 28  # of one large site's batch, beside which its records are in memory too
# Patients apart in a block: powers of two, so that no part of a block is left over when the processor takes several at once.
FEWEST, MOST = 16, 256
GPU_SHARE = 8


def train_stacked(
    build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings,
    engine: Engine, memory_limit: int = MEMORY_LIMIT,
) -> list[SiteUpdate]:  # fmt: skip
    """Each site's update after ``settings.local_steps`` steps from ``arrays``, in the order of ``work``.

    Args:
        build: Makes the model's module.
        arrays: The model's arrays, from which all sites start.
        work: Each site's part.
        settings: The settings of the round.
        engine: "linear", "layered" or "functional", as ``engines.choose`` says.
        memory_limit: About how many bytes of gradients, activations and noise to hold at one time; it changes the
            result by rounding only. On a GPU a share of its memory takes its place.

    Raises:
        ConfigError: The engine cannot take the module.
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
    layers = plan(module) if engine == "linear" else ""
    held_by = find_layers(module) if engine == "layered" else layers
    row_bytes = _row_bytes(module, held_by, engine == "functional" and private, work[0].rows.x.shape[1])
    updates: dict[int, SiteUpdate] = {}
    # What a step holds is read several times over, fastest while it is in the processor's cache.
    held = min(memory_limit, CACHE) if settings.device == "cpu" else memory_limit
    in_host = min(memory_limit, MEMORY_LIMIT)  # noise is drawn in the processor's memory, also for a GPU
    part = held if engine == "functional" or settings.device != "cpu" else min(memory_limit, PART)
    loops = loop_layers(layers, settings, next(module.parameters()).dtype)
    # A site's own rows alone decide, so that its update does not depend on what it is stacked with.
    in_loops = [index for index, site in enumerate(work) if loops is not None and takes(site.rows, loops)]
    others = [index for index in range(len(work)) if index not in set(in_loops)]
    groups = [[others[index] for index in group]
              for group in group_sites([work[index] for index in others], settings.sample_rate, row_bytes, held)]  # fmt: skip
    if loops is not None:
        groups += in_turn(in_loops, loops)
    if settings.apart or (draws and engine == "functional"):
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
        own_loops = loops if group[0] in in_loops else None
        sums_of = partial(_of_batches, compute, cut)
        trained = _Stacked(module, arrays, some, settings, sums_of, in_host, own_loops)
        updates.update(zip(group, trained.updates(), strict=True))
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


def _row_bytes(module: nn.Module, layers: Plan | Layered | str, built: bool, features: int) -> int:
    """What one row of a batch holds at most: its gradient, ``built`` and added up; or the inputs and outputs of layers."""
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    widths = sum(sum(p.shape) for p in module.parameters() if p.dim() == 2)
    if built:
        numbers = 2 * sum(sizes)
    else:
        if isinstance(layers, Layered):
            widths = held_by_layers(layers, features)
        elif not isinstance(layers, str):
            widths = max(widths, held_by_pictures(layers, sum(sizes), features))
        numbers = 4 * widths
    return max(1, numbers) * next(module.parameters()).element_size()


#: ``_of_batches`` of an engine.
Batched = Callable[..., tuple[Tensor, Reals]]


class _Stacked(TrainedSites):
    """Hospitals of a stack, whose batches are padded tensors."""

    def __init__(
        self, module: nn.Module, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings, batched: Batched,
        memory_limit: int, loops: Ints | None,
    ) -> None:  # fmt: skip
        super().__init__(module, arrays, work, settings)
        self._batched, self._loops = batched, loops
        # Passes that take turns draw from one stream, so that none may draw ahead of the others.
        self._memory_limit = memory_limit if len(self._passes) == 1 else 0
        self._table = build_table(work, self.model.dtype, settings.device)

    def _begin(self, running: Running) -> Iterator[tuple[Bools, AddNoise]]:
        return _draws(running, self.work, self.model, self._memory_limit, self._loops is not None)

    def _sums(self, running: Running, models: Tensor, penalty: Penalty | None) -> tuple[Tensor, Reals, Ints]:
        chosen, add_noise = next(running.state)
        taken = np.flatnonzero(chosen)
        if self._loops is None or penalty is not None:
            gradient, loss = self._batched(models, self._table, chosen, penalty)
        else:
            gradient, loss = self._of_loops(self._loops, models, taken)
        add_noise(gradient)
        sampled = np.bincount(self._table.site[taken], minlength=len(self.work))
        return gradient, loss, sampled

    def _of_loops(self, loops: Ints, models: Tensor, taken: Ints) -> tuple[Tensor, Reals]:
        table, settings = self._table, self.settings
        max_norm = None if settings.noise_multiplier is None else settings.max_grad_norm
        gradient, losses, left = looped_sums(loops, models, table, taken, max_norm)
        for site in np.flatnonzero(left).tolist():
            own, chosen = replace(table, site=np.zeros_like(table.site), sites=1), np.zeros(len(table.site), dtype=bool)
            chosen[taken[table.site[taken] == site]] = True
            gradient[site], losses[site] = (part[0] for part in self._batched(models[site, None], own, chosen))
        return gradient, losses


def _of_batches(
    compute: Sums, cut: Callable[[Table, Bools], Iterator[Batch]], models: Tensor, table: Table, chosen: Bools,
    penalty: Penalty | None = None,
) -> tuple[Tensor, Reals]:  # fmt: skip
    """(S, P) sums of the ``chosen`` patients' gradients and (S,) summed losses, part after part of the batch."""
    parts = cut(table, chosen)
    gradient, loss = compute(models, next(parts), penalty=penalty)
    for part in parts:
        more, more_loss = compute(models, part, penalty=penalty)
        gradient, loss = gradient.add_(more), loss + more_loss
    return gradient, loss.double().cpu().numpy()


#: Adds a step's noise to the (S, P) sums of gradients, in place.
AddNoise = Callable[[Tensor], object]


def _draws(
    running: Running, work: Sequence[SiteWork], like: Tensor, memory_limit: int, in_loops: bool
) -> Iterator[tuple[Bools, AddNoise]]:
    """For each step, which patients it samples, (patients of all sites,), and what adds its noise; like: (S, P) models."""
    draws, noisy = running.draws, running.settings.noise_multiplier is not None
    held = sum(site.rows.patients for site in work) + noisy * like.numel()
    at_once = max(1, memory_limit // (8 * held + 1))
    for begin in range(0, running.settings.local_steps, at_once):
        steps = min(at_once, running.settings.local_steps - begin)
        chosen = np.concatenate([site.batches(steps) for site in draws], axis=1)
        add_noise = _noise(draws, steps, like, running.settings.noise_scale, in_loops) if noisy else [_nothing] * steps
        yield from zip(chosen, add_noise, strict=True)


def _nothing(gradient: Tensor) -> None:
    """Without privacy there is no noise."""


def _noise(draws: Sequence[Draws], steps: int, like: Tensor, scale: float, in_loops: bool) -> Sequence[AddNoise]:
    """What adds ``scale`` times each of the next steps' noise, each site's from its own stream."""
    places = [site.place(steps) for site in draws] if in_loops else [None]
    if None not in places:
        return looped_noise(cast(list[tuple[int, int]], places), steps, like.shape[1], scale)
    noise = torch.empty(steps, *like.shape, dtype=like.dtype, device="cpu")
    for index, site in enumerate(draws):
        noise[:, index] = torch.from_numpy(site.noise(steps))
    return [partial(_add, noise[step], scale) for step in range(steps)]


def _add(noise: Tensor, scale: float, gradient: Tensor) -> None:
    gradient.add_(noise.to(gradient.device), alpha=scale)
