"""What a hospital answers when it enrols: its versions, and why it refuses a run before anything of it is charged."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

import polyclinic
from polyclinic.client.app import app
from polyclinic.client.home.journal import NAME
from polyclinic.config import RunConfig
from polyclinic.lines import read_lines
from polyclinic.programs import program_of
from polyclinic.server.calibration import calibrate
from polyclinic.server.phases.enrolment import enrol_request
from polyclinic.wire.messages import RECORD, REFUSED, EnrolRequest, StatisticsRequest, TrainRequest
from polyclinic.wire.versions import PRIVACY_FORMAT, version_title, versions
from tests.client.test_hospital import STRICT, context, ledger, make_hospital, message, statistics

RUN: dict[str, Any] = {
    "privacy.epsilon": 1.0,
    "privacy.delta": 1e-3,
    "rounds": 4,
    "training.local-steps": 3,
    "training.sample-rate": 0.2,
}
# A policy's line, what the run asks, and the words of the refusal.
REFUSED_TERMS = {
    "task": ('allowed-tasks = ["statistics"]', {}, "the policy allows the tasks statistics, not 'classification'"),
    "statistics": ('allowed-tasks = ["classification"]', {}, "the policy allows classification, not 'statistics'"),
    "model": ('allowed-models = ["mlp"]', {}, "the policy allows the models mlp, not 'logistic'"),
    "local steps": ("most-local-steps = 2", {}, "training.local-steps 3 is above the policy's most-local-steps 2"),
    "both models of ditto": (
        "most-local-steps = 5",
        {"strategy": "ditto"},
        "training.local-steps 6 is above the policy's most-local-steps 5",
    ),
    "strategy": (
        'allowed-strategies = ["scaffold"]',
        {"strategy": "ditto"},
        "the policy allows the local halves of the strategies scaffold, not of 'ditto'",
    ),
    "parameters": ("most-parameters = 5", {}, "parameters, above the policy's most-parameters 5"),
    "a large network": (
        "most-parameters = 1000000",
        {"model": "mlp", "hidden": "4000,4000,4000"},
        "above the policy's most-parameters 1000000",
    ),
    "a deep network": (
        "",
        {"model": "tabular-resnet", "hidden": "1", "model-options": "blocks=1000000000"},
        "the model has more than 5000 arrays of parameters",
    ),
    "noise": ("smallest-noise-multiplier = 50", {}, "is below the policy's smallest-noise-multiplier 50"),
    "no privacy": (
        "",
        {"privacy.dp": False, "data.standardise": "measured"},
        "does not allow training or statistics without privacy",
    ),
    "secure aggregation": ("only-secure-aggregation = true", {}, "the policy allows secure aggregation only"),
    "shared noise": (
        "",
        {
            "secure.aggregation": True,
            "secure.shared-noise": True,
            "training.local-steps": 1,
            "training.sample-rate": 1.0,
        },
        "the policy does not allow shared noise",
    ),
}


def enrol(hospital: Path, config: RunConfig, run: str = "r") -> Message:
    privacy = calibrate(config) if config.privacy.dp else None
    request = enrol_request(run, "", privacy, local_half=program_of(config).has_local_half)
    return app(message(request, "query.enrol"), context(hospital, config))


@pytest.mark.parametrize("name", REFUSED_TERMS)
def test_fault_43_a_run_that_the_policy_refuses_is_refused_at_enrolment_and_nothing_is_charged(
    tmp_path: Path, name: str
) -> None:
    line, keys, words = REFUSED_TERMS[name]
    hospital = make_hospital(tmp_path, f"{STRICT}{line}\n")
    config = RunConfig.build(RUN, keys)
    said = enrol(hospital, config).content[RECORD]
    assert said["site"] == "St. Elsewhere" and words in str(said["refusal"]) and "schema" not in said
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    entry = read_lines(tmp_path / "home" / NAME).entries[-1]
    assert entry["event"] == "refused" and words in entry["why"]


@pytest.mark.parametrize("name", ["task", "model", "local steps", "both models of ditto", "secure aggregation"])
def test_fault_43_statistics_of_such_a_run_are_refused_by_a_server_that_asked_nobody_to_enrol(
    tmp_path: Path, name: str
) -> None:
    line, keys, words = REFUSED_TERMS[name]
    hospital = make_hospital(tmp_path, f"{STRICT}{line}\n")
    config = RunConfig.build(RUN, keys)
    half = name == "both models of ditto"
    request = StatisticsRequest(run="r", site=0, noise_multiplier=5.0, local_half=half)
    reply = app(message(request, "query.statistics"), context(hospital, config))
    assert reply.error.code == REFUSED and (words in str(reply.error.reason) or name == "task")
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_fault_43_a_budget_that_has_no_room_for_the_first_round_is_said_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    """Statistics would fit into what is left, the first round would not."""
    hospital, config = make_hospital(tmp_path), RunConfig.build(RUN)
    statistics(hospital, "before")
    spent, events = ledger(hospital).epsilon(), len(ledger(hospital).events())
    hospital.write_text(hospital.read_text().replace("budget = 2.0", f"budget = {spent + 0.3:.6g}"))
    refusal = str(
        enrol(hospital, RunConfig.build(RUN, {"privacy.epsilon": 5.0, "rounds": 1})).content[RECORD]["refusal"]
    )
    assert "The privacy budget of 'St. Elsewhere' refuses 'train' of round 1" in refusal and "allowed is" in refusal
    assert ledger(hospital).epsilon() == spent and len(ledger(hospital).events()) == events
    # The same budget lets the first of many rounds in, and a run that has begun is judged round by round.
    assert enrol(hospital, config.with_values({"privacy.epsilon": 0.1})).content[RECORD]["refusal"] == ""
    assert (
        enrol(hospital, RunConfig.build(RUN, {"privacy.epsilon": 5.0, "rounds": 1}), "before").content[RECORD][
            "refusal"
        ]
        == ""
    )


def test_a_run_that_the_policy_allows_enrols_with_its_versions(tmp_path: Path) -> None:
    said = enrol(make_hospital(tmp_path), RunConfig.build(RUN)).content[RECORD]
    assert said["refusal"] == "" and f'"polyclinic": "{polyclinic.__version__}"' in str(said["versions"])
    assert all(f'"{name}": ' in str(said["versions"]) for name in ("python", "flwr", "torch", "dp-accounting"))
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


@pytest.mark.parametrize("version", ["0.9.9", ""])
@pytest.mark.parametrize(
    "number", [PRIVACY_FORMAT + 1, None, str(PRIVACY_FORMAT), True, float(PRIVACY_FORMAT), [PRIVACY_FORMAT]]
)
def test_a_coordinator_of_another_privacy_format_is_refused_whatever_else_its_message_holds(
    tmp_path: Path, version: str, number: Any
) -> None:
    hospital = make_hospital(tmp_path)
    asked = message(EnrolRequest(run="r", site=0, version=version), "query.enrol")
    record = asked.content[RECORD]
    record["a field of the future"] = 1
    if number is None:
        del record["privacy_format"]
    else:
        record["privacy_format"] = number
    future = context(hospital)
    future.run_config["a-key-of-the-future"] = 1
    refusal = str(app(asked, future).content[RECORD]["refusal"])
    assert f"the hospital has {version_title(versions())} and the coordinator has " in refusal
    assert (version or "does not say its version") in refusal
    assert (f"format {number})" if number == PRIVACY_FORMAT + 1 else "format not said)") in refusal
    assert "install versions of the same format at both" in refusal
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    [line] = [one for one in read_lines(tmp_path / "home" / NAME).entries if one["event"] == "refused"]
    assert line["version"] == version


def test_a_coordinator_of_another_version_that_counts_privacy_alike_is_answered_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = message(EnrolRequest(run="r", site=0, version="0.9.9\nforged"), "query.enrol")
    assert app(asked, context(make_hospital(tmp_path))).content[RECORD]["refusal"] == ""
    assert f"the coordinator has version '0.9.9\\nforged', this hospital has {polyclinic.__version__}" in caplog.text


def test_a_key_that_a_newer_coordinator_alone_has_is_refused_in_a_sentence_and_costs_nothing(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path)
    future = context(hospital)
    future.run_config["training.a-key-of-the-future"] = 1
    requests = {
        "query.enrol": EnrolRequest(run="r", site=0, version="0.9.9"),
        "query.statistics": StatisticsRequest(run="r", site=0, noise_multiplier=5.0),
        "train": TrainRequest(run="r", site=0, round=1, noise_multiplier=20.0, public_patients=150.0),
    }
    for kind, request in requests.items():
        reply = app(message(request, kind), future)
        assert "a-key-of-the-future" in reply.error.reason and len(reply.error.reason.splitlines()) == 1
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
