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
        f'dataset = "trial"\nstrategy = "fedavg"\nrounds = {rounds}\nepsilon = 3.0\ndp = true\n'
    )
    (run / "history.jsonl").write_text("")
    return run


def tell(run: Path, text: str) -> None:
    with (run / "history.jsonl").open("a") as file:
        file.write(text)


def test_a_history_is_read_as_it_grows_line_by_whole_line(tmp_path: Path) -> None:
    run, runs = begin(tmp_path, "one"), Runs(tmp_path)
    assert runs.summary("one")["round"] == 0 and runs.summary("one")["state"] == "training"
    line = row(2, "pooled", 0.9)
    tell(run, row(1, "a") + row(1, "pooled") + row(2, "a") + line[:30])
    assert runs.detail("one")["round"] == 2 and [one["round"] for one in runs.detail("one")["course"]] == [1]
    tell(run, line[30:] + json.dumps({"dropout": {"round": 2, "site": "b", "reason": "away"}}) + "\n")
    found = runs.detail("one", after=1)
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
    for method in ("POST", "PUT", "DELETE"):
        assert asked(address, "/api/runs", method)[0] == 405
    assert asked(address, "/api/runs", host="elsewhere.example")[0] == 400


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
        assert tab.value("document.querySelector('#auroc polyline').getAttribute('points').split(' ').length") == 4
        assert tab.value("document.querySelector('#sites td').textContent") == EVIL and tab.value("window.same") is True
        assert tab.value("document.title") == "Runs" and not tab.value("document.querySelector('#report').hidden")
        assert not [event for event in tab.told if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]


def _until(tab: Tab, script: str, wanted: Any) -> None:
    for _ in range(200):
        if (found := tab.value(script)) == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{found!r} is not {wanted!r}")


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
