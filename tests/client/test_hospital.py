"""A real hospital: its own records, policy and ledger decide, whatever a message asks."""

import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

import polyclinic
from polyclinic.client.app import app
from polyclinic.client.home.state import read_state, write_state
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise
from polyclinic.plugins import task_named
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.programs import program_of
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.training import classification
from polyclinic.wire.messages import (
    FAILED,
    RECORD,
    REFUSED,
    EnrolRequest,
    EvaluateRequest,
    StatisticsRequest,
    TrainRequest,
)
from tests.nursery import python

SCHEMA = {
    "name": "clinic",
    "columns": [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120], "unit": "years"},
        {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "unit": "mmHg", "nullable": True},
        {"name": "died", "kind": "binary", "role": "label"},
    ],
}
CONFIG = RunConfig(training={"local_steps": 3, "sample_rate": 0.2})
STRICT = "budget = 2.0\ndelta = 1e-3\n"


def make_hospital(folder: Path, policy: str = STRICT, rows: int = 200) -> Path:
    rng = np.random.default_rng(0)
    ages, sbp = rng.integers(20, 90, rows), rng.normal(130, 15, rows).round(1)
    records = pd.DataFrame(
        {"id": np.arange(rows), "age": ages, "sbp": sbp, "died": (ages + rng.normal(0, 10, rows) > 60) * 1}
    )
    records.to_csv(folder / "records.csv", index=False)
    Schema.from_dict(SCHEMA).to_toml(folder / "schema.toml")
    (folder / "hospital.toml").write_text(
        f'site = "St. Elsewhere"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\n{policy}'
    )
    return folder / "hospital.toml"


def context(hospital: Path, config: RunConfig = CONFIG) -> Context:
    return Context(1, 1, {"hospital": str(hospital)}, RecordDict(), config.flat())


def message(request: Any, kind: str, arrays: dict[str, np.ndarray] | None = None) -> Message:
    LocalGrid(AppReference("polyclinic.client_app"), 1, {})  # gives messages of this process a sender
    content = RecordDict({RECORD: request.record()})
    if arrays is not None:
        content["arrays"] = ArrayRecord({k: Array(v) for k, v in arrays.items()})
    return Message(content, 1, kind)


def model() -> dict[str, np.ndarray]:
    build = program_of(CONFIG).builder(Schema.from_dict(SCHEMA))
    return {name: value.numpy() for name, value in initialise(build, 0).items()}


def train(hospital: Path, planned: int = 2, config: RunConfig = CONFIG, **changes: Any) -> Message:
    """One round of a run that declares ``planned`` rounds."""
    values = {
        "run": "r",
        "site": 0,
        "round": 1,
        "noise_multiplier": 1.2,
        "public_patients": 150.0,
        "learning_rate": 0.5,
    } | changes
    if values["noise_multiplier"]:
        program = program_of(config)
        event = program.price(program.settings(values["noise_multiplier"]))
        values["plan"] = plan_text([(event, planned)])
    return app(message(TrainRequest(**values), "train", model()), context(hospital, config))


@pytest.mark.parametrize(
    ("imputation", "words"),
    [
        ("mice", "so that no epsilon holds"),
        ("constant", "declares no fill"),
        ("chained", "there is no imputer; real hospitals name one"),
    ],
)
def test_an_imputation_that_cannot_be_is_refused_before_the_ledger(tmp_path: Path, imputation: str, words: str) -> None:
    hospital = make_hospital(tmp_path)
    nullable = {
        **SCHEMA,
        "columns": [c | ({"nullable": True} if c["name"] == "age" else {}) for c in SCHEMA["columns"]],
    }
    Schema.from_dict(nullable).to_toml(tmp_path / "schema.toml")
    config = RunConfig.build(
        CONFIG.minimal() | {"data.imputation": imputation, "privacy.dp": False, "data.imputer-file": "elsewhere.json"}
    )
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0)
    reply = app(message(request, "train", model()), context(hospital, config))
    assert words in (reply.error.reason or "") and not (tmp_path / "home" / "ledger.sqlite").exists()


def ledger(hospital: Path) -> Ledger:
    return Ledger.read(hospital.parent / "home" / "ledger.sqlite")


def test_enrolling_tells_schema_and_policy_and_spends_nothing(tmp_path: Path) -> None:
    reply = app(
        message(EnrolRequest(run="r", site=0, version=polyclinic.__version__), "query.enrol"),
        context(make_hospital(tmp_path)),
    )
    record = reply.content[RECORD]
    assert record["site"] == "St. Elsewhere" and record["simulated"] is False and record["budget"] == 2.0
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_training_charges_the_steps_it_takes_before_it_replies(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    reply = train(hospital)
    assert reply.content["metrics"]["steps"] == 3
    spent = epsilon(dpsgd_event(0.2, 1.2, 3), 1e-3)
    assert reply.content[RECORD]["epsilon"] == pytest.approx(spent, rel=0.02)
    assert ledger(hospital).epsilon() == pytest.approx(spent)


def test_fault_07_three_rounds_cost_more_than_one_and_equal_the_accountant(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n")
    for number in (1, 2, 3):
        assert train(hospital, 3, round=number).has_content()
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, 9), 1e-3))


def test_a_budget_refuses_with_one_sentence_and_nothing_changes(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 0.5\ndelta = 1e-3\n")
    reply = train(hospital)
    assert reply.error.code == REFUSED and "budget" in str(reply.error.reason)
    assert ledger(hospital).events() == []


def test_fault_15_replies_of_a_real_hospital_carry_no_unperturbed_number(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    metrics = train(hospital).content["metrics"]
    assert set(metrics) == {"steps", "num-examples"} and metrics["num-examples"] == 150.0
    reply = app(message(EvaluateRequest(run="r", site=0, round=1), "evaluate", model()), context(hospital))
    assert set(reply.content["metrics"]) == {"num-examples"} and reply.content["metrics"]["num-examples"] == 1.0
    assert "predictions" not in reply.content


def test_fault_19_noise_of_a_real_hospital_does_not_follow_the_seed(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    first, second = (train(hospital, round=n).content["arrays"]["0.weight"].numpy() for n in (1, 2))
    again = Path(tmp_path / "again")
    again.mkdir()
    repeated = train(make_hospital(again)).content["arrays"]["0.weight"].numpy()
    assert not np.array_equal(first, repeated) and not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        (STRICT, {"noise_multiplier": None}, "does not allow training or statistics without privacy"),
        (STRICT + "smallest-noise-multiplier = 1.5\n", {}, "below the policy's smallest-noise-multiplier 1.5"),
        (
            STRICT + 'allowed-tasks = ["statistics"]\n',
            {},
            "the policy allows the tasks statistics, not 'classification'",
        ),
    ],
)
def test_the_policy_decides(tmp_path: Path, policy: str, changes: dict[str, Any], words: str) -> None:
    hospital = make_hospital(tmp_path, policy)
    reply = train(hospital, **changes)
    assert reply.error.code == REFUSED and words in str(reply.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
@pytest.mark.parametrize("task", ["output-perturbation", "objective-perturbation", "exponential-mechanism"])
def test_a_convex_task_needs_the_policys_leave_and_is_charged_as_its_event(
    tmp_path: Path, task: str, noise: str
) -> None:
    hospital = make_hospital(tmp_path, "budget = 4.0\ndelta = 1e-3\n")
    config = RunConfig(task=task, convex={"perturbation": noise}, privacy={"delta": 1e-3})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    refused = app(message(request, "train", model()), context(hospital, config))
    assert refused.error.code == REFUSED and f"classification, statistics, not '{task}'" in str(refused.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    with hospital.open("a") as file:
        file.write(f'allowed-tasks = ["{task}"]\n')
    reply = app(message(request, "train", model()), context(hospital, config))
    assert reply.content["metrics"] == {"steps": 1.0, "num-examples": 150.0}
    settings = train_settings(config, 1.2)
    assert settings.perturbation == noise
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(task_named(task).event(settings), 1e-3))
    again = app(message(request, "train", model()), context(hospital, config))
    np.testing.assert_array_equal(*(one.content["arrays"]["0.weight"].numpy() for one in (reply, again)))
    assert len(ledger(hospital).events()) == 1


@pytest.mark.parametrize(
    ("policy", "rows", "words"),
    [
        ("budget = 2.0\ndelta = 0.1\n", 200, "not below 1/patients"),
        (STRICT + "smallest-shard = 500\n", 200, "smallest-shard"),
        ("budget = -1\ndelta = 1e-3\n", 200, "settings file cannot be used"),
        ("budget = 1.0\ndelta = 1e-3\nbudgget = 1\n", 200, "settings file cannot be used"),
    ],
)
def test_a_hospital_that_does_not_fit_does_not_enrol(tmp_path: Path, policy: str, rows: int, words: str) -> None:
    reply = app(
        message(EnrolRequest(run="r", site=0, version=polyclinic.__version__), "query.enrol"),
        context(make_hospital(tmp_path, policy, rows)),
    )
    assert reply.error.code == FAILED and words in str(reply.error.reason)


def test_a_bad_cell_stops_enrolment_and_is_never_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hospital = make_hospital(tmp_path)
    path = tmp_path / "records.csv"
    lines = path.read_text().splitlines()
    lines[5] = "4,seventy-one,130.0,1"
    path.write_text("\n".join(lines))
    reason = str(
        app(
            message(EnrolRequest(run="r", site=0, version=polyclinic.__version__), "query.enrol"), context(hospital)
        ).error.reason
    )
    assert "records cannot be used" in reason and "row" not in reason
    said = caplog.text
    assert "age" in said and "row 5" in said and "seventy" not in said


def test_a_run_cannot_name_code_that_the_policy_does_not_allow(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    evil = CONFIG.with_values({"model": "antigravity:fly"})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=10.0, learning_rate=0.5)
    reply = app(message(request, "train", model()), context(hospital, evil))
    assert "the policy allows the models logistic, mlp, tabular-resnet, ebm, trees, gru, transformer" in str(
        reply.error.reason
    )
    assert "antigravity" not in sys.modules and not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("run", ["../../etc/x", "", ".", "a/b", "*", "x" * 200])
def test_a_runs_name_cannot_be_a_path(run: str) -> None:
    with pytest.raises(ValueError, match="run"):
        EnrolRequest(run=run, site=0)


def test_broken_messages_are_refused_before_the_ledger(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    wrong = model() | {"0.weight": np.zeros((9, 9), dtype=np.float32)}
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=10.0, learning_rate=0.5)
    assert "shape" in str(app(message(request, "train", wrong), context(hospital)).error.reason)
    assert "ArrayRecord" in str(app(message(request, "train"), context(hospital)).error.reason)
    bare = Message(RecordDict(), 1, "train")
    assert "polyclinic" in str(app(bare, context(hospital)).error.reason)
    assert "public_patients" in str(train(hospital, public_patients=None).error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_learning_rate_that_nobody_tells_is_missed_before_the_ledger(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    assert "'learning_rate' is missing" in str(train(hospital, learning_rate=None).error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("shape", [(150, 2), (1, 2), (3,), (5, 1, 2)])
def test_a_standardiser_cannot_ask_how_many_rows_there_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    hospital = make_hospital(tmp_path)
    ask = message(
        TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=10.0, learning_rate=0.5),
        "train",
        model(),
    )
    ask.content["standardiser"] = ArrayRecord({"mean": Array(np.zeros(shape)), "std": Array(np.ones(shape))})
    assert "standardiser must hold 2 finite means" in str(app(ask, context(hospital)).error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("noise", [1e-9, 1e150, float("inf"), float("nan")])
def test_noise_that_no_accountant_can_add_up_is_refused(noise: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        TrainRequest(run="r", site=0, round=1, noise_multiplier=noise, public_patients=10.0, learning_rate=0.5)


def test_the_state_before_a_round_outlives_the_round_though_rounds_were_skipped(tmp_path: Path) -> None:
    for number in (1, 2, 5):
        write_state(tmp_path, "r", number, {"0.m": np.full(2, float(number))})
    assert read_state(tmp_path, "r", 5)["0.m"][0] == 2 and read_state(tmp_path, "r", 6)["0.m"][0] == 5
    assert len(list(tmp_path.iterdir())) == 2


def test_state_of_another_run_is_not_read(tmp_path: Path) -> None:
    write_state(tmp_path, "a-b", 1, {"0.m": np.ones(2)})
    assert read_state(tmp_path, "a", 9) == {} and list(read_state(tmp_path, "a-b", 2)) == ["0.m"]


# The plan of a run that counts patients and trains one round.
COUNT_AND_ROUND = plan_text([(gaussian_event(5.0), 1), (dpsgd_event(0.2, 1.2, 3), 1)])


def statistics(hospital: Path, run: str) -> np.ndarray:
    ask = message(StatisticsRequest(run=run, site=0, noise_multiplier=5.0, plan=COUNT_AND_ROUND), "query.statistics")
    return app(ask, context(hospital)).content["arrays"]["sums"].numpy()


def test_fault_14_statistics_are_noised_and_charged(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    assert not np.array_equal(statistics(hospital, "one"), statistics(hospital, "two"))
    assert [event["purpose"] for event in ledger(hospital).events()] == ["statistics", "statistics"]
    # The second was not declared before the first was answered, which leaves three quarters of delta to the two.
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(gaussian_event(5.0, 2), 0.75 * 1e-3), rel=1e-3)


def test_a_question_asked_again_gets_the_same_reply_and_costs_nothing(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    assert np.array_equal(statistics(hospital, "r"), statistics(hospital, "r"))
    first, again = train(hospital), train(hospital)
    for name, array in first.content["arrays"].items():
        assert np.array_equal(array.numpy(), again.content["arrays"][name].numpy())
    assert dict(first.content["metrics"]) == dict(again.content["metrics"])
    assert first.content[RECORD]["epsilon"] == pytest.approx(again.content[RECORD]["epsilon"], rel=0.02)
    assert [event["purpose"] for event in ledger(hospital).events()] == ["statistics", "train"]


@pytest.mark.parametrize("change", [{"public_patients": 151.0}, {"noise_multiplier": 1.3}, {"round": 2}, {"run": "s"}])
def test_any_other_question_is_a_new_release(tmp_path: Path, change: dict[str, Any]) -> None:
    hospital = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\n")
    first, other = train(hospital), train(hospital, **change)
    assert not np.array_equal(*(r.content["arrays"]["0.weight"].numpy() for r in (first, other)))
    assert len(ledger(hospital).events()) == 2


@pytest.mark.parametrize("damage", [lambda whole: whole[:40], lambda whole: whole[:-8] + bytes(8)])
def test_a_kept_reply_that_is_damaged_is_paid_for_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    hospital = make_hospital(tmp_path, "budget = 3.0\ndelta = 1e-3\n")
    train(hospital)
    kept = next((tmp_path / "home").glob("release-*"))
    kept.write_bytes(damage(kept.read_bytes()))
    assert train(hospital).has_content() and len(ledger(hospital).events()) == 2


def test_a_kept_reply_tells_what_has_been_spent_since(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\n")
    train(hospital)
    train(hospital, run="other")
    assert train(hospital).content[RECORD]["epsilon"] == pytest.approx(ledger(hospital).epsilon())
    assert len(ledger(hospital).events()) == 2


@pytest.mark.parametrize("mu", [float("nan"), -1.0, float("inf"), "much"])
def test_an_impossible_proximal_term_is_refused_before_the_ledger(tmp_path: Path, mu: Any) -> None:
    ask = message(
        TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=10.0, learning_rate=0.5),
        "train",
        model(),
    )
    ask.content["config"] = ConfigRecord({"proximal-mu": mu})
    assert "'proximal-mu'" in str(app(ask, context(make_hospital(tmp_path))).error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_failure_after_the_charge_says_nothing_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = make_hospital(tmp_path)
    reasons = set()
    for run, error in (("a", ZeroDivisionError("row 7")), ("b", ConfigError("row 8")), ("c", KeyError("row 9"))):
        monkeypatch.setattr(classification, "train", lambda *a, error=error, **k: _raise(error))
        reasons.add(str(train(hospital, run=run, noise_multiplier=20.0).error.reason))
    assert reasons == {"the hospital failed; its own log has the details"}
    assert "row 7" in caplog.text and len(ledger(hospital).events()) == 3
    assert not list(tmp_path.rglob("failed*"))


def _raise(error: Exception) -> None:
    raise error


def test_a_broken_ledger_is_not_called_bad_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hospital = make_hospital(tmp_path)
    train(hospital)
    path = tmp_path / "home" / "ledger.sqlite"
    path.write_bytes(path.read_bytes()[:1000])
    assert str(train(hospital, round=2).error.reason) == "the hospital's ledger cannot be used; its own log says why"
    assert "privacy ledger" in caplog.text


@pytest.mark.parametrize("limit", ["most-local-steps = 2", "most-parameters = 3"])
def test_work_beyond_the_policys_limits_is_refused_before_the_ledger(tmp_path: Path, limit: str) -> None:
    reply = train(make_hospital(tmp_path, STRICT + limit + "\n"))
    assert reply.error.code == REFUSED and limit.split(" ")[0] in str(reply.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.enrol"])
@pytest.mark.parametrize(
    "huge",
    [{"model": "mlp", "hidden": "90000,90000"}, {"model": "tabular-resnet", "model-options": "blocks=1000000000"}],
)
def test_a_small_message_makes_no_hospital_build_a_huge_model(tmp_path: Path, kind: str, huge: dict[str, Any]) -> None:
    """The arrays of the message are few; the configuration beside them describes 8 billion parameters, or more."""
    hospital, config = (
        make_hospital(tmp_path, STRICT + "most-parameters = 1000\n"),
        RunConfig.build(CONFIG.minimal(), huge),
    )
    request: Any = {
        "train": TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5),
        "evaluate": EvaluateRequest(run="r", site=0, round=1, private_evaluations=1),
        "query.enrol": EnrolRequest(run="r", site=0, version=polyclinic.__version__),
    }[kind]
    reply = app(message(request, kind, model()), context(hospital, config))
    said = str(reply.content[RECORD]["refusal"]) if reply.has_content() else str(reply.error.reason)
    assert "above the policy's most-parameters 1000" in said
    assert not (tmp_path / "home" / "ledger.sqlite").exists() or not ledger(hospital).read_site().rows


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def planted(path: Path, header: bytes = b"") -> Array:
    """An array as Flower sends one, whose bytes hold a pickled object, or a header of one's own."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Planted(path)], dtype=object), allow_pickle=True)
    return Array("float32", (4, 2), "numpy.ndarray", header or buffer.getvalue())


HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000,), }".ljust(117)
    + b"\n"
)


@pytest.mark.parametrize("header", [b"", HUGE, b"not an array"])
def test_nothing_that_arrives_is_unpickled(tmp_path: Path, header: bytes) -> None:
    hospital, mark = make_hospital(tmp_path), tmp_path / "was-here"
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    sent = message(request, "train")
    sent.content["arrays"] = ArrayRecord({name: planted(mark, header) for name in model()})
    reply = app(sent, context(hospital))
    assert reply.error.code == FAILED and not mark.exists()
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_fault_22_kill_between_charge_and_reply_keeps_the_charge(tmp_path: Path) -> None:
    """The process dies by SIGKILL as soon as training begins; what was charged stays, and the next round composes."""
    hospital = make_hospital(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from polyclinic.training import classification\n"
        "classification.train = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_hospital as t, pathlib\n"
        "t.train(pathlib.Path(sys.argv[2]))\n"
    )
    done = python("-c", script, str(Path(__file__).parent), str(hospital))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, 3), 1e-3))
    assert train(hospital).has_content()
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, 6), 1e-3))
    assert ledger(hospital).verify()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_name_of_an_installed_package_is_loaded_at_a_hospital_only_where_its_policy_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    (tmp_path / "brought_net.py").write_text(
        "from torch import nn\ndef net(features, classes, widths):\n    return nn.Sequential(nn.Linear(features, classes))\n"
    )
    info = tmp_path / "brought-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[polyclinic.models]\nbrought = brought_net:net\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hospital = make_hospital(tmp_path, STRICT + ('allowed-models = ["brought"]\n' if allowed else ""))
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    for name in ("brought_net:net", "brought"):  # the same object under a name that the policy does not have
        reply = app(message(request, "train", model()), context(hospital, CONFIG.with_values({"model": name})))
        answered = allowed and name == "brought"
        assert reply.has_content() == answered, reply.error if reply.has_error() else name
        assert ("brought_net" in sys.modules) == answered
        assert (tmp_path / "home" / "ledger.sqlite").exists() == answered
    sys.modules.pop("brought_net", None)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("release-metrics = true\n", None),
        ("release-metrics = true\nrelease-groups = ['age']\n", None),
        ("release-metrics = true\nrelease-predictions = true\n", {"scores", "labels", "patient"}),
        (
            "release-metrics = true\nrelease-predictions = true\nrelease-groups = ['age']\n",
            {"scores", "labels", "patient", "group"},
        ),
    ],
)
def test_predictions_and_groups_leave_only_by_name(tmp_path: Path, policy: str, told: set[str] | None) -> None:
    hospital = make_hospital(tmp_path, STRICT + policy)
    train(hospital)  # only the outcome of a charged round is evaluated exactly
    config = RunConfig.build(CONFIG.minimal() | {"evaluation.groups": "age"})
    question = message(EvaluateRequest(run="r", site=0, round=1), "evaluate", model())
    content = app(question, context(hospital, config)).content
    assert told == (set(content["predictions"]) if "predictions" in content else None)
    if told and "group" in told:
        groups = content["predictions"]["group"].numpy()
        assert set(groups) == {0, 1, 2} and len(groups) == len(content["predictions"]["labels"].numpy())
        assert "by age" in ledger(hospital).events()[-1]["purpose"]


def test_what_only_the_coordinator_or_a_simulation_resolves_is_not_loaded_at_a_hospital(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coordinators_own.py").write_text("raise SystemExit('this ran at a hospital')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    other = dict.fromkeys(("dataset", "strategy"), "coordinators_own:Thing")
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.2, public_patients=150.0, learning_rate=0.5)
    hospital = make_hospital(tmp_path)
    reply = app(message(request, "train", model()), context(hospital, CONFIG.with_values(other)))
    assert reply.has_content() and "coordinators_own" not in sys.modules
