"""The mapping file: which table gives which column of the schema, written by a person and checked before any reading.

What it does not say of a table's columns follows from the table's layout. A layout has the usual columns of the tables
of events in the databases that hospitals share, in lower case:

- OMOP CDM 5.4 (ohdsi.github.io/CommonDataModel);
- MIMIC-III 1.4 and MIMIC-IV 2.2 (mimic.mit.edu);
- eICU-CRD 2.0 (eicu-crd.mit.edu);
- FHIR R4 as ``sources.fhir`` flattens it (hl7.org/fhir/R4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from polyclinic.ehr.cohorts import Cohort, Step
from polyclinic.ehr.events import Measure, Take, steps
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError, nearest
from polyclinic.toml import Declared, read_model

Where = dict[str, tuple[str, ...]]


class _Named(Declared):
    model_config = ConfigDict(populate_by_name=True)


class IndexOf(_Named):
    """The index as the time of an event: the first or the last that counts. Fields are as those of a column."""

    table: str
    by: str | None = None
    code: str | None = None
    time: str | None = None
    where: Where = Field(default_factory=dict)
    codes: tuple[str, ...] = ()
    take: Literal["first", "last"] = "first"


class RowsOf(_Named):
    """What a row of the records is: ``table`` has one for each, told apart by ``key``.

    Args:
        index: The column with the date from which windows count, or the event whose time it is. Where a layout counts
            minutes and it is not given, they count from the layout's own. Rows without their index are left out.
        where: For each column the values that a row must have.
    """

    table: str
    key: str
    index: (
        Annotated[
            Annotated[str, Tag("column")] | Annotated[IndexOf, Tag("event")],
            Discriminator(lambda given: "column" if isinstance(given, str) else "event"),
        ]
        | None
    ) = None
    where: Where = Field(default_factory=dict)


class ColumnOf(_Named):
    """Where one column of the schema comes from. ``table`` is that of the rows if it is not given.

    by: the column, of this table and of the rows' one, that joins them; the rows' key if it is not given. value, code,
    time, unit: columns of the table, where the layout has no usual one. hours: of a trajectory's step; 0 takes the
    first events one by one. The rest are the fields of ``polyclinic.ehr.events.Measure``.
    """

    name: str
    table: str | None = None
    by: str | None = None
    value: str | None = None
    code: str | None = None
    time: str | None = None
    unit: str | None = None
    where: Where = Field(default_factory=dict)
    take: Take = "first"
    codes: tuple[str, ...] = ()
    start: float = Field(-math.inf, alias="from")
    end: float = Field(math.inf, alias="to")
    characters: int = Field(0, ge=0)
    units: dict[str, tuple[float, float]] = Field(default_factory=dict)
    values: dict[str, str] = Field(default_factory=dict)
    within: tuple[float, float] | None = None
    limits: bool = False
    default: str | None = None
    hours: float = Field(0.0, ge=0, allow_inf_nan=False)

    @field_validator("units", mode="before")
    @classmethod
    def _factors(cls, units: object) -> object:
        if not isinstance(units, dict):
            return units
        return {unit: (by, 0.0) if isinstance(by, int | float) else by for unit, by in units.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.start < self.end:
            raise ValueError("'from' must lie before 'to'")
        return self

    def measures(self, column: Column) -> tuple[Measure, ...]:
        """One measure for each of the column's cells."""
        plain = Measure(
            self.name, self.take, self.codes, self.start, self.end, 0, self.characters, self.units, self.values,
            self.within, self.limits, self.default,
        )  # fmt: skip
        return steps(plain, column.steps, self.hours) if column.kind == "trajectory" else (plain,)


class Mapping(_Named):
    """A mapping file: ``[rows]``, one ``[[columns]]`` for each column that the schema reads, and the cohort's ``[[steps]]``.

    helpers: columns for the steps alone, made as the others.
    """

    rows: RowsOf
    columns: tuple[ColumnOf, ...]
    helpers: tuple[ColumnOf, ...] = ()
    steps: tuple[Step, ...] = ()

    @classmethod
    def read(cls, path: Path, schema: Schema) -> Mapping:
        """Raises DataError or, for its steps, ConfigError, naming file and field, unless it maps each column once."""
        mapping = read_model(cls, path, "mapping file", DataError)
        names = [column.name for column in (*mapping.columns, *mapping.helpers)]
        wanted = [column.name for column in schema.columns if column.is_read]
        own = [column.name for column in mapping.columns]
        problems = []
        for name in dict.fromkeys([*wanted, *names]):
            if name in own and name not in wanted:
                problems.append(f"{path}: column {name!r} is not read by the schema.{nearest(name, wanted)}")
            elif names.count(name) != 1:
                problems.append(f"{path}: column {name!r} must be mapped exactly once.")
        if problems:
            raise DataError("\n".join(problems))
        if mapping.rows.index and "index" in names:
            raise DataError(f"{path}: a column is named 'index', as the index of [rows]; give it another name.")
        mapping.cohort(schema, str(path))
        return mapping

    def cohort(self, schema: Schema, source: str) -> Cohort:
        """The steps by which rows are chosen: those that have their index, and then ``steps``. Raises ConfigError."""
        read = [name for column in schema.columns if column.is_read for name in column.record_names]
        columns = [*read, *(column.name for column in self.helpers), *(["index"] if self.rows.index else [])]
        indexed = [Step(name="with an index", keep="not missing(index)")] if self.rows.index else []
        return Cohort.build([*indexed, *self.steps], source, columns, "index" if indexed else "")


@dataclass(frozen=True)
class Table:
    """The columns of a table's time, code, value and unit, where it has them.

    minutes: its times are minutes from the row's index, not dates.
    """

    time: str = ""
    code: str = ""
    value: str = ""
    unit: str = ""
    minutes: bool = False


Layout = dict[str, Table]

OMOP: Layout = {
    "condition_occurrence": Table("condition_start_date", "condition_concept_id"),
    "drug_exposure": Table("drug_exposure_start_date", "drug_concept_id", "quantity"),
    "procedure_occurrence": Table("procedure_date", "procedure_concept_id"),
    "measurement": Table("measurement_date", "measurement_concept_id", "value_as_number", "unit_concept_id"),
    "observation": Table("observation_date", "observation_concept_id", "value_as_number", "unit_concept_id"),
    "visit_occurrence": Table("visit_start_date", "visit_concept_id"),
    "death": Table("death_date", "cause_concept_id"),
}

MIMIC3: Layout = {
    "chartevents": Table("charttime", "itemid", "valuenum", "valueuom"),
    "labevents": Table("charttime", "itemid", "valuenum", "valueuom"),
    "outputevents": Table("charttime", "itemid", "value", "valueuom"),
    "inputevents_mv": Table("starttime", "itemid", "amount", "amountuom"),
    "inputevents_cv": Table("charttime", "itemid", "amount", "amountuom"),
    "diagnoses_icd": Table(code="icd9_code"),
    "procedures_icd": Table(code="icd9_code"),
    "prescriptions": Table("startdate", "drug", "dose_val_rx", "dose_unit_rx"),
}

MIMIC4: Layout = {
    **{name: MIMIC3[name] for name in ("chartevents", "labevents", "outputevents")},
    "inputevents": Table("starttime", "itemid", "amount", "amountuom"),
    "diagnoses_icd": Table(code="icd_code"),
    "procedures_icd": Table("chartdate", "icd_code"),
    "prescriptions": Table("starttime", "drug", "dose_val_rx", "dose_unit_rx"),
}

EICU: Layout = {
    "lab": Table("labresultoffset", "labname", "labresult", "labmeasurenamesystem", minutes=True),
    "vitalaperiodic": Table("observationoffset", minutes=True),
    "vitalperiodic": Table("observationoffset", minutes=True),
    "diagnosis": Table("diagnosisoffset", "icd9code", minutes=True),
    "treatment": Table("treatmentoffset", "treatmentstring", minutes=True),
    "medication": Table("drugstartoffset", "drugname", minutes=True),
    "pasthistory": Table("pasthistoryoffset", "pasthistorypath", minutes=True),
    "admissiondx": Table("admitdxenteredoffset", "admitdxpath", minutes=True),
    "nursecharting": Table("nursingchartoffset", "nursingchartcelltypevalname", "nursingchartvalue", minutes=True),
}

FHIR: Layout = {
    "patient": Table(),
    "encounter": Table("start", "class"),
    "condition": Table("time", "code"),
    "observation": Table("time", "code", "value", "unit"),
    "medicationrequest": Table("time", "code"),
}
