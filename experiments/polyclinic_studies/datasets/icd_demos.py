"""Sets of ICD-9 categories of REAL patients: the open demos of MIMIC-III and of eICU, whoever has a coded diagnosis.

They show what a generator does with codes that nobody simulated, though they are few for 1,234 categories under privacy. eICU's
diagnoses are entered during the stay and MIMIC's coded after it, so that the two are hospitals that differ.
"""

from __future__ import annotations

import pandas as pd

from polyclinic.ehr.datasets import eicu, mimic
from polyclinic.ehr.datasets.dataset import Dataset, Files
from polyclinic.ehr.schema import Column, Schema

FILES = Files(
    dataset="eicu-demo",
    folder=eicu.FILES.folder,
    url=eicu.FILES.url,
    published={
        "patient.csv.gz": eicu.FILES.published["patient.csv.gz"],
        "diagnosis.csv.gz": "c99770c25fdeaee1eb34e490f982bd17459bc8902f951a2ae23adef65e7b1b52",
    },
)
SCHEMA = Schema(
    name="icd-demos",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="site", kind="categorical", role="site"),
        Column(
            name="diagnoses", kind="code_set", categories=mimic.CODES, description="ICD-9-CM categories of all stays"
        ),
        Column(name="female", kind="binary", role="label", description="1 if female"),
    ),
)


def load() -> pd.DataFrame:
    """One row a patient; of eICU those whose diagnoses have an ICD-9 code of the public vocabulary."""
    ours = mimic.load()[["patient", "diagnoses", "female"]].assign(site="mimic")
    files = FILES.get()
    stays = pd.read_csv(files["patient.csv.gz"], usecols=["patientunitstayid", "uniquepid", "gender"], dtype=str)
    coded = pd.read_csv(files["diagnosis.csv.gz"], usecols=["patientunitstayid", "icd9code"], dtype=str).dropna()
    # "401.9, I10": the code of ICD-9 stands first, and some have one of ICD-10 alone.
    coded["category"] = mimic.category(
        coded["icd9code"].str.split(",").str[0].str.strip().str.replace(".", "", regex=False)
    )
    coded = coded[coded["category"].isin(mimic.CODES)].merge(stays, on="patientunitstayid")
    theirs = coded.groupby("uniquepid").agg(
        diagnoses=("category", lambda codes: ";".join(sorted(set(codes)))), gender=("gender", "first")
    )
    theirs = theirs.assign(female=(theirs["gender"] == "Female").astype("int64"), site="eicu").reset_index(
        names="patient"
    )
    table = pd.concat([ours, theirs], ignore_index=True)
    return table[[column.name for column in SCHEMA.columns]]


DATASET = Dataset(
    name="icd-demos", title="MIMIC-III and eICU demos, diagnoses", description=__doc__ or "", schema=SCHEMA,
    licence="ODbL 1.0", citation=f"{mimic.DATASET.citation}; {eicu.DATASET.citation}", patients=1658, rows=1658, default_sites=2,
    default_partitioner="natural", natural_sites=("eicu", "mimic"), load=load,
    available=lambda: mimic.FILES.available() and FILES.available(),
)  # fmt: skip
