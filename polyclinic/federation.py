"""Run a federation from Python: ``Federation.from_dataset("heart-disease").run(rounds=15, privacy={"epsilon": 3.0})``."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from polyclinic import asking
from polyclinic.client.home.hospital import forget_hospitals
from polyclinic.config import AT_COORDINATORS, EFFECTS, SECTIONS, UNDER_FLOWER, RunConfig, check_effects
from polyclinic.config.keys import flat_keys, nested_keys
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.datasets.tables import absolute, hold
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.report import render_report
from polyclinic.inspection.comparison import beside, compare
from polyclinic.inspection.described import Described
from polyclinic.inspection.result import RunResult
from polyclinic.naming import as_keywords, changeable, check_reach, name_objects
from polyclinic.plugins import TABLES, dataset_of
from polyclinic.programs import forget_programs, program_of
from polyclinic.releases.description import Description
from polyclinic.runs.folder import Run
from polyclinic.runs.simulation import (
    check_simulation,
    forget_datasets,
    settle,
    simulated_patients,
    simulated_sites,
)
from polyclinic.server.app import coordinate
from polyclinic.server.calibration import calibrate
from polyclinic.server.exchange.central import central_plan
from polyclinic.server.exchange.cohort import check_cohorts
from polyclinic.server.exchange.noise import check_noise
from polyclinic.server.federate import check_names
from polyclinic.server.phases.model import check_model
from polyclinic.server.progress import OneLine, Progress
from polyclinic.server.summary import summarise
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.sim.unreliable import Conditions, UnreliableGrid
from polyclinic.sim.workers import ProcessWorkers, Workers
from polyclinic.sweeps.carrying import Watch
from polyclinic.sweeps.plan import Planned, check, in_order, plan
from polyclinic.sweeps.tables import Sweep, sweep

_CLIENT = AppReference("polyclinic.client_app")
#: The dataset of hospitals' own files, or of tables under a public schema.
HOSPITALS = "polyclinic.client.home.simulated:hospitals"


@contextmanager
def _calm() -> Iterator[None]:
    """Flower's logger, torch's thread pool and Python's collector calmed while a run goes on, and put back after it.

    Flower's strategies log four lines a round. On models of this size torch's threads cost more than they give. And each
    collection takes a fifth of a second, since it walks all modules and records that are loaded.
    """
    logger = logging.getLogger("flwr")
    level, threads = logger.level, torch.get_num_threads()
    logger.setLevel(logging.WARNING)
    torch.set_num_threads(1)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        logger.setLevel(level)
        torch.set_num_threads(threads)


@contextmanager
def _naming_folder(folder: Run) -> Iterator[None]:
    """Whatever stops a run, Ctrl-C as well, says where its folder is and how to go on."""
    try:
        yield
    except BaseException as stop:
        stop.add_note(folder.way_on())
        raise


def _write_summary(folder: Run, summary: dict[str, Any]) -> None:
    """Write a summary that has gained something, and its report."""
    folder.write_summary(summary)
    render_report(folder.path, with_figures=folder.pictures)


def _forget() -> None:
    """A cell that is run again gives its names other objects, for which nothing kept of the old ones may stand."""
    forget_datasets()
    forget_hospitals()
    forget_programs()
    calibrate.cache_clear()


def _check_sites(config: RunConfig) -> None:
    """Raises ConfigError, before any run begins, when there can never be ``participation.min-sites`` hospitals."""
    sites = len(simulated_sites(config))
    if config.participation.min_sites > sites:
        raise ConfigError(
            f"Configuration key 'participation.min-sites' has the value {config.participation.min_sites}, which must "
            f"be at most {sites}, the number of simulated hospitals."
        )
    if config.privacy.overlap > sites and config.privacy.dp:
        raise ConfigError(
            f"Configuration key 'privacy.overlap' has the value {config.privacy.overlap}, which must be at most "
            f"{sites}, the number of simulated hospitals."
        )
    check_cohorts(config, sites)
    conditions(config, simulated_sites(config))


def _check_gpus(config: RunConfig) -> None:
    """Raises ConfigError when this machine lacks the GPUs of a run; a Ray cluster is asked when it is joined."""
    devices = torch.cuda.device_count()
    if config.gpus > devices and not config.ray_address:
        raise ConfigError(
            f"Configuration key 'gpus' has the value {config.gpus:g}, but torch finds {devices} GPUs here."
        )


@dataclass(frozen=True)
class Federation:
    """Simulated hospitals in this process. Immutable: ``with_options`` and ``run`` take configuration keys as keywords.

    A dataset, task, model or strategy may be the object itself in place of its name: ``run(strategy=MyStrategy, model=my_net)``.
    """

    config: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        if not isinstance(self.config, RunConfig):
            raise ConfigError(
                f"Federation(config) takes a RunConfig, not {self.config!r}; "
                "Federation.from_dataset(name) takes a dataset's name."
            )

    def __repr__(self) -> str:
        usual = {"task": RunConfig().task, "strategy": RunConfig().strategy}
        given = {
            key: value for key, value in self.config.minimal().items() if key != "dataset" and usual.get(key) != value
        }
        by_name = nested_keys({key.replace("-", "_"): value for key, value in given.items()})
        shown = [f"{key}={value!r}" for key, value in by_name.items()]
        return f"Federation.from_dataset({', '.join([repr(self.config.dataset), *shown])})"

    @classmethod
    def from_dataset(cls, name: str | Dataset, **options: Any) -> Federation:
        """A federation over a dataset's hospitals; ``options`` are configuration keys (``sites=8, seed=1``).

        Raises ConfigError, with the nearest name, for a dataset that there is not.
        """
        federation = cls(RunConfig.build(name_objects({"dataset": name}), name_objects(options)))
        dataset_of(federation.config)  # what is wrong with it is said here
        return federation

    @classmethod
    def from_tables(
        cls, tables: Mapping[str, pd.DataFrame | str | Path], label: str, patient: str = "", **options: Any
    ) -> Federation:
        """A federation of hospitals' own tables, one for each, for a simulation.

        Args:
            tables: By hospital, a data frame or the path of a CSV or Parquet file. Runs over files can be resumed and have
                several workers; data frames live in this process alone.
            label: Column of the outcome: 0 and 1, up to 20 categories, or more than 10 numbers.
            patient: Column that names the patient, the unit of privacy; without it each row is one.
            options: Configuration keys, and more on columns. The key ``leave_out`` names columns that are not features, such as
                those written after the outcome. The key ``missing`` gives texts that mark a missing cell in any column, beside
                the usual ones. For several rows a patient, ``time`` names the column of a visit's time, and ``steps`` says
                how many of the latest visits become a sequence.

        Raises:
            ConfigError: for a column that does not exist. DataError: for tables that nothing can be learned from.

        The schema is drafted from the records, which no epsilon covers; the run's notes say so.

        Examples:
            >>> import numpy as np, pandas as pd
            >>> age = np.arange(200) % 60 + 30
            >>> table = pd.DataFrame({"mrn": range(200), "age": age, "died": (age + np.arange(200) % 7 > 62).astype(int)})
            >>> federation = Federation.from_tables({"north": table[::2], "south": table[1::2]}, label="died", patient="mrn")
            >>> federation.config.dataset
            'tables'
        """
        if not isinstance(tables, Mapping) or not tables:
            raise ConfigError("from_tables takes a table for each hospital: {'north': frame_or_path, 'south': ...}.")
        frames = {name: table for name, table in tables.items() if isinstance(table, pd.DataFrame)}
        if frames and len(frames) < len(tables):
            raise ConfigError("from_tables takes data frames or paths, not both; read the files, or write the frames.")
        given: dict[str, Any] = {"frames": hold(frames)} if frames else {
            "files": [absolute(f"{name}={place}") for name, place in tables.items()]
        }  # fmt: skip
        return cls._of_tables(given | {"label": label, "patient": patient}, options)

    @classmethod
    def from_frame(cls, table: pd.DataFrame, site: str, label: str, patient: str = "", **options: Any) -> Federation:
        """As ``from_tables``, of one data frame.

        Args:
            table: The rows of all hospitals.
            site: The column that names each row's hospital.
            label, patient, options: As in ``from_tables``.

        Raises:
            ConfigError, DataError: As of ``from_tables``.
        """
        frames = hold({"all": table})
        return cls._of_tables({"frames": frames, "site": site, "label": label, "patient": patient}, options)

    @classmethod
    def from_hospitals(
        cls, files: Sequence[str | Path], schema: str | Path = "", mapping: str | Path = "", cohort: str | Path = "",
        **options: Any,
    ) -> Federation:  # fmt: skip
        """A federation of hospitals under a public schema, for a simulation; nothing is drafted.

        Args:
            files: A ``hospital.toml`` for each hospital, each with its own source, cohort and mapping. With ``schema``: tables,
                as ``path`` or ``name=path``.
            schema: The public schema of tables that have no ``hospital.toml``.
            mapping: With ``schema``: how the columns of all tables become the schema's.
            cohort: With ``schema``: the steps that choose the rows of all tables.
            options: Configuration keys.

        Raises:
            ConfigError: for a file that is wrong or not there. DataError: for records that the schema does not allow.
        """
        if (mapping or cohort) and not schema:
            raise ConfigError("from_hospitals takes a mapping or a cohort together with the schema of the tables.")
        places = [files] if isinstance(files, str | Path) else files
        under = {"schema": schema, "mapping": mapping, "cohort": cohort}
        given: dict[str, Any] = {"files": [absolute(str(place)) for place in places]}
        given |= {name: absolute(str(path)) for name, path in under.items() if path}
        return cls.from_dataset(HOSPITALS, dataset_options=given, **options)

    @classmethod
    def _of_tables(cls, given: dict[str, Any], options: dict[str, Any]) -> Federation:
        given |= {name: options.pop(name) for name in ("leave_out", "missing", "time", "steps") if name in options}
        given = {key: value for key, value in given.items() if value}
        try:
            return cls.from_dataset(TABLES, dataset_options=given, **options)
        except (ConfigError, DataError) as error:
            raise type(error)(as_keywords(str(error))) from error.__cause__

    @classmethod
    def from_config(cls, config: RunConfig) -> Federation:
        """The federation of a configuration, as ``RunConfig.build`` makes it or a run's folder holds it."""
        return cls(config)

    def with_options(self, **options: Any) -> Federation:
        """The same federation with other configuration keys. Raises ConfigError for one that does not exist."""
        return replace(self, config=RunConfig.build(self.config.minimal(), name_objects(options)))

    def run(
        self,
        *,
        progress: Progress | bool | None = None,
        comparison: bool = False,
        pictures: bool = True,
        **options: Any,
    ) -> RunResult:
        """Train, write the run's folder, and return the result.

        Args:
            progress: Who watches, if anybody; True tells of it in one line that is written over, which suits a notebook.
            comparison: Whether the run also trains without privacy, and each hospital alone.
            pictures: False saves half a second in each of many runs, whose reports are of tables alone until ``report`` is
                called.
            options: Configuration keys of this run alone.

        Raises:
            PolyclinicError: The run cannot begin or fails; one sentence says why.
        """
        config = self.with_options(**options).config
        if isinstance(progress, bool):
            progress = OneLine() if progress else None
        if comparison and not program_of(config).judged:
            raise ConfigError(
                f"A comparison is of metrics on held-out patients, which task {config.task!r} has none of; leave --compare out."
            )
        config = Federation(config).check(progress)
        return self._carry_out(config, Run.create(config, comparison=comparison, pictures=pictures), progress)

    def describe(
        self,
        columns: Sequence[str] = (),
        by: str = "",
        *,
        epsilon: float | None = None,
        exact: bool = False,
        ledger: Path | None = None,
        **options: Any,
    ) -> Described:
        """Table 1 of the hospitals' patients.

        Args:
            columns: Their names; none describes all that can be.
            by: A column of categories whose groups are compared.
            epsilon: What it may cost each hospital.
            exact: In its place, exact numbers, which are not private.
            ledger: The file that is charged, begun if there is none; by default a new one in the folder ``out``.
            options: Of the ``releases.description.Description``.

        Raises:
            ConfigError: for what cannot be described, before a charge. BudgetRefused: when every hospital's budget refuses.

        Examples:
            >>> table = Federation.from_dataset("breast-cancer").describe(["mean_radius"], by="malignant", exact=True).table
            >>> table["Overall"].tolist()
            ['569', '14.1 (3.5)', '13.4 [11.7, 15.8]']
        """
        question = Description(tuple(columns), by, epsilon=asking.cost(epsilon, None, exact, None), **options)
        place = asking.new_ledger(Path(self.config.out)) if ledger is None else Path(ledger)
        return Described(asking.ask(asking.simulated_by(self.config, place), question))

    def check(self, progress: Progress | None = None) -> RunConfig:
        """The configuration as a run has it, with what it leaves open chosen (``privacy.delta``).

        Raises ConfigError where no run of this configuration can succeed; no privacy is spent.
        """
        config = self.config
        check_reach(config)
        if changeable(config):
            _forget()
        check_names(config)
        partitioner = config.partitioner or dataset_of(config).default_partitioner
        check_effects(config.with_values({"partitioner": partitioner}), (UNDER_FLOWER, AT_COORDINATORS, *EFFECTS))
        config = settle(config)  # counts patients, so that records are read from here on
        program = program_of(config)
        check_simulation(config)
        _check_sites(config)
        _check_gpus(config)
        check_model(program, dataset_of(config).schema)
        if config.privacy.dp:
            (progress or Progress()).on_step("calibrating the noise")
            noise = calibrate(config).noise_multiplier
            check_noise(program, dataset_of(config).schema, noise, simulated_patients(config))
        if config.central.on:
            (progress or Progress()).on_step("calibrating the central noise")
            central_plan(config, simulated_sites(config))
        return config

    def sweep(
        self, *, seeds: int = 1, folds: int = 0, same_split: bool = False, jobs: int = 1, watch: Watch | None = None,
        **options: Any,
    ) -> pd.DataFrame:  # fmt: skip
        """Run each combination of the values that ``options`` list, and return a table with a row a run.

        Args:
            seeds: Repetitions of each combination, whose seeds count up from ``seed``.
            folds: With 2 or more, each repetition is a run for each fold: every patient is held out in exactly one.
            same_split: All seeds hold out the same patients; otherwise each draws its own, unless ``split.seed`` is given.
            jobs: Runs at once, each in a process of its own; 1 runs them in this process. With more, a script must start its work
                under ``if __name__ == "__main__"``.
            watch: Who watches.
            options: Configuration keys; a list holds the values of a key that varies. ``out`` is the folder of the runs, the
                tables and the page ``sweep.html``. The tables are ``sweep`` and ``sweep-summary``, each as CSV and Parquet.

        Returns:
            The values that vary, ``seed``, ``split.seed``, ``split.fold``, ``run`` (its folder's name), ``status``, ``epsilon``,
            ``seconds``, the pooled metrics and each hospital's as ``auroc@HOSPITAL``.

        Raises:
            ConfigError: for a combination that is impossible, before the first run begins.

        A run that finished in ``out`` is not repeated, and one that was broken off goes on. A run that fails has its reason as
        ``status``.

        Examples:
            >>> import tempfile
            >>> federation = Federation.from_dataset("breast-cancer", rounds=1, out=tempfile.mkdtemp())
            >>> table = federation.sweep(privacy={"epsilon": [1, 3]}, seeds=2)
            >>> table.groupby("privacy.epsilon")["auroc"].count().tolist()
            [2, 2]
        """
        flat = flat_keys(options, SECTIONS)
        lists = {key: value for key, value in flat.items() if isinstance(value, list)}
        fixed = name_objects({key: value for key, value in flat.items() if key not in lists})
        # An object in a list may become settings of several keys: its name, and its arguments.
        axes = [[name_objects({key: value}) for value in values] for key, values in lists.items()]
        return run_sweep(plan({**self.config.minimal(), **fixed}, axes, seeds, folds, same_split), jobs, watch).table

    @staticmethod
    def resume(path: str | Path, *, progress: Progress | None = None) -> RunResult:
        """Go on with a run from its last checkpoint; its ledgers keep what was charged before.

        What the configuration names (``module:Name``) is taken as it is now, so it must be what the run was begun with.
        Raises ConfigError when the run has finished or holds no checkpoint.
        """
        folder = Run.open(path)
        config = folder.config()
        folder.check_unfinished()
        if changeable(config):
            _forget()
        _check_gpus(config)
        return Federation._carry_out(config, folder, progress, resume=True)

    @staticmethod
    def _carry_out(config: RunConfig, folder: Run, progress: Progress | None, *, resume: bool = False) -> RunResult:
        with _naming_folder(folder), _calm():
            with Federation._grid(config) as grid:
                lines = UnreliableGrid(grid, conditions(config, simulated_sites(config)))
                outcome, summary = coordinate(lines, config, folder, resume=resume, progress=progress)
            if program_of(config).shows_baselines:
                summary["synthesis"]["baselines"] = beside(config, Federation._grid, progress)
                _write_summary(folder, summary)
            if folder.awaits_comparison:
                comparison = compare(folder, Federation._grid, outcome.sites, progress)
                synthesis = summary["synthesis"]
                summary = summarise(outcome, folder.path, folder.sites, comparison) | {"synthesis": synthesis}
                _write_summary(folder, summary)
        if program_of(config).shows_quality and folder.synthesizer_file.is_file():
            from polyclinic.inspection.quality import (
                judge_run,  # with the report's scipy, only at the end of such a run
            )

            (progress or Progress()).on_step("judging synthetic patients")
            judge_run(folder.path, full=False, seed=config.seed)
        return RunResult(folder, summary)

    @staticmethod
    def _grid(config: RunConfig) -> LocalGrid:
        patients = simulated_patients(config)
        return LocalGrid(_CLIENT, len(patients), config.flat(), _workers(config), patients)


def run_sweep(runs: Sequence[Planned], jobs: int = 1, watch: Watch | None = None) -> Sweep:
    """Carry out planned runs as ``Federation.sweep`` does.

    Args:
        runs: The runs, which have one folder ``out``.
        jobs: Runs at once, each in a process of its own; 1 runs them in this process.
        watch: Who watches.

    Raises:
        ConfigError: A run is impossible, before the first begins; or as of ``sweeps.carrying.carry_out``.
    """

    def check_config(config: RunConfig) -> None:
        check_reach(config, jobs)
        Federation(config).check()

    check(runs, check_config)
    # By its delta, too, a run that finished is recognised.
    chosen = {id(run): settle(run.config) for run in in_order(runs)}
    runs = [replace(run, config=chosen[id(run)]) for run in runs]
    return sweep(runs, _execute, jobs, watch)


def _execute(config: RunConfig, goes_on: Path | None) -> Path:
    """Carry out one run of a sweep, and return its folder."""
    return (Federation.resume(goes_on) if goes_on else Federation(config).run(pictures=False)).path


def _workers(config: RunConfig) -> Workers | None:
    if config.ray_address:
        from polyclinic.sim.ray_workers import RayWorkers  # Ray takes a second to load

        return RayWorkers(config.workers, config.ray_address, config.gpus)
    return ProcessWorkers(config.workers, config.gpus) if config.workers > 1 else None


def conditions(config: RunConfig, sites: Sequence[str]) -> Conditions:
    """What the run's simulated hospitals and lines are like. Raises ConfigError for a bad ``availability`` file."""
    return Conditions(
        seed=config.seed, dropout_rate=config.simulation.dropout_rate, away=_away(config.simulation.availability, sites),
        compute_seconds=config.training.local_steps * config.simulation.seconds_per_step, straggling=config.simulation.straggling,
        bandwidth=config.simulation.bandwidth, deadline=config.simulation.round_deadline,
    )  # fmt: skip


def _away(path: str, sites: Sequence[str]) -> frozenset[tuple[int, int]]:
    if not path:
        return frozenset()
    try:
        trace = pd.read_csv(path, dtype={"site": str})
        rounds = trace["round"].astype(float)
        if not all(round >= 1 and round.is_integer() for round in rounds):
            raise ValueError("a round is not a whole number of at least 1")
        strange = [site for site in trace["site"] if site not in sites]
        if strange:
            raise ValueError(f"there is no hospital {strange[0]!r}")
        nodes = [sites.index(site) + 1 for site in trace["site"]]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"Configuration key 'simulation.availability' has the value {path!r}, which is not a CSV file with the columns round "
            f"(whole numbers) and site (names of hospitals of this run): {error}."
        ) from None
    return frozenset(zip(rounds.astype(int), nodes, strict=True))
