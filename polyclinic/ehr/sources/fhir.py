"""Records from a FHIR R4 bulk export: NDJSON files, flattened to tables and mapped as any other.

A resource with several codes gives a row for each, which know each other by ``event``; a component of an observation is
an event of its own. What was entered in error, refuted or cancelled is left out.
https://hl7.org/fhir/uv/bulkdata/export.html, https://hl7.org/fhir/R4/resourcelist.html
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place
from polyclinic.ehr.sources.mapped import map_tables
from polyclinic.ehr.sources.mapping import FHIR, Mapping
from polyclinic.errors import DataError

RESOURCES = ("Patient", "Encounter", "Condition", "Observation", "MedicationRequest")
_VOID = ("entered-in-error", "refuted", "cancelled")
# For each column of the flat tables, the elements that may give it, the first that is there.
_ELEMENTS: dict[str, tuple[str, ...]] = {
    "patient": ("subject.reference", "patient.reference"),
    "encounter": ("encounter.reference",),
    "time": ("effectiveDateTime", "effectiveInstant", "effectivePeriod.start", "onsetDateTime", "onsetPeriod.start",
             "authoredOn", "recordedDate", "issued"),
    "start": ("period.start",),
    "end": ("period.end",),
    "class": ("class.code",),
    "birthdate": ("birthDate",),
    "value": ("valueQuantity.value", "valueCodeableConcept.coding.code", "valueInteger", "valueBoolean", "valueString",
              "valueDateTime"),
    "unit": ("valueQuantity.code", "valueQuantity.unit"),
}  # fmt: skip
_OWN_ID = {"Patient": "patient", "Encounter": "encounter"}


@dataclass(frozen=True)
class Export:
    """A folder with files such as ``Patient.ndjson``, ``Observation.0001.ndjson`` or ``Condition.ndjson.gz``.

    Columns of a table: ``id``, ``patient``, ``encounter``, ``time``, ``code``, ``value``, ``unit``, ``start``, ``end``,
    ``class``, ``birthdate``, ``deceased``, or the path of any element in lower case, such as ``address.state``.
    """

    event: ClassVar[str] = "event"
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def frames(self, table: str, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        by_table = {resource.lower(): resource for resource in RESOURCES}
        if table not in by_table:
            raise DataError(f"{self.path}: {table!r} is not a resource that is read; known are {', '.join(RESOURCES)}.")
        rows: list[tuple[Any, ...]] = []
        for file in self._files(by_table[table]):
            for number, resource in _resources(file, by_table[table]):
                rows.extend(_flat(resource, by_table[table], columns, f"{file.name}:{number}"))
                if len(rows) >= ROWS:
                    yield pd.DataFrame(rows, columns=list(columns), dtype=object)
                    rows = []
        yield pd.DataFrame(rows, columns=list(columns), dtype=object)

    def _files(self, resource: str) -> list[Path]:
        pattern = re.compile(rf"(.*[^a-z])?{resource.lower()}([^a-z].*)?\.ndjson(\.gz)?")
        files = sorted(f for f in self.path.glob("*") if f.is_file() and pattern.fullmatch(f.name.lower()))
        if not files:
            raise DataError(f"{self.path}: there is no {resource}.ndjson; a bulk export has a file for each resource.")
        return files


def fhir(place: Place, schema: Schema) -> Iterator[Chunk]:
    """The records that the mapping file of option ``mapping`` makes of the folder of a bulk export."""
    place.allow("mapping")
    mapping = Mapping.read(place.path("mapping"), schema)
    return map_tables(Export(place.folder / place.text), FHIR, mapping, schema)


def _resources(file: Path, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The resources of that type in a file, with the numbers of their lines."""
    packed, number = file.name.lower().endswith(".gz"), 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") if packed else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                resource = json.loads(line)
                if not isinstance(resource, dict):
                    raise ValueError("not an object")
                if resource.get("resourceType") == kind:
                    yield number, resource
    # `from None`: a reader's message can quote the line.
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        raise DataError(f"{file}: the file cannot be read near line {number}; each line is a JSON object.") from None


def _flat(resource: dict[str, Any], kind: str, columns: Sequence[str], event: str) -> Iterator[tuple[Any, ...]]:
    statuses = [_first(resource, (path,)) for path in ("status", "verificationStatus.coding.code")]
    if any(status in _VOID for status in statuses if isinstance(status, str)):
        return
    parts = [resource]
    components = resource.get("component")
    if kind == "Observation" and isinstance(components, list):
        parts += [
            {**resource, "code": None, **_without_value(resource), **c} for c in components if isinstance(c, dict)
        ]
    for number, part in enumerate(parts):
        cells = {name: _cell(part, kind, name) for name in columns if name not in ("code", "event")}
        for code in _codes(part) if "code" in columns else [None]:
            of_code = {**cells, "code": code, "event": f"{event}#{number}"}
            yield tuple(of_code[name] for name in columns)


def _without_value(resource: dict[str, Any]) -> dict[str, None]:
    return {name: None for name in resource if name.startswith("value")}


def _codes(resource: dict[str, Any]) -> list[Any]:
    """Every code of the resource's concept; one that is missing where there is none."""
    concept = resource.get("code") or resource.get("medicationCodeableConcept")
    codings = concept.get("coding", [concept]) if isinstance(concept, dict) else []
    codes = [coding.get("code") for coding in codings if isinstance(coding, dict)] if isinstance(codings, list) else []
    return [code for code in codes if isinstance(code, str)] or [None]


def _cell(resource: dict[str, Any], kind: str, name: str) -> Any:
    if name == "deceased":
        dead = resource.get("deceasedBoolean")
        return "true" if dead is True or resource.get("deceasedDateTime") else "false" if dead is False else None
    if name == "id" or _OWN_ID.get(kind) == name:
        return _scalar(resource.get("id"))
    value = _first(resource, _ELEMENTS.get(name, (name,)))
    if name in ("patient", "encounter") and isinstance(value, str):
        return re.split(r"[/:]", value)[-1]  # Patient/7, https://x/fhir/Patient/7 or urn:uuid:7
    return value


def _first(resource: dict[str, Any], paths: Iterable[str]) -> Any:
    for path in paths:
        element: Any = resource
        for part in path.split("."):
            element = element[0] if isinstance(element, list) and element else element
            element = _member(element, part) if isinstance(element, dict) else None
        element = element[0] if isinstance(element, list) and element else element
        if (cell := _scalar(element)) is not None:
            return cell
    return None


def _member(element: dict[str, Any], name: str) -> Any:
    return (
        element[name] if name in element else next((v for k, v in element.items() if k.lower() == name.lower()), None)
    )


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str | int | float) else None
