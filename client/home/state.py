"""What a site keeps between rounds (its optimizer's tensors, noise under way), in files beside its ledger.

Files are named by the round that wrote them. So a round that is run again after a crash starts from the state that the
round before it left, not from its own.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from polyclinic.client.home.own_files import LOCK
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.files import SECRET, write_file
from polyclinic.types import Arrays
from polyclinic.wire.messages import state_file

# Training takes long, and another process may be at it.
_WAIT_SECONDS = 600.0


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Nobody else is between the same two lines for this ``home``, in whatever process; one that is killed lets go.

    Two rounds at once would go on from the same state: the next steps of a noise process, paid for once, used twice.
    Raises PolyclinicError when another one stays for ten minutes.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / LOCK).touch(mode=0o600)  # SQLite would make it by the umask
    with closing(sqlite3.connect(home / LOCK, timeout=_WAIT_SECONDS, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise PolyclinicError("the hospital is busy with another message of a round; ask again later") from None
        yield


def check_records(home: Path, run: str, site: str, digest: str, durable: bool = True) -> None:
    """Notes with which records a run began at a site, and checks that it goes on with the same.

    The refusal tells that they changed, and nothing else of them.

    Args:
        home: The site's home folder.
        run: The run's name.
        site: The site's name, for the message.
        digest: The digest of the records.
        durable: As in ``write_state``.

    Raises:
        PolyclinicError: The run began with other records.
    """
    path = home / f"records-{run}.sha256"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        write_file(path, digest, mode=SECRET, durable=durable)
    elif path.read_text(encoding="ascii", errors="replace") != digest:
        raise PolyclinicError(
            f"{site}: refused: the records are not those with which this run began here; they must not change while a run goes "
            "on, nor may their order where batches are cyclic."
        )


def read_state(home: Path, run: str, round: int) -> Arrays:
    """The newest state written before ``round`` of ``run``; empty if there is none.

    Args:
        home: The site's home folder.
        run: The run's name.
        round: The round that is about to begin.

    Raises:
        DataError: The state is damaged.
    """
    earlier = [(number, path) for number, path in _files(home, run) if number < round]
    if not earlier:
        return {}
    _, path = max(earlier)
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise DataError(f"{path}, what this hospital kept for its next round, is damaged; restore it.") from None


def write_state(home: Path, run: str, round: int, state: Arrays, keep: int = 1, durable: bool = True) -> None:
    """Writes the state after ``round``; forgets what a run that resumes ``keep`` rounds back does not need. Atomic.

    Args:
        home: The site's home folder, made where it is missing.
        run: The run's name.
        round: The round that has ended.
        state: Arrays by name; nothing is written where it is empty.
        keep: How many rounds back a run may resume.
        durable: Whether the file must outlast a loss of power. Otherwise it outlasts the process alone, and takes a
            quarter of the time.
    """
    if not state:
        return
    home.mkdir(parents=True, exist_ok=True)
    write_file(state_file(home, run, round), partial(save_file, state), durable=durable)
    # A site may have skipped rounds: the one before is whichever it last took part in.
    earlier = sorted((number, path) for number, path in _files(home, run) if number <= round - keep)
    for _, path in earlier[:-1]:
        path.unlink(missing_ok=True)


def _files(home: Path, run: str) -> list[tuple[int, Path]]:
    if not home.is_dir():  # most simulated sites keep nothing
        return []
    named = re.compile(rf"optimizer-{re.escape(run)}-(\d+)\.safetensors")
    return [(int(match[1]), path) for path in home.iterdir() if (match := named.fullmatch(path.name))]
