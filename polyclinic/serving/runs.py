"""What can be seen of runs from their folders while they train: the configuration, and the history that grows beside it.

Whatever is in a folder, the others are shown: a file that is not what a run writes is a ``problem`` of its run alone.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from polyclinic.evaluation.judges import TITLES
from polyclinic.runs.folder import Run
from polyclinic.runs.history import OVERALL, Record

QUIET = 60.0  # seconds without news after which a run that has no report is called quiet
MOST_ROUNDS = 10**9
_MOST_CONFIG, _MOST_HISTORY, _LONGEST = 1 << 20, 1 << 24, 500  # bytes that are read at once; characters of a text


@dataclass
class Course:
    """A history file, read as far as it has grown; only whole lines count.

    ``metrics``: the titles of the rows' metrics by name, the one first that the run is judged by, the loss last.
    ``problem``: what is wrong with the file in one sentence; what can be read of it is shown all the same.
    """

    path: Path
    offset: int = 0
    overall: dict[int, Record] = field(default_factory=dict)
    sites: dict[str, Record] = field(default_factory=dict)
    dropouts: list[Record] = field(default_factory=list)
    metrics: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    def read(self) -> None:
        """Take in what is new. A file that has become shorter (its run was resumed) is read anew."""
        try:
            size, content = _read(self.path, self.offset, _MOST_HISTORY)
            if size < self.offset:
                self.offset, self.overall, self.sites, self.dropouts, self.problem = 0, {}, {}, [], None
                size, content = _read(self.path, 0, _MOST_HISTORY)
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"history.jsonl cannot be read: {error.strerror}."
            return
        whole = (
            content if len(content) == _MOST_HISTORY and b"\n" not in content else content[: content.rfind(b"\n") + 1]
        )
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError, RecursionError):
                self.problem = "A line of history.jsonl is no row and no drop-out of a run."
        self.offset += len(whole)

    def _take(self, line: Record) -> None:
        if "dropout" in line:
            drop = line["dropout"]
            self.dropouts.append(
                {"round": _whole(drop["round"]), "site": _text(drop["site"]), "reason": _text(drop["reason"])}
            )
        elif "row" in line:
            row = line["row"]
            number, site = _whole(row["round"]), _text(row["site"])
            names = sorted((name for name in row if name in TITLES), key=lambda name: name == "loss")
            self.metrics = {name: TITLES[name] for name in names} or self.metrics
            shown = {"round": number} | {name: _number(row[name]) for name in names}
            if site not in OVERALL:
                self.sites[site] = shown | {"epsilon": _number(row.get("epsilon"))}
            elif site == "pooled" or number not in self.overall:
                self.overall[number] = shown | {"of": site}

    @property
    def round(self) -> int:
        return max((*self.overall, *(row["round"] for row in self.sites.values())), default=0)


class Runs:
    """The runs in a folder by name; reads only, and only what it names: configuration, history, whether there is a report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._courses: dict[str, Course] = {}

    def names(self) -> list[str]:
        """Folders that hold a config.toml, the newest name first."""
        return [run.name for run in reversed(Run.all_in(self.folder))]

    def report(self, name: str) -> Path | None:
        """The page of a finished run."""
        run = Run(self.folder / name)
        return run.report if name in self.names() and run.finished else None

    def summary(self, name: str) -> Record:
        """How far a run is. Raises KeyError if there is none of that name."""
        if name not in self.names():
            raise KeyError(name)
        run = Run(self.folder / name)
        course, quiet = self._course(run), _quiet(run)
        config, problem = _config(run.config_file)
        done = run.finished
        spent = [row["epsilon"] for row in course.sites.values() if row["epsilon"] is not None]
        finished = _read_summary(run.summary_file) if done else {}
        return config | {"epsilon": max(spent, default=None)} | finished | {
            "name": name, "round": course.round, "metrics": course.metrics,
            "newest": course.overall.get(course.round), "quiet": round(quiet, 1),
            "state": "finished" if done else "training" if quiet < QUIET else "quiet", "problem": problem or course.problem,
        }  # fmt: skip

    def detail(self, name: str, after: int = 0) -> Record:
        """A run's summary with the rounds after ``after``, each hospital's newest figures, and the newest drop-outs."""
        summary = self.summary(name)
        course = self._courses[name]
        rounds = [row for number, row in sorted(course.overall.items()) if number > after]
        return summary | {"course": rounds, "sites": course.sites, "dropouts": course.dropouts[-20:]}

    def _course(self, run: Run) -> Course:
        course = self._courses.setdefault(run.name, Course(run.history_file))
        course.read()
        return course


def _read_summary(path: Path) -> Record:
    """What a finished run's summary says in place of what was seen on the way; nothing where none can be read.

    That is the records of real hospitals, and the largest epsilon of any patient, trained on or held out.
    """
    try:
        size, content = _read(path, 0, _MOST_HISTORY)
        if size > _MOST_HISTORY:
            return {}
        summary = json.loads(content)
        spent = [_number((summary.get(part) or {}).get("epsilon")) for part in ("privacy", "private_metrics")]
        figures = {"dataset": _text(summary["dataset"])} if "dataset" in summary else {}
        epsilons = [epsilon for epsilon in spent if epsilon is not None]
        return figures | ({"epsilon": max(epsilons)} if epsilons else {})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _config(path: Path) -> tuple[Record, str | None]:
    """What is shown of a configuration, and what is wrong with it; of one that cannot be read nothing is shown."""
    try:
        size, content = _read(path, 0, _MOST_CONFIG)
        if size > _MOST_CONFIG:
            raise ValueError("too long")
        config = tomllib.loads(content.decode())
        privacy = config.get("privacy", {})
        shown = {
            "dataset": None if config.get("dataset") is None else _text(config["dataset"]),
            "strategy": None if config.get("strategy") is None else _text(config["strategy"]),
            "rounds": None if config.get("rounds") is None else _whole(config["rounds"]),
            "private": bool(privacy.get("dp", True)), "budget": _number(privacy.get("epsilon")),
        }  # fmt: skip
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        nothing = dict.fromkeys(("dataset", "strategy", "rounds", "budget"))
        return nothing | {"private": True}, "config.toml is not the configuration of a run."
    return shown, None


def _read(path: Path, offset: int, most: int) -> tuple[int, bytes]:
    """A regular file's size, and up to ``most`` of its bytes from ``offset``. Raises OSError for anything else.

    A pipe that nobody writes to would keep whoever opens it waiting for ever.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        file.seek(offset)
        return status.st_size, file.read(most)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:_LONGEST]


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST_ROUNDS:
        raise TypeError("no number of rounds")
    return value


def _number(value: object) -> float | None:
    """A number; None of one that is not finite, which is what JSON has for it. Raises TypeError for anything else."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("no number")
    return float(value) if abs(value) <= sys.float_info.max else None


def _quiet(run: Run) -> float:
    """Seconds since a run's folder last told anything."""
    times = []
    for path in (run.config_file, run.history_file, run.checkpoint, run.report):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(times, default=0.0))
