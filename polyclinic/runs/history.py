"""A run's rows, its strategy's metrics and its drop-outs on the disk: one file of JSON lines that only grows.

A checkpoint holds how much of the file belongs to it, so that what it costs does not grow with the rounds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyclinic.errors import DataError
from polyclinic.files import flush
from polyclinic.runs.json_text import json_text

Record = dict[str, Any]
#: The sites of rows that are of all hospitals: over all held-out patients, and the mean over hospitals.
OVERALL = ("pooled", "macro")
#: What a history has records of.
KINDS = ("row", "strategy", "dropout")


def records_in(content: bytes) -> dict[str, list[Record]]:
    """The records by their kind; a line that was cut short, or is none of a history, is passed over.

    Examples:
        >>> records_in(b'{"row": {"round": 1, "site": "north"}}\\n{"dropout": {"rou')
        {'row': [{'round': 1, 'site': 'north'}], 'strategy': [], 'dropout': []}
    """
    records: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for line in content.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        for kind in KINDS:
            if isinstance(entry, dict) and isinstance(entry.get(kind), dict):
                records[kind].append(entry[kind])
    return records


@dataclass(frozen=True)
class Extent:
    """The part of a history that a checkpoint counts on: its first ``size`` bytes, and their SHA-256 in hex.

    Examples:
        >>> import tempfile
        >>> extent = History.begin(Path(tempfile.mkdtemp()) / "history.jsonl").add({"row": [{"round": 1}]})
        >>> extent.size, len(extent.sha256)
        (22, 64)
    """

    size: int
    sha256: str


@dataclass
class History:
    """A history file and what is in it: how many records of each kind, in how many bytes, and the digest of those.

    Examples:
        >>> import tempfile
        >>> history = History.begin(Path(tempfile.mkdtemp()) / "history.jsonl")
        >>> extent = history.add({"row": [{"round": 1, "auroc": 0.81}]})
        >>> after = history.add({"row": [{"round": 1, "auroc": 0.81}, {"round": 2, "auroc": 0.83}]})
        >>> History.resume(history.path, extent)[1]["row"]  # what a checkpoint of round 1 counts on
        [{'round': 1, 'auroc': 0.81}]
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    @classmethod
    def begin(cls, path: Path) -> History:
        """An empty one; a file that is there is emptied."""
        path.write_bytes(b"")
        return cls(path)

    @classmethod
    def resume(cls, path: Path, extent: Extent) -> tuple[History, dict[str, list[Record]]]:
        """The history cut back to ``extent``, with the records in it by their kind.

        Raises DataError when the file is missing, shorter than that, or not what was written.
        """
        content = path.read_bytes()[: extent.size] if path.is_file() else b""
        digest = hashlib.sha256(content)
        if len(content) != extent.size or digest.hexdigest() != extent.sha256:
            raise DataError(
                f"{path} does not hold the rounds that the checkpoint counts on: it is missing, cut short or altered; "
                "restore it before the run goes on."
            )
        os.truncate(path, extent.size)
        records = records_in(content)
        counts = Counter({kind: len(entries) for kind, entries in records.items()})
        return cls(path, counts, extent.size, digest), records

    def add(self, records: Mapping[str, Sequence[Record]]) -> Extent:
        """Write what is new of all ``records`` of each kind; returns once it is on the disk."""
        lines = [{kind: record} for kind, every in records.items() for record in every[self.counts[kind] :]]
        content = "".join(json_text(line) + "\n" for line in lines).encode()
        with self.path.open("ab") as file:
            file.write(content)
        flush(self.path)
        self.counts |= Counter({kind: len(every) for kind, every in records.items()})
        self.size += len(content)
        self.digest.update(content)
        return Extent(self.size, self.digest.hexdigest())
