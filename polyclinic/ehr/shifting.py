"""Dates moved by a number of days that is each patient's own, from the patient's id and a secret key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import date, timedelta
from pathlib import Path

from polyclinic.errors import ConfigError
from polyclinic.files import SECRET, reason, write_file

_KEY_BYTES = 32
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def new_key() -> bytes:
    """32 bytes of the operating system's entropy: a key for ``shift_days`` that the hospital keeps secret."""
    return secrets.token_bytes(_KEY_BYTES)


def key_in(path: Path) -> bytes:
    """The key in a file, made there for its owner's eyes alone if there is none. Raises ConfigError for another file."""
    if not path.exists():
        key = new_key()
        try:
            write_file(path, key.hex() + "\n", mode=SECRET, exclusive=True)
        except OSError as error:
            raise ConfigError(f"{path}: the key cannot be written: {reason(error)}.") from None
        return key
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        found = b""
    if len(found) != _KEY_BYTES:
        raise ConfigError(f"{path}: it must hold a key of {_KEY_BYTES} bytes in hexadecimal, or not exist.")
    return found


def shift_days(patient: str, key: bytes, most: int) -> int:
    """Days from -most to most by which a patient's dates move: the same for one patient and key. HMAC-SHA-256."""
    word = int.from_bytes(hmac.new(key, patient.encode(), hashlib.sha256).digest()[:16], "big")
    return word % (2 * most + 1) - most


def shifted_date(cell: str, days: int) -> str:
    """The ISO date at the start of the cell moved; what follows it, such as the time of day, stays.

    Raises ValueError where there is none, OverflowError where the calendar ends.
    """
    if not _DATE.match(cell):
        raise ValueError("no date such as 2024-05-17")
    return f"{(date.fromisoformat(cell[:10]) + timedelta(days)).isoformat()}{cell[10:]}"
