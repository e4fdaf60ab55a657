"""A run's folder: what it holds, and how it is written so that nothing half-written is taken for a result."""

from __future__ import annotations

import fcntl
import json
import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.report import render_report, write_report
from polyclinic.files import Content, NewFile, write_file, write_files
from polyclinic.server.json_text import json_text
from polyclinic.server.state import RunState
from polyclinic.spreadsheets import as_text
from polyclinic.synthesis.release import run_in
from polyclinic.synthesis.synthesizer import SYNTHESIZER, Synthesizer, save
from polyclinic.toml import read_toml
from polyclinic.versions import recorded_versions

RESULTS = "Polyclinic: results go to "  # and the run's folder, in the log of a Flower runtime


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. ``sites`` holds the ledgers of simulated hospitals; real ones keep theirs."""

    path: Path
    pictures: bool = True

    @classmethod
    def create(cls, config: RunConfig, *, comparison: bool = False, pictures: bool = True) -> RunFolder:
        """A new folder under ``config.out`` with the resolved configuration and the coordinator's versions.

        ``comparison``: the run is to be compared, which a resumed run must know too. ``pictures``: its report has them.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        folder = cls(Path(config.out).expanduser().resolve() / name, pictures)
        try:
            folder.path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"Configuration key 'out' has the value {config.out!r}, where no folder can be made: {error}."
            ) from None
        write_file(folder.path / "config.toml", config.toml())
        folder._write_versions({"coordinator": recorded_versions()})
        if comparison:
            folder._awaited.touch()
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The run's folder: ``path``, or the only run in it. Raises ConfigError where it holds none, or several."""
        return cls(run_in(path).resolve())

    @classmethod
    def to_resume(cls, config: RunConfig) -> RunFolder:
        """The folder in ``config.out`` that ``config.resume`` names. Raises ConfigError when there is none to go on, or when
        it was begun with another value of a key that decides its result."""
        folder = cls.existing(Path(config.out).expanduser() / config.resume)
        folder.check_unfinished()
        begun, now = folder.config().decisive(), config.decisive()
        for key, value in begun.items():
            if now[key] != value:
                raise ConfigError(
                    f"Configuration key {key!r} has the value {now[key]!r}, but the run {folder.name} was begun with "
                    f"{value!r}; a resumed run keeps what it was begun with."
                )
        return folder

    def check_unfinished(self) -> None:
        """Raises ConfigError when the run has finished, holds no checkpoint, or was begun with another Polyclinic."""
        if self.finished or not self.checkpoint.is_file():
            raise ConfigError(self.way_on())
        begun = self.versions().get("coordinator", {}).get("polyclinic", "a version that is not recorded")
        if begun != polyclinic.__version__:
            raise ConfigError(
                f"The run {self.name} was begun with Polyclinic {begun} and this is {polyclinic.__version__}; two versions may "
                "count privacy or split patients differently: go on with the version with which it was begun, or start anew."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else carries out this run meanwhile; a process that is killed lets go.

        Raises ConfigError when another process is at it.
        """
        with (self.path / "held").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"The run in {self.path} is being carried out by another process; wait for its end, or stop it."
                ) from None
            yield

    @property
    def is_held(self) -> bool:
        """Whether a process carries out this run now; also True where the folder cannot be written, so that nobody can see."""
        try:
            with self.held():
                return False
        except (ConfigError, OSError):
            return True

    def add_flower_run(self, number: int) -> None:
        """Note Flower's number of a run that works in this folder; each resumption has another."""
        with self._flower_runs.open("a", encoding="utf-8") as file:
            file.write(f"{number}\n")

    @property
    def flower_runs(self) -> list[str]:
        """Flower's numbers of the runs that worked in this folder, oldest first; none outside a Flower runtime."""
        try:
            return self._flower_runs.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return []

    @property
    def _flower_runs(self) -> Path:
        return self.path / "flower-runs.txt"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def sites(self) -> Path:
        return self.path / "sites"

    @property
    def server_ledger(self) -> Path:
        """What central noise has spent of the hospitals' protection."""
        return self.path / "server-ledger.sqlite"

    @property
    def synthesizer(self) -> Path:
        """What draws synthetic rows, after a run of task synthesis."""
        return self.path / SYNTHESIZER

    @property
    def posterior(self) -> Path:
        """What a run of task posterior found."""
        return self.path / "posterior.json"

    @property
    def finished(self) -> bool:
        """The report is written last, so its presence means that everything else is there."""
        return (self.path / "report.html").is_file()

    @property
    def awaits_comparison(self) -> bool:
        """A comparison was asked for and is not made yet."""
        return self._awaited.is_file()

    @property
    def _awaited(self) -> Path:
        return self.path / "comparison.awaited"

    def way_on(self) -> str:
        """One sentence for a person whose run was stopped or is not to be resumed."""
        path = shlex.quote(str(self.path))
        if self.finished:
            lacking = " without the comparison that was asked for" if self.awaits_comparison else ""
            return f"The run in {self.path} has finished{lacking}; `polyclinic show {path}` prints it."
        if self.checkpoint.is_file():
            return f"The run's folder is {self.path}; go on with `polyclinic run --resume {path}`."
        kept = sorted(self.checkpoint.with_name("checkpoints").glob("*.safetensors"))
        if kept:
            return f"{self.checkpoint} is missing; copy {kept[-1]} to it, and the run can go on."
        return f"The run's folder is {self.path}; it stopped before its first checkpoint, so start it anew."

    def config(self) -> RunConfig:
        return RunConfig.build(read_toml(self.path / "config.toml", "configuration file"))

    def summary(self) -> dict[str, Any]:
        """Raises ConfigError when the run has not finished, DataError when the file is damaged."""
        try:
            found: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
            return found
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path} has no summary.json: the run has not finished; resume it with --resume."
            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / 'summary.json'} cannot be read: {error}.") from None

    def versions(self) -> dict[str, dict[str, Any]]:
        """What ``versions.json`` holds: the coordinator's versions by package and, of real hospitals, those of each by name.

        Empty for a file that is missing or cannot be read.
        """
        try:
            recorded = json.loads((self.path / "versions.json").read_text(encoding="utf-8"))
            return {name: part for name, part in recorded.items() if isinstance(part, dict)}
        except (OSError, ValueError, AttributeError):
            return {}

    def rounds(self) -> pd.DataFrame:
        return pd.read_parquet(self.path / "rounds.parquet")

    def write(
        self, state: RunState, summary: dict[str, Any], schema: Schema, synthesizer: Synthesizer | None = None
    ) -> None:
        """All results; the report goes last, so its presence means that the run is whole."""
        frame = pd.DataFrame(state.rows)
        arrays = {name: np.ascontiguousarray(value) for name, value in state.arrays.items()}
        if state.standardiser is not None:
            arrays |= {"standardiser.mean": state.standardiser[0], "standardiser.std": state.standardiser[1]}
        features = {"features": json_text(feature_names(schema))}
        files: dict[Path, Content] = {
            self.path / "rounds.parquet": lambda path: frame.to_parquet(path, index=False),
            self.path / "rounds.csv": frame.rename(columns=as_text).map(as_text).to_csv(index=False),
            self.path / "model.safetensors": lambda path: save_file(arrays, path, features),
            self.path / "schema.toml": schema.to_toml,
            self.path / "ledger.json": json_text(summary["statement"], indent=2),
        }
        posterior = summary.get("posterior")
        if posterior and posterior["finished"]:
            files[self.posterior] = json_text(posterior | {"privacy": summary["privacy"]}, indent=2)
        write_files({path: NewFile(content) for path, content in files.items()})
        if synthesizer is not None:
            save(synthesizer, self.synthesizer)
        if state.hospitals:
            hospitals = {name: said["versions"] for name, said in state.hospitals.items()}
            self._write_versions({**self.versions(), "hospitals": hospitals})
        self._write_summary(summary)
        write_report(self.path, self.pictures)

    def add_comparison(self, summary: dict[str, Any]) -> None:
        """Write a summary that has gained a comparison, and its report."""
        self._awaited.unlink(missing_ok=True)
        self.rewrite(summary)

    def rewrite(self, summary: dict[str, Any]) -> None:
        """Write a summary that has gained something, and its report."""
        self._write_summary(summary)
        render_report(self.path, with_figures=self.pictures)

    def _write_versions(self, versions: dict[str, dict[str, Any]]) -> None:
        write_file(self.path / "versions.json", json_text(versions, indent=2))

    def _write_summary(self, summary: dict[str, Any]) -> None:
        write_file(self.path / "summary.json", json_text(summary, indent=2))
