"""Damaged inputs by the thousand, in a process of their own since native readers may crash.

``python -m tests.ehr.sources.fuzz KIND FIRST COUNT`` reads COUNT mutations of a sound CSV, Parquet, NDJSON or SQLite input, one
for each seed from FIRST, and prints {"loaded", "refused", "problems"}. A problem is whatever is neither a shard nor a
sentence, without a cell, for each kind of fault. Before each case its seed goes to stderr, so that a crash or a hang can be told.
"""

from __future__ import annotations

import gzip
import json
import resource
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import check_chunks
from polyclinic.ehr.sources import Place
from polyclinic.errors import PolyclinicError
from polyclinic.plugins import resolve

KINDS = ("csv", "csv.gz", "parquet", "ndjson", "sqlite")
CANARIES = ("canary", "4711")
SECONDS = 20
SCHEMA = Schema(
    name="fuzz",
    columns=(
        Column(name="id", kind="categorical", role="patient_id"),
        Column(name="age", kind="integer", bounds=(0, 120), nullable=True),
        Column(name="crp", kind="continuous", bounds=(0, 500), nullable=True),
        Column(name="sex", kind="categorical", categories=("male", "female"), nullable=True),
        Column(name="codes", kind="code_set", categories=("I10", "E11")),
        Column(name="died", kind="binary", role="label"),
    ),
)
MAPPING = """
[rows]
table = "Patient"
key = "patient"
[[columns]]
name = "id"
value = "id"
[[columns]]
name = "age"
table = "Observation"
codes = ["age"]
[[columns]]
name = "crp"
table = "Observation"
codes = ["crp"]
units = { "mg/L" = 1, "mg/dL" = 10 }
take = "mean"
[[columns]]
name = "sex"
value = "gender"
[[columns]]
name = "codes"
table = "Condition"
codes = ["I10", "E11"]
take = "codes"
[[columns]]
name = "died"
value = "deceased"
values = { true = "1", false = "0" }
default = "0"
"""


def records(rows: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"canary-4711-{row}" for row in range(rows)],
            "age": rng.integers(0, 99, rows),
            "crp": rng.random(rows).round(3) * 400,
            "sex": rng.choice(["male", "female", ""], rows),
            "codes": rng.choice(["", "I10", "I10;E11"], rows),
            "note": ["canary, 4711"] * rows,
            "died": rng.integers(0, 2, rows),
        }
    )


def resources(table: pd.DataFrame) -> dict[str, str]:
    lines: dict[str, list[object]] = {"Patient": [], "Observation": [], "Condition": []}
    for row in table.to_dict("records"):
        who = {"subject": {"reference": f"Patient/{row['id']}"}, "effectiveDateTime": "2020-01-01T00:00:00Z"}
        patient = {
            "resourceType": "Patient",
            "id": row["id"],
            "deceasedBoolean": bool(row["died"]),
            "name": "canary 4711",
        }
        lines["Patient"].append(patient | ({"gender": row["sex"]} if row["sex"] else {}))
        for code, unit in (("age", "a"), ("crp", "mg/L")):
            value = {"valueQuantity": {"value": row[code], "code": unit}}
            lines["Observation"].append(
                {"resourceType": "Observation", "code": {"coding": [{"code": code}]}, **who, **value}
            )
        coding = [{"code": code} for code in row["codes"].split(";") if code]
        lines["Condition"].append({"resourceType": "Condition", "code": {"coding": coding}, **who})
    return {name: "\n".join(json.dumps(line) for line in some) + "\n" for name, some in lines.items()}


def write(kind: str, folder: Path, table: pd.DataFrame) -> tuple[list[Path], str, Place]:
    """A sound input: its files, the name of its source, and its place."""
    if kind == "ndjson":
        files = []
        for name, text in resources(table).items():
            (folder / f"{name}.ndjson").write_text(text)
            files.append(folder / f"{name}.ndjson")
        (folder / "mapping.toml").write_text(MAPPING)
        return files, "fhir", Place(".", folder, {"mapping": "mapping.toml"})
    file = folder / f"a.{kind}"
    if kind == "parquet":
        table.to_parquet(file)
    elif kind == "sqlite":
        with sqlite3.connect(file) as connection:
            table.to_sql("t", connection, index=False)
        connection.close()
        return [file], "sql", Place("sqlite:///a.sqlite", folder, {"query": "select * from t"})
    else:
        table.to_csv(file, index=False)
    return [file], "files", Place(file.name, folder)


def attempt(source: str, place: Place, schema: Schema = SCHEMA) -> str:
    """ "loaded", "refused", or what is wrong with how it failed."""
    try:
        checked = check_chunks(resolve("sources", source)(place, schema), schema, place.text)
        wrong = not np.isfinite(np.nan_to_num(checked.x)).all() or (np.nan_to_num(np.abs(checked.x)) > 1 + 1e-9).any()
        return "loaded with a cell outside its bounds" if wrong else "loaded"
    except PolyclinicError as error:
        said = str(error)
        if any(canary in said for canary in CANARIES):
            return f"a cell is quoted: {said}"
        if error.__context__ is not None and not error.__suppress_context__:
            return f"another error shows through: {said}"
        lines = said.split("\n")  # one for each kind of fault
        sentence = len(lines) <= 21 and all(line.endswith(".") and len(line) < 600 for line in lines)
        return "refused" if sentence else f"no sentence: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, doubled, moved or put in; tokens that readers stumble over among them."""
    tokens = [b'"', b"\n", b",", b"\x00", b"\xff", b"{", b"]", b"null", b"1e999", b"-", b"canary-4711", b"NaN", b"\r", b"\\u0000",
              b"99999999999999999999", b'"value": "canary-4711"', b"\xf0\x9f\x92\x89", b"inf", b"true", b";", b" "]  # fmt: skip
    out = bytearray(content)
    for _ in range(int(rng.geometric(0.6))):
        if not out:
            break
        at, size = int(rng.integers(len(out))), int(rng.integers(1, 9))
        match int(rng.integers(6)):
            case 0:
                out[at] = int(rng.integers(256))
            case 1:
                out[at] ^= 1 << int(rng.integers(8))
            case 2:
                out[at:at] = tokens[int(rng.integers(len(tokens)))]
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = out[at : at + size * 8]
            case _:
                other = int(rng.integers(len(out)))
                out[at : at + size] = out[other : other + size]
    return bytes(out if rng.random() > 0.05 else out[: int(rng.integers(len(out) + 1))])


def main(kind: str, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a damaged length must not take the machine's memory
    found: dict[str, int] = {"loaded": 0, "refused": 0}
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, source, place = write(kind, folder, records())
        sound = {file: file.read_bytes() for file in files}
        assert attempt(source, place) == "loaded"
        for seed in range(first, first + count):
            print(seed, file=sys.stderr, flush=True)
            rng = np.random.default_rng(seed)
            chosen = files[int(rng.integers(len(files)))]
            if kind == "csv.gz" and rng.random() < 0.5:  # inside, so that the damage is of the text
                chosen.write_bytes(gzip.compress(mutated(gzip.decompress(sound[chosen]), rng), 1))
            else:
                chosen.write_bytes(mutated(sound[chosen], rng))
            signal.alarm(SECONDS)  # its default action ends a process that hangs
            what = attempt(source, place)
            signal.alarm(0)
            chosen.write_bytes(sound[chosen])
            if what in found:
                found[what] += 1
            else:
                problems.append(f"{kind} {seed}: {what}")
    print(json.dumps({**found, "problems": problems}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
