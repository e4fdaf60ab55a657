"""What a hospital has released: the last replies, kept to be sent again.

A coordinator that lost a reply asks again. A real hospital's answer to the same question is the reply that it gave:
the same numbers again tell nothing new, whereas fresh noise would have to be paid for.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyclinic.digests import digest
from polyclinic.files import write_file
from polyclinic.types import Arrays
from polyclinic.wire.arrays import to_record

_KINDS = {"metrics": MetricRecord, "config": ConfigRecord}


@dataclass(frozen=True)
class Reply:
    """What a hospital answered in a run's round to a question of one purpose. home: the hospital's folder."""

    home: Path
    run: str
    purpose: str
    round: int

    @property
    def path(self) -> Path:
        """The file that keeps it."""
        return self.home / f"release-{self.run}-{self.purpose}-{self.round:06d}.safetensors"


def read_release(reply: Reply, identity: str) -> RecordDict | None:
    """The reply that left for the same question, or None; a damaged file counts as none, and is paid for again."""
    try:
        with safe_open(reply.path, framework="numpy") as file:
            meta = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if meta["identity"] != identity or meta["content"] != _content(meta, tensors):
                return None
            content = RecordDict({key: _KINDS[kind](values) for key, kind, values in json.loads(meta["plain"])})
            arrays: dict[str, Arrays] = {}
            for key, name, label in json.loads(meta["arrays"]):
                arrays.setdefault(key, {})[label] = tensors[name]
            for key, named in arrays.items():
                content[key] = to_record(named)
            return content
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def is_released(reply: Reply) -> bool:
    """Whether a reply left, to whatever question, so long as it is not forgotten."""
    return reply.path.exists()


def write_release(reply: Reply, identity: str, content: RecordDict, keep: int = 1, durable: bool = True) -> None:
    """Keeps a reply's content before it leaves, and forgets those more than ``keep`` rounds back. Atomic.

    The secrets of such rounds' secure sums are erased first: with them, what is forgotten could be answered a second
    time.

    Args:
        reply: The run, round and purpose that the content answers.
        identity: Identifies the question, so that only the same one is answered again.
        content: The records that leave.
        keep: For how many rounds back replies are kept.
        durable: Whether the file must outlast a loss of power; otherwise it outlasts the process alone.
    """
    home, run = reply.home, re.escape(reply.run)
    home.mkdir(parents=True, exist_ok=True)
    arrays: Arrays = {}
    names, plain = [], []
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            for label, value in record.items():
                names.append((key, str(len(arrays)), label))
                arrays[str(len(arrays))] = np.ascontiguousarray(value.numpy())
        else:
            plain.append((key, "metrics" if isinstance(record, MetricRecord) else "config", dict(record)))
    meta = {"identity": identity, "plain": json.dumps(plain), "arrays": json.dumps(names)}
    meta["content"] = _content(meta, arrays)
    write_file(reply.path, lambda aside: save_file(arrays, aside, meta), durable=durable)
    earlier = re.compile(rf"(secure-{run}|release-{run}-{re.escape(reply.purpose)})-(\d+)\.safetensors")
    for old in sorted((*home.glob("secure-*"), *home.glob("release-*")), reverse=True):  # "secure" before "release"
        if (named := earlier.fullmatch(old.name)) and int(named[2]) < reply.round - keep:
            old.unlink(missing_ok=True)


def _content(meta: dict[str, str], arrays: Arrays) -> str:
    return digest({key: meta[key] for key in ("identity", "plain", "arrays")}, arrays)
