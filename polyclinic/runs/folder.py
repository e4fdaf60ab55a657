"""A run's folder: what it holds, typed, and how it is written so that nothing half-written is taken for a result.

The names of a run's files are spelled here alone.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import Standardiser, feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError, PolyclinicError, several
from polyclinic.files import SECRET, Content, NewFile, as_text, locked, write_file, write_files
from polyclinic.runs.history import Record, records_in
from polyclinic.runs.json_text import json_text
from polyclinic.runs.summary import Summary
from polyclinic.toml import build_model, read_toml
from polyclinic.types import Arrays
from polyclinic.wire.versions import PRIVACY_FORMAT, recorded_versions, version_conflict, version_title, versions

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from polyclinic.runs.simulation import Simulation
    from polyclinic.synthesis.layout import Layout
    from polyclinic.synthesis.synthesizer import Synthesizer

RESULTS = "Polyclinic: results go to "  # and the run's folder, in the log of a Flower runtime
LATEST = "latest.txt"  # beside the folders of runs under Flower: the folder of the newest
_MEAN, _STD = "standardiser.mean", "standardiser.std"  # beside the model's arrays


@dataclass(frozen=True)
class _Place:
    """The path of a file or folder in a run's folder."""

    name: str

    def __get__(self, run: Run, owner: type[Run]) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class Run:
    """A run's folder. ``sites`` holds the ledgers of simulated hospitals; real ones keep theirs.

    ``pictures``: Whether its report has them.

    Examples:
        >>> import tempfile
        >>> begun = Run.create(RunConfig(rounds=2, out=tempfile.mkdtemp()))
        >>> run = Run.open(begun.path)
        >>> run.config().rounds, run.history()["row"], run.finished
        (2, [], False)
    """

    path: Path
    pictures: bool = True

    config_file = _Place("config.toml")
    #: The records of all rounds, which grows while the run goes on.
    history_file = _Place("history.jsonl")
    checkpoint = _Place("checkpoint.safetensors")
    #: The folder of the newest checkpoints, by round, where more than one is kept.
    kept_checkpoints = _Place("checkpoints")
    #: How far a tracker was told of the run.
    tracker_file = _Place("tracker.json")
    #: The hospitals where somebody must approve the run, while it waits for them.
    waiting_file = _Place("waiting.json")
    #: What central noise has spent of the hospitals' protection.
    server_ledger = _Place("server-ledger.sqlite")
    sites = _Place("sites")
    summary_file = _Place("summary.json")
    rounds_file = _Place("rounds.parquet")
    model_file = _Place("model.safetensors")
    schema_file = _Place("schema.toml")
    versions_file = _Place("versions.json")
    #: What every hospital spent, and on what.
    statement_file = _Place("ledger.json")
    #: Predictions of held-out patients, row by row, as far as policies let them leave; of a simulation only where its hospitals
    #: evaluated models of their own.
    predictions_file = _Place("predictions.parquet")
    #: What draws synthetic rows, after a run of task synthesis.
    synthesizer_file = _Place("synthesizer.safetensors")
    #: How good the synthetic patients are, where they were judged.
    quality_file = _Place("quality.json")
    #: What attacks on the run reached, where it was attacked.
    attacks_file = _Place("attacks.json")
    #: What hospitals answered, where they were asked a question in place of training.
    answer_file = _Place("answer.json")
    report = _Place("report.html")
    #: What the model is, what it was made of, how good it is, and its limits.
    card_file = _Place("model_card.md")
    #: What the model is for, in Markdown, where its authors wrote it.
    purpose_file = _Place("purpose.md")
    plots = _Place("plots")
    _flower_runs = _Place("flower-runs.txt")
    _held = _Place("held")
    _awaited = _Place("comparison.awaited")

    @classmethod
    def create(cls, config: RunConfig, *, comparison: bool = False, pictures: bool = True) -> Run:
        """A new folder under ``config.out`` with the resolved configuration and the coordinator's versions.

        Args:
            config: Of the run.
            comparison: The run is to be compared, which a resumed run must know too.
            pictures: Its report has them.

        Raises:
            ConfigError: where no folder can be made.
        """
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        run = cls(Path(config.out).expanduser().resolve() / name, pictures)
        try:
            run.path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"Configuration key 'out' has the value {config.out!r}, where no folder can be made: {error}."
            ) from None
        write_file(run.config_file, config.toml())
        run._write_versions({"coordinator": recorded_versions()})
        if comparison:
            run._awaited.touch()
        return run

    @classmethod
    def all_in(cls, folder: Path) -> list[Run]:
        """The runs whose folders lie in ``folder``, by name."""
        return [cls(config.parent) for config in sorted(folder.glob("*/config.toml"))]

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run whose folder is ``path``, or the only run in it. Raises ConfigError where it holds none, or several."""
        folder = Path(path)
        if cls(folder).config_file.is_file():
            return cls(folder.resolve())
        runs = cls.all_in(folder)
        if len(runs) > 1:
            raise ConfigError(f"{folder} holds {len(runs)} runs; name one: {several(str(run.path) for run in runs)}.")
        if not runs:
            raise ConfigError(f"{folder} is not a run's folder: it holds no config.toml.")
        return cls(runs[0].path.resolve())

    @classmethod
    def to_resume(cls, config: RunConfig) -> Run:
        """The run in ``config.out`` that ``config.resume`` names. Raises ConfigError when there is none to go on, or when
        it was begun with another value of a key that decides its result."""
        run = cls.open(Path(config.out).expanduser() / config.resume)
        run.check_unfinished()
        begun, now = run.config().decisive(), run.as_begun(config).decisive()
        for key, value in begun.items():
            if now[key] != value:
                raise ConfigError(
                    f"Configuration key {key!r} has the value {now[key]!r}, but the run {run.name} was begun with "
                    f"{value!r}; a resumed run keeps what it was begun with."
                )
        return run

    def as_begun(self, config: RunConfig) -> RunConfig:
        """``config`` where what it leaves open is as it was chosen when the run began."""
        begun = self.config()
        config = config.taking(begun.training.optimizer).using(begun.model)
        return config if config.privacy.delta else config.with_values({"privacy.delta": begun.privacy.delta})

    def check_method(self, chosen: str) -> None:
        """Raises ConfigError where hospitals, which are told no model, have ``chosen`` another than the run was begun with."""
        if chosen != (model := self.config().model):
            raise ConfigError(
                f"Configuration key 'model' is not given, so that hospitals choose {chosen!r} by their schema, but the run "
                f"{self.name} was begun with {model!r}: give that."
            )

    def check_unfinished(self) -> None:
        """Raises ConfigError when the run has finished, holds no checkpoint, or was begun under another privacy format."""
        if self.finished or not self.checkpoint.is_file():
            raise ConfigError(self.way_on())
        begun, now = self.versions().get("coordinator", {}), versions()
        if version_conflict(begun, now):
            raise ConfigError(
                f"The run {self.name} was begun with {version_title(begun)} and this is {version_title(now)}; under two privacy "
                "formats privacy is counted, or patients are drawn, differently: go on with the former, or start anew."
            )
        if begun.get("polyclinic") != now["polyclinic"]:
            getLogger(__name__).warning("The run %s was begun with version %s and goes on with %s; both have privacy format %d.",
                self.name, begun.get("polyclinic"), now["polyclinic"], PRIVACY_FORMAT)  # fmt: skip

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else carries out this run meanwhile; a process that is killed lets go.

        Raises ConfigError when another process is at it.
        """
        refusal = f"The run in {self.path} is being carried out by another process; wait for its end, or stop it."
        with locked(self._held, refusal, patience=0.5):  # is_held may have the lock for a moment
            yield

    @property
    def is_held(self) -> bool:
        """Whether a process carries out this run now; also True where the folder cannot be written, so that nobody can see."""
        try:
            with locked(self._held, ""):
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
    def name(self) -> str:
        return self.path.name

    @property
    def ledger(self) -> Path:
        """The ledgers of all simulated hospitals."""
        return self.sites / "ledger.sqlite"

    @property
    def certified(self) -> dict[str, Path]:
        """The files whose digests stand in a certificate of synthetic records."""
        return {"synthesizer": self.synthesizer_file, "ledger": self.statement_file}

    @property
    def finished(self) -> bool:
        """The report is written last, so its presence means that everything else is there."""
        return self.report.is_file()

    @property
    def awaits_comparison(self) -> bool:
        """A comparison was asked for and is not made yet."""
        return self._awaited.is_file()

    @property
    def waits_for(self) -> list[str]:
        """The hospitals where somebody must approve the run for which it waits now."""
        try:
            return list(map(str, json.loads(self.waiting_file.read_text(encoding="utf-8")))) if self.is_held else []
        except (OSError, ValueError):
            return []

    def way_on(self) -> str:
        """One sentence for a person whose run was stopped or is not to be resumed."""
        path = shlex.quote(str(self.path))
        if self.finished:
            lacking = " without the comparison that was asked for" if self.awaits_comparison else ""
            return f"The run in {self.path} has finished{lacking}; `polyclinic show {path}` prints it."
        if self.checkpoint.is_file():
            return f"The run's folder is {self.path}; go on with `polyclinic run --resume {path}`."
        checkpoints = sorted(self.kept_checkpoints.glob("*.safetensors"))
        if checkpoints:
            return f"{self.checkpoint} is missing; copy {checkpoints[-1]} to it, and the run can go on."
        return f"The run's folder is {self.path}; it stopped before its first checkpoint, so start it anew."

    def config(self) -> RunConfig:
        return RunConfig.build(read_toml(self.config_file, "configuration file"))

    def schema(self) -> Schema:
        return Schema.from_toml(self.schema_file)

    def summary(self) -> Summary:
        """The run's outcome. Raises ConfigError when the run has not finished, DataError when the file is damaged."""
        return build_model(Summary, self.summary_json(), str(self.summary_file), DataError)

    def summary_json(self) -> dict[str, Any]:
        """What summary.json holds, for pages and commands that show all of it. Raises as ``summary``."""
        try:
            content = json.loads(self.summary_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path} has no summary.json: the run has not finished; resume it with `run --resume`."
            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.summary_file} cannot be read: {error}.") from None
        if not isinstance(content, dict):
            raise DataError(f"{self.summary_file} cannot be read: it must hold one JSON object.")
        return content

    def purpose(self) -> list[str]:
        """The paragraphs of ``purpose.md``, none without it. Raises DataError for a file that is not UTF-8 text."""
        try:
            text = self.purpose_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.purpose_file} cannot be read: {error}.") from None
        return [part.strip() for part in text.split("\n\n") if part.strip()]

    def versions(self) -> dict[str, dict[str, Any]]:
        """What ``versions.json`` holds: the coordinator's versions by package and, of real hospitals, those of each by name.

        Empty for a file that is missing or cannot be read.
        """
        try:
            recorded = json.loads(self.versions_file.read_text(encoding="utf-8"))
            return {name: part for name, part in recorded.items() if isinstance(part, dict)}
        except (OSError, ValueError, AttributeError):
            return {}

    def history(self) -> dict[str, list[Record]]:
        """The records of the rounds so far by their kind, ``row``, ``strategy`` and ``dropout``; none before the first."""
        return records_in(self.history_file.read_bytes() if self.history_file.is_file() else b"")

    def rounds(self) -> pd.DataFrame:
        """One row for each round and hospital, after the run's end. Raises DataError for a file that cannot be read."""
        import pandas as pd

        try:
            return pd.read_parquet(self.rounds_file)
        except (ValueError, OSError):  # pyarrow's errors are both
            raise DataError(f"{self.rounds_file} cannot be read.") from None

    def stored_arrays(self) -> Arrays:
        """Everything in model.safetensors: the model's arrays, and the standardiser's mean and std."""
        from safetensors.numpy import load_file

        return load_file(self.model_file)

    def arrays(self) -> Arrays:
        """The model's arrays by name."""
        return {name: value for name, value in self.stored_arrays().items() if name not in (_MEAN, _STD)}

    def standardiser(self) -> Standardiser | None:
        """The mean and standard deviation by which the model's inputs are scaled; None where they are not."""
        stored = self.stored_arrays()
        return (stored[_MEAN], stored[_STD]) if _MEAN in stored else None

    def model(self) -> nn.Module:
        """The trained module. Its inputs are encoded rows, scaled by the standardiser."""
        import torch

        from polyclinic.programs import program_of

        module = program_of(self.config()).builder(self.schema())()
        module.load_state_dict({name: torch.from_numpy(value) for name, value in self.arrays().items()})
        return module.eval()

    def layout(self) -> Layout:
        """The layout of the synthetic rows. Raises ConfigError where the run draws none."""
        from polyclinic.programs import program_of

        program = program_of(self.config())
        if not program.draws:
            raise ConfigError(
                f"{self.path} is a run of task {program.config.task!r}, which has no generator and draws no patients; rows are "
                "drawn from a run of task 'synthesis'."
            )
        return program.layout(self.schema())

    def synthesizer(self) -> Synthesizer:
        """What draws synthetic rows.

        Raises ConfigError where the run draws none, or stopped before it could; DataError for a damaged file.
        """
        from polyclinic.synthesis.synthesizer import load

        layout = self.layout()
        if not self.synthesizer_file.is_file():
            raise ConfigError(f"{self.path} has no generator: the run stopped before there was one.")
        return load(self.synthesizer_file, layout)

    def analysis(self) -> dict[str, Any]:
        """What an analysis ended in: ``title``, ``tables``, ``numbers`` and ``notes``.

        Raises PolyclinicError, which says why, where there is none.
        """
        analysis = self.summary().analysis or {"refused": f"{self.path} is not a run of an analysis."}
        if analysis["refused"]:
            raise PolyclinicError(analysis["refused"])
        return analysis

    def simulation(self, instead: str) -> Simulation:
        """The run's simulated hospitals with their records, rebuilt from the configuration.

        Args:
            instead: What to do with a run of real hospitals, for the sentence of its error.

        Raises:
            ConfigError: The run has not finished, or is of real hospitals.
        """
        from polyclinic.runs.simulation import Simulation

        if not self.summary().simulation:
            raise ConfigError(f"{self.path} is a run of real hospitals, whose records are not here; {instead}.")
        return Simulation(self)

    def write(
        self, summary: dict[str, Any], rows: Sequence[Record], arrays: Arrays, scale: Standardiser | None, schema: Schema,
        *, synthesizer: Synthesizer | None = None, predictions: pd.DataFrame | None = None,
    ) -> None:  # fmt: skip
        """Write all results but the report, which goes last.

        Args:
            summary: The run's summary, as plain values.
            rows: The history's rows.
            arrays: The model's, by name.
            scale: What the model's inputs are standardised by; None where they are not.
            schema: Of the run.
            synthesizer: What draws synthetic patients, which gets a file of its own; None of a run without one.
            predictions: What hospitals let leave of held-out patients; its file is for its owner alone to read.
        """
        import pandas as pd
        from safetensors.numpy import save_file

        frame = pd.DataFrame(rows)
        stored = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        if scale is not None:
            stored |= {_MEAN: scale[0], _STD: scale[1]}
        features = {"features": json_text(feature_names(schema))}
        files: dict[Path, Content] = {
            self.rounds_file: lambda path: frame.to_parquet(path, index=False),
            self.path / "rounds.csv": frame.rename(columns=as_text).map(as_text).to_csv(index=False),
            self.model_file: lambda path: save_file(stored, path, features),
            self.schema_file: schema.to_toml,
            self.statement_file: json_text(summary["statement"], indent=2),
        }
        if summary.get("analysis"):
            from polyclinic.runs.tables import analysis_files

            files |= analysis_files(self.path, summary["analysis"], summary["privacy"])
            (self.path / "tables").mkdir(exist_ok=True)
        new = {path: NewFile(content) for path, content in files.items()}
        if predictions is not None:
            new[self.predictions_file] = NewFile(lambda path: predictions.to_parquet(path, index=False), SECRET)
        write_files(new)
        if synthesizer is not None:
            from polyclinic.synthesis.synthesizer import save

            save(synthesizer, self.synthesizer_file)
        self.write_summary(summary)

    def write_hospitals(self, versions: Mapping[str, Any]) -> None:
        """Add the versions of real hospitals, by name, to the run's own."""
        self._write_versions({**self.versions(), "hospitals": dict(versions)})

    def write_resumption(self) -> None:
        """Record the versions with which the run goes on, where they are not those with which it last did."""
        before, now = self.versions(), recorded_versions()
        later = before.get("resumed", {})
        if [before.get("coordinator"), *later.values()][-1] != now:
            now_text = datetime.now(UTC).isoformat(timespec="seconds")
            self._write_versions({**before, "resumed": {**later, now_text: now}})

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write a new summary. One with a comparison ends the wait for it."""
        if summary["comparison"]:
            self._awaited.unlink(missing_ok=True)
        write_file(self.summary_file, json_text(summary, indent=2))

    def _write_versions(self, versions: dict[str, dict[str, Any]]) -> None:
        write_file(self.versions_file, json_text(versions, indent=2))
