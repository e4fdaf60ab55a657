"""A node's log in JSON: what Flower, uvicorn, Python and others write becomes one object a line, and nothing is lost.

The lines come from those programs' own formatters; the relay is tried with real processes that end, die and outlive each other.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import traceback
import warnings
from datetime import datetime
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.deployment.hospital import HospitalNode
from polyclinic.deployment.monitoring.logs import LONGEST, Lines, encode_line
from polyclinic.deployment.monitoring.relay import _read
from tests.deployment.conftest import ROOT, Cli, init_arguments
from tests.deployment.test_federation import wait_for

RELAY = """
import os, sys
from pathlib import Path
from polyclinic.deployment.monitoring.logs import Lines
from polyclinic.deployment.monitoring.relay import end_as, relay
sys.exit(end_as(relay([sys.executable, "-c", *sys.argv[1:]], os.environ, Path.cwd(), Lines("north"))))
"""


def events(text: str, *hidden: str) -> list[dict[str, Any]]:
    lines = Lines("north", hidden)
    found = [event for line in text.split("\n") for event in lines.feed(line)] + list(lines.flush())
    return [json.loads(encode_line(event)) for event in found]


def flower(level: int, message: str) -> str:
    """As Flower's programs write it."""
    from flwr.supercore.logger import ConsoleHandler

    stream = StringIO()
    ConsoleHandler(stream=stream).handle(logging.LogRecord("flwr", level, "", 0, message, (), None))
    return stream.getvalue()


def uvicorn(level: int, message: str) -> str:
    from uvicorn.logging import DefaultFormatter

    record = logging.LogRecord("uvicorn.error", level, "", 0, message, (), None)
    return DefaultFormatter("%(levelprefix)s %(message)s", use_colors=False).format(record) + "\n"


def chained() -> str:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second\n  and more") from error
    except ValueError:
        return traceback.format_exc()


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_level_and_message_of_flower_and_uvicorn(level: int) -> None:
    name = logging.getLevelName(level).lower()
    for write, logger in ((flower, "flwr"), (uvicorn, "uvicorn")):
        [event] = events(write(level, "Something: happened"))
        assert (event["level"], event["logger"], event["message"]) == (name, logger, "Something: happened")
        assert event["site"] == "north" and datetime.fromisoformat(event["time"]).utcoffset().total_seconds() == 0  # type: ignore[union-attr]


def test_run_and_round_are_known_where_they_are_said() -> None:
    text = flower(logging.INFO, "") + flower(logging.INFO, "[RUN 1234567890123456789, ROUND 3]")
    text += flower(logging.INFO, "Receiving: train message (ID: ab)") + flower(logging.INFO, "Other")
    told = [(event.get("run"), event.get("round"), event["message"]) for event in events(text)]
    run = "1234567890123456789"
    assert told == [
        (run, None, f"[RUN {run}, ROUND 3]"), (run, None, "Receiving: train message (ID: ab)"), (None, None, "Other"),
    ]  # fmt: skip
    [event] = events("INFO :      Started task 4 of run 1234567890123456789")
    assert event["run"] == run
    [event] = events("INFO :      Polyclinic: answered 'train', round 2, run '20261122-155158-a74d96'")
    assert (event["run"], event["round"]) == ("20261122-155158-a74d96", 2)


def test_a_traceback_is_one_event_and_belongs_to_the_line_before_it() -> None:
    text = chained()
    assert "direct cause" in text
    alone, after = events(text + flower(logging.INFO, "next"))
    assert alone["exception"].splitlines() == [line.rstrip() for line in text.rstrip().splitlines()]
    assert alone["level"] == "error" and alone["message"] == "KeyError: 'first'" and after["message"] == "next"
    [event] = events("Exception in thread 3:\n" + text)
    assert event["level"] == "error" and event["message"] == "Exception in thread 3:"
    [event] = events(flower(logging.ERROR, "It failed") + text)
    assert event["message"] == "It failed" and event["exception"].endswith("ValueError: second\n  and more")


def test_other_programs_lines() -> None:
    said = warnings.formatwarning("old; go", DeprecationWarning, "/x/y.py", 7, "call()")
    told = [(event["level"], event["logger"], event["message"]) for event in events(
        f"{said}INFO  [alembic.runtime.migration] Context impl\nW0000 00:00:17.1 3 x.cc:5] slow\nWARNING:root:odd\n"
        "2026-11-22T15:48:34.270Z INFO [uvicorn.error] Uvicorn running\nplain words\n"
    )]  # fmt: skip
    assert told == [
        ("warning", "warnings", "DeprecationWarning: old; go\n  call()"),
        ("info", "alembic.runtime.migration", "Context impl"),
        ("warning", "output", "W0000 00:00:17.1 3 x.cc:5] slow"), ("warning", "root", "odd"),
        ("info", "uvicorn.error", "Uvicorn running"), ("info", "output", "plain words"),
    ]  # fmt: skip


def test_json_passes_and_cannot_say_that_it_is_another_s() -> None:
    [event] = events('{"level": "error", "msg": "round 4 of run 123456", "site": "south", "more": [1]}')
    assert event | {"time": ""} == {
        "time": "", "level": "error", "logger": "output", "site": "north", "message": "round 4 of run 123456",
        "run": "123456", "round": 4, "more": [1],
    }  # fmt: skip
    for odd in (
        '{"a": NaN}',
        '{"a": 1e999}',
        "{" * 9,
        '{"a":' * 100_000,
        "{" + "a" * 60_000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        '{"a": ' + "9" * 5000 + "}",
    ):
        [event] = events(odd)
        assert event["message"] == odd


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=30)
SHAPES = st.sampled_from(
    ["{}", "INFO :      {}", "ERROR:    {}", "  {}", "Traceback (most recent call last):{}", "E: {}", "\t{}",
     "\x1b[91mERROR \x1b[0m:     {}", "The above exception was the direct cause {}", "x.py:3: UserWarning: {}"]
)  # fmt: skip


@given(st.lists(st.tuples(SHAPES, WORDS)))
def test_whatever_comes_is_one_object_a_line_and_nothing_is_lost(made: list[tuple[str, str]]) -> None:
    """Each line carries a mark; all marks come out, in their order."""
    text = "\n".join(shape.format(f"<{number}>{word}") for number, (shape, word) in enumerate(made))
    found = events(text)
    said = "".join(event["message"] + event.get("exception", "") for event in found)
    places = [said.find(f"<{number}>") for number in range(len(made))]
    assert -1 not in places
    assert all(
        {"time", "level", "logger", "site", "message"} <= set(event) and "\x1b[9" not in event["message"]
        for event in found
    )


def test_no_password_is_in_the_log(
    cli: Cli, coordinator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t")
    arguments = init_arguments(tmp_path, coordinator, data="postgresql://reader:${DB_PASSWORD}@127.0.0.1:1/x")
    assert cli(*arguments, "--source", "query=SELECT 1", "--no-check").code == 0
    passwords = HospitalNode.read(tmp_path / "hospital").passwords
    assert passwords == ["s3cr3t"]
    found = events(
        "login s3cr3t\nERROR :    at postgresql://reader:other1@db/x\npassword='other2' refused\n"
        '{"args": {"dsn": "x s3cr3t", "s3cr3t": 1}}\nTraceback (most recent call last):\n  f("s3cr3t")\nE: PGPASSWORD=other3',
        *passwords,
    )
    assert not any(secret in json.dumps(found) for secret in ("s3cr3t", "other1", "other2", "other3"))
    assert found[1]["message"] == "at postgresql://reader:***@db/x"


@given(st.integers(0, 12), st.sampled_from(["s3cr3t-\u00fc", "ssss-ss"]))
def test_no_password_is_cut_in_two_where_a_line_is_too_long(before: int, secret: str) -> None:
    found: list[dict[str, Any]] = []
    with TemporaryFile() as file:
        file.write(b"s" * (2 * LONGEST - before) + secret.encode() + b" after\n")
        file.seek(0)
        _read(file.fileno(), Lines("north", [secret]), found.append)
    said = "".join(event["message"] for event in found)
    assert len(found) == 2 and secret not in said and "***" in said and said.endswith("after")


def relay(code: str, **more: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", RELAY, code], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)  # fmt: skip


def told(process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """All events until the end; nothing else was written."""
    out, error = process.communicate(timeout=60)
    assert error == b""
    return [json.loads(line) for line in out.splitlines()]


def test_all_is_there_when_the_program_ends_and_its_exit_code_is_ours() -> None:
    process = relay("import os, sys; print('out', flush=True); os.write(2, b'no end of line'); sys.exit(5)")
    assert {event["message"] for event in told(process)[:-1]} == {"out", "no end of line"} and process.returncode == 5


@pytest.mark.parametrize("reason", ["ERROR :    why", "Traceback (most recent call last):\n  x\nValueError: why", ""])
def test_the_last_error_of_a_program_that_failed_is_its_reason_where_it_gave_one(reason: str) -> None:
    *_, last = logged = told(relay(f"import sys; print({reason!r}); print('on the way out'); sys.exit(1)"))
    assert last["message"] == "The program ended with exit code 1."
    assert last["level"] == ("warning" if reason else "error")
    assert [event["message"] for event in logged if event["level"] == "error"][-1].endswith("why" if reason else "1.")


def test_no_line_is_lost_when_the_program_is_killed_and_its_signal_is_ours() -> None:
    process = relay("import os\nfor i in range(5000): os.write(1, b'line %d\\n' % i)\nos.kill(os.getpid(), 9)")
    found = told(process)
    assert [event["message"] for event in found[:-1]] == [f"line {number}" for number in range(5000)]
    assert process.returncode == -signal.SIGKILL and "SIGKILL" in found[-1]["message"]


def test_what_the_program_started_may_still_speak_after_it() -> None:
    process = relay("import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.3; echo last words'])")
    assert "last words" in [event["message"] for event in told(process)] and process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_on_to_the_program(number: int) -> None:
    process = relay(
        "import signal, sys, time\nfor n in (2, 15): signal.signal(n, lambda n, _: sys.exit(f'told {n}'))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(60)",
        # A shell that begins us in the background has its programs ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and json.loads(process.stdout.readline())["message"] == "ready"
    process.send_signal(number)
    assert f"told {number}" in [event["message"] for event in told(process)] and process.returncode == 1


def test_a_signal_that_ends_the_program_ends_us_as_it_would() -> None:
    process = relay("import time; print('ready', flush=True); time.sleep(600)")
    assert process.stdout is not None and process.stdout.readline()
    process.terminate()
    told(process)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_the_program_does_not_outlive_us() -> None:
    process = relay("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    child = Path("/proc") / json.loads(process.stdout.readline())["message"] / "cmdline"
    assert b"sleep(600)" in child.read_bytes()
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not child.exists() or not child.read_bytes())


def test_an_event_is_written_while_the_program_goes_on() -> None:
    """Else the last line before a silence, the one that says what hangs, would be missing."""
    process = relay("print('ERROR :    hangs', flush=True); input()", stdin=subprocess.PIPE)
    assert process.stdout is not None and json.loads(process.stdout.readline())["message"] == "hangs"
    out, error = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0 and error == b"" and out.count(b"\n") == 1


def test_the_program_goes_on_when_nobody_reads(tmp_path: Path) -> None:
    process = relay(
        f"from pathlib import Path\nfor _ in range(4000): print('x' * 99)\nPath({str(tmp_path / 'done')!r}).touch()"
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0 and (tmp_path / "done").exists()


def test_an_error_before_the_start_is_a_line_too(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "POLYCLINIC_LOG_FORMAT": "json"}
    command = [sys.executable, "-m", "polyclinic", "hospital", "start", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    [event] = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 2 and done.stderr == "" and event["level"] == "error" and "node.toml" in event["message"]
