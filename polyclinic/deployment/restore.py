"""A backup put in the place of a coordinator's or a hospital's folder, checked before, whole or not at all.

A hospital's ledgers are brought forward to the newest journal that survived, which holds every charge again: what was charged
after the backup stays charged.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyclinic.client.home.approvals import pause, stop
from polyclinic.client.home.journal import NAME, append
from polyclinic.client.home.marks import LEDGERS, charges_since
from polyclinic.client.home.submissions import SUBMITTED, write_down
from polyclinic.deployment import coordinator
from polyclinic.deployment.backup import MANIFEST
from polyclinic.deployment.coordinator import DATABASE, Coordinator
from polyclinic.deployment.environment import reached_here
from polyclinic.deployment.hospital import FILE, HospitalNode
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.files import SECRET, new_folder, reason, sha256, write_file
from polyclinic.lines import read_lines
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.file import (
    COLUMNS,
    Row,
    create,
    damages,
    heads_in,
    link,
    transaction,
)
from polyclinic.privacy.ledger.terms import Terms


def restore(backup: Path, folder: Path, file: str, finish: Callable[[Path, str], Any]) -> dict[str, Any]:
    """Puts the backup into the new folder ``folder``; it appears whole or not at all.

    Args:
        backup: The backup's folder.
        folder: The folder to be made.
        file: A file that every backup of this kind holds.
        finish: What is done with the copy, and the time of the backup, before it takes its place.

    Returns:
        ``{"folder", "backup", "time", "files"}``.

    Raises:
        ConfigError: ``folder`` is there, or the backup is not of this kind.
        DataError: A file of the backup is missing, damaged, or not as it was written.
        PolyclinicError: A file cannot be read or written.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} is there already, and nothing is overwritten; move it aside.")
    time, digests = _manifest(backup)
    if file not in digests:
        raise ConfigError(f"{backup} holds no {file}, so it is not a backup of this kind.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder.absolute()) as staging:
            for name, digest in digests.items():
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_file(target, (backup / name).read_bytes(), mode=SECRET, durable=False)
                if sha256(target) != digest:
                    raise DataError(f"{backup / name} is not as the backup was written; use another backup.")
            finish(staging, time)
    except (OSError, sqlite3.Error) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise PolyclinicError(f"{backup} cannot be restored to {folder}: {why}.") from None
    return {"folder": str(folder), "backup": str(backup), "time": time, "files": len(digests)}


def restore_hospital(backup: Path, folder: Path, journal: Path | None) -> dict[str, Any]:
    """Puts a hospital's backup into a new folder, as ``restore``, and brings its ledgers forward.

    Its ledgers hold all charges of the journal, runs that were denied stay so, and the hospital has paused, so that
    somebody looks at its policy first.

    Args:
        backup: The backup's folder.
        folder: The folder to be made.
        journal: The newest journal that survived, None where none did.

    Returns:
        As ``restore``, with ``charges``: how many the backup lacked.

    Raises:
        ConfigError: Also where the journal does not go on from the backup's, or its node answers on this machine. A ``home``
            outside the folder must not be there already.
        DataError: Also where a ledger or a journal is damaged.
    """
    brought: list[int] = []

    def finish(staging: Path, time: str) -> None:
        node = HospitalNode.read(staging)
        check_stopped("127.0.0.1", node.node.port)
        outside = Path(os.path.normpath(folder.resolve() / node.hospital.home))  # there is no folder yet to go up from
        place = Path(os.path.relpath(outside, folder.resolve()))
        if ".." in place.parts and outside.exists() and (not outside.is_dir() or any(outside.iterdir())):
            raise ConfigError(
                f"{outside}, the hospital's home, is there already, and nothing is overwritten; move it aside."
            )
        home = staging / "home"  # as backups name it, wherever it was
        brought.append(_bring_forward(home, journal))
        entry = {"event": "restored", "kind": "backup", "by": getpass.getuser(), "backup": time, "charges": brought[0]}
        append(home, entry)
        pause(home, f"restored from the backup of {time}")
        if ".." in place.parts:
            outside.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(outside) as beside:
                shutil.copytree(home, beside, dirs_exist_ok=True)
            shutil.rmtree(home)
        elif place != Path("home"):
            (staging / place).parent.mkdir(parents=True, exist_ok=True)
            home.rename(staging / place)

    return restore(backup, folder, FILE, finish) | {"charges": brought[0]}


def restore_coordinator(backup: Path, folder: Path) -> dict[str, Any]:
    """As ``restore``, a coordinator's folder. Raises DataError also for a damaged database, ConfigError where it answers."""

    def finish(staging: Path, time: str) -> None:
        file = Coordinator.read(staging).file
        check_stopped(reached_here(file.listen), file.port)
        database = staging / "state" / DATABASE
        if database.exists() and database.stat().st_size and (problems := damages(database)):
            raise DataError(f"state/{DATABASE} of the backup is damaged ({problems[0]}); use another backup.")

    return restore(backup, folder, coordinator.FILE, finish)


def check_stopped(host: str, port: int) -> None:
    """Raises ConfigError where a program answers at this machine's port."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return
    raise ConfigError(f"A program answers at {host}, port {port}; stop the one that is to be restored first.")


def _manifest(backup: Path) -> tuple[str, dict[str, str]]:
    try:
        listed = json.loads((backup / MANIFEST).read_text(encoding="utf-8"))
        time, files = str(listed["time"]), {str(name): str(digest) for name, digest in listed["files"].items()}
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError
    except FileNotFoundError:
        raise ConfigError(f"{backup} holds no {MANIFEST}, so it is not a whole backup.") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        raise DataError(f"{backup / MANIFEST} cannot be read as the list of a backup; use another backup.") from None
    return time, files


def _bring_forward(home: Path, journal: Path | None) -> int:
    """Put into the ledgers what the newest of two journals holds, and deny what it says was; returns how many charges."""
    home.mkdir(mode=0o700, exist_ok=True)
    before = (home / NAME).read_bytes() if (home / NAME).exists() else b""
    try:
        newest = before if journal is None else journal.read_bytes()
    except OSError as error:
        raise ConfigError(f"--journal is {str(journal)!r}, which cannot be read: {reason(error)}.") from error
    if before.startswith(newest):
        newest = before
    elif not newest.startswith(before):
        raise ConfigError(
            f"{journal} does not go on from the journal in the backup; name the journal of the same hospital."
        )
    for path in (home / name for name in LEDGERS if (home / name).exists()):
        problems = damages(path) or [] if Ledger.read(path).verify() else ["its chain of hashes is broken"]
        if problems:
            raise DataError(f"{path.name} of the backup is damaged ({problems[0]}); use another backup.")
    write_file(home / NAME, newest, mode=SECRET)
    history = read_lines(home / NAME)
    if not history.intact:
        raise DataError(f"{journal or home / NAME}: a line of the journal was changed, taken out or put in.")
    charged: dict[str, list[dict[str, Any]]] = {}
    for entry in history.entries:
        for name, charges in entry.get("charged", {}).items():
            charged.setdefault(name, []).append(charges)
        if entry.get("event") == SUBMITTED:
            write_down(home, entry)
    brought = 0
    for name, every in charged.items():
        rows = [Row._make(row) for charges in every for row in charges["rows"]]
        brought += _take_up(home / name, Terms(*every[0]["terms"]), rows)
    if history.entries and charges_since(home, history.entries[-1].get("ledgers", {}))[1]:
        raise DataError("The ledger in the backup is not the one of which the journal tells; use another backup.")
    denied = {
        e["run"]: e for e in history.entries if e.get("kind") == "approval" and e["event"] in ("denied", "approved")
    }
    for run, entry in denied.items():
        if entry["event"] == "denied":
            stop(home, run, entry.get("why", ""))
    return brought


def _take_up(path: Path, terms: Terms, rows: Sequence[Row]) -> int:
    """Put charges of the journal into a ledger that lacks them; returns how many. Raises DataError where they do not follow."""
    if not path.exists():
        create(path, [terms])
    with transaction(path) as db:
        ((count,),), head = db.execute("SELECT count(*) FROM events").fetchall(), heads_in(db).get(terms.site)
        if head is None:
            raise DataError(
                f"{path.name} of the backup does not hold the site {terms.site!r} of which the journal tells."
            )
        new: list[Row] = []
        for row in rows:
            if row.seq <= count + len(new):  # in the ledger already
                continue
            if row.seq != count + len(new) + 1 or row.hash != link(head, row):
                raise DataError(f"{path.name} of the backup has other charges than the journal; use another backup.")
            new.append(row)
            head = row.hash
        db.executemany(
            f"INSERT INTO events (site, {COLUMNS}) VALUES ({'?, ' * 10}?)", [(terms.site, *row) for row in new]
        )
        db.execute("UPDATE sites SET head = ? WHERE site = ?", (head, terms.site))
    return len(new)
