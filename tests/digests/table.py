"""The table of results: table.json beside this file, with a sentence for every change of a run's results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATH = Path(__file__).parent / "table.json"


@dataclass
class Table:
    """``arithmetic``: of the processor that the results were made on. ``runs``: by name, the results and why they changed."""

    arithmetic: str
    runs: dict[str, dict[str, Any]]

    @classmethod
    def read(cls) -> Table:
        if not _PATH.exists():
            return cls("", {})
        return cls(**json.loads(_PATH.read_text(encoding="utf-8")))

    def write(self) -> None:
        runs = dict(sorted(self.runs.items()))
        text = json.dumps({"arithmetic": self.arithmetic, "runs": runs}, indent=1, allow_nan=False)
        _PATH.write_text(text + "\n", encoding="utf-8")

    def results(self, name: str) -> dict[str, Any]:
        return dict(self.runs.get(name, {}).get("results", {}))

    def why(self, name: str) -> list[str]:
        """A line for each time that the run's results changed, the newest last."""
        return list(self.runs.get(name, {}).get("why", []))


def line(results: dict[str, Any], why: str) -> str:
    """The digest of the results, and the reason for them."""
    return f"{digest(results)} {why.strip()}"


def digest(results: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:12]
