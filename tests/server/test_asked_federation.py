"""A question to a whole federation in place of training: what each hospital pays, and what the coordinator's folder holds."""

import json
from pathlib import Path

import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.prepared import Rules
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.inspection.described import Described
from polyclinic.privacy.ledger import Ledger
from polyclinic.releases.description import Description
from polyclinic.releases.kinds import answer_of_json, question_as_key, question_of_key
from polyclinic.releases.question import Question
from polyclinic.releases.relations import Relations
from polyclinic.releases.statistics import Statistic
from polyclinic.releases.survey import Survey
from polyclinic.runs.folder import Run
from polyclinic.server.questions import answer_run
from tests.client.test_hospital import make_hospital
from tests.server.test_joining import NAMES, POLICY, Hospitals

ASKED = POLICY.replace('"statistics"', '"statistics", "survey"')


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Of which the last allows no survey."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        path = make_hospital(tmp_path / name, POLICY if name == "west" else ASKED)
        path.write_text(path.read_text().replace("St. Elsewhere", name))
    return tmp_path


def asked(hospitals: Path, question: Question, names: tuple[str, ...] = NAMES) -> Run:
    config = RunConfig(question=question_as_key(question), out=str(hospitals / "runs"))
    folder = Run.create(config)
    answer_run(Hospitals(hospitals, config, lambda done: set(names)), config, folder)
    return folder


@pytest.mark.parametrize(
    "question", [
        Survey(("age", "ä \"b\" 'c'"), 0.5, rules=Rules(low=0.1, most_categories=7)), Relations(None),
        Statistic("mean", "age", ("sex == 1",), 10, epsilon=0.5), Description(("age",), "ward", fewest=9, epsilon=0.5),
    ],
)  # fmt: skip
def test_a_question_as_a_key_has_no_quotes_and_is_the_same_again(question: Question) -> None:
    text = question_as_key(question)
    assert not set(text) & set("'\" \\") and question_of_key(text) == question


def test_a_federation_prepares_one_schema_of_all_its_hospitals(hospitals: Path) -> None:
    folder = asked(hospitals, Survey((), 1.0))
    answer = answer_of_json(json.loads(folder.answer_file.read_text()))
    age, sbp = answer["schema"].features
    assert (age.name, sbp.name) == ("age", "sbp") and age.bounds[0] < 50 < 60 < age.bounds[1]
    assert {drop["site"] for drop in answer["dropouts"]} == {"west"} and "survey" in answer["dropouts"][0]["reason"]
    for name in ("north", "south"):
        ledger = Ledger.read(hospitals / name / "home" / "ledger.sqlite")
        assert [event["purpose"] for event in ledger.events()] == ["survey"]
        assert 0.9 < ledger.epsilon() <= 1.0 and ledger.epsilon() == pytest.approx(
            answer["privacy"]["epsilon"], rel=1e-3
        )
    assert not (hospitals / "west" / "home" / "ledger.sqlite").exists()


def test_a_federation_describes_its_patients_in_one_table(hospitals: Path) -> None:
    for name in NAMES[:2]:
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text().replace('"survey"', '"query"'))
    answer = json.loads(asked(hospitals, Description(by="died", epsilon=2.0)).answer_file.read_text())
    assert list(answer["sites"]) == ["north", "south"] and answer["privacy"]["epsilon"] <= 2
    table = Described(answer).table
    assert table["Variable"][1] == "age, years, mean (SD)" and list(table)[-3:] == ["died = 0", "died = 1", "SMD"]


def test_an_imputer_comes_back_as_it_was_made(hospitals: Path) -> None:
    folder = asked(hospitals, Relations(1.0), NAMES[:2])
    imputer = answer_of_json(json.loads(folder.answer_file.read_text()))["imputer"]
    assert imputer.features == ("age", "sbp") and imputer.covariance.shape == (2, 2)


def test_where_every_policy_refuses_nothing_is_written(hospitals: Path) -> None:
    with pytest.raises(BudgetRefused, match="survey"):
        asked(hospitals, Survey((), 1.0), NAMES[2:])
    assert not list((hospitals / "runs").glob("*/answer.json"))


def test_a_simulation_is_asked_otherwise() -> None:
    with pytest.raises(ConfigError, match="'question' has the value .* `polyclinic prepare --coordinator`"):
        Federation().run(question="x")
