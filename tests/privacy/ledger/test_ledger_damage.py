"""A ledger on a disk that is full, or with a byte that changed: one sentence, never a traceback, and no damage unseen."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.statements import statements, with_details
from polyclinic.privacy.ledger.verify import export, verify_all

TERMS = Terms("S", 1e-5, "add-remove", "patient", 50.0, "rdp")
EVENT = gaussian_event(2.0)


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    ledger = Ledger.open(tmp_path / "whole.sqlite", TERMS)
    for number in (1, 2, 3):
        ledger.charge(EVENT, "train", "r", number)
    return ledger.path.read_bytes()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one, since a file made thousands of times takes minutes on a disk."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:  # noqa: S108
        yield Path(folder)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def exported(path: Path) -> None:
    for suffix in (".json", ".csv"):
        export([*Ledger.read_all(path).values()], path.with_suffix(suffix), force=True)
    strict(path.with_suffix(".json").read_text())


def shown(path: Path) -> None:
    json.dumps([with_details(one) for one in statements([*Ledger.read_all(path).values()])], allow_nan=False)


#: Whatever is done with a ledger.
DEEDS: dict[str, Callable[[Path], Any]] = {
    "verify": lambda path: json.dumps(verify_all(path), allow_nan=False),
    "export": exported,
    "show": shown,
    "charges": lambda path: Ledger.read(path, "S").charges("train", "r"),
    "spent": lambda path: Ledger.read(path, "S").epsilon(),
    "open": lambda path: Ledger.open(path, TERMS),
    "charge": lambda path: Ledger.open(path, TERMS).charge(EVENT, "train", "r", 4),
}


def content(path: Path) -> Any:
    """All that the chain of hashes covers; the budget and the accountant follow the policy. None where it cannot be read."""
    found = []
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(path)) as db:
        db.text_factory = bytes
        for columns in ("site, delta, relation, unit, records, head FROM sites", "* FROM events"):
            found.append(db.execute(f"SELECT {columns}").fetchall())  # noqa: S608 - constants
    return found if len(found) == 2 else None


def changed_bytes(whole: bytes, count: int, seed: int) -> Iterator[tuple[int, int, bytes]]:
    """Copies with one byte in use set to another value."""
    stream, used = random.Random(seed), [place for place, value in enumerate(whole) if value]
    for _ in range(count):
        place = stream.choice(used)
        value = stream.choice([value for value in range(256) if value != whole[place]])
        yield place, value, whole[:place] + bytes([value]) + whole[place + 1 :]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_changed_byte_is_one_sentence_and_never_unseen(
    whole: bytes, tmp_path: Path, memory: Path, count: int
) -> None:
    before = content(tmp_path / "whole.sqlite")
    assert before is not None
    damaged = 0
    for number, (place, value, changed) in enumerate(changed_bytes(whole, count, seed=5)):
        path = memory / f"{number}.sqlite"  # a file of its own, since a failed question may hold a lock for a while
        for name, deed in DEEDS.items():
            path.write_bytes(changed)
            try:
                deed(path)
            except PolyclinicError as error:
                assert len(str(error).splitlines()) == 1, (place, value, name)
            except Exception as error:
                raise AssertionError(f"{name} with byte {place} set to {value}: {error!r}") from error
        path.write_bytes(changed)
        if content(path) != before:
            damaged += 1
            with suppress(PolyclinicError):
                assert not all(one["intact"] for one in verify_all(path)), (place, value)
        for left in memory.glob(f"{number}.*"):
            left.unlink()
    assert damaged > count / 3


def test_an_index_that_disagrees_with_its_table_is_a_finding(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "disagreeing.sqlite"
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as db:
        [root] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'releases'").fetchone()
        size = db.execute("PRAGMA page_size").fetchone()[0]
    page = whole[(root - 1) * size : root * size]
    at = (root - 1) * size + page.rindex(b"Sr") + 1  # the run 'r' of one charge, as the index has it
    path.write_bytes(whole[:at] + b"q" + whole[at + 1 :])
    assert content(path) == content(tmp_path / "whole.sqlite")
    [statement] = verify_all(path)
    assert not statement["intact"] and "SQLite finds the file damaged" in statement["findings"][0]["problem"]


@pytest.mark.parametrize(
    "edit",
    ["UPDATE events SET event = x'00ff' WHERE seq = 2", "UPDATE events SET event = 3.5 WHERE seq = 2",
     "UPDATE events SET run = x'ff', round = 9e999, time = x'00' WHERE seq = 2", "UPDATE sites SET head = 7",
     "UPDATE events SET hash = x'ff' WHERE seq = 1", "UPDATE events SET epsilon_after = x'ff' WHERE seq = 3",
     "UPDATE sites SET delta = 'much'", "UPDATE sites SET unit = x'ff'", "UPDATE events SET purpose = CAST(x'ff' AS TEXT)"],
)  # fmt: skip
def test_a_value_of_another_type_is_one_sentence(whole: bytes, tmp_path: Path, edit: str) -> None:
    for name, deed in DEEDS.items():
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as db:
            db.execute(edit)
            db.commit()
        with suppress(PolyclinicError):
            assert not all(one["intact"] for one in verify_all(path))
        with suppress(PolyclinicError):
            deed(path)


def test_the_command_prints_no_traceback_of_a_damaged_ledger(
    whole: bytes, tmp_path: Path, command: Callable[..., Any]
) -> None:
    path = tmp_path / "damaged.sqlite"
    at = whole.index(b"CREATE TABLE events")
    path.write_bytes(whole[:at] + b"\xff\xfe" + whole[at + 2 :])  # SQLite quotes it in its message, which is no UTF-8
    for what in (["verify"], ["show"], ["export", "--out", str(tmp_path / "out.json")]):
        done = command("ledger", what[0], str(path), *what[1:])
        assert done.returncode == 2
        assert "cannot be used as a privacy ledger" in done.stderr and "Traceback" not in done.stderr


def small_disk(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """SQLite itself finds the disk full where a file would have more pages."""

    class Small(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            super().execute(f"PRAGMA max_page_count = {pages}")

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Small))


def test_a_full_disk_is_named_and_not_taken_for_damage(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(tmp_path / "whole.sqlite", TERMS)
    with monkeypatch.context() as small:
        small_disk(small, 1)  # SQLite takes the pages that are there
        with pytest.raises(DataError) as refused:
            for number in range(4, 200):
                ledger.charge(EVENT, "train", "r", number)
        with pytest.raises(DataError) as unmade:
            Ledger.open(tmp_path / "new.sqlite", TERMS)
    for error in (refused, unmade):
        assert "is full" in str(error.value) and "free some space" in str(error.value)
        assert "backup" not in str(error.value) and str(tmp_path) not in str(error.value)
    assert not (tmp_path / "new.sqlite").exists()
    [statement] = verify_all(ledger.path)
    assert statement["intact"] and len(statement["events"]) == number - 1
    ledger.charge(EVENT, "train", "r", number)  # as soon as there is room


def test_a_refusal_in_a_transaction_is_itself(whole: bytes, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "whole.sqlite", TERMS)
    with pytest.raises(ConfigError):
        ledger.charge(gaussian_event(-1.0), "train", "r", 4)
    assert verify_all(ledger.path)[0]["intact"]
