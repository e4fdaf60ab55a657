"""A coordinator and hospitals for real, as docs/deploy/README.md tells them: TLS, keys, a run, a crash, who is refused.

The page's shell lines are what makes this federation; hosts and ports alone are replaced.
"""

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyclinic.deployment.bundles import own_bundle
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger
from tests.chaos.place import other_clock

from .conftest import ROOT, Cli, records
from .federation import STRUCTURED, Federation, free_ports, page, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.slow]
# Without statistics a run of one round has three messages for each hospital, each a process that imports torch.
QUICK = [
    part
    for key in ("rounds=1", "training.local-steps=2", "privacy.patients-per-site=150", "timeout=300.0")
    for part in ("-c", key)
]
KEYS = [
    *(
        part
        for key in ("sites=2", "participation.min-sites=2", "privacy.epsilon=2.0", "privacy.delta=1e-3")
        for part in ("-c", key)
    ),
    *QUICK,
]


@pytest.fixture(scope="module")
def federation(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator and two hospitals that are registered and online, made by the page's steps."""
    folder = tmp_path_factory.mktemp("federation")
    made = Federation(folder, free_ports(3), cli)
    for name in ("north", "south"):
        data, schema = records(folder / f"records-{name}")
        shutil.copy(data, folder / f"{name}.csv")
        shutil.copy(schema, folder / "schema.toml")
    try:
        made.follow(2, 3)
        made.follow(4)
        wait_for(made.serving)
        made.follow(5, 6)
        wait_for(lambda: {made.status(name) for name in ("north", "south")} == {"online"})
        yield made
    finally:
        made.stop()


def ends(process: subprocess.Popen[bytes]) -> int:
    wait_for(lambda: process.poll() is not None)
    return int(process.returncode)


def test_a_run_goes_to_its_end_and_each_ledger_has_its_charge(federation: Federation) -> None:
    [submitted] = federation.follow(8, also=QUICK)
    assert submitted["status"] == "finished:completed"
    [nodes], [listed, checked, told, journal] = federation.follow(7), federation.follow(9)
    assert checked["ok"] and {check["name"] for check in checked["checks"]} >= {"registered", "connected", "clock"}
    assert [node["name"] for node in nodes] == ["north", "south"] and listed[-1]["run"] == submitted["run"]
    assert told["ledger"]["charges"] == 1 and told["ledger"]["last"][0]["purpose"] == "train"
    events = [entry["event"] for entry in journal["entries"]]
    assert journal["intact"] and events == ["asked", "answered"] * (len(events) // 2) and len(events) >= 4
    result = RunResult.read((federation.co / "runs" / "latest.txt").read_text())
    assert list(result.sites.index) == ["north", "south"] and not result.summary["dropouts"]
    for name in ("north", "south"):
        ledger = Ledger.read(federation.folder / name / "home" / "ledger.sqlite")
        assert [event["purpose"] for event in ledger.events()] == ["train"]
        assert result.sites.loc[name, "epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02)
        told = federation.call("hospital", "status", federation.folder / name)
        assert told["coordinator"]["reachable"] and told["ledger"]["epsilon"] == pytest.approx(ledger.epsilon())
        # The coordinator sent no code: the hospital's own Polyclinic trained.
        apps = federation.folder / name / "flwr" / "apps"
        assert {path.name for path in apps.rglob("*") if path.is_file()} == {"pyproject.toml"}


def test_a_coordinators_own_code_does_not_run_at_hospitals(federation: Federation, tmp_path: Path) -> None:
    app, mark = tmp_path / "foreign", tmp_path / "it ran"
    app.mkdir()
    described = own_bundle().replace("polyclinic.client_app:app", "foreign:app")
    (app / "pyproject.toml").write_text(described)
    (app / "foreign.py").write_text(
        f"from pathlib import Path\nfrom flwr.clientapp import ClientApp\nPath({str(mark)!r}).touch()\napp = ClientApp()\n"
    )
    spent = [federation.call("hospital", "status", federation.folder / name)["ledger"] for name in ("north", "south")]
    done = federation.run("coordinator", "submit", federation.co, *KEYS, "--stream", "--app", app)
    assert done.code == 1 and "ended as finished:failed" in done.error
    assert not mark.exists()
    for name, before in zip(("north", "south"), spent, strict=True):
        assert "is not among the policy's allowed-runs" in federation.log(name)
        assert federation.call("hospital", "status", federation.folder / name)["ledger"] == before


def test_a_hospital_whose_schema_cannot_be_read_is_called_by_the_name_of_its_registration(
    federation: Federation,
) -> None:
    schema = federation.folder / "south" / "schema.toml"
    away = schema.rename(schema.with_suffix(".away"))
    try:
        done = federation.run("coordinator", "submit", federation.co, *KEYS, "--stream")
    finally:
        away.rename(schema)
    [node] = [
        node["node"] for node in federation.call("coordinator", "nodes", federation.co) if node["name"] == "south"
    ]
    said = f"south (node {node}): the hospital's schema cannot be used"
    assert done.code == 1 and said in federation.log("coordinator") + done.out + done.error


def test_a_killed_client_is_answered_for_at_once(federation: Federation) -> None:
    submitted = federation.call("coordinator", "submit", federation.co, *KEYS)

    def status() -> str:
        runs = federation.call("coordinator", "runs", federation.co)
        return str(next(run["status"] for run in runs if run["run"] == submitted["run"]))

    os.kill(wait_for(lambda: client(federation.processes["north"].pid)), signal.SIGKILL)
    wait_for(lambda: status().startswith("finished"), 50.0)  # by its heartbeat alone it would be missed after a minute
    # Without this hospital the run fails, unless it was killed at the first question, which is asked twice.
    assert status() in ("finished:failed", "finished:completed")
    assert "was killed by signal 9" in federation.log("north")


def test_a_killed_superlink_knows_its_nodes_and_runs_again(federation: Federation) -> None:
    def known() -> tuple[Any, Any]:
        nodes = federation.call("coordinator", "nodes", federation.co)
        return [(node["name"], node["node"]) for node in nodes], federation.call("coordinator", "runs", federation.co)

    before, returned = known(), [federation.returns(name) for name in ("north", "south")]
    assert len(before[0]) >= 2
    federation.processes["coordinator"].kill()
    federation.processes["coordinator"].wait()
    wait_for(lambda: not federation.call("hospital", "status", federation.folder / "north")["coordinator"]["reachable"])
    refused = federation.run("coordinator", "nodes", federation.co)
    assert refused.code == 1 and "nothing answers there" in refused.error
    federation.start("coordinator", "coordinator")
    wait_for(federation.serving)
    assert known() == before
    # Its nodes, which were never told, find it again and go on.
    wait_for(lambda: federation.returns("north") > returned[0] and federation.returns("south") > returned[1])
    assert {federation.status(name) for name in ("north", "south")} == {"online"}


def test_an_unknown_key_and_a_revoked_one_are_refused(federation: Federation) -> None:
    federation.hospital("west", free_ports(1)[0])

    def registered() -> str:
        checks = json.loads(federation.run("hospital", "check", federation.folder / "west").out)["checks"]
        return next(f"{check['state']}: {check['what']}" for check in checks if check["name"] == "registered")

    assert registered().startswith("failed: this hospital's key is not registered at the coordinator: send node.pub")
    assert ends(federation.start("hospital", "west")) == 1
    assert "this hospital's key is not registered at the coordinator: send node.pub to its operator" in federation.log(
        "west"
    )
    federation.register("west")
    assert registered() == "ok: the coordinator knows this hospital's key"
    assert federation.status("west") == "registered"  # to ask changes nothing
    checks = json.loads(federation.run("coordinator", "check", federation.co).out)["checks"]
    assert {check["name"]: check["state"] for check in checks}["database"] == "ok"
    assert "west is registered" in next(check["what"] for check in checks if check["name"] == "nodes")
    node = federation.start("hospital", "west")
    wait_for(lambda: federation.status("west") == "online")
    # Once the coordinator has answered a heartbeat, which comes after the node is online.
    wait_for(lambda: federation.run("hospital", "check", federation.folder / "west").code == 0, 90)
    federation.call("coordinator", "revoke", federation.co, "west")
    assert registered().startswith("failed: the registration of this hospital's key was revoked")
    assert ends(node) == 1  # the node itself learns of it from the next answer
    assert federation.status("west") == "unregistered"
    assert ends(federation.start("hospital", "west")) == 1
    assert federation.log("west").count("the registration of this hospital's key was revoked at the coordinator") == 2
    assert "Traceback" not in federation.log("west") and "terminated gracefully." not in said_by_node(
        federation, "west"
    )
    again = federation.run("coordinator", "revoke", federation.co, "west")
    assert again.code == 2 and "No node is named 'west'" in again.error


def test_plain_text_and_another_authority_are_refused(federation: Federation, tmp_path: Path) -> None:
    """Neither side speaks to one whom the authority does not vouch for, and nobody without TLS gets a word."""
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{federation.ports[0]}/health", timeout=5.0)
    federation.call("coordinator", "init", tmp_path / "impostor", "--host", "localhost")
    ca = tmp_path / "impostor" / "ca.crt"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://localhost:{federation.ports[0]}/health", verify=str(ca), timeout=5.0)
    federation.hospital("east", free_ports(1)[0], ca)
    assert ends(federation.start("hospital", "east")) == 1
    assert "so ask the coordinator's operator for its ca.crt" in federation.log("east")
    assert "Traceback" not in federation.log("east")
    told = federation.call("hospital", "status", federation.folder / "east")["coordinator"]
    assert not told["reachable"] and "certificate does not hold" in told["problem"]
    assert all(node["name"] != "east" for node in federation.call("coordinator", "nodes", federation.co))


@pytest.mark.parametrize("seconds", [300, -400])
def test_a_node_with_a_wrong_clock_ends_with_the_reason_and_not_as_if_it_was_asked_to(
    federation: Federation, seconds: int
) -> None:
    library = other_clock()
    if library is None:
        pytest.skip("there is no C compiler to make another clock")
    name, offset = f"clock{seconds}", federation.folder / f"{seconds}.offset"
    offset.write_text(str(seconds))
    federation.hospital(name, free_ports(1)[0])
    federation.register(name)
    moved = {"LD_PRELOAD": library, "CLOCK_OFFSET_FILE": str(offset), "POLYCLINIC_LOG_FORMAT": "json"}
    assert ends(federation.start("hospital", name, moved)) == 1
    where = "ahead of" if seconds > 0 else "behind"
    lines = [json.loads(line) for line in federation.log(name).splitlines()]
    [said] = [line for line in lines if "machine's clock" in line["message"]]
    assert said["level"] == "error" and f"seconds {where} the coordinator's" in said["message"]
    assert f"The node '{name}' is refused: its clock is about" in federation.log("coordinator")
    # With the right time it is back.
    offset.write_text("0")
    federation.start("hospital", name, moved)
    wait_for(lambda: federation.status(name) == "online")
    # Moved while it runs, it ends with the reason as well.
    offset.write_text(str(seconds))
    assert ends(federation.processes[name]) == 1
    assert federation.log(name).count("this machine's clock is") == 2


def test_a_node_that_counts_as_connected_is_told_to_try_again(federation: Federation) -> None:
    federation.hospital("again", free_ports(1)[0])
    federation.register("again")
    first = federation.start("hospital", "again")
    wait_for(lambda: federation.status("again") == "online")
    first.kill()
    first.wait()
    wait_for(lambda: not any(str(federation.folder / "again" / "flwr") == home for home in homes()))
    assert ends(federation.start("hospital", "again")) == 1
    assert "the coordinator still counts this node as connected" in federation.log("again")
    assert "Traceback" not in federation.log("again")


@pytest.mark.parametrize("killed", ["ServerApp", "SuperLink"])
def test_a_run_whose_coordinator_was_killed_says_how_to_go_on(federation: Federation, killed: str) -> None:
    for name in ("north", "south"):  # whose budget the first run has spent
        policy = federation.folder / name / "hospital.toml"
        policy.write_text(policy.read_text().replace("\nbudget = 2.0\n", "\nbudget = 7.0\n"))
    submit = subprocess.Popen(
        [sys.executable, "-m", "polyclinic", "coordinator", "submit", str(federation.co), *KEYS, "-c", "rounds=2", "--stream"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    before = (federation.co / "runs" / "latest.txt").read_text()

    def begun() -> Path | None:
        newest = Path((federation.co / "runs" / "latest.txt").read_text())
        return newest if str(newest) != before and (newest / "checkpoint.safetensors").is_file() else None

    folder = wait_for(begun)
    if killed == "SuperLink":
        federation.processes["coordinator"].kill()
    else:
        os.kill(wait_for(lambda: server_app(federation)), signal.SIGKILL)
    output, _ = submit.communicate(timeout=120)
    way_on = f"coordinator submit {federation.co} --resume {folder.name}` goes on with run {folder.name}."
    assert submit.returncode == 1 and way_on in output and "Traceback" not in output
    if killed == "SuperLink":
        assert "cannot be reached: nothing answers there" in output
        returned = [federation.returns(name) for name in ("north", "south")]
        own = federation.co / "coordinator.toml"
        own.write_text(own.read_text().replace("at-once = 0", "at-once = 1"))
        federation.start("coordinator", "coordinator")
        wait_for(federation.serving)
        wait_for(lambda: federation.returns("north") > returned[0] and federation.returns("south") > returned[1])
    else:
        assert "The process that carried out run" in output
    listed = federation.call("coordinator", "runs", federation.co)[-1]
    assert listed["folder"] == folder.name
    # Nothing says how to go on as long as the process that carried out the run has not ended.
    wait_for(lambda: way_on in federation.cli("coordinator", "runs", federation.co).out)
    shown = federation.cli("coordinator", "runs", federation.co).out
    assert folder.name in shown and "completed" in shown
    wait_for(lambda: federation.call("coordinator", "runs", federation.co)[-1]["status"] == "finished:failed", 120)
    resumed = federation.call("coordinator", "submit", federation.co, "--resume", folder.name, "--stream")
    assert resumed["status"] == "finished:completed"
    again = {run["run"]: run["folder"] for run in federation.call("coordinator", "runs", federation.co)}
    assert again[listed["run"]] == again[resumed["run"]] == folder.name
    assert way_on not in federation.cli("coordinator", "runs", federation.co).out
    if killed == "SuperLink":
        stops_and_queues(federation)


def test_a_run_that_a_hospital_ends_is_stopped_and_who_follows_it_no_longer_is_told_how_to_end_it(
    federation: Federation,
) -> None:
    for name in ("north", "south"):
        policy = federation.folder / name / "hospital.toml"
        policy.write_text(re.sub(r"\nbudget = [0-9.]+\n", "\nbudget = 20.0\n", policy.read_text()))
    before = {run["run"] for run in federation.call("coordinator", "runs", federation.co)}
    submit = subprocess.Popen(
        [sys.executable, "-m", "polyclinic", "coordinator", "submit", str(federation.co), *KEYS, "-c", "rounds=60", "--stream"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def listed() -> dict[str, Any]:
        every = federation.call("coordinator", "runs", federation.co)
        return next((run for run in every if run["run"] not in before), {})

    wait_for(lambda: (listed().get("done") or 0) >= 1)
    submit.send_signal(signal.SIGINT)
    output, _ = submit.communicate(timeout=60)
    number, name = listed()["run"], listed()["folder"]
    way = f"Run {number} is no longer followed, and goes on at the coordinator; "
    assert (
        submit.returncode == 130
        and way in output
        and f"`polyclinic coordinator stop {federation.co} {number}`" in output
    )
    assert listed()["state"] == "running"
    assert (
        federation.call("hospital", "stop", federation.folder / "north", name, "--why", "enough")["state"] == "denied"
    )
    ended = wait_for(lambda: listed()["status"].startswith("finished") and listed())
    summary = json.loads((federation.co / "runs" / name / "summary.json").read_text())
    assert (ended["status"], ended["state"]) == ("finished:completed", "stopped") and ended["done"] == summary["rounds"]
    said = f"The run stopped after round {summary['rounds']} of 60: {summary['stopped']}"
    assert ended["details"].startswith(said) and "the run was denied here: enough" in said
    assert any(said in note for note in summary["notes"])
    shown = federation.cli("coordinator", "runs", federation.co).out
    assert "submit it anew" in shown and f"--resume {name}" not in shown


def stops_and_queues(federation: Federation) -> None:
    """Of two runs of which one goes at once, the one that waits is taken out of the queue and the other ended."""
    first, second = (
        federation.call("coordinator", "submit", federation.co, *KEYS, "-c", "rounds=60", "-c", "privacy.epsilon=0.1")
        for _ in range(2)
    )

    def listed(run: dict[str, Any]) -> dict[str, Any]:
        every = federation.call("coordinator", "runs", federation.co)
        return next(each for each in every if each["run"] == run["run"])

    wait_for(lambda: (listed(first)["done"] or 0) >= 1)
    assert (listed(second)["state"], listed(second)["place"], listed(second)["rounds"]) == ("queued", 1, 60)
    assert federation.call("coordinator", "stop", federation.co, second["run"])["state"] == "stopped"
    name = listed(first)["folder"]
    stopped = federation.call("coordinator", "stop", federation.co, name)
    assert stopped["state"] == "stopped" and 1 <= stopped["done"] < stopped["rounds"] == 60
    shown = federation.cli("coordinator", "runs", federation.co).out
    assert f"--resume {name}` goes on with run {name}" in shown and "stopped" in shown
    again = federation.run("coordinator", "stop", federation.co, name)
    assert again.code == 2 and "has ended already: stopped" in again.error
    unknown = federation.run("coordinator", "stop", federation.co, "nowhere")
    assert unknown.code == 2 and "knows no run 'nowhere'" in unknown.error
    audit = federation.call("coordinator", "audit", federation.co, "--last", 0)
    done = [(line["call"], line["run"]) for line in audit["entries"] if line["event"] == "done" and "run" in line]
    assert {line["by"] for line in audit["entries"] if line["call"] == "start-run"} == {getpass.getuser()}
    assert listed(first)["submitter"] == getpass.getuser()
    assert audit["intact"] and done[-4:] == [
        ("start-run", first["run"]), ("start-run", second["run"]), ("stop-run", second["run"]), ("stop-run", first["run"]),
    ]  # fmt: skip


def test_a_query_goes_to_all_hospitals_and_each_ledger_has_its_charge(federation: Federation) -> None:
    names, question = (
        ("north", "south"),
        ("query", "mean", "--column", "age", "--where", "age >= 50", "--epsilon", "0.2"),
    )
    refused = federation.run(*question, "--coordinator", federation.co)
    assert refused.code == 1 and "the policy allows classification, statistics, not 'query'" in refused.error
    for name in names:
        own = federation.folder / name / "hospital.toml"
        own.write_text(own.read_text().replace('"statistics"', '"statistics", "query"'))
    asked = federation.call(*question, "--coordinator", federation.co)
    assert set(asked["sites"]) == set(names) and not asked["dropouts"] and 20 < asked["value"] < 100
    for name in names:
        events = Ledger.read(federation.folder / name / "home" / "ledger.sqlite").events()
        assert [event["purpose"].partition("-")[0] for event in events].count("query") == 1
    refused = federation.run(*question, "--coordinator", federation.co, "--budget", "1")
    assert refused.code == 2 and "--budget is for a simulation" in refused.error


def test_the_administrators_tutorial_goes_from_a_table_to_an_approved_run(cli: Cli, tmp_path: Path) -> None:
    """Its lines as they stand, but for ports and the length of the run; then a question waits for a person as well."""
    tutorial = Federation(tmp_path, free_ports(3), cli, ROOT / "docs" / "tutorials" / "administrator.md")
    schema, policy = re.findall(r"^```toml\n(.*?)^```", tutorial.page.read_text(), re.S | re.M)
    [table] = re.findall(r"^```python\n(.*?)^```", tutorial.page.read_text(), re.S | re.M)
    subprocess.run([sys.executable, "-c", table], cwd=tmp_path, check=True)
    (tmp_path / "schema.toml").write_text(schema)
    north, asked = tmp_path / "north", []
    try:
        tutorial.follow(1, 2)
        tutorial.follow(3, also=("--port", str(tutorial.ports[1])))
        own = (north / "hospital.toml").read_text()
        for line in policy.splitlines():
            own, changed = re.subn(rf"^{line.partition(' = ')[0]} = .*$", line, own, flags=re.M)
            assert changed == 1, line
        (north / "hospital.toml").write_text(own.replace('"statistics"]', '"statistics", "query"]'))
        wait_for(tutorial.serving)
        register, start, check = (arguments for step, arguments in page(tutorial.page) if step == 4)
        with contextlib.chdir(tmp_path):
            tutorial.call(*register)
        tutorial.start("hospital", start[-1])
        wait_for(lambda: tutorial.run(*check[:2], tmp_path / check[2]).code == 0)

        [(_, submit)] = [line for line in page(tutorial.page) if line[0] == 5]
        submitted = subprocess.Popen(
            [sys.executable, "-m", "polyclinic", *submit, "-c", "rounds=1", "-c", "training.local-steps=2"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        [waiting] = wait_for(lambda: tutorial.call("hospital", "pending", north))
        words = {"RUN": waiting["run"], "DIGITS": waiting["terms"]}
        assert tutorial.call("hospital", "status", north)["ledger"]["charges"] == 0 and submitted.poll() is None
        [held_up] = wait_for(
            lambda: [run for run in tutorial.call("coordinator", "runs", tutorial.co) if run["waiting"]]
        )
        assert held_up["state"] == "waiting" and held_up["waiting"] == ["north"] and held_up["done"] == 0
        tutorial.follow(6, words=words)
        output, _ = submitted.communicate(timeout=240)
        assert (
            submitted.returncode == 0 and "waits for approval at north" in output and "Round 1 of 1: 1 of 1" in output
        )
        [runs, status, journal] = tutorial.follow(7)
        assert (
            runs[-1]["folder"] == waiting["run"]
            and runs[-1]["waiting"] == []
            and 0.5 < status["ledger"]["epsilon"] <= 1.0
        )
        assert {"pending", "answered"} <= {entry["event"] for entry in journal["entries"]} and journal["intact"]
        tutorial.follow(8, 9, words=words)
        assert (tmp_path / "backups" / "north" / "home" / "ledger.sqlite").is_file()

        own = (north / "hospital.toml").read_text()
        (north / "hospital.toml").write_text(
            own.replace("most-epsilon-per-month = 1.0", "most-epsilon-per-month = 2.0")
        )
        question = ("query", "mean", "--column", "age", "--epsilon", "0.1", "--coordinator", tutorial.co)
        charges = tutorial.call("hospital", "status", north)["ledger"]["charges"]
        asking = threading.Thread(target=lambda: asked.append(tutorial.call(*question)))
        asking.start()
        [waiting] = wait_for(lambda: tutorial.call("hospital", "pending", north))
        assert waiting["run"] != words["RUN"] and not asked
        tutorial.call("hospital", "approve", north, waiting["run"], "--terms", waiting["terms"])
        asking.join(timeout=200)
        assert set(asked[0]["sites"]) == {"north"} and not asked[0]["dropouts"]
        assert tutorial.call("hospital", "status", north)["ledger"]["charges"] == charges + 1

        # Then the coordinator lists ada, and the hospital takes her runs alone, without further approval.
        key = tutorial.call("coordinator", "submitter", "new", "ada", "--out", tmp_path / "ada.key")["key"]
        tutorial.call("coordinator", "submitter", "add", tutorial.co, tmp_path / "ada.pub")
        own = (north / "hospital.toml").read_text().replace("require-approval = true", "require-approval = false")
        (north / "hospital.toml").write_text(
            f'{own}\n[policy.submitters.ada]\nkey = "{key}"\nmost-epsilon-per-run = 0.5\n'
        )
        run = ("coordinator", "submit", tutorial.co, *(part for part in submit[3:] if part != "--stream"), *QUICK)
        assert "asks for a key" in tutorial.run(*run).error
        signed = (*run, "--stream", "--key", tmp_path / "ada.key")
        refused = tutorial.run(*signed)
        assert refused.code == 1 and "The run may spend epsilon 0.5 at 'north'" in refused.error
        (north / "hospital.toml").write_text(own + f'\n[policy.submitters.ada]\nkey = "{key}"\n')
        assert tutorial.call(*signed)["status"] == "finished:completed"
        assert tutorial.call("coordinator", "runs", tutorial.co)[-1]["submitter"] == "ada"
        audited = tutorial.call("coordinator", "audit", tutorial.co)["entries"]
        assert (audited[-1]["call"], audited[-1]["by"]) == ("start-run", "ada")
    finally:
        tutorial.stop()


@pytest.fixture
def far_away() -> Iterator[tuple[list[str], str]]:
    """The start of a command that runs on another machine, as the network goes, and this one's address from there."""
    name, address = f"far{os.getpid()}", "10.213.77.1"
    inside = ["ip", "netns", "exec", name]
    steps = (
        ["ip", "netns", "add", name],
        ["ip", "link", "add", f"h{os.getpid()}", "type", "veth", "peer", "name", "there", "netns", name],
        ["ip", "addr", "add", f"{address}/30", "dev", f"h{os.getpid()}"],
        ["ip", "link", "set", f"h{os.getpid()}", "up"],
        [*inside, "ip", "addr", "add", "10.213.77.2/30", "dev", "there"],
        [*inside, "ip", "link", "set", "there", "up"],
    )
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True) if shutil.which("ip") else None
            if done is None or done.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {done.stderr.strip() if done else 'no ip'}")
        yield inside, address
    finally:
        if shutil.which("ip"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)  # its link goes with it


def test_from_another_machine_nobody_can_submit_register_or_take_over_a_run(
    federation: Federation, far_away: tuple[list[str], str]
) -> None:
    inside, address = far_away
    ask = (
        "import httpx, json, sys\n"
        "with httpx.Client(verify=False) as client:\n"
        "    print(json.dumps([client.post(sys.argv[1] + path).status_code for path in sys.argv[2:]]))"
    )
    paths = (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/docs",
        "/v1/fleet/pull-messages",
    )
    done = subprocess.run(
        [*inside, sys.executable, "-c", ask, f"https://{address}:{federation.ports[0]}", *paths],
        capture_output=True,
        text=True,
    )
    *refused, fleet = json.loads(done.stdout or "[0]")
    assert refused == [403] * 4 and fleet not in (0, 403), done.stderr


def test_renewing_and_revoking_as_the_page_says(federation: Federation) -> None:
    """Under a new authority in the end, whose certificate each hospital gets."""
    revoked, north = federation.processes["south"], federation.processes["north"]
    federation.follow(10)
    ends(revoked)
    north.terminate()
    ends(north)
    federation.processes["coordinator"].terminate()
    assert ends(federation.processes["coordinator"]) == -signal.SIGTERM  # told on after a clean end
    assert "Application shutdown complete" in federation.log("coordinator")
    federation.start("coordinator", "coordinator")
    wait_for(federation.serving)
    for name in ("north", "south"):
        (federation.folder / name / "ca.crt").write_bytes((federation.co / "ca.crt").read_bytes())
        federation.start("hospital", name)
    wait_for(lambda: federation.status("south") == federation.status("north") == "online")


def test_a_backup_made_while_all_runs_brings_the_coordinator_back(federation: Federation) -> None:
    def state() -> tuple[Any, Any]:
        nodes = [(node["name"], node["node"]) for node in federation.nodes()]
        return nodes, federation.call("coordinator", "runs", federation.co)

    before, returned = state(), federation.returns("north")
    copies = federation.follow(11)
    assert [Path(copy["backup"]).name for copy in copies] == ["coordinator", "north"]
    federation.processes["coordinator"].terminate()
    ends(federation.processes["coordinator"])
    federation.co.rename(federation.folder / "lost")
    shutil.copytree(federation.folder / "backups" / "coordinator", federation.co)
    federation.start("coordinator", "coordinator")
    wait_for(federation.serving)
    assert state() == before
    wait_for(lambda: federation.returns("north") > returned)
    # The ledger and its journal are as those of the node that goes on.
    status = federation.call("hospital", "status", federation.folder / "backups" / "north")
    assert status["ledger"] == federation.call("hospital", "status", federation.folder / "north")["ledger"]
    assert federation.call("hospital", "journal", federation.folder / "backups" / "north")["intact"]


def test_a_killed_node_leaves_nothing_and_one_without_its_executor_ends(federation: Federation) -> None:
    federation.hospital("gone", free_ports(1)[0])
    federation.register("gone")
    gone, south = federation.start("hospital", "gone"), federation.processes["south"]
    wait_for(lambda: forking(gone.pid))
    gone.kill()
    gone.wait()
    # It would take messages and answer none.
    [executor] = children(south.pid)
    os.kill(executor, signal.SIGKILL)
    assert ends(south) == 1 and "process that starts its ClientApps is gone" in federation.log("south")
    wait_for(lambda: not {str(federation.folder / name / "flwr") for name in ("gone", "south")} & homes())


def test_sigterm_ends_each_process_with_all_that_it_started(federation: Federation) -> None:
    """Last, since it ends what the others use: no program of Flower outlives the one that was told to stop."""
    for name in ("north", "coordinator"):
        process = federation.processes[name]
        process.terminate()
        process.wait(timeout=30)
    gone = {str(federation.folder / name / "flwr") for name in ("north", "coordinator")}
    wait_for(lambda: not gone & homes())
    for name in STRUCTURED:
        log = [json.loads(line) for line in federation.log(name).splitlines()]
        assert {event["site"] for event in log} == {name}
        assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, log))
        assert any("run" in event for event in log)
        # What a ServerApp says Flower keeps in the SuperLink's data base, for `submit --stream`.
        assert name == "coordinator" or any("round" in event for event in log)


def children(parent: int) -> list[int]:
    """Processes, none of them dead, that this one started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent_of_it = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent_of_it) == parent and state != "Z":
                found.append(int(path.parent.name))
    return found


def server_app(federation: Federation) -> int | None:
    """The process that carries out the newest run at the coordinator; that of a killed SuperLink may still wait for it."""
    mark, begun = f"FLWR_HOME={federation.co / 'flwr'}".encode(), {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if is_ours and b"flwr-serverapp" in (entry / "cmdline").read_bytes():
                begun[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
    return max(begun, key=lambda process: begun[process], default=None)


def said_by_node(federation: Federation, name: str) -> str:
    """The log without what the node's executor, which is asked to end, says."""
    return "\n".join(line for line in federation.log(name).splitlines() if "SuperExec" not in line)


def forking(node: int) -> int | None:
    """The process that forks ClientApps, wherever below the node it is."""
    with contextlib.suppress(OSError):  # one that has ended meanwhile
        if b"multiprocessing.forkserver" in Path(f"/proc/{node}/cmdline").read_bytes():
            return node
    return next((found for process in children(node) if (found := forking(process))), None)


def client(node: int) -> int | None:
    """A ClientApp under way."""
    found = forking(node)
    return next(iter(children(found)), None) if found else None


def homes() -> set[str]:
    """FLWR_HOME of every process that has one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes().decode(errors="replace")
                found |= {part.removeprefix("FLWR_HOME=") for part in environment.split("\0") if "FLWR_HOME=" in part}
    return found
