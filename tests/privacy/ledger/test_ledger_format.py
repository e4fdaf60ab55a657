"""The number of a ledger's format: older files go forward, and those of a newer or another one are refused in a sentence."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from polyclinic.errors import DataError
from polyclinic.privacy.ledger import Charge, Ledger, charge_all
from polyclinic.privacy.ledger.file import FORMAT
from polyclinic.privacy.ledger.verify import verify_all
from tests.privacy.ledger.test_ledger_damage import DEEDS, EVENT, TERMS

# Two charges of gaussian_event(2.0) by the Ledger of commit 1d7b5c21, the last of 0.1, with the same terms.
OF_0_1 = Path(__file__).parent / "old" / "ledger-0.1.sqlite"


def number(path: Path, new: int | None = None) -> int:
    with closing(sqlite3.connect(path)) as db:
        if new is not None:
            db.execute(f"PRAGMA user_version = {new}")
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def refusal(path: Path, deed: str) -> str:
    before = path.read_bytes()
    with pytest.raises(DataError) as refused:
        DEEDS[deed](path)
    assert path.read_bytes() == before and len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def test_a_ledger_without_a_number_is_read_as_it_is_and_gets_one_with_its_next_charge(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "l.sqlite", TERMS)
    assert number(ledger.path) == FORMAT
    spent = ledger.charge(EVENT, "train", "r", 1)
    number(ledger.path, 0)
    assert Ledger.read(ledger.path).epsilon() == pytest.approx(spent) and number(ledger.path) == 0
    ledger.charge(EVENT, "train", "r", 2)
    assert number(ledger.path) == FORMAT
    [statement] = verify_all(ledger.path)
    assert statement["intact"] and len(statement["events"]) == 2


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("newer", [FORMAT + 1, -1])
def test_a_ledger_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path, deed: str, newer: int) -> None:
    path = tmp_path / "l.sqlite"
    Ledger.open(path, TERMS).charge(EVENT, "train", "r", 1)
    number(path, newer)
    assert f"has format {newer}; this version of Polyclinic reads formats up to {FORMAT}" in refusal(path, deed)


@pytest.mark.parametrize("durable", [True, False])
def test_a_ledger_that_is_open_is_not_taken_back_to_an_older_format(tmp_path: Path, durable: bool) -> None:
    ledger = Ledger.open(tmp_path / "l.sqlite", TERMS)
    charge_all([(ledger, Charge(EVENT, "train", "r", 1))], durable)
    number(ledger.path, FORMAT + 1)
    with pytest.raises(DataError, match=f"has format {FORMAT + 1}"):
        charge_all([(ledger, Charge(EVENT, "train", "r", 2))], durable)
    assert number(ledger.path) == FORMAT + 1


@pytest.mark.parametrize("deed", DEEDS)
def test_a_ledger_of_0_1_is_named_as_such_with_what_to_do(tmp_path: Path, deed: str) -> None:
    path = tmp_path / "l.sqlite"
    shutil.copy(OF_0_1, path)
    said = refusal(path, deed)
    assert (
        "it is of Polyclinic 0.1" in said and "a budget that is lower by the epsilon" in said and "backup" not in said
    )
