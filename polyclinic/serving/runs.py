"""What can be seen of runs from their folders while they train: the configuration, and the history that grows beside it."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]
QUIET = 60.0  # seconds without news after which a run that has no report is called quiet
_SHOWN = ("auroc", "accuracy", "loss")


@dataclass
class Course:
    """A history file, read as far as it has grown; only whole lines count."""

    path: Path
    offset: int = 0
    overall: dict[int, Record] = field(default_factory=dict)
    sites: dict[str, Record] = field(default_factory=dict)
    dropouts: list[Record] = field(default_factory=list)

    def read(self) -> None:
        """Take in what is new. A file that has become shorter (its run was resumed) is read anew."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return
        if size < self.offset:
            self.offset, self.overall, self.sites, self.dropouts = 0, {}, {}, []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, line: Record) -> None:
        if "dropout" in line:
            self.dropouts.append(line["dropout"])
        elif "row" in line:
            row = line["row"]
            shown = {"round": row["round"]} | {name: row.get(name) for name in _SHOWN}
            if row["site"] not in ("pooled", "macro"):
                self.sites[row["site"]] = shown | {"epsilon": row.get("epsilon")}
            elif row["site"] == "pooled" or row["round"] not in self.overall:
                self.overall[row["round"]] = shown | {"of": row["site"]}

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
        return sorted((path.parent.name for path in self.folder.glob("*/config.toml")), reverse=True)

    def report(self, name: str) -> Path | None:
        """The page of a finished run."""
        page = self.folder / name / "report.html"
        return page if name in self.names() and page.is_file() else None

    def summary(self, name: str) -> Record:
        """How far a run is. Raises KeyError if there is none of that name."""
        if name not in self.names():
            raise KeyError(name)
        folder = self.folder / name
        config, course = _config(folder / "config.toml"), self._course(name)
        quiet = _quiet(folder)
        done = (folder / "report.html").is_file()
        spent = [row["epsilon"] for row in course.sites.values() if row["epsilon"] is not None]
        return {
            "name": name, "dataset": config.get("dataset"), "strategy": config.get("strategy"),
            "private": bool(config.get("dp", True)), "budget": config.get("epsilon"),
            "round": course.round, "rounds": config.get("rounds"), "epsilon": max(spent, default=None),
            "newest": course.overall.get(course.round), "quiet": round(quiet, 1),
            "state": "finished" if done else "training" if quiet < QUIET else "quiet",
        }  # fmt: skip

    def detail(self, name: str, after: int = 0) -> Record:
        """A run's summary with the rounds after ``after``, each hospital's newest figures, and the newest drop-outs."""
        found = self.summary(name)
        course = self._courses[name]
        rounds = [row for number, row in sorted(course.overall.items()) if number > after]
        return found | {"course": rounds, "sites": course.sites, "dropouts": course.dropouts[-20:]}

    def _course(self, name: str) -> Course:
        course = self._courses.setdefault(name, Course(self.folder / name / "history.jsonl"))
        course.read()
        return course


def _config(path: Path) -> Record:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):  # while it is written
        return {}


def _quiet(folder: Path) -> float:
    """Seconds since a run's folder last told anything."""
    times = [path.stat().st_mtime for name in ("config.toml", "history.jsonl", "checkpoint.safetensors", "report.html")
             if (path := folder / name).exists()]  # fmt: skip
    return max(0.0, time.time() - max(times, default=0.0))
