"""The International Stroke Trial: 19,435 patients of 466 hospitals in 36 countries, as they were when randomised.

The table is read from $POLYCLINIC_DATA/ist. Features are what was known at randomisation and the treatment drawn;
columns of what came later (D*, F*, O*, DEAD*, ...) are never read but for the outcome itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset, Files, hospital_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError

PAGE = "https://doi.org/10.7488/ds/104"
#: The file as the University of Edinburgh publishes it; its checksum is not published, its size is.
PUBLISHED = "IST_corrected.csv"
FILES = Files(
    dataset="ist",
    folder="ist",
    url=PAGE,
    published={PUBLISHED: ""},
    copies={PUBLISHED: ("IST.csv.gz", "64e7e6e85e297488cde51c9a0cde43cc89c632ba18883efee4b79adb7cb9b993")},
    by_hand=True,
)
ROWS, COLUMNS = 19435, 112

#: The hospitals by the number of patients they randomised, largest first, ties by number.
SITES = hospital_names("ist")
#: Hospitals none of whose patients has a known state at 6 months.
_UNKNOWN = ("hospital-521", "hospital-505")

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
SCHEMA_DEATH_14 = Schema(
    name="ist-death-14",
    columns=(
        *SCHEMA.columns[:-1],
        Column(
            name="stroke_at_14",
            kind="binary",
            role="ignore",
            description="1 if a stroke, ischaemic or of unknown type, recurred within 14 days; for `data.label`",
        ),
        Column(name="dead_at_14", kind="binary", role="label", description="1 if dead within 14 days"),
    ),  # fmt: skip
    rules=SCHEMA.rules,
)
#: Days of follow-up that count: six months, for which patients were asked after.
_FOLLOWED = 183
SCHEMA_SURVIVAL = Schema(
    name="ist-survival",
    columns=(
        *SCHEMA.columns[:-1],
        Column(name="days", kind="integer", role="duration", unit="days", bounds=(0, _FOLLOWED),
               description="from randomisation to death or the last news, 6 months at most"),
        Column(name="died", kind="binary", role="event", description="1 if dead then"),
    ),
    rules=SCHEMA.rules,
)  # fmt: skip
_FEATURES = tuple(column.name for column in SCHEMA.features)


_MONTHS = (("jan", "sty"), ("feb", "lut"), ("mar",), ("apr", "kwi"), ("may", "maj"), ("jun", "cze"), ("jul", "lip"),
           ("aug", "sie"), ("sep", "wrz"), ("oct", "pa"), ("nov", "lis"), ("dec", "gru"))  # fmt: skip


def _month(text: str) -> str:
    """ "1991-01" of "jan-91", or of the Polish "sty-91" that the spreadsheet program of the published table wrote."""
    name, year = text.lower().split("-")
    number = next(place for place, starts in enumerate(_MONTHS, 1) if name.startswith(starts))
    return f"19{year}-{number:02d}"


@lru_cache(maxsize=2)
def _parse(file: Path) -> pd.DataFrame:
    """All 19,435 patients, hospitals in order of size: patient, site, country, the features, and both outcomes."""
    table = pd.read_csv(file, encoding="latin-1", skipinitialspace=True, low_memory=False)
    wanted = [
        "HOSPNUM",
        "COUNTRY",
        "RDATE",
        "OCCODE",
        "ID14",
        "ISC14",
        "NK14",
        "TD",
        "DIED",
        *(name.upper() for name in _FEATURES),
    ]
    if table.shape != (ROWS, COLUMNS) or not set(wanted) <= set(table.columns):
        raise DataError(f"{file} is not the published table of {ROWS} rows and {COLUMNS} columns; get it from {PAGE}.")
    table = table[wanted].rename(columns=str.lower)
    # The pilot phase wrote H for the dose that the main phase wrote M for (Sandercock et al. 2011, table 2).
    table["rxhep"] = table["rxhep"].replace("H", "M")
    table["stroke_at_14"] = ((table.pop("isc14") == 1) | (table.pop("nk14") == 1)).astype("int64")
    table["randomised"] = table.pop("rdate").map(_month)
    table.insert(0, "patient", [f"{row + 1}" for row in range(ROWS)])
    table.insert(1, "site", table.pop("hospnum").map("hospital-{:03d}".format))
    size = table["site"].map(table["site"].value_counts())
    order = np.lexsort((table["site"], -size))
    return table.iloc[order].reset_index(drop=True)


def _read() -> pd.DataFrame:
    return _parse(FILES.get()[PUBLISHED])


def _add_label(records: pd.DataFrame, schema: Schema, label: pd.Series) -> pd.DataFrame:
    records = records.assign(**{schema.label.name: label.astype("int64")})
    return records[[column.name for column in schema.columns]].reset_index(drop=True)


def load() -> pd.DataFrame:
    """The 19,285 patients whose state at 6 months is known (OCCODE 1 to 4); dead (1) or dependent (2) against the rest."""
    table = _read()
    patients = table[table["occode"].between(1, 4)]
    return _add_label(patients, SCHEMA, patients["occode"] <= 2)


def load_death_14() -> pd.DataFrame:
    """All 19,435 patients; dead within 14 days (ID14) or not."""
    table = _read()
    return _add_label(table, SCHEMA_DEATH_14, table["id14"] == 1)


def load_survival() -> pd.DataFrame:
    """The 19,433 patients whose time of death or last news is known (TD, DIED)."""
    table = _read().dropna(subset="td")
    days = table["td"].astype("int64")
    records = table.assign(
        days=days.clip(upper=_FOLLOWED), died=((table["died"] == 1) & (days <= _FOLLOWED)).astype("int64")
    )
    return records[[column.name for column in SCHEMA_SURVIVAL.columns]].reset_index(drop=True)


DATASET = Dataset(
    name="ist",
    title="International Stroke Trial, state at 6 months",
    description="Dead or dependent 6 months after a stroke: 19,285 patients of 464 hospitals in a randomised trial.",
    schema=SCHEMA,
    licence="ODC-By 1.0",
    citation=f"Sandercock, Niewada and Czlonkowska 2011, The International Stroke Trial database, Trials 12:101, {PAGE}",
    patients=19285,
    rows=19285,
    default_sites=20,
    default_partitioner="natural",
    natural_sites=tuple(site for site in SITES if site not in _UNKNOWN),
    flow=Flow.of(("randomised", ROWS, ROWS), ("state at 6 months known", 19285, 19285)),
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
)
DATASET_DEATH_14 = replace(
    DATASET,
    name="ist-death-14",
    title="International Stroke Trial, death within 14 days",
    description="Death within 14 days of a stroke: 19,435 patients of 466 hospitals in a randomised trial.",
    schema=SCHEMA_DEATH_14,
    patients=ROWS,
    rows=ROWS,
    natural_sites=SITES,
    flow=None,
    load=load_death_14,
)
DATASET_SURVIVAL = replace(
    DATASET_DEATH_14,
    name="ist-survival",
    title="International Stroke Trial, time to death within 6 months",
    description="Days until death within 6 months of a stroke: 19,433 patients of 466 hospitals in a randomised trial.",
    schema=SCHEMA_SURVIVAL,
    patients=19433,
    rows=19433,
    load=load_survival,
)
