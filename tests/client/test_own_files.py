"""Before a charge, a real hospital's errors tell the server neither a local path nor a word of the hospital's own files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

import polyclinic
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.wire.messages import ENROL, FAILED, EnrolRequest, EvaluateRequest, TrainRequest
from tests.client.test_hospital import CONFIG, context, ledger, make_hospital, message, model, train

CANARY = "canary-4711"
# Each damages one of a hospital's own files, and names what the server may learn of it.
Damage = Callable[[Path], None]


def enrol(hospital: Path, config: RunConfig = CONFIG, **other: Any) -> Message:
    return app(
        message(EnrolRequest(run="r", site=0, version=polyclinic.__version__, **other), ENROL),
        context(hospital, config),
    )


def policy(hospital: Path) -> None:
    hospital.write_text(hospital.read_text() + f'budgett = "{CANARY}"\n')


def no_toml(hospital: Path) -> None:
    hospital.write_text(hospital.read_text() + f"{CANARY} = = 1\n")


def unknown_key(hospital: Path) -> None:
    hospital.write_text(hospital.read_text().replace("[policy]", f'{CANARY} = "x"\n[policy]'))


def no_hospital_file(hospital: Path) -> None:
    hospital.rename(hospital.with_name(CANARY))


def schema(hospital: Path) -> None:
    (hospital.parent / "schema.toml").write_text(f'name = "{CANARY}"\n[[columns]]\nname = "{CANARY}"\nkind = "x"\n')


def password(hospital: Path) -> None:
    hospital.write_text(hospital.read_text().replace("records.csv", f"postgresql://reader:{CANARY}@db/ehr"))


def missing_records(hospital: Path) -> None:
    hospital.write_text(hospital.read_text().replace("records.csv", f"{CANARY}.csv"))


def mapping(hospital: Path) -> None:
    (hospital.parent / "m.toml").write_text(f'[columns.age]\nfrom = "{CANARY}"\nvalues = {{ a = 1 }}\n')
    hospital.write_text(hospital.read_text().replace("[policy]", 'mapping = "m.toml"\n[policy]'))


def cohort(hospital: Path) -> None:
    (hospital.parent / "c.toml").write_text(f'[[steps]]\nname = "x"\nkeep = "name == \'{CANARY}\' and zz"\n')
    hospital.write_text(hospital.read_text().replace("[policy]", 'cohort = "c.toml"\n[policy]'))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (policy, "settings file"), (no_toml, "settings file"), (unknown_key, "settings file"),
        (no_hospital_file, "settings file"), (schema, "schema"), (password, "records"), (missing_records, "records"),
        (mapping, "mapping or cohort"), (cohort, "mapping or cohort"),
    ],
)  # fmt: skip
def test_an_own_file_that_is_wrong_stays_at_the_hospital(
    tmp_path: Path, damage: Damage, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = make_hospital(tmp_path)
    damage(hospital)
    reply = enrol(hospital)
    assert reply.error.code == FAILED
    assert reply.error.reason == f"the hospital's {what} cannot be used; its own log says why"
    assert str(tmp_path) in caplog.text or CANARY in caplog.text or damage is password


@pytest.mark.parametrize("damage", [no_toml, unknown_key, no_hospital_file])
def test_a_coordinator_of_another_privacy_format_learns_no_word_of_the_settings_file_either(
    tmp_path: Path, damage: Damage
) -> None:
    hospital = make_hospital(tmp_path)
    damage(hospital)
    reason = enrol(hospital, privacy_format=999).error.reason
    assert reason == "the hospital's settings file cannot be used; its own log says why"


def test_a_damaged_imputer_and_its_path_stay_at_the_hospital(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hospital = make_hospital(tmp_path)
    hospital.write_text(hospital.read_text().replace("[policy]", 'imputer = "imputer.json"\n[policy]'))
    (tmp_path / "imputer.json").write_text(CANARY)
    reply = enrol(hospital, CONFIG.with_values({"data.imputation": "chained", "data.imputer-file": "anything"}))
    assert reply.error.reason == "the hospital's own files cannot be used; its own log says why"
    assert str(tmp_path / "imputer.json") in caplog.text


def test_a_damaged_optimizer_state_and_its_path_stay_at_the_hospital(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hospital, config = make_hospital(tmp_path), CONFIG.with_values({"training.optimizer": "adam"})
    request = {"run": "r", "site": 0, "noise_multiplier": 20.0, "public_patients": 150.0, "learning_rate": 0.5}
    first, second = (message(TrainRequest(**request, round=number), "train", model()) for number in (1, 2))
    assert not app(first, context(hospital, config)).has_error()
    state = next((tmp_path / "home").glob("optimizer-*"))
    state.write_text(CANARY)
    reply = app(second, context(hospital, config))
    assert reply.error.reason == "the hospital's own files cannot be used; its own log says why"
    assert str(state) in caplog.text and len(ledger(hospital).events()) == 1


def broken(**changes: object) -> Array:
    """An array of the model's first layer that is not what it says."""
    array = Array(np.zeros((2, 2), np.float32))
    for name, value in changes.items():
        setattr(array, name, value)
    return array


BROKEN = {
    "objects": lambda: broken(dtype="object"),
    "pickle": lambda: broken(data=b"\x80\x04N."),
    "void": lambda: Array(np.zeros(2, "V8")),
    "records": lambda: Array(np.zeros(2, [("a", "f4"), ("b", "i4")])),
    "complex": lambda: Array(np.zeros((2, 2), np.complex64)),
    "text": lambda: Array(np.array(["a", "b"])),
    "dates": lambda: Array(np.zeros(2, "M8[s]")),
    "another dtype": lambda: broken(dtype="float64"),
    "another shape": lambda: broken(shape=(10**9, 10**9)),
    "no bytes": lambda: broken(data=b""),
    "another format": lambda: broken(stype="pickle"),
}


PROBLEMS = "cannot be read as an array", "does not hold numbers"


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize(("way", "place"), [("train", "arrays"), ("train", "question"), ("evaluate", "standardiser")])
def test_arrays_that_are_not_of_numbers_are_refused_in_one_sentence(
    tmp_path: Path, kind: str, place: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = make_hospital(tmp_path, "budget = 2.0\ndelta = 1e-3\nrelease-metrics = true\n")
    request = {"run": "r", "site": 0, "round": 1}
    if way == "train":
        private = {"noise_multiplier": 1.2, "public_patients": 150.0, "learning_rate": 0.5}
        sent = message(TrainRequest(**request, **private), "train", model())
    else:
        sent = message(EvaluateRequest(**request), "evaluate", model())
    sent.content[place] = ArrayRecord({"0.weight": BROKEN[kind]()})
    reply = app(sent, context(hospital))
    assert reply.error.code == FAILED
    assert reply.error.reason in [f"The message's array '0.weight' {problem}." for problem in PROBLEMS]
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert "Traceback" not in caplog.text


def modes(home: Path) -> dict[str, int]:
    closed = (home, *home.glob("*.sqlite"), *home.glob("records-*"))
    return {path.name: path.stat().st_mode & 0o777 for path in closed}


CLOSED = {"home": 0o700, "ledger.sqlite": 0o600, "alone.sqlite": 0o600, "records-r.sha256": 0o600}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_ledger_lock_and_home_are_the_owners_alone_whatever_the_umask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hospital = make_hospital(tmp_path)
    assert not train(hospital).has_error()
    assert modes(tmp_path / "home") == CLOSED and "open to other users" not in caplog.text


def test_those_that_were_open_are_closed_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hospital, home = make_hospital(tmp_path), tmp_path / "home"
    train(hospital)
    for path in (home, *home.glob("*.sqlite")):
        path.chmod(0o777)
    enrol(hospital)
    assert modes(home) == CLOSED
    assert all(f"{path} was open to other users" in caplog.text for path in (home, home / "ledger.sqlite"))
