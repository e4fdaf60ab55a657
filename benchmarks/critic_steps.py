"""Private steps of the AC-GAN's critic at several hospitals, one way of having per-patient gradients a process.

A patient has two rows, a real and a generated one, clipped as one. Prints one JSON object when run: the seconds of each
step of all hospitals, and the peak memory. ``opacus_lean`` is a loop over Opacus' GradSampleModule written for speed: in
float32 throughout and with part of the batch in memory, where the engine ``opacus`` holds all and clips in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from benchmarks.ours import peak_bytes
from polyclinic.ehr.shard import Rows
from polyclinic.models.gan_trials import SPRINT
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import generator, keyed_stream, torch_seed
from polyclinic.training import classification
from polyclinic.training.losses import row_losses
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic_studies.published_games.networks import trial_critic

WAYS = ("linear", "opacus", "opacus_lean")
SITES, PATIENTS, BATCH = 5, 1300, 256
CLIP, NOISE, RATE = 1.0, 1.0, 2e-4
PHYSICAL = 8  # patients whose gradients are in memory at once, as Opacus' BatchMemoryManager would cut a batch


def pairs(site: int, patients: int) -> Rows:
    """Made-up trajectories, and as many made-up fakes: 2 * patients rows, y = 2 * arm + real."""
    rng = generator(0, "critic", site)
    arm = rng.integers(0, 2, patients)
    x = rng.normal(size=(2 * patients, SPRINT.columns)) + np.tile(arm, 2)[:, None]
    real = np.repeat([1, 0], patients)
    return Rows(x, np.tile(2 * arm, 2) + real, np.tile(np.arange(patients), 2), patients)


def work(sites: int, patients: int, turn: int) -> list[SiteWork]:
    streams = [[keyed_stream(0, name, site, turn) for name in ("batches", "noise", "layers")] for site in range(sites)]
    return [
        SiteWork(pairs(site, patients), sampling, noise, float(patients), layers=layers)
        for site, (sampling, noise, layers) in enumerate(streams)
    ]


def settings(patients: int, engine: str) -> TrainSettings:
    """One step, a batch of about 256 patients."""
    rate = min(1.0, BATCH / patients)
    return TrainSettings(rate, 1, RATE, CLIP, NOISE, optimizer="adam", engine=engine, loss="auxiliary")


def measure(way: str, sites: int, patients: int, steps: int) -> dict[str, object]:
    """Seconds of each of ``steps`` steps that all sites take."""
    step = lean(sites, patients) if way == "opacus_lean" else engine(way, sites, patients)
    seconds, processor = [], []
    for turn in range(steps):
        began, used = time.perf_counter(), time.process_time()
        step(turn)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return {"seconds": seconds, "processor_seconds": processor, "peak_bytes": peak_bytes()}


def engine(way: str, sites: int, patients: int) -> Callable[[int], None]:
    arrays = {name: value.numpy() for name, value in initialise(trial_critic, 0).items()}
    chosen = settings(patients, way)

    def step(turn: int) -> None:
        classification.train(trial_critic, arrays, work(sites, patients, turn), chosen)

    return step


def lean(sites: int, patients: int) -> Callable[[int], None]:
    from opacus import GradSampleModule

    arrays, chosen = initialise(trial_critic, 0), settings(patients, "opacus")
    draws = torch.Generator().manual_seed(torch_seed(0, "lean"))

    def step(turn: int) -> None:
        for site in work(sites, patients, turn):
            plain = trial_critic()
            plain.load_state_dict(arrays)
            module = GradSampleModule(plain, loss_reduction="sum")
            optimizer = torch.optim.Adam(plain.parameters(), lr=RATE)
            taken = (site.sampling.uniform(patients) < chosen.sample_rate).nonzero()[0]
            total = [torch.zeros_like(p) for p in plain.parameters()]
            for some in np.array_split(taken, -(-len(taken) // PHYSICAL)):
                index = np.concatenate([some, some + patients])  # the real rows, then the fakes
                x = torch.from_numpy(site.rows.x[index]).float().requires_grad_()
                losses = row_losses("auxiliary", module(x), torch.from_numpy(site.rows.y[index]))
                torch.autograd.backward((losses / 2).sum())
                _add_clipped(list(plain.parameters()), total)
            for p, clipped in zip(plain.parameters(), total, strict=True):
                noise = torch.randn(p.shape, generator=draws) * (NOISE * CLIP)
                p.grad = (clipped + noise) / (chosen.sample_rate * patients)
            optimizer.step()

    return step


def _add_clipped(parameters: list[nn.Parameter], total: list[torch.Tensor]) -> None:
    """Add the clipped gradients of pairs to ``total``, from ``grad_sample`` (2n, ...), which is let go."""
    added = [real.add_(fake) for p in parameters for real, fake in [p.grad_sample.chunk(2)]]  # type: ignore[attr-defined]
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in added]).norm(dim=0)
    factors = (CLIP / (norms + 1e-6)).clamp_(max=1.0)
    for p, one, whole in zip(parameters, added, total, strict=True):
        whole += torch.tensordot(factors, one, 1)
        p.grad_sample = None  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--sites", type=int, default=SITES)
    parser.add_argument("--patients", type=int, default=PATIENTS)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = measure(given.way, given.sites, given.patients, given.steps)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
