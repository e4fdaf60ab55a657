"""A hospital's folder: its strict policy, its key, what never is written anywhere, and what its status tells."""

import contextlib
import json
import socket
import sqlite3
import ssl
import stat
import threading
import tomllib
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from polyclinic.client.home.policy import HospitalFile, Policy, Submitter
from polyclinic.client.home.records import own_records
from polyclinic.ehr.schema import Schema
from tests.deployment.monitoring.test_metrics import checked

from .conftest import Cli, Done, init_arguments, records


def assert_refused(done: Done, words: str, tmp_path: Path) -> None:
    assert done.code == 2 and words in done.error, done
    assert done.error.count("\n") == 0 and done.error.endswith(".")
    assert not (tmp_path / "hospital").exists()


def test_the_policy_written_is_the_strict_one_with_a_line_for_each_key(hospital: Path) -> None:
    text = (hospital / "hospital.toml").read_text()
    policy = Policy.build(HospitalFile.read(hospital / "hospital.toml").policy, "x")
    assert policy == Policy(budget=2.0, delta=1e-3, allowed_runs=("installed",))
    lines = text[text.index("[policy]") :].split("\n\n")[0].splitlines()[1:]
    keys = {key.replace("_", "-") for key in Policy.model_fields} - {"submitters"}
    assert {line.split(" = ")[0] for line in lines[1::2]} == keys and len(lines) == 2 * len(keys)
    assert all(line.startswith("# ") and line.endswith(".") for line in lines[::2])


def test_the_lines_on_submitters_hold_once_their_marks_are_taken_away(hospital: Path) -> None:
    text = (hospital / "hospital.toml").read_text()
    for line in text[text.index("# [policy.submitters") :].splitlines():
        text = text.replace(line, line.removeprefix("# ").replace("…", "a" * 64))
    (hospital / "hospital.toml").write_text(text)
    policy = Policy.build(HospitalFile.read(hospital / "hospital.toml").policy, "x")
    assert policy.submitters == {"ada": Submitter(key="a" * 64)}


def test_the_node_s_key_is_the_owner_s_alone_and_its_public_half_is_what_the_coordinator_takes(hospital: Path) -> None:
    assert stat.S_IMODE((hospital / "node.key").stat().st_mode) == 0o600
    private = load_ssh_private_key((hospital / "node.key").read_bytes(), None)
    assert load_ssh_public_key((hospital / "node.pub").read_bytes()) == private.public_key()
    assert private.curve.name == "secp384r1"
    assert (hospital / "node.pub").read_text().endswith(" St.-Elsewhere\n")


def test_home_is_the_owner_s_alone_before_the_first_message(hospital: Path) -> None:
    assert stat.S_IMODE((hospital / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE((hospital / "home" / "README").stat().st_mode) == 0o600


def test_a_new_key_replaces_both_halves_and_nothing_else(cli: Cli, hospital: Path) -> None:
    before = {path: path.read_bytes() for path in hospital.rglob("*") if path.is_file()}
    told = json.loads(cli("hospital", "rekey", hospital, "--json").out)
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"node.key", "node.pub"} and {path for path in hospital.rglob("*") if path.is_file()} == set(
        before
    )
    private = load_ssh_private_key((hospital / "node.key").read_bytes(), None)
    assert load_ssh_public_key(told["public_key"].encode()) == private.public_key()
    assert stat.S_IMODE((hospital / "node.key").stat().st_mode) == 0o600


def test_start_gives_flower_arguments_that_it_knows_and_this_hospital_s_file(cli: Cli, hospital: Path) -> None:
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    told = json.loads(cli("hospital", "start", hospital, "--dry-run", "--json").out)
    arguments = _parse_args_run_supernode().parse_args(told["command"][4:])
    assert not arguments.insecure and not arguments.runtime_dependency_install
    assert arguments.root_certificates == str(hospital / "ca.crt") and arguments.host == "127.0.0.1"
    assert parse_config_args([arguments.node_config]) == {"hospital": str(hospital / "hospital.toml")}
    (hospital / "node.toml").write_text('coordinator = "a.example:1"\ntrusted-signers = "signers.yaml"\n')
    told = json.loads(cli("hospital", "start", hospital, "--dry-run", "--json").out)
    assert str(hospital / "signers.yaml") in told["command"]
    (hospital / "node.key").unlink()
    done = cli("hospital", "start", hospital, "--dry-run")
    assert done.code == 2 and "node.key" in done.error


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.crt", b"junk", "is not a certificate in PEM"),
        ("ca.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "is not a certificate in PEM"),
        ("node.key", b"junk", "is not a private key, or a damaged one"),
        ("node.key", None, "is not a private key, or a damaged one"),
    ],
)
def test_start_refuses_damaged_files_in_a_sentence(
    cli: Cli, hospital: Path, name: str, content: bytes | None, words: str
) -> None:
    path = hospital / name
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    done = cli("hospital", "start", hospital)
    assert done.code == 2 and f"{path} {words}" in done.error and done.error.count("\n") == 0


def test_init_is_done_once(cli: Cli, coordinator: Path, hospital: Path, tmp_path: Path) -> None:
    key = (hospital / "node.key").read_bytes()
    done = cli(*init_arguments(tmp_path, coordinator))
    assert done.code == 2 and "is there already" in done.error
    told = json.loads(cli(*init_arguments(tmp_path, coordinator), "--if-missing", "--json").out)
    assert told["made"] is False and told["public_key"] == (hospital / "node.pub").read_text().strip()
    assert (hospital / "node.key").read_bytes() == key


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"coordinator": "coordinator.example"}, "HOST:PORT"),
        ({"coordinator": "https://coordinator.example:8000"}, "HOST:PORT"),
        ({"ca": "nowhere.crt"}, "cannot be read"),
        ({"schema": "nowhere.toml"}, "nowhere.toml"),
        ({"data": "nowhere.csv"}, "nowhere.csv"),
        ({"data": "postgresql://"}, "database"),
        ({"budget": 0.0}, "'policy.budget'"),
        ({"delta": 1.0}, "'policy.delta'"),
        ({"site": " "}, "name"),
        ({"site": "a\nb"}, "printed"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    cli: Cli, coordinator: Path, tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    assert_refused(cli(*init_arguments(tmp_path, coordinator, **changed)), words, tmp_path)


def test_a_delta_that_is_not_below_one_by_patients_is_refused_or_warned_of(
    cli: Cli, coordinator: Path, tmp_path: Path
) -> None:
    done = cli(*init_arguments(tmp_path, coordinator, delta=1 / 200))
    assert_refused(done, "The delta 0.005 is not below 1/patients (200 patients were counted)", tmp_path)
    assert "--delta 0.0005." in done.error
    done = cli(*init_arguments(tmp_path, coordinator, delta=0.5), "--no-check")
    assert done.code == 0 and "make sure that delta 0.5 is below 1/patients" in " ".join(done.error.split())


def test_only_an_authority_s_certificate_alone_is_taken(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    server = init_arguments(tmp_path, coordinator, ca=coordinator / "server.crt")
    assert_refused(cli(*server), "no authority's", tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes((coordinator / "ca.crt").read_bytes() + (coordinator / "ca.key").read_bytes())
    assert_refused(cli(*init_arguments(tmp_path, coordinator, ca=both)), "holds a private key", tmp_path)
    assert_refused(
        cli(*init_arguments(tmp_path, coordinator, ca=coordinator / "ca.key")), "not a certificate", tmp_path
    )


def test_records_are_read_before_anything_is_written_unless_told_not_to(
    cli: Cli, coordinator: Path, tmp_path: Path
) -> None:
    arguments = init_arguments(tmp_path, coordinator)
    with (tmp_path / "records" / "records.csv").open("a") as file:
        file.write("999,4711,120,1\n")
    done = cli(*arguments)
    assert_refused(done, "data row 201", tmp_path)
    assert "4711" not in done.error
    assert cli(*arguments, "--no-check").code == 0


def test_a_password_is_refused_in_a_url_and_never_repeated(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    for url in ("postgresql://u:s3cr3t@db/x", "postgresql://u@db/x?password=s3cr3t", "omop:postgresql://u:s3cr3t@db/x"):
        done = cli(*init_arguments(tmp_path, coordinator, data=url))
        assert_refused(done, "password", tmp_path)
        assert "s3cr3t" not in done.error + done.out


def test_a_password_s_variable_is_named_and_its_value_written_nowhere(
    cli: Cli, coordinator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t")
    url = "postgresql://reader:${DB_PASSWORD}@127.0.0.1:1/x?connect_timeout=1"
    arguments = [*init_arguments(tmp_path, coordinator, data=url), "--source", "query=SELECT 1", "--port", 9095]
    refused = cli(*arguments)  # nothing listens there, so that the check fails
    assert_refused(refused, "postgresql database 'x'", tmp_path)
    done = cli(*arguments, "--no-check", "--json")
    assert done.code == 0, done
    hospital = tmp_path / "hospital"
    described = HospitalFile.read(hospital / "hospital.toml")
    assert described.source == {"query": "SELECT 1", "password-env": "DB_PASSWORD"}
    assert described.data == "postgresql://reader@127.0.0.1:1/x?connect_timeout=1"
    told = [
        refused,
        done,
        cli("hospital", "start", hospital, "--dry-run", "--json"),
        cli("hospital", "status", hospital, "--json"),
    ]
    files = [path.read_text() for path in hospital.rglob("*") if path.is_file()]
    assert not any("s3cr3t" in text for one in told for text in (one.out, one.error)) and "s3cr3t" not in "".join(files)


def test_records_of_a_database_are_found_from_wherever_the_node_starts(
    cli: Cli, coordinator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    data, schema = records(tmp_path / "records")
    with sqlite3.connect(tmp_path / "records.db") as database:
        pd.read_csv(data).to_sql("visits", database, index=False)
    (tmp_path / "query.sql").write_text("SELECT * FROM visits")
    monkeypatch.chdir(tmp_path)
    arguments = init_arguments(tmp_path, coordinator, data="sqlite:///records.db")
    told = json.loads(cli(*arguments, "--source", "query-file=query.sql", "--json").out)
    assert (told["records"]["rows"], told["records"]["patients"]) == (200, 200)
    monkeypatch.chdir("/")
    folder = tmp_path / "hospital"
    chunks = own_records(HospitalFile.read(folder / "hospital.toml"), folder, Schema.from_toml(folder / "schema.toml"))
    assert sum(len(chunk.records) for chunk in chunks) == 200


def serve(context: ssl.SSLContext) -> int:
    """A TLS server that greets and closes; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    threading.Thread(target=run, daemon=True).start()
    return int(listener.getsockname()[1])


def test_status_offline_and_online_and_before_an_impostor(
    cli: Cli, coordinator: Path, hospital: Path, tmp_path: Path
) -> None:
    def status() -> dict[str, object]:
        return dict(json.loads(cli("hospital", "status", hospital, "--json").out)["coordinator"])

    def point_to(folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        (hospital / "node.toml").write_text(f'coordinator = "localhost:{serve(context)}"\n')

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (hospital / "node.toml").write_text(f'coordinator = "127.0.0.1:{port}"\n')
    assert status() == {
        "address": f"127.0.0.1:{port}", "reachable": False, "problem": "Connection refused", "expires": None,
        "days": None,
    }  # fmt: skip
    point_to(coordinator)
    assert status()["reachable"] is True and status()["expires"] and status()["days"] == 824
    cli("coordinator", "init", tmp_path / "impostor", "--host", "localhost")
    point_to(tmp_path / "impostor")
    assert status()["reachable"] is False and "certificate does not hold" in str(status()["problem"])


def test_status_takes_the_proxy_that_the_node_takes(
    cli: Cli, coordinator: Path, hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(coordinator / "server.crt", coordinator / "server.key")
    port, asked = serve(context), list[str]()
    (hospital / "node.toml").write_text('coordinator = "localhost:1"\n')  # nothing answers there but by the proxy

    def status() -> dict[str, object]:
        return dict(json.loads(cli("hospital", "status", hospital, "--json").out)["coordinator"])

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def proxy() -> None:
            while not listener.fileno() < 0:
                inside, _ = listener.accept()
                asked.append(inside.recv(4096).decode())
                inside.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                outside = socket.create_connection(("127.0.0.1", port))
                for source, sink in ((inside, outside), (outside, inside)):
                    threading.Thread(target=carry, args=(source, sink), daemon=True).start()

        threading.Thread(target=proxy, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:a%20word@127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert status()["reachable"] is True
        [request] = asked
        assert request.startswith("CONNECT localhost:1 ") and b64encode(b"user:a word").decode() in request
        monkeypatch.setenv("NO_PROXY", "localhost")
        assert status()["problem"] == "Connection refused" and len(asked) == 1


def carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            sink.sendall(content)


def test_status_tells_what_the_ledger_holds_and_that_it_was_edited(cli: Cli, hospital: Path) -> None:
    from polyclinic.privacy.accounting import gaussian_event
    from polyclinic.privacy.ledger import Ledger, Terms

    fresh = json.loads(cli("hospital", "status", hospital, "--json").out)["ledger"]
    assert fresh == {
        "epsilon": 0.0, "delta": 1e-3, "budget": 2.0, "intact": True, "charges": 0, "last": [], "room": 2.0,
        "month": None, "most_per_run": None,
    }  # fmt: skip
    terms = Terms("St. Elsewhere", 1e-3, "add-remove", "patient", 2.0, "pld")
    ledger = Ledger.open(hospital / "home" / "ledger.sqlite", terms)
    for round in (1, 2, 3):
        ledger.charge(gaussian_event(10.0), "train", "r", round)
    found = json.loads(cli("hospital", "status", hospital, "--json").out)["ledger"]
    assert found["epsilon"] == pytest.approx(ledger.epsilon())
    # Epsilons do not add up: one release may cost more than what the budget lacks of epsilon, and less than the budget.
    assert 2.0 - ledger.epsilon() < found["room"] < 2.0
    assert [last["round"] for last in found["last"]] == [1, 2, 3] and found["intact"]
    with sqlite3.connect(hospital / "home" / "ledger.sqlite") as database:
        database.execute("DELETE FROM events WHERE seq = 2")
    assert json.loads(cli("hospital", "status", hospital, "--json").out)["ledger"]["intact"] is False
    assert cli("hospital", "status", hospital).code == 0 and checked(cli, hospital)["ledger"][0] == "failed"


def test_node_toml_is_complete_and_its_keys_are_checked(cli: Cli, hospital: Path) -> None:
    told = tomllib.loads((hospital / "node.toml").read_text())
    assert told == {
        "coordinator": "coordinator.example:18000", "ca": "ca.crt", "key": "node.key", "port": 9094, "trusted-signers": "",
    }  # fmt: skip
    (hospital / "node.toml").write_text('coordinator = "a:1"\nca-file = "x"\n')
    done = cli("hospital", "start", hospital, "--dry-run")
    assert done.code == 2 and "'ca-file'" in done.error
