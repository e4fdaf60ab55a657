"""Finished parts of an experiment, kept in its folder so that they are not run again."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.experiments import Say
from polyclinic.federation import Federation
from polyclinic.files import write_file
from polyclinic.inspection.result import RunResult
from polyclinic.runs.simulation import check_simulation, settle, simulated_patients
from polyclinic.server.federate import Outcome, Places, federate
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

# Keys that do not decide what a run finds.
_WHERE = {"out", "workers", "timeout"}


@dataclass(frozen=True)
class Parts:
    """Parts by name in ``folder``: answers in ``parts/NAME.json``, runs in ``runs/NAME/``."""

    folder: Path
    say: Say

    def answer(self, name: str, settings: Mapping[str, Any], find: Callable[[], Any]) -> Any:
        """What ``find`` gives (JSON), from the file where it was found under the same settings.

        Raises DataError for a file that cannot be read.
        """
        path = self.folder / "parts" / f"{plain_name(name)}.json"
        given = json.loads(json.dumps(dict(settings), allow_nan=False))
        if path.is_file():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                if kept["settings"] == given:
                    return kept["found"]
            except (OSError, ValueError, KeyError, TypeError):
                raise DataError(f"{path} is not a finished part of an experiment; remove it to run it again.") from None
        found = json.loads(json.dumps(find(), allow_nan=False))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"settings": given, "found": found}, indent=1))
        return found

    def run(self, name: str, options: Mapping[str, Any]) -> RunResult:
        """A run with these configuration keys: the finished one where there is one, else resumed or new.

        Runs of other settings under the same name are removed. Raises PolyclinicError as ``Federation.run`` does, with
        the part's name.
        """
        place = self.folder / "runs" / plain_name(name)
        config = settle(RunConfig.build({**options, "out": str(place)}))  # as its folder has it
        wanted = _deciding(config)
        for folder in sorted(place.glob("*/")):
            try:
                same = _deciding(RunConfig.build(_read(folder))) == wanted
            except (ConfigError, OSError, ValueError):
                same = False
            if same and (folder / "report.html").is_file():
                return RunResult.read(folder)
            if same and (folder / "checkpoint.safetensors").is_file():
                self.say(f"{name}: goes on from its checkpoint")
                return Federation.resume(folder, progress=_Told(name, self.say))
            shutil.rmtree(folder)
        self.say(f"{name}: begins")
        try:
            return Federation.from_config(config).run(progress=_Told(name, self.say), pictures=False)
        except PolyclinicError as error:
            error.add_note(f"This was part {name!r} of the experiment; what is finished is kept in {self.folder}.")
            raise


def outcome_of(options: Mapping[str, Any]) -> Outcome:
    """What a run of these configuration keys leaves: ``Federation.run`` without its folder and its report, whose intervals
    take as long as the training. Raises PolyclinicError as ``Federation.run`` does."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    config = settle(RunConfig.build(options))
    check_simulation(config)
    patients = simulated_patients(config)
    app = AppReference("polyclinic.client_app")
    with tempfile.TemporaryDirectory() as home, LocalGrid(app, len(patients), config.flat(), None, patients) as grid:
        return federate(grid, config, "study", Places(Path(home)))


def plain_name(name: str) -> str:
    """A name of a part as a file's."""
    return name.replace(", ", "-").replace(" ", "-")


class _Told(Progress):
    """Ten lines a run."""

    def __init__(self, name: str, say: Say) -> None:
        self._name, self._say, self._done = name, say, 0

    def on_round(self, config: RunConfig, state: RunState) -> None:
        """A line after each tenth of the rounds."""
        self._done += 1
        if config.rounds >= 20 and self._done % max(1, config.rounds // 10) == 0:
            self._say(f"{self._name}: round {self._done} of {config.rounds}")


def _read(folder: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))


def _deciding(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in config.flat().items() if key not in _WHERE}
