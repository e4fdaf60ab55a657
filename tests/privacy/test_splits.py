"""A run that chooses who is held out at a real hospital: only where the policy lets it, charged to both ledgers, and unheard."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.split import split_position
from polyclinic.privacy.ledger import Ledger
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.wire.messages import RECORD, EvaluateRequest, StatisticsRequest
from tests.client.test_enrolment import enrol
from tests.client.test_hospital import CONFIG, SCHEMA, context, make_hospital, message, model, train
from tests.client.test_queries import request, sent
from tests.server.test_joining import KEYS, NAMES, Hospitals, hospitals

__all__ = ["hospitals"]

OPEN = "budget = 8.0\ndelta = 1e-3\nallow-splits = true\nrelease-metrics = true\nmetrics-epsilon = 1.0\n"


def chosen(**split: Any) -> RunConfig:
    return RunConfig.build(CONFIG.minimal(), {"split": split, "privacy.delta": 1e-3})


def charges(folder: Path, name: str) -> list[tuple[str, int, str]]:
    path = folder / "home" / name
    if not path.exists():
        return []
    (ledger,) = Ledger.read_all(path).values()
    return [(row.purpose, row.round, row.event) for row in ledger.read_site().rows]


def evaluate(hospital: Path, config: RunConfig, run: str = "r") -> Message:
    request = EvaluateRequest(run=run, site=0, round=1, private_evaluations=1)
    return app(message(request, "evaluate", model()), context(hospital, config))


@pytest.mark.parametrize("split", [{"seed": 1}, {"fraction": 0.2}, {"folds": 5}, {"time": "age:60"}])
def test_a_run_chooses_no_split_unless_the_policy_lets_it(tmp_path: Path, split: dict[str, Any]) -> None:
    hospital = make_hospital(tmp_path)
    for reply in (
        train(hospital, config=chosen(**split)),
        evaluate(hospital, chosen(**split)),
        enrol(hospital, chosen(**split)),
    ):
        assert "the policy does not let a run choose who is held out" in str(reply.error.reason)
    assert not (tmp_path / "home").exists() or not list((tmp_path / "home").glob("*.sqlite"))


def test_every_release_is_charged_to_both_ledgers(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path, OPEN), chosen(folds=3, fold=1)
    statistics = StatisticsRequest(run="r", site=0, noise_multiplier=2.0)
    assert app(message(statistics, "query.statistics"), context(hospital, config)).has_content()
    assert train(hospital, config=config).has_content()
    assert evaluate(hospital, config).has_content()
    both = charges(tmp_path, "ledger.sqlite")
    assert [purpose for purpose, _, _ in both] == ["statistics", "train", "private-metrics"]
    assert charges(tmp_path, "held-out.sqlite") == both


def test_a_patient_who_moves_is_charged_for_both_runs(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, OPEN)
    for run, config in (("first", chosen(folds=2, fold=0)), ("second", chosen(folds=2, fold=1)), ("third", CONFIG)):
        assert train(hospital, config=config, run=run).has_content()
    assert len(charges(tmp_path, "ledger.sqlite")) == 3
    assert len(charges(tmp_path, "held-out.sqlite")) == 2, (
        "under the hospital's own split held-out patients do not train"
    )


def test_exact_metrics_leave_under_the_hospitals_own_split_alone(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, OPEN)
    assert train(hospital).has_content() and "auroc" in evaluate(hospital, CONFIG).content["metrics"]
    moved = evaluate(hospital, chosen(seed=4), "second").content
    assert "auroc" not in moved.get("metrics", {}) and "held-out-epsilon" in moved[RECORD]


def test_what_the_held_out_patients_ledger_refuses_is_charged_to_neither(tmp_path: Path) -> None:
    """Private metrics under the own split spend from held-out patients alone, whose ledger then has no room for training."""
    hospital = make_hospital(tmp_path, OPEN.replace("release-metrics = true", "release-metrics = false"))
    assert "held-out-epsilon" in evaluate(hospital, CONFIG).content[RECORD]
    spent = charges(tmp_path, "held-out.sqlite")
    hospital.write_text(hospital.read_text().replace("budget = 8.0", "budget = 2.2"))
    refused = train(hospital, config=chosen(seed=1), run="second")
    assert "Held-out patients: " in refused.error.reason
    assert charges(tmp_path, "ledger.sqlite") == [] and charges(tmp_path, "held-out.sqlite") == spent
    assert train(hospital, run="third").has_content(), "training patients have room"


@pytest.mark.parametrize("more", ["", "allow-without-privacy = true\n"])
@pytest.mark.parametrize("who", ["7", "1007"])
def test_no_answer_tells_whether_there_is_a_patient_between_two_splits(tmp_path: Path, who: str, more: str) -> None:
    """Patient 7 is there and 1007 is not; the two splits differ in who has that id, by whose hash they are drawn."""
    hospital, place = make_hospital(tmp_path, OPEN + more), split_position(who, "polyclinic split 5")
    first, second = (chosen(fraction=place + step, seed=5) for step in (-1e-9, 1e-9))
    assert train(hospital, config=first).has_content()
    assert "not those with which this run began" in train(hospital, config=second, round=2).error.reason
    assert train(hospital, config=first, round=2).has_content()


@pytest.mark.parametrize("who", ["7", "1007"])
def test_a_question_under_another_split_is_another_question_whomever_it_moves(tmp_path: Path, who: str) -> None:
    """Patient 7 is there and 1007 is not. An answer sent again, free, would tell that the splits hold out the same patients."""
    hospital, place = (
        make_hospital(tmp_path, OPEN + 'allowed-tasks = ["query"]\n'),
        split_position(who, "polyclinic split 5"),
    )
    for step in (-1e-9, 1e-9):
        asked = Context(1, 1, {"hospital": str(hospital)}, RecordDict(), chosen(fraction=place + step, seed=5).flat())
        assert app(sent(request(epsilon=0.05)), asked).has_content()
    assert len(charges(tmp_path, "ledger.sqlite")) == 2


@pytest.mark.parametrize("fraction", [0.5, 0.9999])
def test_whether_a_chosen_side_is_small_is_not_heard_of_a_policy_that_allows_work_without_privacy(
    tmp_path: Path, fraction: float
) -> None:
    """A budget pays for no such work, so that the side's size need not be told."""
    hospital = make_hospital(tmp_path, OPEN + "allow-without-privacy = true\n")
    refused = train(hospital, config=chosen(fraction=fraction), noise_multiplier=None)
    assert "it would become inf" in refused.error.reason
    assert train(hospital, config=chosen(fraction=fraction)).has_content()


@pytest.mark.parametrize("moment", ["0001", "9999"])
def test_an_empty_side_is_not_heard(tmp_path: Path, moment: str) -> None:
    """From year 1 on everybody is held out; from 9999 on nobody. Both hospitals answer, with noise and a charge."""
    hospital = make_hospital(tmp_path, OPEN)
    schema = {**SCHEMA, "columns": [*SCHEMA["columns"], {"name": "seen", "kind": "integer", "role": "time"}]}  # type: ignore[misc]
    Schema.from_dict(schema).to_toml(tmp_path / "schema.toml")
    records = pd.read_csv(tmp_path / "records.csv").assign(seen=2024)
    records.to_csv(tmp_path / "records.csv", index=False)
    config = chosen(time=f"seen:{moment}")
    statistics = StatisticsRequest(run="r", site=0, noise_multiplier=2.0)
    assert app(message(statistics, "query.statistics"), context(hospital, config)).has_content()
    assert train(hospital, config=config).has_content()
    reply = evaluate(hospital, config)
    assert reply.has_content() and "held-out-epsilon" in reply.content[RECORD]
    assert len(charges(tmp_path, "ledger.sqlite")) == 3


def test_a_run_of_real_hospitals_over_a_fold_states_what_both_groups_spent(hospitals: Path) -> None:
    for name in NAMES:
        path = hospitals / name / "hospital.toml"
        path.write_text(path.read_text().replace("budget = 3.0", "budget = 20") + "allow-splits = true\n")
    config = RunConfig.build(KEYS | {"out": str(hospitals / "runs"), "rounds": 2, "split": {"folds": 4, "fold": 2}})
    run = Run.create(config)
    _, summary = coordinate(Hospitals(hospitals, config, lambda done: set(NAMES)), config, run)
    assert len(summary["metrics"]["sites"]) == 3 and summary["metrics"]["pooled"]["auroc"] is not None
    for name in NAMES:
        both = [
            Ledger.read_all(hospitals / name / "home" / file)[name] for file in ("ledger.sqlite", "held-out.sqlite")
        ]
        assert both[0].epsilon() == pytest.approx(both[1].epsilon()) and len(both[0].read_site().rows) >= 3
        assert summary["metrics"]["sites"][name]["epsilon"] == pytest.approx(both[0].epsilon(), rel=0.01)
        assert summary["private_metrics"]["sites"][name]["epsilon"] == pytest.approx(both[1].epsilon(), rel=0.01)
    assert "Held out: fold 2 of 4" in " ".join(summary["notes"])
    assert not [note for note in summary["notes"] if "less than" in note or "more than" in note]
