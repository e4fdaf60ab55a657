"""Files that survive a crash: written aside in the same folder, flushed to the disk, renamed, and the folder flushed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

from polyclinic.errors import ConfigError, DataError

SECRET, PUBLIC = 0o600, 0o644
# How the name of a file begins that is being written, and after how long it is one that a killed process left.
_ASIDE, _LEFT_SECONDS = ".partial-", 24 * 3600.0
T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
#: Bytes, text in UTF-8, or a function that writes the file whose path it is given.
Content = bytes | str | Callable[[Path], object]


@dataclass(frozen=True)
class NewFile:
    """``mode``: permission bits, whatever the umask; without them those that the umask leaves or the function gives."""

    content: Content
    mode: int | None = None


def write_file(
    path: Path, content: Content, *, mode: int | None = None, exclusive: bool = False, durable: bool = True
) -> None:
    """Write one file whole, or leave what was there. Errors as those of ``write_files``.

    Args:
        path: The file.
        content: What it is to hold.
        mode: As in ``NewFile``.
        exclusive, durable: As in ``write_files``.
    """
    write_files({path: NewFile(content, mode)}, exclusive=exclusive, durable=durable)


def write_files(files: Mapping[Path, NewFile], *, exclusive: bool = False, durable: bool = True) -> None:
    """Write all the files, each whole; none takes its place before all are on the disk.

    Args:
        files: By path, in folders that exist, what each is to hold.
        exclusive: nothing is replaced, and where one file cannot take its place, none does. A file in its place stays, for
            another process may use it at once.
        durable: return once they are on the disk. Otherwise they may be lost with the machine's power, though not with the
            process.

    Raises:
        FileExistsError: ``exclusive``, and a file or a link is there.
        OSError: the disk refuses; its ``filename`` is the file that was to be written.
    """
    written: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for path, file in files.items():
            # The ending stays, for writers that go by it.
            written[path] = path.with_name(f"{_ASIDE}{secrets.token_hex(4)}.{path.name}")
            _write(written[path], file)
            if durable:
                flush(written[path])
        for path, aside in written.items():
            if exclusive:
                path.hardlink_to(aside)
                placed.append(path)
            else:
                aside.replace(path)
        placed.clear()
        if durable:
            for folder in {path.parent for path in files}:
                flush(folder)
                _forget_left(folder)
    except BaseException as error:  # Ctrl-C too
        for path_placed in placed:
            path_placed.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        for aside in written.values():
            aside.unlink(missing_ok=True)


def check_new(paths: Iterable[Path], force: bool = False) -> None:
    """Raise ConfigError, before a command computes anything, where a file that it is to write cannot be written.

    Its folder must exist, and the file must not, unless ``force`` replaces it.
    """
    for path in paths:
        if not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: its folder does not exist.")
        if path.exists() and not force:
            raise ConfigError(f"{path} exists already; give another name, or --force to replace it.")


def write_outputs(files: Mapping[Path, Content], force: bool = False) -> None:
    """Write all the files that a command was asked for, readable by their owner alone, or none.

    Raises ConfigError as ``check_new``, and where a folder cannot be written to.
    """
    check_new(files, force)
    try:
        write_files({path: NewFile(content, SECRET) for path, content in files.items()})
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {reason(error)}.") from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` for its owner alone, to be filled; it takes its place at the end, or goes on failure."""
    beside = Path(mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield beside
        for entry in (*beside.rglob("*"), beside):
            flush(entry)
        beside.rename(path)
        flush(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def locked(path: Path, refusal: str, patience: float = 0.0) -> Iterator[None]:
    """No other process holds the lock of the file ``path`` meanwhile; a process that is killed lets go.

    Args:
        path: The file, which is made where there is none.
        refusal: The sentence of the error.
        patience: Seconds for which a lock that another process holds is tried again.

    Raises:
        ConfigError: With ``refusal``, when another process still holds it.
    """
    deadline = time.monotonic() + patience
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ConfigError(refusal) from None
            time.sleep(0.05)
        yield


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file. Raises DataError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}.") from None


def reason(error: OSError) -> str:
    """The system's words for an error, for a sentence."""
    return error.strerror or "no reason given"


def _forget_left(folder: Path) -> None:
    """Remove what processes that were killed left aside a day ago or earlier."""
    for aside in folder.glob(f"{_ASIDE}*"):
        with suppress(FileNotFoundError):
            if aside.stat().st_mtime < time.time() - _LEFT_SECONDS:
                aside.unlink()


def _write(path: Path, file: NewFile) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if file.mode is None else file.mode)
    with os.fdopen(descriptor, "wb") as sink:
        if not callable(file.content):
            sink.write(file.content.encode() if isinstance(file.content, str) else file.content)
    if callable(file.content):
        file.content(path)
    if file.mode is not None:
        path.chmod(file.mode)  # whatever the umask is, and also where the function made the file anew


def as_text(value: T) -> T | str:
    """The cell ``value``; text that a spreadsheet could take for a formula is returned with an apostrophe before it.

    Numbers are returned as they are. OWASP, "CSV Injection".

    Examples:
        >>> as_text('=HYPERLINK("http://example.org")')
        '\\'=HYPERLINK("http://example.org")'
        >>> as_text("St. Elsewhere"), as_text(-1.5)
        ('St. Elsewhere', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value
