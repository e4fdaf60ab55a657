"""`polyclinic serve`: what it shows of runs that grow, and that it gives nothing else away."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from polyclinic.serving.app import application
from polyclinic.serving.runs import Runs
from tests.evaluation.browser import Tab, browser, needs_browser

EVIL = '<img src=x onerror="document.title = 1">'


def row(number: int, site: str, auroc: float | None = 0.8) -> str:
    told = {"round": number, "site": site, "auroc": auroc, "accuracy": 0.7, "loss": 1 / number, "epsilon": 0.1 * number}
    return json.dumps({"row": told | ({"epsilon": None} if site == "pooled" else {})}) + "\n"


def begin(folder: Path, name: str, rounds: int = 4) -> Path:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        f'dataset = "trial"\nstrategy = "fedavg"\nrounds = {rounds}\n[privacy]\nepsilon = 3.0\ndp = true\n'
    )
    (run / "history.jsonl").write_text("")
    return run


def tell(run: Path, text: str) -> None:
    with (run / "history.jsonl").open("a") as file:
        file.write(text)


def test_a_history_is_read_as_it_grows_line_by_whole_line(tmp_path: Path) -> None:
    run, runs = begin(tmp_path, "one"), Runs(tmp_path)
    assert runs.summary("one")["round"] == 0 and runs.summary("one")["state"] == "training"
    assert runs.summary("one")["private"] and runs.summary("one")["budget"] == 3.0
    line = row(2, "pooled", 0.9)
    tell(run, row(1, "a") + row(1, "pooled") + row(2, "a") + line[:30])
    assert runs.detail("one")["round"] == 2 and [one["round"] for one in runs.detail("one")["course"]] == [1]
    tell(run, line[30:] + json.dumps({"dropout": {"round": 2, "site": "b", "reason": "away"}}) + "\n")
    found = runs.detail("one", after=1)
    assert found["metrics"] == {"auroc": "AUROC", "accuracy": "Accuracy", "loss": "Loss"}
    assert [one["auroc"] for one in found["course"]] == [0.9] and found["sites"]["a"]["epsilon"] == 0.2
    assert found["dropouts"][0]["reason"] == "away" and found["epsilon"] == 0.2
    (run / "history.jsonl").write_text(row(1, "a") + row(1, "pooled"))  # resumed from an earlier checkpoint
    assert runs.detail("one")["round"] == 1 and not runs.detail("one")["dropouts"]
    old = time.time() - 600
    for path in run.iterdir():
        os.utime(path, (old, old))
    assert runs.summary("one")["state"] == "quiet"
    (run / "report.html").write_text("x")
    assert runs.summary("one")["state"] == "finished"


def test_a_run_towards_numbers_has_the_metrics_of_numbers(tmp_path: Path) -> None:
    run, runs = begin(tmp_path, "one"), Runs(tmp_path)
    rows = {"loss": 0.1, "mae": 1.5, "r2": None, "calibration_in_the_large": -0.2, "epsilon": 1.0, "bytes_up": 80}
    tell(run, json.dumps({"row": {"round": 1, "site": "north", **rows}}) + "\n")
    found = runs.detail("one")
    assert list(found["metrics"].items())[:2] == [("mae", "MAE"), ("r2", "R2")] and list(found["metrics"])[-1] == "loss"
    assert found["sites"]["north"] == {"round": 1, **{key: rows[key] for key in rows if key != "bytes_up"}}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    begin(tmp_path / "runs", "one")
    (tmp_path / "secret.txt").write_text("secret")
    listener = socket.create_server(("127.0.0.1", 0))
    app = application(tmp_path / "runs", ["127.0.0.1"])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()
    server.should_exit = True
    thread.join(timeout=30)


def asked(
    address: tuple[str, int], path: str, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection(*address, timeout=30)
    connection.request(method, path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


@pytest.mark.parametrize(
    ("summary", "epsilon", "dataset"),
    [
        ('{"dataset": "clinic", "privacy": {"epsilon": 1.5}, "private_metrics": {"epsilon": 1.9}}', 1.9, "clinic"),
        ('{"dataset": "clinic", "privacy": {"epsilon": 2.5}, "private_metrics": null}', 2.5, "clinic"),
        ('{"privacy": {"epsilon": null}}', 1.2, "breast-cancer"),
        ("[1", 1.2, "breast-cancer"),
        ('{"privacy": 5, "private_metrics": 7}', 1.2, "breast-cancer"),
    ],
)
def test_of_a_finished_run_the_summary_decides(tmp_path: Path, summary: str, epsilon: float, dataset: str) -> None:
    """History has what hospitals said last of training; the summary has what their requests must have cost, and the held out."""
    run = begin(tmp_path / "runs", "one")
    (run / "config.toml").write_text('dataset = "breast-cancer"\n')
    tell(run, '{"row": {"round": 1, "site": "north", "auroc": 0.5, "epsilon": 1.2}}\n')
    runs = Runs(tmp_path / "runs")
    assert (runs.summary("one")["epsilon"], runs.summary("one")["dataset"]) == (1.2, "breast-cancer")
    (run / "summary.json").write_text(summary)
    (run / "report.html").write_text("x")
    assert (runs.summary("one")["epsilon"], runs.summary("one")["dataset"]) == (epsilon, dataset)


def test_it_gives_runs_and_reports_and_nothing_else(address: tuple[str, int], tmp_path: Path) -> None:
    status, body, headers = asked(address, "/api/runs")
    assert status == 200 and json.loads(body)[0]["name"] == "one"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert asked(address, "/runs/one/report.html")[0] == 404
    (tmp_path / "runs" / "one" / "report.html").write_text("a report")
    assert asked(address, "/runs/one/report.html")[:2] == (200, "a report")
    for path in ("/runs/../secret.txt", "/runs/..%2f..%2fsecret.txt", "/runs/one/config.toml", "/api/runs/..", "/api/runs/two",
                 "/runs/one%2f..%2f/report.html", "/runs/one/checkpoint.safetensors"):  # fmt: skip
        assert asked(address, path)[0] == 404, path
    for path in ("/", "/api/runs", "/api/runs/one", "/runs/one/report.html", "/nothing"):
        headers = asked(address, path)[2]
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store", path
        assert all(
            part in headers["content-security-policy"] for part in ("default-src 'none'", "frame-ancestors 'none'")
        )
    for method in ("POST", "PUT", "DELETE"):
        assert asked(address, "/api/runs", method)[0] == 405
    assert asked(address, "/api/runs", host="elsewhere.example")[0] == 400


@pytest.mark.parametrize("file", ["", "config.toml", "history.jsonl", "report.html"])
def test_it_follows_no_link_out_of_its_folder(address: tuple[str, int], tmp_path: Path, file: str) -> None:
    outside, runs = begin(tmp_path / "elsewhere", "run"), tmp_path / "runs"
    tell(outside, row(1, "St. Elsewhere"))
    (outside / "report.html").write_text("secret")
    if file:
        (begin(runs, "linked") / file).unlink(missing_ok=True)
    (runs / "linked" / file).symlink_to(outside / file)
    assert [run["name"] for run in json.loads(asked(address, "/api/runs")[1])] == ["one"]
    for path in ("/api/runs/linked", "/runs/linked/report.html"):
        status, body, _ = asked(address, path)
        assert status == 404 and "secret" not in body and "St. Elsewhere" not in body, path
    (runs / "newest").symlink_to(runs / "one")  # a link inside the folder is no way out of it
    assert asked(address, "/api/runs/newest")[0] == 200


LINE = '{"row": {"round": 1, "site": "a", "auroc": 0.5, "accuracy": 0.5, "loss": 0.1, "epsilon": 1.0}}\n'
# What is in a run's config.toml and history.jsonl, and whether it is a problem.
MALFORMED: dict[str, tuple[bytes, str, bool]] = {
    "epsilon nan": (b"[privacy]\nepsilon = nan\n", LINE, False), "epsilon inf": (b"[privacy]\nepsilon = inf\n", LINE, False),
    "not UTF-8": (b'dataset = "\xff"\n', LINE, True), "a date": (b"dataset = 2020-01-01\n", LINE, True),
    "deep TOML": (b"a = " + b"[" * 3000 + b"]" * 3000, LINE, True), "many digits": (b"rounds = " + b"9" * 6000, LINE, True),
    "rounds a list": (b"rounds = [1]\n", LINE, True), "huge config": (b"#" * (1 << 21), LINE, True),
    "privacy no section": (b"privacy = 1\n", LINE, True),
    "not JSON": (b"", "{not json\n", True), "no object": (b"", "5\n", True), "deep JSON": (b"", '{"a":' * 3000 + "1\n", True),
    "no round": (b"", '{"row": {"site": "x"}}\n', True), "a list": (b"", '{"row": [1]}\n', True),
    "infinity": (b"", '{"row": {"round": 1, "site": "x", "auroc": NaN, "epsilon": Infinity}}\n', False),
    "too large": (b"", '{"row": {"round": 1, "site": "x", "epsilon": 1' + "0" * 400 + "}}\n", False),
    "more digits than Python reads": (b"", '{"row": {"round": ' + "9" * 5000 + ', "site": "x"}}\n', True),
    "epsilon a text": (b"", '{"row": {"round": 1, "site": "x", "epsilon": "a"}}\n' + LINE, True),
    "a round below 0": (b"", '{"row": {"round": -1, "site": "x"}}\n', True),
    "half a character": (b"", '{"row": {"round": 1, "site": "\\ud800"}}\n', False),
    "a drop-out of nobody": (b"", '{"dropout": {"round": 1}}\n', True), "zeros": (b"", "\0" * 5000 + "\n", True),
}  # fmt: skip


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_malformed_run_is_listed_with_its_problem_and_hides_no_other(
    address: tuple[str, int], tmp_path: Path
) -> None:
    tell(tmp_path / "runs" / "one", LINE)
    for number, (config, history, _) in enumerate(MALFORMED.values()):
        run = begin(tmp_path / "runs", f"bad {number}")
        (run / "config.toml").write_bytes(config)
        (run / "history.jsonl").write_text(history)
    for what in ("config.toml", "history.jsonl"):
        run = begin(tmp_path / "runs", f"folder {what}")
        (run / what).unlink()
        (run / what).mkdir()
    (tmp_path / "runs" / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / "runs" / os.fsdecode(b"\xff") / "config.toml").touch()
    for _ in range(2):  # also when they are read again
        status, body, _ = asked(address, "/api/runs")
        listed = {run["name"]: run for run in strict(body)}
        assert status == 200 and len(listed) == len(MALFORMED) + 4
        assert listed["one"]["epsilon"] == 1.0 and listed["one"]["problem"] is None
        for number, (name, (_, _, wrong)) in enumerate(MALFORMED.items()):
            problem = listed[f"bad {number}"]["problem"]
            assert bool(problem) == wrong and (problem or ".").endswith("."), name
            status, body, _ = asked(address, f"/api/runs/bad%20{number}")
            assert status == 200 and strict(body)["problem"] == problem, name
        assert listed["folder config.toml"]["problem"] and listed["folder history.jsonl"]["problem"]
    good = listed[f"bad {list(MALFORMED).index('epsilon a text')}"]
    assert good["epsilon"] == 1.0  # the other line of its history counts


@pytest.mark.parametrize(
    ("after", "status"),
    [("0", 200), ("999999999", 200), ("9" * 5000, 400), ("-1", 400), ("1e9", 400), ("%D9%A3", 400), ("", 400)],
)
def test_the_number_of_a_round_is_a_number(address: tuple[str, int], after: str, status: int) -> None:
    assert asked(address, f"/api/runs/one?after={after}")[0] == status


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    for name in ("config.toml", "history.jsonl", "report.html"):
        run = begin(tmp_path, f"pipe {name}")
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    begin(tmp_path, "one")
    command = [sys.executable, "-m", "polyclinic", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            where = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert where
            address = ("127.0.0.1", int(where[1]))
            listed = {run["name"]: run for run in strict(asked(address, "/api/runs")[1])}
            assert listed["one"]["problem"] is None and listed["pipe config.toml"]["problem"]
            assert "not a regular file" in listed["pipe history.jsonl"]["problem"]
            assert asked(address, "/runs/pipe%20report.html/report.html")[0] == 404
        finally:
            process.terminate()
            process.wait(timeout=30)


@needs_browser
def test_rounds_appear_without_a_reload_and_names_stay_text(
    address: tuple[str, int], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path / "runs" / "one"
    tell(run, row(1, EVIL) + row(1, "pooled", 0.61))
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        tab.open(f"http://127.0.0.1:{address[1]}/")
        tab.value("window.same = true")
        _until(tab, "document.querySelector('#state').textContent", "training, round 1 of 4")
        tell(run, "".join(row(n, EVIL) + row(n, "pooled", 0.6 + n / 20) for n in (2, 3, 4)))
        (run / "report.html").write_text("a report")
        _until(tab, "document.querySelector('#state').textContent", "finished, round 4 of 4")
        assert tab.value("document.querySelector('#main polyline').getAttribute('points').split(' ').length") == 4
        assert tab.value("document.querySelector('#sites td').textContent") == EVIL and tab.value("window.same") is True
        assert tab.value("document.title") == "Runs" and not tab.value("document.querySelector('#report').hidden")
        assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]


def _until(tab: Tab, script: str, wanted: Any) -> None:
    for _ in range(200):
        if (found := tab.value(script)) == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{found!r} is not {wanted!r}")


def test_it_warns_that_every_address_takes_every_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyclinic", "serve", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]  # noqa: S104
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            warning = process.stdout.readline()
            assert "there is no password" in warning and "DNS rebinding" in warning
        finally:
            process.terminate()
            process.wait(timeout=30)


def test_the_command_listens_on_this_machine_alone_and_says_where(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyclinic", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            where = re.search(r"http://127\.0\.0\.1:(\d+)", told)
            assert where, told
            assert asked(("127.0.0.1", int(where[1])), "/api/runs")[1] == "[]"
        finally:
            process.terminate()
            process.wait(timeout=30)
