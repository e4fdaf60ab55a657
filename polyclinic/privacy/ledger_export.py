"""A ledger's whole statement as a file for an auditor, who needs neither Polyclinic nor the ledger to check its chain.

JSON holds everything, to the letter; CSV is the table of charges, for spreadsheets. The file appears whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from polyclinic.errors import ConfigError
from polyclinic.files import write_file
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger_file import COLUMNS, Recorded, beginning, genesis, read_sites, written
from polyclinic.privacy.ledger_verify import verified
from polyclinic.privacy.statements import Statement, detailed
from polyclinic.spreadsheets import as_text

_RULE = (
    "A hash is the SHA-256, in hexadecimal, of UTF-8 text: a site's genesis of its 'begun'; a charge's hash of the hash "
    "before it followed by the charge's 'recorded'; head is the newest."
)


def export(ledgers: Sequence[Ledger], out: Path, force: bool = False) -> list[Statement]:
    """Write the statements of several sites of one file to ``out``, by its suffix: .json or .csv; returns them.

    Raises ConfigError, with nothing written, for another suffix, a folder that is not there, or a file that is there
    already, unless ``force``; DataError if the ledger is none.
    """
    formats: dict[str, Callable[..., str]] = {".json": _as_json, ".csv": _as_csv}
    if out.suffix not in formats:
        raise ConfigError(f"--out must end in .json or .csv, got {str(out)!r}.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out names the folder {out.parent}, which does not exist.")
    found = read_sites(ledgers[0].path, [ledger.site for ledger in ledgers])
    statements = [verified(ledger.terms, found[ledger.site]) for ledger in ledgers]
    _write(out, formats[out.suffix](statements, found), force)
    return statements


def _as_json(statements: Sequence[Statement], found: dict[str, Recorded]) -> str:
    sites = []
    for statement in statements:
        recorded = found[statement["site"]]
        events = [
            {**event, "recorded": written(row), "hash": str(row.hash)}
            for event, row in zip(statement["events"], recorded.rows, strict=True)
        ]
        more = detailed(statement) if statement["epsilon"] is not None else statement
        chain = {"begun": beginning(recorded.terms), "genesis": genesis(recorded.terms), "head": recorded.head}
        sites.append({**more, **chain, "events": events})
    return json.dumps({"hashes": _RULE, "sites": sites}, indent=1, allow_nan=False) + "\n"


def _as_csv(statements: Sequence[Statement], found: dict[str, Recorded]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["site", *COLUMNS.split(", ")])
    for statement in statements:
        table.writerows(map(as_text, (statement["site"], *row)) for row in found[statement["site"]].rows)
    return text.getvalue()


def _write(out: Path, text: str, force: bool) -> None:
    try:
        write_file(out, text, exclusive=not force)
    except FileExistsError:
        raise ConfigError(f"--out names {out}, which exists; --force replaces it.") from None
    except OSError as error:
        raise ConfigError(f"--out names {out}, which cannot be written: {error.strerror}.") from None
