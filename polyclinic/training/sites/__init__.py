"""What hospitals in training have in common, however their gradients are computed: models, passes, and what is kept.

A pass has its own optimizer, filter, batches and noise. What each of them must keep of a round is kept under the pass's name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.training.local import Pass, Penalty, Sites, Trained
from polyclinic.training.modules import flat_parameters, split_flat
from polyclinic.training.sites.draws import Draws
from polyclinic.training.sites.optimizers import GradientFilter, OptimizerState, dump_state, restore_state, take_step
from polyclinic.training.task import OWN, SiteUpdate, SiteWork, TrainSettings, own_arrays
from polyclinic.types import Arrays, Ints, Reals, under

_KEPT = "local."


def pass_settings(settings: TrainSettings, local_pass: Pass) -> TrainSettings:
    """By which the gradients of a pass are made; of one over all patients with as much noise as a batch's mean has."""
    if not local_pass.all_patients:
        return replace(settings, local_steps=local_pass.gradients)
    noise = settings.noise_multiplier
    return replace(
        settings, sample_rate=1.0, local_steps=local_pass.gradients, denoise="none",
        noise_multiplier=None if noise is None else noise / settings.sample_rate,
    )  # fmt: skip


@dataclass(eq=False)
class Running:
    """A pass under way at S hospitals. ``left``: how many gradients it may still make; ``state``: the engine's own."""

    settings: TrainSettings
    left: int
    divisor: Tensor
    draws: list[Draws]
    denoiser: GradientFilter
    optimizer: OptimizerState
    state: Any = None


class TrainedSites(Sites):
    """S hospitals with their records. A subclass computes sums of gradients."""

    def __init__(self, module: nn.Module, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> None:
        self.settings, self.round, self.numbers = settings, work[0].round, [site.number for site in work]
        self.config = work[0].config
        self._module, self._arrays = module, arrays
        self._shapes = [p.shape for p in module.parameters() if p.requires_grad]
        self.work = work
        # What a hospital kept as its own is the half's to use; only what stays at it is in the model that it was sent.
        self.model = self._models([site.own for site in work])
        self._passes = {local_pass.name: local_pass for local_pass in settings.local.passes(settings)}
        self._running: dict[str, Running] = {}
        self._losses: list[Reals] = []
        self._sampled: list[Ints] = []

    def _begin(self, running: Running) -> Any:
        """What else a pass needs of the engine."""

    @abstractmethod
    def _sums(self, running: Running, models: Tensor, penalty: Penalty | None) -> tuple[Tensor, Reals, Ints]:
        """(S, P) sums of the next batch's clipped gradients with noise, (S,) summed losses, (S,) patients in the batch."""

    def _buffers(self) -> Arrays:
        """Buffers that training changed, such as running means; none where several hospitals or noise are about."""
        return {}

    def gradient(self, models: Tensor, name: str = "", penalty: Penalty | None = None) -> Tensor:
        running = self._run(name)
        if running.left < 1:
            declared = self._passes[name].gradients
            which = f" of the pass {name!r}" if name else ""
            raise RuntimeError(
                f"The round asks for more gradients{which} than the {declared} that the half's passes() declares, which are "
                "charged"
            )
        running.left -= 1
        total, losses, sampled = self._sums(running, running.denoiser.ahead(models), penalty)
        if not name:
            self._losses.append(losses)
            self._sampled.append(sampled)
        return running.denoiser.denoise(total.div_(running.divisor))

    def step(self, models: Tensor, gradient: Tensor, name: str = "") -> Tensor:
        running = self._run(name)
        after = take_step(models, gradient, running.optimizer, running.settings)
        if running.denoiser.looks_ahead:
            running.denoiser.note_move(after - models)
        return after

    def own(self) -> Tensor:
        return self._models([{**site.own, **own_arrays(site.state)} for site in self.work])

    def state(self, name: str, first: Tensor) -> Tensor:
        if not isinstance(first, Tensor) or first.dim() == 0 or len(first) not in (1, len(self.work)):
            raise ValueError(
                f"state({name!r}, first) got a {type(first).__name__} for first, not a tensor with a row for each hospital"
            )
        rows = list(first.expand(len(self.work), *first.shape[1:]))
        for index, site in enumerate(self.work):
            if f"{_KEPT}{name}" in site.state:
                rows[index] = torch.from_numpy(np.array(site.state[f"{_KEPT}{name}"])).to(first)
        return torch.stack(rows)

    def from_server(self, name: str) -> Tensor:
        return flat_parameters(self._module, self.work[0].beside[name])[None]

    def stays(self) -> Tensor:
        wanted = set(self.settings.local.stays(self._module))
        parts = [
            torch.full((p.numel(),), name in wanted, device=p.device)
            for name, p in self._module.named_parameters() if p.requires_grad
        ]  # fmt: skip
        return torch.cat(parts)

    def updates(self) -> list[SiteUpdate]:
        """Each hospital's update after the half's round."""
        trained = self.settings.local.round(self)
        self.settings.local.check_returned(trained, self.model)
        models, states_after = self._by_array(trained.model), self._states_after(trained)
        sent = {name: self._by_array(flat) for name, flat in trained.sent.items()}
        # Where training has nothing to say, of buffers and frozen parameters, what is sent beside the model is zero.
        zero = {name: np.zeros_like(value) for name, value in self._arrays.items() if value.dtype.kind == "f"}
        steps = sum(local_pass.gradients for local_pass in self._passes.values() if not local_pass.all_patients)
        means = _means(np.array(self._losses), np.array(self._sampled), len(self.work))
        return [
            SiteUpdate(
                self._arrays | models[site] | self._buffers(), steps, means[site], states_after[site],
                {name: zero | parts[site] for name, parts in sent.items()},
                {name: float(values[site]) for name, values in trained.metrics.items()},
            )
            for site in range(len(self.work))
        ]  # fmt: skip

    def _run(self, name: str) -> Running:
        if name not in self._passes:
            raise RuntimeError(f"The round has no pass {name!r}; its passes are {', '.join(map(repr, self._passes))}")
        if name not in self._running:
            local_pass = self._passes[name]
            settings, like = pass_settings(self.settings, local_pass), self.model
            states = [self._of_pass(site.state, name) for site in self.work]
            patients = [site.public_patients or site.rows.patients for site in self.work]
            divisor = torch.tensor([settings.sample_rate * count for count in patients], dtype=like.dtype)[:, None]
            # Its process of noise and its batches go on from what the pass kept.
            work = [replace(site, state=own) for site, own in zip(self.work, states, strict=True)]
            draws = [Draws(site, settings, like.shape[1]) for site in work]
            denoiser = GradientFilter(states, settings, like)
            sizes = [shape.numel() for shape in self._shapes]
            optimizer = restore_state(states, sizes, settings, like.dtype, like.device)
            running = Running(settings, local_pass.gradients, divisor.to(like.device), draws, denoiser, optimizer)
            running.state = self._begin(running)
            self._running[name] = running
        return self._running[name]

    def _of_pass(self, state: Mapping[str, np.ndarray], name: str) -> Arrays:
        others = (_KEPT, OWN, *(f"{other}." for other in self._passes if other))
        if name:
            return under(state, f"{name}.")
        return {key: value for key, value in state.items() if not key.startswith(others)}

    def _states_after(self, trained: Trained) -> list[Arrays]:
        """What each hospital keeps; a model of its own that is not finite is dropped, and the state of its passes too.

        So is an optimizer's state with a number that is not finite, which would make the next round's model so as well.
        """
        states: list[Arrays] = [{} for _ in self.work]
        finite = [True] * len(self.work)
        if trained.own is not None:
            finite = trained.own.isfinite().all(1).tolist()
            for site, own in enumerate(self._by_array(trained.own)):
                states[site] |= {OWN + name: value for name, value in own.items()} if finite[site] else {}
        for name, running in self._running.items():
            if self._passes[name].all_patients:
                continue
            dumped = dump_state(running.optimizer, self._shapes, running.settings)
            parts = zip(dumped, running.draws, running.denoiser.states_after(), strict=True)
            for site, (optimizer, drawn, filtered) in enumerate(parts):
                if finite[site] or not name:
                    prefix, state = f"{name}." if name else "", optimizer | filtered
                    if not all(np.isfinite(value).all() for value in state.values()):
                        state = {}
                    states[site] |= {prefix + key: value for key, value in (state | drawn.state_after()).items()}
        for name, values in trained.state.items():
            for site, value in enumerate(values.cpu().numpy()):
                if np.isfinite(value).all():
                    states[site][_KEPT + name] = value.copy()
        return states

    def _models(self, own: Sequence[Mapping[str, np.ndarray]]) -> Tensor:
        """(S, P): the message's arrays with each hospital's own in their place."""
        if not any(own):
            return flat_parameters(self._module, self._arrays).expand(len(own), -1)
        return torch.stack([flat_parameters(self._module, {**self._arrays, **theirs}) for theirs in own])

    def _by_array(self, flat: Tensor) -> list[Arrays]:
        """Each hospital's row of (S, P) as arrays of the dtypes in which the model came."""
        parts = {
            name: value.numpy().astype(self._arrays[name].dtype)
            for name, value in split_flat(flat.cpu(), self._module).items()
        }
        return [{name: value[site] for name, value in parts.items()} for site in range(len(flat))]


def _means(losses: Reals, sampled: Ints, sites: int) -> list[float]:
    """Each site's mean over the steps with patients of the loss per patient; NaN without such a step. Both (steps, S)."""
    if not len(losses):
        return [float("nan")] * sites
    per_patient = np.where(sampled > 0, losses / np.maximum(sampled, 1), 0.0)
    steps = (sampled > 0).sum(0)
    return [
        float(total / count) if count else float("nan") for total, count in zip(per_patient.sum(0), steps, strict=True)
    ]
