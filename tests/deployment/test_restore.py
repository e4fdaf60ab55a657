"""A backup that is restored forgets no charge that the journal holds, whatever was killed, and puts nothing half in place."""

import json
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyclinic.client.home import approvals
from polyclinic.client.home.journal import NAME, append
from polyclinic.client.home.submissions import submitted_runs
from polyclinic.deployment.backup import back_up
from polyclinic.deployment.restore import _bring_forward, restore_hospital
from polyclinic.errors import ConfigError, DataError
from polyclinic.lines import read_lines
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.secure.signatures import public_identity
from tests.approval.test_submitters import ADA, counts, signed
from tests.client.test_hospital import ledger, train
from tests.nursery import python

from .conftest import Cli


@pytest.fixture
def hospital(hospital: Path) -> Path:
    """Where no node checks bundles."""
    file = hospital / "hospital.toml"
    file.write_text(
        file.read_text().replace('allowed-runs = ["installed"]', "allowed-runs = []").replace(" = 2.0", " = 9.0")
    )
    return hospital


TERMS = Terms("north", delta=1e-5, budget=None)


def charge(home: Path, number: int) -> None:
    Ledger.open(home / "ledger.sqlite", TERMS).charge(gaussian_event(9.0), "train", "r", number)


def rounds(home: Path) -> list[int]:
    return [int(row.round) for row in Ledger.read(home / "ledger.sqlite").read_site().rows]


def copied(hospital: Path, name: str) -> Path:
    copy = hospital.parent / name
    back_up(hospital, copy, {"home": hospital / "home", "flwr": hospital / "flwr"})
    return copy


def test_an_older_backup_is_restored_with_all_charges_of_the_newest_journal(cli: Cli, hospital: Path) -> None:
    assert train(hospital / "hospital.toml").has_content()
    copy = copied(hospital, "copy")
    assert train(hospital / "hospital.toml", 3, round=2).has_content()
    append(hospital / "home", {"event": "asked", "kind": "enrol", "run": "other"})
    approvals.stop(hospital / "home", "other", "no longer")
    spent, damaged = ledger(hospital / "hospital.toml").epsilon(), hospital.with_name("damaged")
    assert cli("hospital", "restore", copy, hospital, "--without-journal").code == 2  # it is there
    hospital.rename(damaged)
    assert cli("hospital", "restore", copy, hospital).code == 2
    done = cli("hospital", "restore", copy, hospital, "--journal", damaged / "home" / "journal.jsonl", "--json")
    assert done.code == 0 and json.loads(done.out)["charges"] == 1
    restored = ledger(hospital / "hospital.toml")
    assert restored.verify() and restored.epsilon() == spent and rounds(hospital / "home") == [1, 2]
    assert read_lines(hospital / "home" / NAME).intact and not [*hospital.parent.glob(".hospital*")]
    assert "has paused" in train(hospital / "hospital.toml", 3, round=3).error.reason
    approvals.resume(hospital / "home")
    assert "was denied here" in train(hospital / "hospital.toml", run="other", round=3).error.reason
    assert train(hospital / "hospital.toml", run="next").has_content() and rounds(hospital / "home") == [1, 2, 1]


def test_a_home_outside_the_folder_is_never_overwritten_nor_what_a_killed_restore_left(hospital: Path) -> None:
    file, outside = hospital / "hospital.toml", hospital.with_name("elsewhere")
    (hospital / "home").rename(outside)
    file.write_text(file.read_text().replace('home = "home"', 'home = "../elsewhere"'))
    assert train(file).has_content()
    copy, aside = hospital.with_name("copy"), hospital.with_name("aside")
    back_up(hospital, copy, {"home": outside})
    shutil.rmtree(hospital)  # a restore that is killed at its end leaves just this: the home without the folder
    with pytest.raises(ConfigError, match="elsewhere, the hospital's home, is there already.*move it aside"):
        restore_hospital(copy, hospital, outside / "journal.jsonl")
    assert rounds(outside) == [1] and not hospital.exists()
    outside.rename(aside)
    restore_hospital(copy, hospital, aside / "journal.jsonl")
    assert rounds(outside) == [1] and file.exists() and not (hospital / "home").exists()


def test_an_older_backup_learns_whose_runs_came_since(hospital: Path) -> None:
    """Otherwise a signature would be good for another run, and a person's limits would forget the first."""
    file, config = hospital / "hospital.toml", signed()
    file.write_text(f'{file.read_text()}\n[policy.submitters.ada]\nkey = "{public_identity(ADA).hex()}"\n')
    copy = copied(hospital, "copy")
    assert not counts(file, config).has_error()
    damaged = hospital.rename(hospital.with_name("damaged"))
    restore_hospital(copy, hospital, damaged / "home" / "journal.jsonl")
    approvals.resume(hospital / "home")
    assert submitted_runs(hospital / "home", "ada") == {"trial-1"}
    assert "has used this signature" in counts(file, config, "trial-2").error.reason


@pytest.mark.parametrize("loss", ["older", "gone", "other"])
def test_a_ledger_that_lacks_a_charge_of_the_journal_answers_nothing(hospital: Path, loss: str) -> None:
    file, path = hospital / "hospital.toml", hospital / "home" / "ledger.sqlite"
    assert train(file).has_content()
    older = path.read_bytes()
    assert train(file, round=2).has_content()
    path.unlink() if loss == "gone" else path.write_bytes(older)
    if loss == "other":
        Ledger.open(path, ledger(file).terms).charge(gaussian_event(30.0), "train", "r", 2)
    reply = train(file, round=3)
    assert "lacks charges that its journal holds" in reply.error.reason and str(hospital) not in reply.error.reason
    assert not path.exists() if loss == "gone" else 3 not in rounds(hospital / "home")
    assert "lacks charges" in train(file, round=4).error.reason  # the refusal's own lines forget nothing


def test_a_damaged_backup_or_another_s_journal_is_refused_and_nothing_is_left(hospital: Path, tmp_path: Path) -> None:
    assert train(hospital / "hospital.toml").has_content()
    copy, new = copied(hospital, "copy"), tmp_path / "new"
    ledger_file = copy / "home" / "ledger.sqlite"
    whole = ledger_file.read_bytes()
    ledger_file.write_bytes(whole[:5000])
    with pytest.raises(DataError, match="not as the backup was written; use another backup"):
        restore_hospital(copy, new, None)
    ledger_file.write_bytes(whole)
    append(tmp_path / "other", {"event": "asked"})
    with pytest.raises(ConfigError, match="does not go on from"):
        restore_hospital(copy, new, tmp_path / "other" / "journal.jsonl")
    with pytest.raises(ConfigError, match=r"no backup\.json"):
        restore_hospital(hospital, new, None)
    port = int(next(line for line in (copy / "node.toml").read_text().splitlines() if "port" in line).split("=")[1])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="A program answers"):
        restore_hospital(copy, new, None)
    assert not new.exists() and not [*tmp_path.glob(".new*")]


@pytest.mark.parametrize(("module", "place"), [("backup", "copy2"), ("restore", "new")])
def test_a_process_killed_in_a_backup_or_a_restore_leaves_nothing_in_place(
    hospital: Path, module: str, place: str
) -> None:
    assert train(hospital / "hospital.toml").has_content()
    copied(hospital, "copy")
    script = (
        "import os, pathlib, signal, sys\n"
        f"from polyclinic.deployment import {module} as module\n"
        "from polyclinic.deployment.backup import back_up\n"
        "from polyclinic.deployment.restore import restore_hospital\n"
        "folder, digest, calls = pathlib.Path(sys.argv[1]), module.sha256, []\n"
        "def sha256(path):\n"
        "    calls.append(path)\n"
        "    return os.kill(os.getpid(), signal.SIGKILL) if len(calls) == 4 else digest(path)\n"
        "module.sha256 = sha256\n"
        "back_up(folder, folder.with_name('copy2'), {'home': folder / 'home'})\n"
        "restore_hospital(folder.with_name('copy2'), folder.with_name('new'), None)\n"
    )
    assert python("-c", script, str(hospital)).returncode == -9
    assert not hospital.with_name(place).exists()
    if module == "restore":
        restore_hospital(hospital.with_name("copy2"), hospital.with_name(place), None)
        assert rounds(hospital.with_name(place) / "home") == [1]


def test_a_coordinator_s_backup_is_restored_whole(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    assert cli("coordinator", "backup", coordinator, tmp_path / "copy").code == 0
    assert cli("coordinator", "restore", tmp_path / "copy", coordinator).code == 2
    coordinator.rename(tmp_path / "damaged")
    assert cli("coordinator", "restore", tmp_path / "copy", coordinator).code == 0
    for name in ("ca.key", "server.key", "coordinator.toml", "flwr/config.toml", "state/superlink.db"):
        before = tmp_path / "damaged" / name
        assert not before.exists() or (coordinator / name).read_bytes() == before.read_bytes()
    assert cli("coordinator", "start", coordinator, "--dry-run").code == 0


def test_backups_made_while_another_process_charges_restore_to_all_of_its_charges(tmp_path: Path) -> None:
    folder, home = tmp_path / "folder", tmp_path / "folder" / "home"
    home.mkdir(parents=True)
    script = (
        "import pathlib, sys\n"
        "from polyclinic.client.home.journal import NAME, append\n"
        "from tests.deployment.test_restore import charge\n"
        "for number in range(40):\n"
        "    charge(pathlib.Path(sys.argv[1]), number)\n"
        "    append(pathlib.Path(sys.argv[1]), {'event': 'answered', 'round': number})\n"
    )
    with ThreadPoolExecutor() as threads:
        charging, copies = threads.submit(python, "-c", script, str(home)), 0
        while not charging.done():
            back_up(folder, tmp_path / f"copy-{copies}", {"home": home})
            copies += 1
            time.sleep(0.5)
    assert charging.result().returncode == 0, charging.result().stderr
    for number in range(copies):
        _bring_forward(tmp_path / f"copy-{number}" / "home", home / "journal.jsonl")
        assert rounds(tmp_path / f"copy-{number}" / "home") == list(range(40))
        assert Ledger.read(tmp_path / f"copy-{number}" / "home" / "ledger.sqlite").verify()


STEPS = st.lists(st.sampled_from(["answer", "crash", "torn", "backup", "restore", "lose", "by hand"]), max_size=14)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, data=st.data())
def test_whatever_is_charged_backed_up_crashes_and_is_restored_no_answer_is_undercounted(
    steps: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """crash: after the charge, before its line; torn: in the middle of a line; lose: the ledger's file; by hand: the
    ledger of a backup is copied over that of now."""
    place = tmp_path_factory.mktemp("schedule")
    home, copies, left = place / "hospital" / "home", 0, set[int]()
    home.mkdir(parents=True)
    for number, step in enumerate(steps):
        copy = place / f"copy-{data.draw(st.integers(0, copies - 1))}" if copies else None
        if step in ("answer", "crash", "torn") and not append(home, {"event": "asked"}):
            charge(home, number)
            if step == "answer":
                append(home, {"event": "answered"})
                left.add(number)
            elif step == "torn":
                with (home / "journal.jsonl").open("ab") as file:
                    file.write(b'{"time": "2026')
        elif step == "backup":
            back_up(home.parent, place / f"copy-{copies}", {"home": home})
            copies += 1
        elif step == "lose":
            (home / "ledger.sqlite").unlink(missing_ok=True)
        elif step == "by hand" and copy and (copy / "home" / "ledger.sqlite").exists():
            shutil.copy(copy / "home" / "ledger.sqlite", home / "ledger.sqlite")
        elif step == "restore" and copy and (copy / "home").exists():
            shutil.copytree(copy / "home", place / "restored")
            _bring_forward(place / "restored", home / "journal.jsonl" if (home / "journal.jsonl").exists() else None)
            shutil.rmtree(home)
            (place / "restored").rename(home)
        if not append(home, {"event": "looked"}):  # it may charge: then it holds all that left
            held = set(rounds(home)) if (home / "ledger.sqlite").exists() else set()
            assert left <= held
