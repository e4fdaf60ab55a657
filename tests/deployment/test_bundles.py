"""Which bundles a node runs: judged by Flower's own step that fetches them, before anything of them is stored."""

import hashlib
import io
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import tomli_w
from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as node
from flwr.supernode.nodestate import NodeState, NodeStateFactory

import polyclinic
from polyclinic.config import RunConfig
from polyclinic.deployment.bundles import own_bundle, refusal
from polyclinic.deployment.flower.supernode import _allowed_runs, _check_bundles, _verdict

APP, VERSION, INSTALLED = "polyclinic/polyclinic", polyclinic.__version__, ("installed",)


def built(files: dict[str, bytes], **project: str) -> bytes:
    told = tomllib.loads(own_bundle())
    told["project"] |= project
    return build_fab_from_files({"pyproject.toml": tomli_w.dumps(told).encode(), **files})[0]


OWN = built({})
WITH_CODE = built({"polyclinic/client_app.py": b"app = None\n"})


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def judged(content: bytes, allowed: Collection[str], claimed: str = "", app: str = APP, version: str = VERSION) -> str:
    return refusal(content, (sha(content), claimed or sha(content)), app, version, allowed)


def zipped(*entries: tuple[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(sink, "w") as bundle:
        for name, content in entries:
            bundle.writestr(name, content)
    return sink.getvalue()


def test_the_own_bundle_is_one_that_flower_builds_with_every_key_and_without_code() -> None:
    with zipfile.ZipFile(io.BytesIO(OWN)) as bundle:
        assert sorted(bundle.namelist()) == [".info/CONTENT", "pyproject.toml"]
    assert tomllib.loads(own_bundle())["tool"]["flwr"]["app"]["config"] == RunConfig.app_config()


def test_what_is_allowed_runs() -> None:
    assert judged(OWN, INSTALLED) == judged(WITH_CODE, [sha(WITH_CODE)]) == judged(b"anything", ()) == ""
    assert judged(WITH_CODE, (*INSTALLED, sha(WITH_CODE))) == ""


@pytest.mark.parametrize(
    "content",
    [
        WITH_CODE,
        zipped(("pyproject.toml", own_bundle().encode()), (".info/CONTENT", b""), ("../x.py", b"")),
        zipped(
            ("pyproject.toml", own_bundle().encode()), ("pyproject.toml", own_bundle().encode()), (".info/CONTENT", b"")
        ),
        zipped(
            ("pyproject.toml", own_bundle().replace("client_app:app", "other:app").encode()), (".info/CONTENT", b"")
        ),
        zipped(("pyproject.toml", b"x = ["), (".info/CONTENT", b"")),
        zipped(
            ("pyproject.toml", own_bundle().replace("[tool.flwr.app.components]", "[x]").encode()),
            (".info/CONTENT", b""),
        ),
        zipped(("pyproject.toml", f"{own_bundle()}# {' ' * 2_000_000}".encode()), (".info/CONTENT", b"")),
        OWN[:-40] + bytes(20) + OWN[-20:],
        OWN[:200] + bytes(100) + OWN[300:],
        b"no zip at all",
        b"",
    ],
    ids=[
        "code",
        "traversal",
        "twice",
        "another app",
        "no TOML",
        "no components",
        "huge",
        "torn end",
        "torn middle",
        "no zip",
        "empty",
    ],
)
def test_a_bundle_that_could_bring_code_is_not_an_installed_one(content: bytes) -> None:
    assert judged(content, INSTALLED) and judged(content, ["0" * 64])


def test_a_coordinator_cannot_point_flower_at_another_folder() -> None:
    assert "claims" in judged(OWN, INSTALLED, claimed=sha(WITH_CODE))
    for app, version in (("../../tmp", VERSION), ("other/polyclinic", VERSION), (APP, "../1")):
        assert "its bundle is not" in judged(OWN, INSTALLED, app=app, version=version)
        assert "its bundle is not" in judged(WITH_CODE, [sha(WITH_CODE)], app=app, version=version)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message needs to be made here, and what our node puts into Flower's module, only while a test runs."""
    monkeypatch.setattr(node, "_verify_fab", _verdict(node._verify_fab))
    monkeypatch.setattr(node, "FAB_VERIFICATION_ERROR", node.FAB_VERIFICATION_ERROR)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 5)


def pull(content: bytes, told: bytes, allowed: Callable[[], Collection[str]]) -> tuple[int, NodeState]:
    """What the real step of the SuperNode returns for a message of a run with this bundle, and its real state after it."""
    objects = ObjectStoreFactory()
    state, store = NodeStateFactory(objectstore_factory=objects).state(), objects.store()
    state.set_node_id(7)
    message = Message(RecordDict(), 7, "query.enrol")
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = get_all_nested_objects(message)
    run = Run.create_empty(5)
    run.fab_id, run.fab_version, run.fab_hash = APP, VERSION, sha(told)
    pulled = _check_bundles(node._pull_and_store_message, allowed)(
        state=state, object_store=store, node_config={}, receive=lambda: (message, get_object_tree(message)),
        get_run=lambda run_id: run, get_fab=lambda claimed, run_id: Fab(sha(content), content, {}),
        pull_object=lambda run_id, object_id: parts[object_id].deflate(), confirm_message_received=lambda run_id, object_id: None,
        trusted_entities=None,
    )  # fmt: skip
    return pulled, state


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "content, told, allowed, runs",
    [
        (OWN, OWN, INSTALLED, True),
        (WITH_CODE, WITH_CODE, INSTALLED, False),
        (OWN, WITH_CODE, INSTALLED, False),
        (WITH_CODE, WITH_CODE, (sha(WITH_CODE),), True),
        (WITH_CODE, WITH_CODE, (), True),
    ],
    ids=["own", "code", "said to be another", "by hash", "all"],
)
def test_flower_s_node_stores_a_bundle_only_when_it_may_run(
    content: bytes, told: bytes, allowed: tuple[str, ...], runs: bool
) -> None:
    """What is refused is answered with Flower's error."""
    pulled, state = pull(content, told, lambda: allowed)
    assert pulled == 5
    assert (state.get_fab(sha(content)) is not None) == runs == (state.get_run(5) is not None)
    replies = state.get_messages_legacy(is_reply=True)
    assert [reply.error.code for reply in replies] == ([] if runs else [ErrorCode.INVALID_FAB])


@pytest.mark.usefixtures("restored")
def test_a_settings_file_that_cannot_be_used_is_named_as_the_cause_and_its_words_stay_at_the_hospital(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from .conftest import records

    records(tmp_path)
    described = tmp_path / "hospital.toml"
    described.write_text(f'{described.read_text()}\nbudgett = "x"\n')
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", str(described))
    _, state = pull(OWN, OWN, _allowed_runs)
    [reply] = state.get_messages_legacy(is_reply=True)
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert reply.error.reason == "the hospital's settings file cannot be used; its own log says why"
    assert f"{described}: key 'policy.budgett': there is no such key" in caplog.text
    assert "is not among the policy's allowed-runs" not in caplog.text
    described.write_text(described.read_text().replace('budgett = "x"', 'allowed-runs = ["installed"]'))
    _, state = pull(WITH_CODE, WITH_CODE, _allowed_runs)
    [reply] = state.get_messages_legacy(is_reply=True)
    assert reply.error.reason == "The FAB could not be verified."


def test_signers_still_decide_where_they_are_trusted() -> None:
    """With trusted signers both must agree; a bundle that nobody signed does not run, whatever allowed-runs says."""
    asked: list[set[str]] = []

    def pull(*, get_run: object, get_fab: object, trusted_entities: dict[str, str]) -> None:
        asked.append(set(trusted_entities))
        get_run(5)  # type: ignore[operator]
        fab = get_fab(sha(OWN), 5)  # type: ignore[operator]
        assert "valid_license" not in fab.verifications
        signed = Fab(fab.hash_str, fab.content, fab.verifications)
        asked.append({str(_verdict(lambda fab, trusted: False)(signed, trusted_entities))})
        asked.append({str(_verdict(lambda fab, trusted: True)(signed, trusted_entities))})

    run = Run.create_empty(5)
    run.fab_id, run.fab_version, run.fab_hash = APP, VERSION, sha(OWN)
    _check_bundles(pull, lambda: INSTALLED)(
        get_run=lambda _: run,
        get_fab=lambda claimed, _: Fab(claimed, OWN, {}),
        trusted_entities={"fpk_1": "ssh-ed25519 A"},
    )
    assert asked == [{"fpk_1"}, {"False"}, {"True"}]


def test_a_policy_with_allowed_runs_is_kept_only_by_a_node_that_checks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyclinic.client.home.hospital import _real_hospital
    from polyclinic.errors import ConfigError

    from .conftest import records

    records(tmp_path)
    described = tmp_path / "hospital.toml"
    described.write_text(f'{described.read_text()}\nallowed-runs = ["installed"]\n')
    monkeypatch.delenv("POLYCLINIC_HOSPITAL", raising=False)
    with pytest.raises(ConfigError, match="allowed-runs"):
        _real_hospital(described)
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", str(described))
    assert _real_hospital(described).policy.allowed_runs == INSTALLED


def test_a_hospitals_own_command_runs_the_installed_code_and_a_message_cannot_say_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyclinic.asking import ask, real, real_grid
    from polyclinic.errors import PolyclinicError
    from polyclinic.releases.statistics import Statistic
    from polyclinic.server.phases.enrolment import enrol, enrol_request
    from polyclinic.sim.calls import AppReference
    from polyclinic.sim.grid import LocalGrid

    from .conftest import records

    records(tmp_path)
    described = tmp_path / "hospital.toml"
    text = described.read_text() + '\nallowed-tasks = ["query"]\n'
    described.write_text(f'{text}allowed-runs = ["installed"]\n')
    monkeypatch.delenv("POLYCLINIC_HOSPITAL", raising=False)
    question = Statistic("count", epsilon=0.5)
    assert list(ask(real(described), question)["sites"])
    config, node = RunConfig().flat(), {"hospital": str(described)}
    request = enrol_request("own-command", "", trains=False)
    for claim in ({}, {"typed-here": True, "_typed_here": True}):
        # As any node that `hospital start` did not start, whatever its configuration claims, also after an own command.
        strange = LocalGrid(AppReference("polyclinic.client_app"), 1, config, node_config={**node, **claim})
        with pytest.raises(PolyclinicError, match="which only a node started by"):
            enrol(strange, request, 1, 1.0)
    assert enrol(real_grid(described), request, 1, 1.0)[0]
    described.write_text(f'{text}allowed-runs = ["{sha(OWN)}"]\n')
    with pytest.raises(PolyclinicError, match="a command typed at the hospital needs 'installed' among them"):
        ask(real(described), question)
