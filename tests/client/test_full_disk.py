"""A real hospital whose disk is full: it says so in its log, and tells the coordinator no path."""

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyclinic.wire.messages import FAILED

from .test_hospital import ledger, make_hospital, train


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 kB; skips where none can be mounted."""
    disk = tmp_path / "home"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize))


def test_a_full_disk_at_the_ledger_is_named_and_no_path_leaves(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = make_hospital(small_disk.parent)
    assert train(hospital).has_content()
    before = ledger(hospital).events()
    fill(small_disk)
    with caplog.at_level(logging.ERROR, "flwr"):
        reply = train(hospital, round=2)
    assert reply.error.code == FAILED
    assert reply.error.reason == "the hospital's disk is full; it can answer again when there is room"
    assert any("is full; make room" in record.getMessage() for record in caplog.records)
    assert ledger(hospital).events() == before and ledger(hospital).verify()
    (small_disk / "filler").unlink()
    assert train(hospital, round=2).has_content() and len(ledger(hospital).events()) == len(before) + 1
