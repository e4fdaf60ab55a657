"""The rows of the table: which command of ours stands against which of theirs, and how a row is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.common.probes import Probe, ProbeFailed, Sample


@dataclass(frozen=True)
class Goal:
    """``theirs / ours`` is at least ``value``, or ``ours / theirs`` at most; or our seconds alone are at most."""

    sense: Literal["at least", "at most", "seconds"]
    value: float

    def ratio(self, ours: float, theirs: float | None) -> float | None:
        if theirs is None:
            return None
        return theirs / ours if self.sense == "at least" else ours / theirs

    def met(self, ours: float, theirs: float | None) -> bool | None:
        """None where there is nothing to compare with."""
        if self.sense == "seconds":
            return ours <= self.value
        found = self.ratio(ours, theirs)
        if found is None:
            return None
        return found >= self.value if self.sense == "at least" else found <= self.value

    def __str__(self) -> str:
        return {"at least": f">= {self.value:g}x", "at most": f"<= {self.value:g}x", "seconds": f"<= {self.value:g} s"}[
            self.sense
        ]


@dataclass(frozen=True)
class Row:
    """One comparison. Of several ``ours`` the first turn finds the fastest, which the later turns measure again."""

    against: str
    sites: int
    dp: bool
    goal: Goal
    ours: tuple[Probe, ...]
    theirs: Probe | None = None
    repeats: int = 3
    note: str = ""
    memory_limit: float | None = None
    missing: str | None = None

    @property
    def key(self) -> tuple[str, int, bool]:
        return (self.against, self.sites, self.dp)


def measure(row: Row, run: Callable[[Probe], Sample], commit: str | None) -> dict[str, Any]:
    """The row's JSON: the best of ``row.repeats`` interleaved turns of each side. A command that fails is told in the note."""
    try:
        label, best, theirs = _turns(row, run)
    except ProbeFailed as failure:
        return _json(row, None, None, [str(failure)], commit) | {"failed": True}
    notes = [label, row.note, *([row.missing] if row.missing else [])]
    if best.noise is not None:
        notes.append(f"noise multiplier {best.noise:.3f}")
    found = _json(row, best.seconds, theirs, notes, commit)
    if row.memory_limit is not None and best.peak_bytes is not None:
        peak = best.peak_bytes / 1e9
        found |= {"peak_gigabytes": round(peak, 3), "memory_goal": f"< {row.memory_limit:g} GB"}
        found["met"] = bool(found["met"]) and peak < row.memory_limit
    return found


def _turns(row: Row, run: Callable[[Probe], Sample]) -> tuple[str, Sample, float | None]:
    """The label and best sample of our fastest way, and the best of their seconds."""
    ours: list[tuple[str, Sample]] = []
    theirs: list[float] = []
    candidates = row.ours
    for _ in range(row.repeats):
        ours += [(probe.label, run(probe)) for probe in candidates]
        fastest = min(ours, key=lambda pair: pair[1].seconds)[0]
        candidates = tuple(probe for probe in row.ours if probe.label == fastest)
        if row.theirs is not None and row.missing is None:
            theirs.append(run(row.theirs).seconds)
    label, best = min(ours, key=lambda pair: pair[1].seconds)
    return label, best, min(theirs, default=None)


def _json(row: Row, ours: float | None, theirs: float | None, notes: list[str], commit: str | None) -> dict[str, Any]:
    return {
        "against": row.against, "sites": row.sites, "dp": row.dp, "ours_seconds": ours, "theirs_seconds": theirs,
        "ratio": None if ours is None else row.goal.ratio(ours, theirs), "goal": str(row.goal),
        "met": None if ours is None else row.goal.met(ours, theirs), "note": "; ".join(filter(None, notes)),
        "commit": commit,
    }  # fmt: skip
