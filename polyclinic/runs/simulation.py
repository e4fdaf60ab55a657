"""The hospitals of a simulation: whose records a configuration deals to which of them, and the hospitals of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.config import RunConfig
from polyclinic.config.reading import keyword_arguments
from polyclinic.ehr.datasets import Dataset, load_shards
from polyclinic.ehr.encoding import Standardiser
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.shard import Rows, Shard
from polyclinic.ehr.split import OWN_SPLIT, Split
from polyclinic.errors import ConfigError
from polyclinic.plugins import TABLES, dataset_of, dealer_named
from polyclinic.privacy.accounting import usual_delta
from polyclinic.training.preparation import impute, standardise

if TYPE_CHECKING:
    from polyclinic.runs.folder import Run


@dataclass(frozen=True, eq=False)
class Simulation:
    """The simulated hospitals of a finished run, with the records that its task saw there.

    Examples:
        >>> import tempfile
        >>> from polyclinic.runs.folder import Run
        >>> run = Run.create(RunConfig(dataset="breast-cancer", sites=3, out=tempfile.mkdtemp()))
        >>> {site: shard.patients for site, shard in Simulation(run).shards.items()}
        {'hospital-1': 63, 'hospital-2': 201, 'hospital-3': 305}
    """

    run: Run

    @cached_property
    def config(self) -> RunConfig:
        return self.run.config()

    @cached_property
    def scale(self) -> Standardiser | None:
        """What the run standardised its rows by; None where it left them as they were."""
        return self.run.standardiser()

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """The hospitals' records by name, in order, before missing cells were filled."""
        return SimulatedRecords.of(self.config).shards()

    def rows(self, site: str) -> tuple[Rows, Rows]:
        """A hospital's training and held-out rows, imputed and standardised."""
        data = self.config.data
        imputer = read_imputer(data.imputer_file) if data.imputation == "chained" else None
        train, test = impute(self.shards[site], data.imputation, imputer, self.config.seed)
        return standardise(train, self.scale), standardise(test, self.scale)


@dataclass(frozen=True)
class SimulatedDataset:
    """A dataset by name, with the schema's file, which may be ``written`` anew within a process.

    Examples:
        >>> SimulatedDataset.of(RunConfig(dataset="breast-cancer")).load().schema.label.name
        'malignant'
    """

    name: str
    options: str
    schema_file: str
    written: int
    indicators: bool
    label: str = ""
    objective: str = ""  # of one's own tables, whose label is read as it needs

    @classmethod
    def of(cls, config: RunConfig) -> SimulatedDataset:
        return _dataset_of(config, _modification_time(config.data.schema_file) if config.data.schema_file else 0)

    @lru_cache(maxsize=4)  # noqa: B019 - a value, of which a few are kept
    def load(self) -> Dataset:
        imputation: Any = "indicator" if self.indicators else "mean"
        return dataset_of(
            RunConfig(
                dataset=self.name,
                dataset_options=self.options,
                objective=self.objective,
                data={"schema_file": self.schema_file, "imputation": imputation, "label": self.label},
            )  # fmt: skip
        )


@lru_cache(maxsize=8)
def _dataset_of(config: RunConfig, written: int) -> SimulatedDataset:
    data, indicators = config.data, config.data.imputation == "indicator"
    objective = config.objective if config.dataset == TABLES else ""
    return SimulatedDataset(
        config.dataset, config.dataset_options, data.schema_file, written, indicators, data.label, objective
    )  # fmt: skip


@dataclass(frozen=True)
class SimulatedRecords:
    """The records of a simulation's hospitals: a dataset and how it is dealt.

    Examples:
        >>> SimulatedRecords.of(RunConfig(dataset="breast-cancer", sites=4)).words
        'breast-cancer dealt to 4 hospitals by its own partitioner, seed 0, alpha 1.0'
    """

    dataset: SimulatedDataset
    sites: int
    partitioner: str
    seed: int
    alpha: float
    partitioner_options: str
    split: Split

    @classmethod
    def of(cls, config: RunConfig) -> SimulatedRecords:
        return cls(
            SimulatedDataset.of(config), config.sites, config.partitioner, config.seed, config.alpha,
            config.partitioner_options, config.split.rule,
        )  # fmt: skip

    @property
    def own(self) -> SimulatedRecords:
        """The same: a run chooses the split of a simulation."""
        return self

    @property
    def words(self) -> str:
        """Which records these are: a ledger is of these alone."""
        number = f"{self.sites} hospitals" if self.sites else "as many hospitals as it has"
        by = self.partitioner or "its own partitioner"
        if self.partitioner_options:
            by += f" ({self.partitioner_options})"
        dataset = f"{self.dataset.name} ({self.dataset.options})" if self.dataset.options else self.dataset.name
        dataset += f", label {self.dataset.label}" if self.dataset.label else ""
        split = "" if self.split == OWN_SPLIT else f", held out {self.split.words}"
        return f"{dataset} dealt to {number} by {by}, seed {self.seed}, alpha {self.alpha!r}{split}"

    @lru_cache(maxsize=4)  # noqa: B019 - a value, of which a few are kept
    def shards(self) -> dict[str, Shard]:
        """The hospitals' records by their names, in order."""
        loaded = self.dataset.load()
        name = self.partitioner or loaded.default_partitioner
        dealer = dealer_named(name, keyword_arguments(self.partitioner_options))
        shards = load_shards(loaded, self.sites, name, self.seed, self.alpha, dealer, self.split)
        return {shard.site: shard for shard in shards}

    def shard(self, site: str) -> Shard:
        return self.shards()[site]


def read_imputer(path: str) -> Imputer:
    """The imputer in a file, read once until it is written anew. Raises DataError for a file that is none.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> path = Path(tempfile.mkdtemp()) / "imputer.json"
        >>> Imputer.from_moments(("age", "crp"), np.array([0.1, -0.4]), np.eye(2)).write(path)
        >>> read_imputer(str(path)).features
        ('age', 'crp')
    """
    return _imputer(path, _modification_time(path))


@lru_cache(maxsize=4)
def _imputer(path: str, written: int) -> Imputer:
    return Imputer.read(path)


def _modification_time(path: str) -> int:
    """When a file was written; 0 where there is none, for who reads it to say."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def simulated_delta(config: RunConfig) -> float:
    """The delta of a simulation: its own, or ``usual_delta`` of all its patients where it names none.

    They are all patients of the dataset, held out or not, so that every split has the same delta. Where
    ``privacy.patients-per-site`` is public, they are so many at each hospital, which makes delta a function of public numbers.
    Else the number of patients counts as public.

    Examples:
        >>> simulated_delta(RunConfig(dataset="breast-cancer")), simulated_delta(RunConfig(privacy={"delta": 1e-5}))
        (0.0001, 1e-05)
    """
    if config.privacy.delta:
        return config.privacy.delta
    public, shards = config.privacy.patients_per_site, simulated_shards(config)
    return usual_delta(sum(public or shard.patients for shard in shards))


def settle(config: RunConfig) -> RunConfig:
    """The configuration of a simulation with what it leaves open chosen: the optimizer, and with privacy its delta.

    Examples:
        >>> config = RunConfig(dataset="breast-cancer")
        >>> config.privacy.delta, settle(config).privacy.delta
        (0.0, 0.0001)
    """
    config = config.for_schema(SimulatedDataset.of(config).load().schema)
    return config.with_values({"privacy.delta": simulated_delta(config)}) if config.privacy.dp else config


def check_simulation(config: RunConfig) -> None:
    """Raises ConfigError, before any run begins, when delta is not below 1/patients at every simulated hospital.

    Examples:
        >>> check_simulation(settle(RunConfig(dataset="breast-cancer")))
        >>> check_simulation(RunConfig(dataset="breast-cancer", privacy={"delta": 0.1}))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: Configuration key 'privacy.delta' has the value 0.1, which must ...
    """
    largest = max(simulated_shards(config), key=lambda shard: shard.trained_on)
    if config.privacy.dp and config.privacy.delta >= 1 / largest.trained_on:
        raise ConfigError(
            f"Configuration key 'privacy.delta' has the value {config.privacy.delta:g}, which must be below 1/patients at every "
            f"hospital: {largest.site} has {largest.trained_on} training patients; "
            f"{usual_delta(largest.trained_on):g} would be a tenth of that."
        )


def simulated_sites(config: RunConfig) -> list[str]:
    """The names of the simulated hospitals in order of their index.

    Examples:
        >>> simulated_sites(RunConfig(dataset="breast-cancer", sites=3))
        ['hospital-1', 'hospital-2', 'hospital-3']
    """
    return list(SimulatedRecords.of(config).shards())


def simulated_patients(config: RunConfig) -> list[int]:
    """Training patients of the simulated hospitals, in the same order: how dear each is to train.

    Examples:
        >>> simulated_patients(RunConfig(dataset="breast-cancer", sites=3))
        [43, 149, 219]
    """
    return [shard.trained_on for shard in simulated_shards(config)]


def simulated_shards(config: RunConfig) -> list[Shard]:
    """The records of the simulated hospitals, in the same order.

    Examples:
        >>> [(shard.site, shard.patients, shard.trained_on) for shard in simulated_shards(RunConfig(sites=3))]
        [('hospital-1', 63, 43), ('hospital-2', 201, 149), ('hospital-3', 305, 219)]
    """
    return list(SimulatedRecords.of(config).shards().values())


def forget_datasets() -> None:
    """Load simulated hospitals' records anew when they are next asked for: a dataset's name may stand for another by then.

    Examples:
        >>> before = simulated_shards(RunConfig())[0]
        >>> forget_datasets()
        >>> simulated_shards(RunConfig())[0] is before
        False
    """
    SimulatedDataset.load.cache_clear()
    SimulatedRecords.shards.cache_clear()
