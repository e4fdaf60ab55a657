"""What a person meets in a terminal: Ctrl-C, narrow and ASCII-only screens, closed pipes, names that look like markup."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.cli.nodes.deploying import listing
from polyclinic.cli.runs.live import LiveProgress, calibration_sentence
from polyclinic.cli.terminal import console, say
from polyclinic.inspection.result import RunResult
from polyclinic.server.checkpoint import load_checkpoint

Command = Callable[..., Any]
HEADINGS = ("hospital", "patients", "AUROC", "accuracy", "epsilon", "1% FPR", "no DP", "alone")


def _shown(folder: Path, columns: int) -> str:
    done = CliRunner().invoke(app, ["show", str(folder)], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.output


def _altered(result: RunResult, **changes: Any) -> Path:
    """The run's folder, after its summary was given other values."""
    (result.path / "summary.json").write_text(json.dumps(result.summary | changes), encoding="utf-8")
    return result.path


def _compared(result: RunResult) -> dict[str, Any]:
    rows = {name: {"auroc": 0.5} for name in result.summary["metrics"]["sites"]}
    return {"without_dp": {"pooled": {"auroc": 0.5}, "sites": rows}, "alone": {"sites": rows}}


def _on_a_terminal(arguments: list[str], signals: dict[str, str]) -> tuple[int, str]:
    """Exit code and screen of a command that gets SIGINT when each of ``signals`` first shows."""
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "polyclinic", *arguments],
        stdin=follower, stdout=follower, stderr=follower, env=os.environ | {"COLUMNS": "300", "NO_COLOR": "1"},
        # A test run in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    os.close(follower)
    screen, waiting = "", list(signals)
    while True:
        try:
            read = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        screen += read.decode(errors="replace")
        if waiting and waiting[0] in screen:
            process.send_signal(signal.SIGINT)
            waiting.pop(0)
    os.close(leader)
    return process.wait(), screen


def _said_after(screen: str, words: str) -> list[str]:
    return [line.strip() for line in screen.split(words, 1)[1].splitlines() if line.strip()]


def test_ctrl_c_stops_after_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = ["run", "--rounds", "5000", "--out", str(tmp_path), "-c", "checkpoints.every=1000"]
    code, screen = _on_a_terminal(arguments, {"3/5000": "SIGINT"})
    assert code == 130 and "Stopping after this round; Ctrl-C again stops at once." in screen
    (folder,) = tmp_path.iterdir()
    assert _said_after(screen, "Stopped.") == [
        f"The run's folder is {folder}; go on with `polyclinic run --resume {folder}`."
    ]
    # A checkpoint of the last round, though none was due.
    state, *_ = load_checkpoint(folder / "checkpoint.safetensors")
    assert state.round >= 3
    # From the first second on, a terminal shows what is going on and where it goes.
    parts = [screen.index(words) for words in ("Starting", "calibrating the noise", f"Run folder: {folder}", "Round")]
    assert parts == sorted(parts) and "rounds/s" in screen and "sites/s" in screen


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    arguments = [
        "run",
        "--no-dp",
        "--rounds",
        "2",
        "--out",
        str(tmp_path),
        "-c",
        "training.local-steps=2000000",
        "-c",
        "training.engine=opacus",
    ]
    code, screen = _on_a_terminal(arguments, {"4 hospitals": "SIGINT", "Stopping after this round": "SIGINT"})
    assert code == 130 and "Stopped." in screen and " 1/2" not in screen


class Interrupting(io.RawIOBase):
    """A screen at which Ctrl-C comes while the first line is being written."""

    def __init__(self) -> None:
        self.said = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        first, self.said = not self.said, self.said + bytes(data)
        if first:
            signal.raise_signal(signal.SIGINT)
        return len(data)


def test_ctrl_c_while_a_line_is_written_stops_after_the_round() -> None:
    others, raw = set(threading.enumerate()), Interrupting()
    with LiveProgress(Console(file=io.TextIOWrapper(io.BufferedWriter(raw)))) as progress:
        progress._in_rounds = True
        progress.on_step("round 1")
        assert progress.is_stopping()
        for thread in set(threading.enumerate()) - others:
            thread.join(10)
    assert b"round 1\nStopping after this round" in raw.said


def test_usage_errors_keep_their_text_and_exit_code() -> None:
    done = CliRunner().invoke(app, ["run", "--nope"])
    assert done.exit_code == 2 and "No such option" in done.output and "Usage" in done.output


@pytest.mark.parametrize(
    "arguments", [["plugins"], pytest.param(["plugins", "--json"], marks=pytest.mark.slow), ["--help"]]
)
def test_a_reader_that_has_gone_is_no_traceback(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "polyclinic", *arguments], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # with it set, nothing would be left to write at exit
    )  # fmt: skip
    os.close(write)
    assert done.stderr == "" and done.returncode == 1


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["PYTHONIOENCODING", "LC_ALL"],
)
def test_an_ascii_screen_gets_words_for_symbols(command: Command, environment: dict[str, str]) -> None:
    account = ["account", "--sample-rate", "0.1", "--steps", "10", "--delta", "1e-5", "--noise-multiplier", "5"]
    done = command(*account, **environment)
    assert done.returncode == 0, done.stderr
    assert re.match(r"epsilon = 0\.\d+ at delta = 1e-05 ", done.stdout)
    wrong = command("datasets", "show", "tëst", **environment)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr


@pytest.mark.parametrize("columns", [200, 80, 60, 50])
def test_headings_stay_whole_at_any_width(quick: Command, columns: int) -> None:
    result = quick()
    shown = _shown(_altered(result, comparison=_compared(result)), columns)
    table = shown.split("Privacy:")[0]
    assert max(len(line) for line in shown.splitlines()) <= columns
    left_out = re.search(r"Too narrow for: (.*)\.", " ".join(table.split()))
    missing = left_out[1].split(", ") if left_out else []
    assert (columns >= 80) == (not missing)
    for heading in HEADINGS:
        assert heading in table.split("Too narrow")[0] or any(heading in name for name in missing)
    assert {"hospital", "AUROC", "epsilon"}.isdisjoint(missing)
    for name in result.summary["metrics"]["sites"]:
        assert re.search(rf"^ {name} .* of 3 ", table, re.MULTILINE)


def test_of_very_many_hospitals_a_screen_shows_the_lowest_and_the_highest(quick: Command) -> None:
    result = quick(sites=2)
    one = result.summary["metrics"]["sites"]["hospital-1"]
    sites = {f"h{i:04d}": one | {"auroc": i / 3000 if i else None} for i in range(3000)}
    drops = [{"round": 1, "site": name, "reason": "away"} for name in sites]
    shown = _shown(_altered(result, metrics=result.summary["metrics"] | {"sites": sites}, dropouts=drops), 100)
    assert re.findall(r"^ (h\d+) ", shown, re.MULTILINE) == [*list(sites)[1:11], *list(sites)[-10:]]
    assert "3,000 hospitals: the lowest and the highest AUROC." in shown
    assert shown.count("Dropped out") == 20 and "2,980 more dropouts are in summary.json." in shown


def test_a_long_name_is_folded_at_its_spaces_beside_whole_figures(quick: Command) -> None:
    result = quick(sites=2)
    sites = result.summary["metrics"]["sites"]
    metrics = result.summary["metrics"] | {
        "sites": {"Hospital of Saint Bartholomew by the Sea": sites["hospital-1"], "b": sites["hospital-2"]}
    }
    table = _shown(_altered(result, metrics=metrics), 60).split("Privacy:")[0]
    for word in ("Hospital", "Bartholomew", "patients", "AUROC", "accuracy", " of 3 "):
        assert word in table


def test_names_and_reasons_that_look_like_markup_are_shown_as_they_are(quick: Command) -> None:
    result = quick(sites=2)
    sites = result.summary["metrics"]["sites"]
    folder = _altered(
        result,
        dataset="[bold]d[/bold]",
        metrics=result.summary["metrics"] | {"sites": {"[red]x[/red]": sites["hospital-1"], ":cat:": sites["hospital-2"]}},
        dropouts=[{"round": 1, "site": "[red]x[/red]", "reason": "[bold] [/nothing]"}],
        notes=["see [link=x]here[/link]"],
    )  # fmt: skip
    shown = _shown(folder, 200)
    for words in ("[bold]d[/bold]: after", " [red]x[/red] ", " :cat: ", "[red]x[/red]: [bold] [/nothing]",
                  "see [link=x]here[/link]"):  # fmt: skip
        assert words in shown


def test_live_progress_shows_names_as_they_are(
    quick: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured output for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    with LiveProgress(console()) as progress:
        quick(progress=progress, rounds=1)
        progress.on_step("comparison: 2 of 5, [red]{x}[/red] alone")
    shown = capsys.readouterr().out
    assert "comparison: 2 of 5, [red]{x}[/red] alone" in shown and "1 round, engine linear" in shown


def test_no_dp_is_said_to_give_no_guarantee_once(quick: Command) -> None:
    shown = _shown(quick(privacy={"dp": False}).path, 200)
    assert shown.count("formal guarantee") == 1 and "No differential privacy." in shown


def test_small_epsilons_are_not_shown_as_zero() -> None:
    account = ["account", "--sample-rate", "0.01", "--steps", "10", "--delta", "1e-9"]
    runner = CliRunner()
    shown = runner.invoke(app, [*account, "--noise-multiplier", "300"]).output
    exact = json.loads(runner.invoke(app, [*account, "--noise-multiplier", "300", "--json"]).output)["epsilon"]
    said = float(shown.split("ε = ")[1].split()[0])
    assert exact > 0 and said == pytest.approx(exact, rel=1e-3)


def test_a_command_in_a_folder_that_was_deleted() -> None:
    code = (
        "import os, sys, tempfile; folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder); "
        "from polyclinic.cli import main; sys.argv = ['polyclinic', '--version']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_farthest_hospital_is_named_among_several_alone() -> None:
    estimate = {"value": -0.2, "low": -0.3, "high": -0.1}
    evaluation = {
        "pooled": {"calibration_in_the_large": estimate},
        "worst": {"calibration_in_the_large": {**estimate, "name": "b"}},
    }
    said = [
        calibration_sentence({"evaluation": {**evaluation, "sites": dict.fromkeys(names)}}) for names in ("ab", "b")
    ]
    assert (
        "farthest at b: -0.200" in said[0] and "predicted less observed -0.200" in said[1] and "farthest" not in said[1]
    )


@pytest.mark.parametrize(("width", "lines_of_a_run"), [("80", 1), ("40", 3)])
def test_a_listing_keeps_names_whole_on_any_screen(
    width: str, lines_of_a_run: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"run": "20261127-015324-2036ae", "task": "classification", "submitter": None}
    monkeypatch.setenv("COLUMNS", width)
    say(listing(("run", "submitter", "task"), [run, run]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    headings = 1 if lines_of_a_run == 1 else 0
    assert len(lines) == headings + 2 * lines_of_a_run
    assert (
        sum("20261127-015324-2036ae" in line for line in lines) == sum("classification" in line for line in lines) == 2
    )
