"""One run of a method through Polyclinic's own round loop, and what it gave; runs that are known are not made again."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.utility.methods import Options
from benchmarks.utility.splits import DELTAS, HOSPITALS, name_of
from polyclinic.config import RunConfig

Found = dict[str, Any]
_TRAINING = (
    "rounds", "training.local-steps", "training.sample-rate", "training.batching", "training.noise",
    "training.optimizer", "training.learning-rate", "training.momentum",
    "training.weight-decay", "privacy.max-grad-norm", "data.standardise", "privacy.statistics-share", "upload.form",
    "training.denoise", "model", "strategy",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run: ``options`` are configuration keys beside the dataset's own; ``peer`` is a module's run instead of ours."""

    dataset: str
    seed: int
    options: Options
    peer: str = ""

    @property
    def config(self) -> RunConfig:
        return RunConfig.build(
            {"dataset": name_of(self.dataset, self.seed), "sites": HOSPITALS[self.dataset], "seed": self.seed,
             "privacy.delta": DELTAS[self.dataset], "evaluation.every": 10_000, "training.optimizer": "sgd"},
            {} if self.peer else self.options,
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Names what decides the result, the defaults that training has today among it."""
        settings = {} if self.peer else self.config.flat()
        told = {name: settings[name] for name in _TRAINING if settings} | self.options
        text = json.dumps([self.dataset, self.seed, self.peer, told], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def carry_out(job: Job) -> Found:
    """Pooled and macro AUROC on held-out patients, and the true epsilon, of a patient or of a whole hospital."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if job.peer == "opacus":
        from benchmarks.utility.opacus_user import measure

        return measure(job.dataset, job.seed, **job.options)
    if job.peer:
        from benchmarks.utility.references import REFERENCES

        return REFERENCES[job.peer](job.dataset, job.seed)
    return run_ours(job.config)


def run_ours(config: RunConfig) -> Found:
    # Not Federation.run, whose report takes as long as the run.
    from polyclinic.runs.simulation import check_simulation, simulated_patients
    from polyclinic.server.federate import Places, federate
    from polyclinic.server.summary import summarise
    from polyclinic.sim.calls import AppReference
    from polyclinic.sim.grid import LocalGrid

    logging.getLogger("flwr").setLevel(logging.WARNING)
    check_simulation(config)
    patients = simulated_patients(config)
    app = AppReference("polyclinic.client_app")
    with tempfile.TemporaryDirectory() as out, LocalGrid(app, len(patients), config.flat(), None, patients) as grid:
        home = Path(out)
        outcome = federate(grid, config, "utility", Places(home, server_ledger=home / "server.sqlite"))
        summary = summarise(outcome, home, home)
    central = summary["privacy"]["central"]
    return {
        "auroc": summary["metrics"]["pooled"]["auroc"], "macro": summary["metrics"]["macro"]["auroc"],
        "true_epsilon": central["epsilon"] if central else summary["privacy"]["epsilon"],
        "noise_multiplier": summary["privacy"]["noise_multiplier"],
    }  # fmt: skip


class Runs:
    """Runs by key, kept in a file of one JSON line each if ``path`` is given, so that an interrupted benchmark goes on."""

    def __init__(self, path: Path | None, processes: int = 1) -> None:
        self._path, self._processes = path, processes
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []
        self._known: dict[str, Found] = {row.pop("key"): row for row in map(json.loads, lines)}

    def __getitem__(self, job: Job) -> Found:
        return self._known[job.key]

    def make(self, jobs: Iterable[Job]) -> Iterator[int]:
        """Make what is not known; yields how many are left after each."""
        missing = {job.key: job for job in jobs if job.key not in self._known}
        if self._processes == 1:
            for left, (key, job) in zip(range(len(missing) - 1, -1, -1), missing.items(), strict=True):
                self._keep(key, carry_out(job))
                yield left
            return
        with ProcessPoolExecutor(self._processes, mp_context=get_context("spawn")) as pool:
            under_way = {pool.submit(carry_out, job): key for key, job in missing.items()}
            for done, future in enumerate(as_completed(under_way), start=1):
                self._keep(under_way[future], future.result())
                yield len(missing) - done

    def _keep(self, key: str, found: Found) -> None:
        self._known[key] = found
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **found}) + "\n")
