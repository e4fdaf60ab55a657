"""Schemas: round trips through TOML, what is refused and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyclinic.ehr import Column, Schema
from polyclinic.errors import DataError

LABEL = Column(name="y", kind="binary", role="label")
DAYS = Column(name="days", kind="integer", role="duration", bounds=(0, 90))
DIED = Column(name="died", kind="binary", role="event")
PATIENT = Column(name="id", kind="categorical", role="patient_id")
AGE = Column(name="age", kind="integer", bounds=(0, 120))


def test_toml_round_trip_keeps_schema_and_digest(schema: Schema, tmp_path: Path) -> None:
    schema.to_toml(tmp_path / "schema.toml")
    again = Schema.from_toml(tmp_path / "schema.toml")
    assert again == schema
    assert again.digest() == schema.digest()
    assert Schema.from_dict(schema.as_dict()) == schema


def test_toml_keeps_awkward_characters(tmp_path: Path) -> None:
    odd = Column(name='a "b" \\ é 🙂', kind="categorical", categories=("x=1", "#", "\x7f\ty"), description="l1\nl2")
    schema = Schema(name="odd", columns=(PATIENT, odd, LABEL))
    schema.to_toml(tmp_path / "s.toml")
    assert Schema.from_toml(tmp_path / "s.toml") == schema


def test_digest_changes_with_any_field(schema: Schema) -> None:
    other = Schema(name=schema.name, columns=(*schema.columns[:-1], LABEL.model_copy(update={"name": "dead"})))
    assert len(schema.digest()) == 64
    assert other.digest() != schema.digest()


def test_roles_are_found(schema: Schema) -> None:
    assert schema.label.name == "died"
    assert schema.patient_id is not None and schema.patient_id.name == "id"
    assert schema.site is not None and schema.site.name == "ward"
    assert [c.name for c in schema.features][:3] == ["age", "chol", "male"]
    assert schema.num_classes == 2
    assert next(c for c in schema.columns if c.name == "sbp").record_names == ("sbp_00", "sbp_01", "sbp_02")


def test_a_copy_with_other_columns_has_other_roles_and_another_digest(schema: Schema) -> None:
    before = schema.features, schema.digest()
    fewer = schema.model_copy(update={"columns": tuple(c for c in schema.columns if c != schema.features[0])})
    assert fewer.features == schema.features[1:] and fewer.digest() != schema.digest()
    assert (schema.features, schema.digest()) == before


def test_a_duration_and_an_event_are_the_label_together() -> None:
    schema = Schema(name="s", columns=(PATIENT, DIED, AGE, DAYS))
    assert schema.labels == (DIED, DAYS) and schema.features == (AGE,) and not schema.has_classes
    assert Schema.from_dict(schema.as_dict()) == schema
    other = schema.with_labels(["died"])
    assert [column.role for column in other.columns] == ["patient_id", "label", "feature", "ignore"]


def test_num_classes_counts_label_categories() -> None:
    grade = Column(name="y", kind="ordinal", role="label", categories=("1", "2", "3"))
    assert Schema(name="s", columns=(PATIENT, AGE, grade)).num_classes == 3


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "continuous"}, "needs public bounds"),
        ({"kind": "integer", "bounds": (5, 5)}, "low < high"),
        ({"kind": "continuous", "bounds": (0, float("inf"))}, "finite"),
        ({"kind": "continuous", "bounds": (float("nan"), 1)}, "finite"),
        ({"kind": "binary", "bounds": (0, 1)}, "takes no bounds"),
        ({"kind": "categorical", "categories": ("one",)}, "at least two"),
        ({"kind": "ordinal"}, "at least two"),
        ({"kind": "code_set"}, "public categories"),
        ({"kind": "binary", "categories": ("a", "b", "c")}, "not 3"),
        ({"kind": "continuous", "bounds": (0, 1), "categories": ("a", "b")}, "takes no categories"),
        ({"kind": "categorical", "categories": ("a", "a")}, "distinct"),
        ({"kind": "categorical", "categories": ("a", " b")}, "distinct"),
        ({"kind": "code_set", "categories": ("a;b",)}, "';'"),
        ({"kind": "categorical", "categories": ("a", "b"), "drop_first": True, "nullable": True}, "drop_first"),
        ({"kind": "binary", "drop_first": True}, "drop_first"),
        ({"kind": "trajectory", "bounds": (0, 1)}, "steps must be 1 or more"),
        ({"kind": "binary", "steps": 3}, "steps"),
        ({"kind": "trajectory", "bounds": (0, 1), "steps": 2, "role": "label"}, "a label must be"),
        ({"kind": "continuous", "role": "label"}, "needs public bounds"),
        ({"kind": "binary", "role": "label", "nullable": True}, "a label must be"),
        ({"kind": "binary", "role": "duration"}, "a duration must be of kind continuous or integer"),
        ({"kind": "integer", "bounds": (0, 9), "role": "duration", "clip": True}, "a duration takes no clip"),
        ({"kind": "continuous", "bounds": (0, 9), "role": "event"}, "an event of kind binary"),
    ],
)
def test_unsuitable_column_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        Column(name="crea", **fields)
    assert "'crea'" in str(caught.value)


def test_column_without_name_is_refused() -> None:
    with pytest.raises(DataError, match="needs a name"):
        Column(name="", kind="binary")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ((PATIENT, AGE), "no label column"),
        (
            (PATIENT, AGE, LABEL, Column(name="z", kind="ordinal", categories=("a", "b"), role="label")),
            "2 label columns; several must all be of kind 'binary', or a time",
        ),
        ((PATIENT, LABEL), "no feature column"),
        ((PATIENT, AGE, DAYS), "roles duration; one duration and one event belong together"),
        ((PATIENT, AGE, DAYS, DIED, LABEL), "roles duration, event, label; one duration"),
        ((PATIENT, AGE, AGE, LABEL), "'age' is declared twice"),
        ((AGE, LABEL), "role 'patient_id'"),
        ((PATIENT, PATIENT.model_copy(update={"name": "id2"}), AGE, LABEL), "several patient_id"),
    ],
)
def test_unsuitable_schema_is_refused(columns: tuple[Column, ...], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        Schema(name="s", columns=columns)


def test_trajectory_step_may_not_repeat_a_column() -> None:
    series = Column(name="sbp", kind="trajectory", steps=2, bounds=(0, 1))
    single = Column(name="sbp_01", kind="continuous", bounds=(0, 1))
    with pytest.raises(DataError, match="'sbp_01' is declared twice"):
        Schema(name="s", columns=(PATIENT, series, single, LABEL))


def test_record_unit_needs_no_patient_id() -> None:
    assert Schema(name="s", columns=(AGE, LABEL), unit="record").patient_id is None


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('name = "s"\ncolums = []\n', "key 'colums'.*Did you mean 'columns'"),
        ('name = "s"\n[[columns]]\nname = "a"\nkind = "binry"\n', "'binry'"),
        ('name = "s"\n[[columns]]\nname = "a"\nkind = "binary"\nnulable = true\n', "Did you mean 'nullable'"),
        ('name = "s"\nunit = "hospital"\ncolumns = []\n', "'hospital'"),
        ("name = \n", "is not valid TOML"),
    ],
)
def test_bad_toml_gives_one_sentence(tmp_path: Path, toml: str, sentence: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(toml, encoding="utf-8")
    with pytest.raises(DataError, match=sentence) as caught:
        Schema.from_toml(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_schema_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no schema file"):
        Schema.from_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "binary", "clip": True}, "clip needs"),
        ({"kind": "integer", "bounds": [0, 9.5], "clip": True}, "whole ones"),
        ({"kind": "categorical", "categories": ["a", "b"], "other": "c"}, "must be one of the categories"),
        ({"kind": "ordinal", "categories": ["a", "b"], "other": "b"}, "other needs kind"),
        ({"kind": "categorical", "categories": ["a"]}, "at least two"),
        ({"kind": "continuous", "bounds": [0, 9], "fill": 10}, "must be 0 to 9"),
        ({"kind": "ordinal", "categories": ["a", "b"], "fill": "c"}, "one of the categories a, b"),
        ({"kind": "code_set", "categories": ["a", "b"], "fill": "a"}, "takes none"),
        ({"kind": "continuous", "bounds": [0, 9], "centre": 3}, "belong together"),
        ({"kind": "continuous", "bounds": [0, 9], "centre": 3, "spread": 0}, "spread be above 0"),
        ({"kind": "binary", "centre": 0.3, "spread": 0.1}, "belong together"),
    ],
)
def test_impossible_column_options_are_refused(column: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Column.model_validate({"name": "c"} | column)
