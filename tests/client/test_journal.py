"""A hospital's journal: every message and every answer, on the disk before either goes on, and changes to it show."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyclinic.client import charging
from polyclinic.client.home.journal import NAME, append
from polyclinic.errors import DataError
from polyclinic.inspection.result import RunResult
from polyclinic.lines import read_lines
from polyclinic.wire.messages import FAILED, REFUSED
from tests.client.test_hospital import STRICT, ledger, make_hospital, train
from tests.nursery import python

ROOT = Path(__file__).resolve().parents[2]
EVENTS = ["asked", "answered", "asked", "refused"]


def events(home: Path) -> list[str]:
    return [entry["event"] for entry in read_lines(home / NAME).entries]


def test_every_message_and_its_answer_stand_in_order_with_what_the_ledger_said(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    assert train(hospital).has_content()
    assert train(hospital, noise_multiplier=0.01, round=2).error.code == REFUSED
    journal = read_lines(tmp_path / "home" / NAME)
    asked, answered, _, refused = journal.entries
    assert [entry["event"] for entry in journal.entries] == EVENTS and journal.intact and not journal.torn
    assert asked["kind"] == answered["kind"] == "train" and asked["round"] == 1 and asked["bytes"] > 0
    assert answered["epsilon"] == pytest.approx(ledger(hospital).epsilon(), rel=1e-3)
    assert "smallest-noise-multiplier" in refused["why"] and "digest" not in refused
    assert train(hospital).has_content() and train(hospital, round=3).has_content()
    again, other = [entry for entry in read_lines(tmp_path / "home" / NAME).entries if entry["event"] == "answered"][1:]
    assert again["digest"] == answered["digest"] != other["digest"]
    assert (tmp_path / "home" / NAME).stat().st_mode & 0o777 == 0o600


def test_a_simulated_site_keeps_none(tmp_path: Path, quick: Callable[..., RunResult]) -> None:
    quick()
    assert not list(tmp_path.rglob(NAME))


def test_where_the_journal_cannot_be_written_nothing_is_charged_or_answered(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / NAME).symlink_to("/dev/full")
    reply = train(hospital)
    assert reply.error.code == FAILED and "journal cannot be written" in str(reply.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_an_answer_whose_line_cannot_be_written_stays_here_and_stays_charged(tmp_path: Path) -> None:
    """The disk is full when the reply is ready: the process may write no file beyond what the journal has by then."""
    hospital = make_hospital(tmp_path)
    script = (
        "import os, sys, pathlib\n"
        "import tests.client.test_hospital as t\n"
        "from polyclinic.client import training\n"
        "home = pathlib.Path(sys.argv[1]).parent / 'home'\n"
        "before = training.train\n"
        "def train(calls):\n"
        "    found = before(calls)\n"
        "    (home / 'journal.jsonl').unlink(); (home / 'journal.jsonl').symlink_to('/dev/full')\n"
        "    return found\n"
        "training.train = train\n"
        "reply = t.train(pathlib.Path(sys.argv[1]))\n"
        "print(reply.error.reason)\n"
    )
    done = python("-c", script, str(hospital))
    assert "journal cannot be written" in done.stdout, done.stderr
    assert ledger(hospital).epsilon() > 0


def test_an_answer_stays_here_where_an_older_ledger_was_put_in_place_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital, older = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\n"), tmp_path / "older.sqlite"
    home = tmp_path / "home"
    assert train(hospital, planned=4).has_content()
    shutil.copy(home / "ledger.sqlite", older)
    assert train(hospital, planned=4, round=2).has_content()
    write = charging.write_release

    def write_release(*given: Any, **options: Any) -> Any:
        shutil.copy(older, home / "ledger.sqlite")
        return write(*given, **options)

    monkeypatch.setattr(charging, "write_release", write_release)
    refused = train(hospital, planned=4, round=3)
    assert refused.error.code == FAILED and "lacks charges that its journal holds" in refused.error.reason
    last = read_lines(home / NAME).entries[-1]
    assert last["event"] == "failed" and last["digest"] == "" and last["why"] == refused.error.reason


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_line_that_was_changed_taken_out_or_put_in_shows(tmp_path: Path, change: str) -> None:
    for number in range(5):
        append(tmp_path, {"event": "asked", "round": number})
    path = tmp_path / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[2] = lines[2].replace(b'"round":2', b'"round":7')
    elif change == "remove":
        del lines[2]
    elif change == "insert":
        lines.insert(2, lines[2])
    else:
        lines[1], lines[2] = lines[2], lines[1]
    assert read_lines(tmp_path / NAME).intact
    path.write_bytes(b"".join(lines))
    assert not read_lines(tmp_path / NAME).intact


def test_an_edit_of_the_newest_line_shows_by_its_digest_alone(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, {"event": "asked", "round": number})
    path, noted = tmp_path / NAME, read_lines(tmp_path / NAME).head
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":7'))
    assert read_lines(path).intact and read_lines(path).head != noted


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"format":"1"}', b'{"format":2}', b'{"format":true}'])
def test_a_strange_last_line_is_no_crash(tmp_path: Path, line: bytes) -> None:
    append(tmp_path, {"event": "asked"})
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert not read_lines(path).intact or read_lines(path).torn == 1
    if line.startswith(b"["):
        append(tmp_path, {"event": "asked"})
    else:
        with pytest.raises(DataError, match="this version of Polyclinic reads formats up to 1"):
            append(tmp_path, {"event": "asked"})


def test_lines_cut_off_at_the_end_show_by_the_newest_digest(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, {"event": "asked", "round": number})
    noted = read_lines(tmp_path / NAME).head
    path = tmp_path / NAME
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert read_lines(tmp_path / NAME).intact and read_lines(tmp_path / NAME).head != noted


@pytest.mark.parametrize("left", [0, 1, 20])
def test_a_line_that_a_crash_tore_is_kept_and_counted_and_the_next_follows_it(tmp_path: Path, left: int) -> None:
    append(tmp_path, {"event": "asked"})
    path = tmp_path / NAME
    whole = path.read_bytes()
    append(tmp_path, {"event": "answered"})
    path.write_bytes(path.read_bytes()[: len(whole) + left])
    append(tmp_path, {"event": "asked"})
    journal = read_lines(tmp_path / NAME)
    assert journal.intact and journal.torn == (left > 0) and events(tmp_path) == ["asked", "asked"]
    path.write_bytes(path.read_bytes().replace(b"asked", b"ASKED", 1))
    assert not read_lines(tmp_path / NAME).intact


def test_processes_that_write_at_once_leave_one_chain(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from polyclinic.client.home.journal import append\n"
        "for n in range(40): append(pathlib.Path(sys.argv[1]), {'event': 'asked', 'round': n, 'why': 'x' * 3000})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    journal = read_lines(tmp_path / NAME)
    assert journal.intact and len(journal.entries) == 120 and not journal.torn


def test_what_a_message_says_of_itself_cannot_break_a_line(tmp_path: Path) -> None:
    append(tmp_path, {"event": "asked", "run": 'x"}\n{"event":"answered"', "kind": "\u2028"})
    assert len(read_lines(tmp_path / NAME).entries) == 1
    assert json.loads((tmp_path / NAME).read_text().splitlines()[0])["run"].endswith('"answered"')


def test_a_policy_that_refuses_is_in_the_journal_before_any_ledger(tmp_path: Path) -> None:
    train(make_hospital(tmp_path, STRICT + "most-parameters = 3\n"))
    assert events(tmp_path / "home") == ["asked", "refused"]
