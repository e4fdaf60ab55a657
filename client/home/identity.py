"""A hospital's long-term private key: made once, and kept in its home, readable by its user alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from polyclinic.errors import DataError
from polyclinic.files import SECRET, write_file
from polyclinic.privacy.secure.signatures import new_identity, public_identity


def identity(home: Path, durable: bool = True) -> bytes:
    """The private key of the hospital with this ``home``, made if there is none. Raises DataError when its file is damaged.

    Not ``durable`` may be lost with the machine's power, though not with the process.
    """
    path = home / "identity.key"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # two processes at once have the same
            write_file(path, new_identity(), mode=SECRET, exclusive=True, durable=durable)
    key = path.read_bytes()
    try:
        public_identity(key)
    except ValueError:
        raise DataError(f"{path}, the hospital's own key, is damaged; restore it.") from None
    return key
