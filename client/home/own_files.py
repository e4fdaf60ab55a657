"""A real hospital's own files: what the server learns where one is wrong, and who on the machine may read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, WARNING
from pathlib import Path

from flwr.common.logger import log

from polyclinic.errors import ConfigError, DataError, PolyclinicError

LEDGER, LOCK, JOURNAL = "ledger.sqlite", "alone.sqlite", "journal.jsonl"
_FOLDER, _FILE, _OTHERS = 0o700, 0o600, 0o077


@contextmanager
def own_file(what: str) -> Iterator[None]:
    """Raises PolyclinicError, without a path or a word from the file, for a ConfigError or DataError about ``what``.

    The hospital's own log has the whole sentence.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        raise withheld(error, what) from None


def withheld(error: PolyclinicError, what: str = "own files") -> PolyclinicError:
    """The sentence that leaves in place of ``error``, which goes to the hospital's own log."""
    log(ERROR, "%s", error)
    return PolyclinicError(f"the hospital's {what} cannot be used; its own log says why")


def make_private(home: Path) -> None:
    """Make ``home`` with its ledger and lock readable by their owner alone, whatever the umask.

    The hospital's own log says what was open to others, and what stays so because the file belongs to somebody else.
    """
    home.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    for path, mode in ((home, _FOLDER), (home / LEDGER, _FILE), (home / LOCK, _FILE)):
        if not path.exists() or not path.stat().st_mode & _OTHERS:
            continue
        try:
            path.chmod(mode)
            log(WARNING, "%s was open to other users of this machine; now its owner alone reads it.", path)
        except OSError as error:
            why = "%s is open to other users of this machine: %s; set its mode to %o."
            log(WARNING, why, path, error.strerror, mode)
