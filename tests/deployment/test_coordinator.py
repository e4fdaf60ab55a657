"""A coordinator's folder: what is written with which rights, what its certificate proves, and what is refused."""

import json
import os
import shutil
import sqlite3
import ssl
import stat
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.node_pb2 import NodeInfo

from polyclinic.deployment import certificates
from polyclinic.deployment.certificates import (
    certificate_problem,
    check_authority,
    check_host,
    expiry_warnings,
    make_authority,
    make_node_key,
    read_public_key,
    warn_daily,
)
from polyclinic.deployment.control import control, register
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.environment import endpoint
from polyclinic.deployment.files import write_new
from polyclinic.deployment.submitting import run_to_resume
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.files import NewFile
from polyclinic.server.app import simulates

from .conftest import Cli, Done
from .federation import wait_for

HOSTS = ("--host", "coordinator.example")


def greet(folder: Path, ca: Path, host: str, client: ssl.SSLContext | None = None) -> str:
    """A whole TLS handshake in memory between a client of ``ca`` and a server with the folder's certificate; its version."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client or ssl.create_default_context(cafile=str(ca))
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0].version() or ""


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_init_writes_keys_that_only_their_owner_reads_whatever_the_umask(cli: Cli, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert cli("coordinator", "init", tmp_path / "co", *HOSTS).code == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "co").iterdir() if path.is_file()}
    assert modes == {
        "ca.key": 0o600,
        "server.key": 0o600,
        "ca.crt": 0o644,
        "server.crt": 0o644,
        "coordinator.toml": 0o644,
    }
    assert stat.S_IMODE((tmp_path / "co" / "state").stat().st_mode) == 0o700
    assert "PRIVATE" not in (tmp_path / "co" / "ca.crt").read_text() + (tmp_path / "co" / "server.crt").read_text()


def test_the_certificate_holds_for_its_hosts_and_for_nobody_else(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    for host in ("coordinator.example", "10.1.2.3", "localhost", "127.0.0.1"):
        assert greet(coordinator, coordinator / "ca.crt", host) == "TLSv1.3"
    for host in ("elsewhere.example", "10.1.2.4"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            greet(coordinator, coordinator / "ca.crt", host)
    cli("coordinator", "init", tmp_path / "other", *HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(coordinator, tmp_path / "other" / "ca.crt", "coordinator.example")


def test_the_authority_signs_no_further_authority() -> None:
    certificate = x509.load_pem_x509_certificate(make_authority("x").certificate)
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0
    assert usage.value.key_cert_sign and not usage.value.digital_signature


def test_renewing_follows_the_file_and_keeps_the_authority(cli: Cli, coordinator: Path) -> None:
    described = coordinator / "coordinator.toml"
    described.write_text(described.read_text().replace("10.1.2.3", "new.example"))
    ca = (coordinator / "ca.crt").read_bytes()
    assert cli("coordinator", "renew", coordinator, "--days", 30).code == 0
    assert greet(coordinator, coordinator / "ca.crt", "new.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(coordinator, coordinator / "ca.crt", "10.1.2.3")
    assert (coordinator / "ca.crt").read_bytes() == ca
    assert stat.S_IMODE((coordinator / "server.key").stat().st_mode) == 0o600
    (coordinator / "ca.key").unlink()
    assert_refused(cli("coordinator", "renew", coordinator), "needs the authority's key")


def test_renewing_takes_the_authoritys_key_from_where_it_is_kept(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    offline = (coordinator / "ca.key").rename(tmp_path / "ca.key")
    before = (coordinator / "server.crt").read_bytes()
    (tmp_path / "junk.key").write_text("no key")
    for name, words in (("junk.key", "is not a private key"), ("co/server.key", "is the key of another authority")):
        assert_refused(cli("coordinator", "renew", coordinator, "--ca-key", tmp_path / name), words)
    assert (coordinator / "server.crt").read_bytes() == before
    assert cli("coordinator", "renew", coordinator, "--ca-key", offline).code == 0
    assert (coordinator / "server.crt").read_bytes() != before and not (coordinator / "ca.key").exists()
    assert greet(coordinator, coordinator / "ca.crt", "coordinator.example")


def reached(folder: Path, files: dict[str, Path]) -> dict[str, bool]:
    """By name, whether a hospital with that ca.crt reaches the coordinator, with Python's default context and with Flower's."""

    def reaches(ca: Path) -> bool:
        flower = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as in flwr.supercore.protobuf.client
        flower.load_verify_locations(cadata=ca.read_bytes().decode("ascii"))
        answers = set()
        for client in (flower, None):
            try:
                answers.add(greet(folder, ca, "coordinator.example", client) == "TLSv1.3")
            except ssl.SSLCertVerificationError:
                answers.add(False)
        [answer] = answers
        return answer

    return {name: reaches(ca) for name, ca in files.items()}


def test_a_new_authority_takes_the_old_ones_place_without_leaving_out_a_hospital(
    cli: Cli, coordinator: Path, tmp_path: Path
) -> None:
    def taken(name: str) -> Path:
        return Path(shutil.copy(coordinator / "ca.crt", tmp_path / name))

    assert_refused(cli("coordinator", "authority", "drop", coordinator), "holds one authority only")
    files = {"old": taken("old")}
    made = json.loads(cli("coordinator", "authority", "new", coordinator, "--json").out)
    assert stat.S_IMODE((coordinator / "ca-new.key").stat().st_mode) == 0o600 and made["old"] != made["new"]
    assert_refused(cli("coordinator", "authority", "new", coordinator), "holds two authorities")
    files["both"] = taken("both")
    assert reached(coordinator, files) == {"old": True, "both": True}
    assert_refused(cli("coordinator", "authority", "drop", coordinator), "run `polyclinic coordinator renew` first")

    def renewed_by(*options: object) -> object:
        return json.loads(cli("coordinator", "renew", coordinator, *options, "--json").out)["authority"]

    assert renewed_by() == made["new"]
    assert reached(coordinator, files) == {"old": False, "both": True}
    assert renewed_by("--ca-key", coordinator / "ca.key") == made["old"]
    assert reached(coordinator, files) == {"old": True, "both": True}
    assert renewed_by() == made["new"]
    assert json.loads(cli("coordinator", "authority", "drop", coordinator, "--json").out)["authority"] == made["new"]
    files["new"] = taken("new")
    assert reached(coordinator, files) == {"old": False, "both": True, "new": True}
    assert not (coordinator / "ca-new.key").exists() and renewed_by() == made["new"]
    assert cli("coordinator", "start", coordinator, "--dry-run").code == 0
    shutil.copy(files["old"], coordinator / "ca.crt")
    assert_refused(cli("coordinator", "start", coordinator, "--dry-run"), "No authority of")


@pytest.mark.parametrize("step", [("authority", "new"), ("authority", "drop")])
def test_a_rotation_that_breaks_off_between_two_files_is_done_again(
    cli: Cli, coordinator: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, ...]
) -> None:
    if step == ("authority", "drop"):
        assert cli("coordinator", "authority", "new", coordinator).code == cli("coordinator", "renew", coordinator).code
    before, rename = (coordinator / "ca.crt").read_bytes(), Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == "ca.crt":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", full)
        assert cli("coordinator", *step, coordinator).code == 1
    assert (coordinator / "ca.crt").read_bytes() == before
    for command in (("renew",), step, ("renew",)):
        assert cli("coordinator", *command, coordinator).code == 0
        assert cli("coordinator", "start", coordinator, "--dry-run").code == 0
        assert greet(coordinator, coordinator / "ca.crt", "coordinator.example")


def test_an_expired_old_authority_beside_one_that_holds_is_no_failure(
    cli: Cli, coordinator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next end of the two is what is warned of; a coordinator of the expired one does not start."""
    monkeypatch.setattr(certificates, "_CLOCKS", timedelta(days=10))
    ca, key = coordinator / "ca.crt", coordinator / "ca.key"

    def first(days: int) -> None:
        pair = make_authority("coordinator.example", days)
        ca.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    first(days=5)
    assert (
        cli("coordinator", "renew", coordinator).code == cli("coordinator", "authority", "new", coordinator).code == 0
    )
    [sentence] = expiry_warnings([ca])
    assert "ends in 5 days" in sentence and "`polyclinic coordinator authority new`" in sentence
    new = ca.read_bytes().split(b"-----END CERTIFICATE-----\n")[1] + b"-----END CERTIFICATE-----\n"
    first(days=-1)
    assert cli("coordinator", "renew", coordinator).code == 0
    ca.write_bytes(ca.read_bytes() + new)
    assert expiry_warnings([ca]) == [] and check_authority(ca)
    assert_refused(cli("coordinator", "start", coordinator, "--dry-run"), "a new authority must take its place")
    assert cli("coordinator", "renew", coordinator).code == 0
    assert cli("coordinator", "start", coordinator, "--dry-run").code == 0
    assert greet(coordinator, ca, "coordinator.example")


def assert_refused(done: Done, words: str) -> None:
    assert done.code == 2 and words in done.error, done
    assert done.error.count("\n") == 0 and done.error.endswith(".")


def test_init_refuses_a_second_time_and_with_if_missing_changes_nothing(cli: Cli, coordinator: Path) -> None:
    before = {name: (coordinator / name).read_bytes() for name in tree(coordinator) if (coordinator / name).is_file()}
    assert_refused(cli("coordinator", "init", coordinator, *HOSTS), "is there already")
    done = cli("coordinator", "init", coordinator, *HOSTS, "--if-missing", "--json")
    assert json.loads(done.out)["made"] is False
    assert {name: (coordinator / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "options, words",
    [
        (("--host", "bad_host!"), "neither a host's name nor an IP address"),
        (("--host", "1.2.3.256"), "neither"),
        (("--host", "a.example", "--listen", "coordinator.example"), "'listen'"),
        (("--host", "a.example", "--control-from", "10.0.0.1/8"), "'control-from"),
    ],
)
def test_a_bad_address_is_refused_and_nothing_is_written(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert_refused(cli("coordinator", "init", tmp_path / "new" / "co", *options), words)
    assert tree(tmp_path) == []


def test_a_failure_half_way_leaves_what_was_there_and_no_more(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "co").mkdir()
    (tmp_path / "co" / "state").write_text("a file where a folder must be")
    done = cli("coordinator", "init", tmp_path / "co", *HOSTS)
    assert done.code == 1 and "cannot be written" in done.error
    assert tree(tmp_path) == ["co", "co/state"]


def test_files_are_never_written_over_even_through_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="there already"):
        write_new(tmp_path, {"a": NewFile("1"), "key": NewFile("2")})
    assert tree(tmp_path) == ["key"]


@pytest.fixture
def expired(coordinator: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The coordinator's folder with a server's certificate that ended yesterday."""
    monkeypatch.setattr(certificates, "_CLOCKS", timedelta(days=10))
    Coordinator.read(coordinator).renew(days=-1)
    return coordinator


def test_a_coordinator_does_not_start_with_an_expired_certificate(cli: Cli, expired: Path) -> None:
    done = cli("coordinator", "start", expired)
    assert_refused(done, "server.crt expired on ")
    assert "`polyclinic coordinator renew` makes a new one" in done.error
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        greet(expired, expired / "ca.crt", "localhost")
    said = certificate_problem(refused.value)
    assert "certificate has expired" in said and "`polyclinic coordinator renew`" in said and "clock" in said
    assert cli("coordinator", "renew", expired).code == 0
    assert cli("coordinator", "start", expired, "--dry-run").code == 0


def test_a_hospital_is_told_whose_authority_is_wrong(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    cli("coordinator", "init", tmp_path / "other", *HOSTS)
    for ca, host, words in (
        (tmp_path / "other" / "ca.crt", "localhost", "ask the coordinator's operator for its ca.crt"),
        (coordinator / "ca.crt", "elsewhere.example", "adds that name to `hosts` of coordinator.toml"),
        (coordinator / "ca.crt", "10.9.9.9", "adds that name to `hosts` of coordinator.toml"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            greet(coordinator, ca, host)
        assert words in certificate_problem(refused.value)


def test_a_check_before_the_first_start_says_so(cli: Cli, coordinator: Path) -> None:
    done = cli("coordinator", "check", coordinator, "--json")
    what = {check["name"]: check["what"] for check in json.loads(done.out)["checks"]}
    assert done.code == 1 and what["database"].startswith("the coordinator was never started here")


@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
def test_a_coordinator_does_not_start_with_damaged_files(cli: Cli, coordinator: Path, name: str) -> None:
    (coordinator / name).write_bytes((coordinator / name).read_bytes()[:150])
    assert_refused(cli("coordinator", "start", coordinator), str(coordinator / name))


def test_a_certificate_near_its_end_is_warned_of(cli: Cli, coordinator: Path) -> None:
    read = Coordinator.read(coordinator)
    assert expiry_warnings(read.certificates) == []
    read.renew(days=20)
    [sentence] = expiry_warnings(read.certificates)
    assert sentence.startswith(f"The certificate {coordinator / 'server.crt'} ends in 20 days, on ")
    assert sentence.endswith("; `polyclinic coordinator renew` makes a new one.")
    said: list[str] = []
    warn_daily(read.certificates, said.append)
    wait_for(lambda: said == [sentence])
    assert read.settings["POLYCLINIC_CERTIFICATES"].split(":") == [str(path) for path in read.certificates]


def test_start_gives_flower_arguments_that_it_knows_and_no_way_without_tls(cli: Cli, coordinator: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    told = json.loads(cli("coordinator", "start", coordinator, "--dry-run", "--json").out)
    arguments = _parse_args_run_superlink().parse_args(told["command"][4:])
    assert arguments.enable_supernode_auth and not arguments.insecure and not arguments.runtime_dependency_install
    assert (arguments.host, arguments.port, arguments.isolation) == ("127.0.0.1", 18000, "subprocess")
    assert Path(arguments.database).parent == coordinator / "state"
    assert told["environment"]["FORWARDED_ALLOW_IPS"] == ""
    (coordinator / "server.key").unlink()
    assert_refused(cli("coordinator", "start", coordinator, "--dry-run"), "lacks server.key")
    assert_refused(cli("coordinator", "start", coordinator.parent / "none", "--dry-run"), "no coordinator.toml")


def test_start_closes_the_database_to_others_and_leaves_reports_as_they_are(
    cli: Cli, coordinator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a folder that was open; what SQLite puts beside its database has the database's mode."""
    state, report, before = coordinator / "state", coordinator / "runs" / "report.html", os.umask(0o022)
    monkeypatch.setattr("polyclinic.cli.nodes.deploying.start_or_show", lambda *given: None)
    try:
        report.parent.mkdir()
        report.touch()
        state.chmod(0o755)
        assert cli("coordinator", "start", coordinator).code == 0
        with closing(sqlite3.connect(state / "superlink.db")) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE nodes (name TEXT)")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (state, report, *state.iterdir())}
    finally:
        os.umask(before)
    private = dict.fromkeys(["README", "superlink.db", "superlink.db-shm", "superlink.db-wal"], 0o600)
    assert modes == {"state": 0o700, "report.html": 0o644, **private}


def test_keys_that_are_no_nodes_are_refused_before_anything_is_asked(
    cli: Cli, coordinator: Path, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    def register(text: bytes) -> Done:
        (tmp_path / "key.pub").write_bytes(text)
        return cli("coordinator", "register", coordinator, tmp_path / "key.pub", "--name", "north")

    ssh = (Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert_refused(register((coordinator / "ca.key").read_bytes()), "is a private key")
    assert_refused(register(b"hello"), "not a public key")
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())):
        assert_refused(register(key.public_key().public_bytes(*ssh)), "P-384")
    done = cli("coordinator", "nodes", coordinator)
    assert done.code == 1 and "cannot be reached: nothing answers" in done.error


def test_a_key_that_is_registered_already_is_refused_with_its_name(tmp_path: Path) -> None:
    """Flower itself does not say which node has it."""
    (tmp_path / "node.pub").write_text(make_node_key("north").public)
    public = read_public_key(tmp_path / "node.pub")
    asked: list[object] = []

    def client(**more: str) -> SimpleNamespace:
        node = NodeInfo(node_id=5, name="north", public_key=public, registered_at="2026", **more)
        listed = ListNodesResponse(nodes_info=[node])
        return SimpleNamespace(ListNodes=lambda request: listed, RegisterNode=asked.append)

    for name in ("north", "south"):
        with pytest.raises(ConfigError, match="^This key is registered already, under the name 'north';"):
            register(client(), tmp_path / "node.pub", name)
    with pytest.raises(ConfigError, match="under the name 'north' and revoked.*hospital rekey"):
        register(client(unregistered_at="2027"), tmp_path / "node.pub", "north")
    assert asked == []


@pytest.mark.parametrize(
    "text, found", [("a.example:1", ("a.example", 1)), ("[::1]:8000", ("::1", 8000)), ("10.0.0.1:65535", ("10.0.0.1", 65535))]
)  # fmt: skip
def test_endpoints(text: str, found: tuple[str, int]) -> None:
    assert endpoint(text) == found


@pytest.mark.parametrize(
    "text", ["a.example", "a:0", "a:65536", "::1:8000", "[a]:80", "https://a:80", "a:-1", ":80", "a:８0"]
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ConfigError):
        endpoint(text)


@pytest.mark.parametrize("host", ["", "a..b", "-a.example", "a" * 64, "*.example", "a b", "1.2.3", "example."])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError):
        check_host(host)


def test_a_missing_authority_is_a_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="cannot be read"), control("localhost:1", tmp_path / "none"):
        pass


def test_a_run_is_resumed_by_its_folder_its_name_or_as_the_latest(tmp_path: Path) -> None:
    runs, run = tmp_path / "runs", tmp_path / "runs" / "20261122-101500-1a2b3c"
    with pytest.raises(ConfigError, match="No run has begun in .*runs; name the folder"):
        run_to_resume(runs, Path("latest"))
    run.mkdir(parents=True)
    (runs / "latest.txt").write_text(str(run))
    assert {run_to_resume(runs, named) for named in (run, Path(run.name), Path("latest"))} == {run}


def test_a_coordinators_serverapps_take_no_simulated_hospital(coordinator: Path) -> None:
    """At a SuperLink that Flower made by itself a simulation may run; ``enrol`` has what becomes of a hospital that says so."""
    assert simulates({}) and not simulates(Coordinator.read(coordinator).settings)


def test_a_run_is_submitted_by_a_file_over_which_keys_rank(cli: Cli, coordinator: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rounds = 0\n[privacy]\nepsilon = 2.0\n")
    done = cli("coordinator", "submit", coordinator, tmp_path / "run.toml")
    assert done.code == 2 and "Configuration key 'rounds' has the value 0" in done.error
    done = cli(
        "coordinator", "submit", coordinator, tmp_path / "run.toml", "-c", "rounds=2", "-c", "privacy.epsilon=-1"
    )
    assert done.code == 2 and "Configuration key 'privacy.epsilon' has the value -1" in done.error
    assert cli("coordinator", "submit", coordinator, tmp_path / "none.toml").code == 2
