"""Backups of a running coordinator's and hospital's folders, and what becomes of them when they are restored."""

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from polyclinic.deployment.backup import back_up
from polyclinic.errors import ConfigError, PolyclinicError
from tests.client.test_hospital import ledger, make_hospital, train

from .conftest import Cli


def table(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        return [value for (value,) in database.execute("SELECT value FROM t ORDER BY value")]


def test_a_database_under_way_is_copied_with_what_its_wal_holds(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    """A copy of the file alone lacks it."""
    live = coordinator / "state" / "superlink.db"
    with closing(sqlite3.connect(live)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (value INTEGER)")
        database.execute("PRAGMA wal_checkpoint")
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
        database.commit()
        shutil.copy(live, tmp_path / "alone.db")
        assert cli("coordinator", "backup", coordinator, tmp_path / "copy").code == 0
    assert table(tmp_path / "alone.db") == []
    assert table(tmp_path / "copy" / "state" / "superlink.db") == [1, 2]
    assert not [*(tmp_path / "copy").rglob("superlink.db-*")]


def test_a_backup_holds_the_folder_and_is_its_owner_s_alone(cli: Cli, hospital: Path, tmp_path: Path) -> None:
    (hospital / "home" / "optimizer-r-1.safetensors").write_bytes(b"state")
    (hospital / "home" / "half.partial").write_bytes(b"half")
    (hospital / "home" / "secure-r-000001.safetensors").write_bytes(b"seeds")  # restored, they would mask twice
    printed = json.loads(cli("hospital", "backup", hospital, tmp_path / "copies" / "copy", "--json").out)
    copy = tmp_path / "copies" / "copy"
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert files == {
        "hospital.toml", "node.toml", "schema.toml", "ca.crt", "node.key", "node.pub", "flwr/README", "home/README",
        "home/optimizer-r-1.safetensors", "backup.json",
    }  # fmt: skip
    assert (printed["backup"], printed["files"]) == (str(copy), len(files) - 1)
    assert printed["bytes"] == sum((copy / name).stat().st_size for name in files - {"backup.json"})
    for path in (copy, *copy.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_backup_replaces_nothing_and_a_failed_one_leaves_nothing(cli: Cli, hospital: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = cli("hospital", "backup", hospital, tmp_path / "there")
    assert done.code == 2 and "is there already" in done.error and not [*(tmp_path / "there").iterdir()]
    done = cli("hospital", "backup", hospital, hospital / "home" / "copy")
    assert done.code == 2 and "would lie in" in done.error
    (hospital / "home" / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + b"junk" * 100)
    with pytest.raises(PolyclinicError, match="cannot be copied"):
        back_up(hospital, tmp_path / "new" / "copy", {"home": hospital / "home"})
    assert not [*(tmp_path / "new").iterdir()]
    with pytest.raises(ConfigError, match="would lie in"):
        back_up(hospital, tmp_path / "elsewhere" / "copy", {"home": tmp_path / "elsewhere"})


def test_a_restored_backup_goes_on_and_an_older_ledger_beside_newer_files_is_refused(tmp_path: Path) -> None:
    folder, copy = tmp_path / "hospital", tmp_path / "copy"
    folder.mkdir()
    hospital = make_hospital(folder)
    assert train(hospital).has_content()
    back_up(folder, copy, {"home": folder / "home"})
    assert train(hospital, round=2).has_content()
    spent = ledger(hospital).epsilon()
    shutil.copy(copy / "home" / "ledger.sqlite", folder / "home" / "ledger.sqlite")
    reply = train(hospital, round=2)
    assert reply.has_error() and "the hospital's ledger lacks charges that its journal holds" in reply.error.reason
    assert len(ledger(hospital).events()) == 1
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    assert ledger(hospital).verify() and train(hospital, round=2).has_content()
    assert ledger(hospital).epsilon() == pytest.approx(spent)
