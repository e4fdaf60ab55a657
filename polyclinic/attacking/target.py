"""What of a finished simulated run is attacked, and who took part.

Members are the training patients of all hospitals, non-members the held-out ones; both are rebuilt from the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file
from torch import nn

from polyclinic.client.hospital import read_imputer
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.datasets.catalogue import TEST_FRACTION
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.evaluation.attacks.membership import Membership
from polyclinic.plugins import build_model, dataset_of
from polyclinic.server.run_folder import RunFolder
from polyclinic.training.preparation import imputed, standardised
from polyclinic.training.shadows import joined
from polyclinic.training.task import Arrays, TrainSettings

#: Attacks that were not made, and why.
LeftOut = list[dict[str, str]]


@dataclass(frozen=True, eq=False)
class Target:
    """A finished run, and at each hospital its training and its held-out patients, scaled as the model takes them."""

    folder: RunFolder
    config: RunConfig
    summary: dict[str, Any]
    hospitals: list[tuple[Rows, Rows]]
    arrays: Arrays
    seed: int

    @cached_property
    def members(self) -> Rows:
        return joined([train for train, _ in self.hospitals])

    @cached_property
    def non_members(self) -> Rows:
        return joined([test for _, test in self.hospitals])

    @cached_property
    def schema(self) -> Schema:
        return dataset_of(self.config).schema

    @cached_property
    def build(self) -> Callable[[], nn.Module]:
        """Makes an empty module of the run's model."""
        return build_model(self.config, self.schema)

    @cached_property
    def settings(self) -> TrainSettings:
        """Of the run's training, with the noise and the learning rate that it had."""
        settings = train_settings(self.config, self.summary["privacy"]["noise_multiplier"])
        return replace(settings, learning_rate=self.summary["learning_rate"] or 0.1, device="cpu")

    @property
    def share(self) -> float | None:
        """With what chance each patient took part, by a coin of its own; None where the split was published."""
        dataset = dataset_of(self.config)
        natural = (self.config.partitioner or dataset.default_partitioner).startswith("natural")
        return None if natural and dataset.fixed_split else 1 - TEST_FRACTION


def read_target(path: Path, seed: int = 0) -> Target:
    """The run in ``path``, its folder or one that holds it alone.

    Raises ConfigError when there is no finished run, and for one of real hospitals or of task posterior."""
    folder = RunFolder.existing(path)
    config, summary = folder.config(), folder.summary()
    if not summary["simulation"]:
        raise ConfigError(
            f"{path} is a run of real hospitals, whose records are not here; attack its configuration in a simulation."
        )
    if config.posterior:
        raise ConfigError(f"{path} is a run of task posterior, which none of the attacks is made for.")
    dataset = dataset_of(config)
    partitioner = config.partitioner or dataset.default_partitioner
    shards = load_shards(dataset, config.sites, partitioner, config.seed, config.alpha)
    imputer = read_imputer(config.imputer_file) if config.imputation == "chained" else None
    arrays = load_file(folder.path / "model.safetensors")
    scale = (arrays.pop("standardiser.mean"), arrays.pop("standardiser.std")) if "standardiser.mean" in arrays else None
    hospitals = []
    for shard in shards:
        train, test = imputed(shard, config.imputation, imputer, config.seed)
        scaled = [part if config.synthesis else standardised(part, scale) for part in (train, test)]
        hospitals.append((scaled[0], scaled[1]))
    return Target(folder, config, summary, hospitals, arrays, seed)


def judged(found: Membership) -> dict[str, Any]:
    """As JSON, whose keys are texts."""
    kept = {key: value for key, value in asdict(found).items() if key != "found"}
    return kept | {
        f"tpr_at_{100 * rate:g}_percent_fpr".replace(".", ""): asdict(share) for rate, share in found.found.items()
    }
