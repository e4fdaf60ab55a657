"""A run, or a question, submitted to a coordinator's SuperLink by Flower's own ``flwr run``, and followed to its end."""

from __future__ import annotations

import getpass
import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, RunConfig, check_effects
from polyclinic.deployment.bundles import own_bundle
from polyclinic.deployment.control import Caller, runs, stop_run
from polyclinic.deployment.coordinator import LINK, Coordinator
from polyclinic.deployment.environment import flower_settings, with_settings
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.releases.kinds import answer_of_json, question_as_key
from polyclinic.releases.question import Question
from polyclinic.runs.folder import LATEST, RESULTS, Run
from polyclinic.wire.submissions import SIGNATURE, SUBMITTER, sign_submission

# The command `flwr`, which signs its calls where the environment names a key.
_FLWR = (sys.executable, "-P", "-m", "polyclinic.deployment.flower.cli")
_POLL_SECONDS = 1.0
# A run whose folder no process holds for so long has ended; Flower itself waits a minute for a heartbeat.
_FREE_SECONDS = 10.0
_STOP_SECONDS = 60.0  # a ServerApp asks no later than Flower's next heartbeat whether it may go on


def submit(
    caller: Caller,
    values: dict[str, Any],
    stream: bool,
    app_dir: Path | None,
    say: Callable[[str], None],
    resume: Path | None = None,
) -> dict[str, Any]:
    """Submits a run; returns its id, status, bundle and folder of results.

    Args:
        caller: Who submits, and where.
        values: Configuration keys; ``out`` is relative to the coordinator's folder. Where a run is resumed, only those
            may differ that do not decide its result.
        stream: Whether to wait for the run's end and tell its log line by line.
        app_dir: An app whose code is sent; None sends none.
        say: Called with each line of the log.
        resume: The run that goes on from its checkpoint as it was configured (``run_to_resume``); None begins a new
            one.

    Raises:
        ConfigError: A key or the app is bad.
        PolyclinicError: Flower refuses the run, or the run fails.
    """
    folder, key = caller.coordinator.folder, caller.key
    given: list[Mapping[str, Any]] = [{"out": "runs"}, {SUBMITTER: getpass.getuser()}, values]
    if resume is not None:
        begun = Run.open(run_to_resume(folder / "runs", resume))
        # Under the name of whoever began it: another would be another run to hospitals that approved this one.
        given = [begun.config().flat(), values, {"out": str(begun.path.parent), "resume": begun.name}]
    config = RunConfig.build(*given)
    check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
    if resume is not None:
        Run.to_resume(config)
    if app_dir is not None and not (app_dir / "pyproject.toml").is_file():
        raise ConfigError(f"{app_dir} is not a Flower app: it holds no pyproject.toml.")
    if key:
        config = config.with_values({SUBMITTER: key.name})
        config = config.with_values({SIGNATURE: sign_submission(config.minimal(), key.private)})
    # Where the SuperLink runs elsewhere, what is relative is so to the coordinator's folder there.
    out = config.out if caller.address else str(folder / Path(config.out).expanduser())
    keys = config.for_flower() | {"out": out}
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as home:
        config_toml = caller.coordinator.flower_config(caller.address)
        (Path(home) / "config.toml").write_text(config_toml, encoding="utf-8")
        app = app_dir.resolve() if app_dir else own_app(Path(home))
        environment = with_settings(flower_settings(Path(home)) | caller.settings)
        run = start_run(app, LINK, keys, environment)
        try:
            reason, abandoned = follow_run(run, LINK, environment, say) if stream else ("", False)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_still_going(caller, run)) from None
    try:
        with caller.control() as client:
            result = _result(client, run, wait=stream and not abandoned) | {"out": out}
        if abandoned and not result["status"].startswith("finished"):
            raise PolyclinicError(
                f"The process that carried out run {run} has ended; Flower will notice within a minute."
            )
        if stream and result["status"] != "finished:completed":
            why = reason or result["details"] or "no details given"
            if "No heartbeat" in result["details"]:
                raise PolyclinicError(f"The process that carried out run {run} has ended: {why.rstrip('.')}.")
            raise PolyclinicError(f"Run {run} ended as {result['status']}: {why.rstrip('.')}.")
    except PolyclinicError as error:
        if stream and (begun_in := folders_by_run(folder / out).get(run)) and not begun_in.finished:
            error.add_note(next_step(caller.coordinator, begun_in))
        raise
    return result


def _still_going(caller: Caller, run: str) -> str:
    """What a person is told who follows a run no longer."""
    where = f"{shlex.quote(str(caller.coordinator.folder))} {run}"
    where += f" --superlink {caller.address}" if caller.address else ""
    return f"Run {run} is no longer followed, and goes on at the coordinator; `polyclinic coordinator stop {where}` ends it."


def folders_by_run(runs: Path) -> dict[str, Run]:
    """The folders in ``runs`` by the numbers of the Flower runs that worked in them."""
    folders = Run.all_in(runs)
    return {number: folder for folder in folders for number in folder.flower_runs}


def described_runs(coordinator: Coordinator, client: Any) -> list[dict[str, Any]]:
    """All runs as ``control.runs``, with what their folders tell, or None where there is none yet.

    ``folder``: its name. ``done``: the rounds done. ``waiting``: the hospitals where somebody must approve a run, whose
    ``state`` is then waiting.
    """
    folders = folders_by_run(coordinator.folder / "runs")
    return [
        run | (_progress(run["state"], folders[run["run"]]) if run["run"] in folders else _NO_FOLDER)
        for run in runs(client)
    ]


_NO_FOLDER = {"folder": None, "done": None, "waiting": None}


def _progress(state: str, folder: Run) -> dict[str, Any]:
    """What a run's folder tells. One that hospitals ended early has ended by itself for Flower, which calls it completed."""
    done = max((row["round"] for row in folder.history()["row"]), default=0)
    waiting = folder.waits_for if state == "running" else []
    rounds, ended = folder.config().rounds, {}
    if state == "completed" and (why := _reason(folder)):
        ended = {
            "state": "stopped",
            "details": f"The run stopped after round {done} of {rounds}: {why} It cannot be resumed; when its hospitals "
            "allow more, submit it anew.",
        }
    return {
        "folder": folder.name, "done": done, "rounds": rounds, "waiting": waiting,
        "state": "waiting" if waiting else state, **ended,
    }  # fmt: skip


def _reason(folder: Run) -> str | None:
    """Why there was no further round though some were left; None where none were, or the summary cannot be read."""
    try:
        return folder.summary().stopped
    except PolyclinicError:
        return None


def stop(caller: Caller, named: str) -> dict[str, Any]:
    """Ends a run that waits or goes on, and waits until its process has ended.

    Args:
        caller: Who stops it, and where.
        named: The run's number, or its folder's name.

    Returns:
        The run as ``described_runs`` has it.

    Raises:
        ConfigError: The run is unknown or has ended.
    """
    folders = folders_by_run(caller.coordinator.folder / "runs")
    numbers = [number for number, folder in folders.items() if folder.name == named] or [named]
    with caller.control() as client:
        stopped = stop_run(client, named, numbers)
        deadline = time.monotonic() + _STOP_SECONDS
        while (folder := folders.get(stopped)) and folder.is_held and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return next(run for run in described_runs(caller.coordinator, client) if run["run"] == stopped)


def next_step(coordinator: Coordinator, folder: Run) -> str:
    """How to go on with a run that is not finished and that no process carries out any more."""
    if not folder.checkpoint.is_file():
        return f"Run {folder.name} stopped before its first checkpoint; submit it anew."
    # A folder elsewhere is named by its path.
    name = folder.name if folder.path.parent == coordinator.folder / "runs" else shlex.quote(str(folder.path))
    where = shlex.quote(str(coordinator.folder))
    return f"`polyclinic coordinator submit {where} --resume {name}` goes on with run {folder.name}."


def run_to_resume(runs: Path, named: Path) -> Path:
    """The folder of a run that is named by its path, by its name in ``runs``, or as ``latest``, the newest that began there.

    Raises ConfigError when none began there.
    """
    if str(named) == "latest":
        try:
            return Path((runs / LATEST).read_text(encoding="utf-8"))
        except OSError:
            raise ConfigError(f"No run has begun in {runs}; name the folder of the one that shall go on.") from None
    return named if named.exists() else runs / named


def own_app(home: Path) -> Path:
    """A Flower app in ``home`` that is nothing but the installed Polyclinic."""
    app = home / "polyclinic"
    app.mkdir()
    (app / "pyproject.toml").write_text(own_bundle(), encoding="utf-8")
    return app


def start_run(app: Path, link: str, values: dict[str, Any], environment: dict[str, str], *options: str) -> str:
    """Starts a run with ``flwr run``; returns its number.

    Args:
        app: The folder of the Flower app.
        link: The name of the SuperLink in Flower's configuration.
        values: Configuration keys and their values.
        environment: The whole environment of ``flwr``.
        options: More arguments of ``flwr run``.

    Raises:
        PolyclinicError: Flower refuses the run; the message has its words.
    """
    overrides = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in values.items())
    done = subprocess.run(
        [*_FLWR, "run", str(app), link, "--run-config", overrides, "--format", "json", *options], env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    answer = _json(done.stdout)
    if done.returncode != 0 or not answer.get("run-id"):
        why = answer.get("error-message") or f"{done.stdout[-300:]}{done.stderr[-300:]}"
        raise PolyclinicError(f"Flower refused the run: {' '.join(str(why).split()).rstrip('.')}.")
    return str(answer["run-id"])


def follow_run(run: str, link: str, environment: dict[str, str], say: Callable[[str], None]) -> tuple[str, bool]:
    """Tells the run's log until it ends.

    Args:
        run: The run's number.
        link: The name of the SuperLink in Flower's configuration.
        environment: The whole environment of ``flwr``.
        say: Called with each line of the log that is Polyclinic's or of a round.

    Returns:
        The last error in the log, or "", and whether the run's ServerApp ended without Flower noticing.
    """
    error, abandoned = "", threading.Event()
    process = subprocess.Popen(
        [*_FLWR, "log", run, link, "--stream"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None

    def watch(folder: Run) -> None:
        free = 0.0
        while process.poll() is None and free < _FREE_SECONDS:
            time.sleep(_POLL_SECONDS)
            free = 0.0 if folder.is_held else free + _POLL_SECONDS
        if process.poll() is None:
            abandoned.set()
            process.terminate()

    try:
        for line in process.stdout:
            if "Polyclinic: " in line or "Round " in line:
                say(line.rstrip())
            if "ERROR" in line and "Polyclinic: " in line:
                error = line.split("Polyclinic: ", 1)[1].strip()
            if RESULTS in line and (path := Path(line.split(RESULTS, 1)[1].strip())).is_dir():
                threading.Thread(target=watch, args=(Run(path),), daemon=True).start()
    finally:
        process.terminate()
        process.wait()
    return error, abandoned.is_set()


def _result(client: Any, run: str, wait: bool) -> dict[str, Any]:
    while True:
        listed = next((entry for entry in runs(client) if entry["run"] == run), None)
        if listed is None:
            raise PolyclinicError(f"The SuperLink does not list run {run}.")
        if not wait or listed["status"].startswith("finished"):
            return listed
        time.sleep(_POLL_SECONDS)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Coordinated:
    """The hospitals of a coordinator, whose folder is on this machine. say: What is done with each line of the run's log."""

    coordinator: Coordinator
    say: Callable[[str], None]

    def ask(self, question: Question) -> dict[str, Any]:
        """Their answer, each by its own policy and ledger, as ``asking.ask`` gives it.

        Raises PolyclinicError where no hospital answers or the SuperLink refuses the run.
        """
        sent = submit(Caller(self.coordinator), {"question": question_as_key(question)}, True, None, self.say)
        folder = folders_by_run(Path(sent["out"]))[sent["run"]]
        return answer_of_json(json.loads(folder.answer_file.read_text(encoding="utf-8")))
