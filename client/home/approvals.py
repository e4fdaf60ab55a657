"""What people at the hospital have decided: which runs may go on, which may not, and whether any may now.

Where the policy has ``require-approval``, a run is pending from its first message on until a person approves or denies it. An
approval is of the run's name and all its terms, by their digest, and ends with its expiry: other terms under the same name are
pending anew. A denial is of the name alone. Every message looks at the decision, so that a denial stops a run that has begun.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import polyclinic
from polyclinic.client.home.holds import FILES, FOLDER, PAUSED, because, current_pause
from polyclinic.client.home.hospital import Hospital
from polyclinic.client.home.journal import NAME, append
from polyclinic.config import RunConfig
from polyclinic.digests import digest
from polyclinic.errors import BudgetRefused, ConfigError, DataError, PolyclinicError, several
from polyclinic.files import SECRET, reason, write_file
from polyclinic.lines import read_lines
from polyclinic.plugins import brought_by
from polyclinic.releases.kinds import read_question
from polyclinic.toml import build_model
from polyclinic.wire.messages import Request
from polyclinic.wire.submissions import ELSEWHERE

#: Of an approval's file; raised when an older version could misread one.
FORMAT = 1
State = Literal["pending", "approved", "denied", "expired"]
# Runs that wait at once: a coordinator that invents names must not fill the hospital's disk.
_MOST_PENDING = 200
_CODE = {".py", ".so", ".pyd"}
_LONGEST_WHY, _LONGEST_DAYS = 200, 3650


@dataclass(frozen=True)
class Approval:
    """What the hospital knows of a run.

    settings: all that was asked, by configuration key, without what is usual, and the ``question`` that is asked in
        place of training.
    digest: of the run's name, all its settings and the code.
    asked, decided, until: UTC in ISO 8601, the last two empty where nobody decided.
    by: the user of this machine who decided.
    why: in words, of a denial.
    """

    run: str
    digest: str
    state: State
    settings: dict[str, Any]
    code: str
    asked: str
    decided: str = ""
    until: str = ""
    by: str = ""
    why: str = ""
    format: int = FORMAT

    def stands(self, now: datetime) -> State:
        """The state at a time: an approval may have expired."""
        expired = self.state == "approved" and now >= datetime.fromisoformat(self.until)
        return "expired" if expired else self.state


def approval_of(hospital: Hospital, request: Request, config: RunConfig) -> Approval:
    """The standing of a run at a real hospital, written down as pending where it is new, has other terms or its approval expired.

    Of very many that wait, those that asked first are forgotten, and wait anew when they ask again.

    Args:
        hospital: The hospital, in whose home the approvals lie.
        request: The message, with the run's name and, for a query of its own, its question.
        config: The run's configuration.

    Raises:
        DataError: A file of approvals cannot be read.
        ConfigError: The question cannot be read.
    """
    run, question = request.run, str(getattr(request, "question", ""))
    if question:
        read_question(question)
    name = _digest(run, question, config)
    path = hospital.home / FOLDER / f"{run}.json"
    before = _read(path) if path.is_file() else None
    if before and before.digest == name and before.stands(_now()) != "expired":
        return before
    with _settling(hospital.home):
        before = _read(path) if path.is_file() else None  # what a person has decided meanwhile
        if before is None and len(list(path.parent.glob(FILES))) >= _MOST_PENDING:
            waiting = [waiting_run.run for waiting_run in approvals(hospital.home) if waiting_run.state == "pending"]
            for run_before in waiting[: max(0, 1 + len(waiting) - _MOST_PENDING)]:
                path.with_name(f"{run_before}.json").unlink(missing_ok=True)
        # A configuration's own key is no question that the hospital is asked.
        shown = {key: value for key, value in config.minimal().items() if key not in ELSEWHERE and key != "question"}
        shown |= {"question": question} if question else {}
        approval = Approval(run, name, "pending", shown, _code(config), _now().isoformat(timespec="seconds"))
        if before and before.state == "denied":
            approval = replace(before, digest=name, settings=shown, code=approval.code)
        # The journal first, as of a decision.
        append(hospital.home, {"event": approval.state, "kind": "approval", "run": run, "terms": name})
        _write(path, approval)
        return approval


def standing(hospital: Hospital, request: Request, config: RunConfig) -> dict[str, Any]:
    """Why the run may not go on, as ``refusal``, and whether it ``waits`` for a person; empty where it may.

    Args:
        hospital: The hospital that is asked.
        request: The message, with the run's name.
        config: The run's configuration, which its terms cover.
    """
    if obstacle := pausing(hospital):
        return obstacle
    path = hospital.home / FOLDER / f"{request.run}.json"
    if not hospital.policy.require_approval and not path.is_file():
        return {}
    # A run that was stopped before it told its terms tells them now, so that people can see and approve them.
    asks = hospital.policy.require_approval or not _read(path).digest
    approval = approval_of(hospital, request, config) if asks else _read(path)
    state = approval.stands(_now())
    if state == "denied":
        return {"refusal": f"the run was denied here{because(approval.why)}", "waits": False}
    if state == "approved" or not hospital.policy.require_approval:
        return {}
    return {"refusal": f"the run waits for approval here (terms {approval.digest[:12]})", "waits": True}


def pausing(hospital: Hospital) -> dict[str, Any]:
    """As ``standing``, of a pause alone."""
    pause = current_pause(hospital.home)
    return {"refusal": f"the hospital has paused{because(pause['why'])}", "waits": True} if pause else {}


def check_approved(hospital: Hospital, request: Request, config: RunConfig) -> None:
    """Checks that the run may go on here: the hospital has not paused, and the run is approved where it must be.

    Args:
        hospital: The hospital that is asked.
        request: The message, with the run's name and its round.
        config: The run's configuration, with the number of rounds that was approved or signed.

    Raises:
        BudgetRefused: The hospital has paused, the run waits or was denied, or the round is after the last.
    """
    if hospital.holds_to_terms and (round := getattr(request, "round", 0)) > config.rounds:
        raise BudgetRefused(f"{hospital.site}: round {round} is asked of a run of {config.rounds} rounds.")
    if obstacle := standing(hospital, request, config):
        raise BudgetRefused(f"{hospital.site}: {obstacle['refusal']}.")


def approvals(home: Path) -> list[Approval]:
    """All runs that the hospital knows of, the oldest first. Raises DataError for a file that cannot be read."""
    return sorted(map(_read, (home / FOLDER).glob(FILES)), key=lambda approval: (approval.asked, approval.run))


def approval_named(home: Path, run: str) -> Approval:
    """What the hospital knows of a run. Raises ConfigError for one that has not asked."""
    by_run = {approval.run: approval for approval in approvals(home)}
    if run not in by_run:
        raise ConfigError(f"No run {run!r} has asked for approval; runs that did: {several(by_run) or 'none'}.")
    return by_run[run]


@contextmanager
def _written_down() -> Iterator[None]:
    """Raises PolyclinicError where the disk takes no decision: then none is made."""
    try:
        yield
    except OSError as error:
        raise PolyclinicError(f"The decision cannot be written down, so none is made: {reason(error)}.") from error


@_written_down()
def stop(home: Path, run: str, why: str = "") -> Approval:
    """Denies a run, also one that needs no approval here: then it is known by the journal alone.

    Args:
        home: The hospital's home folder.
        run: The run's name.
        why: The reason, in words; empty for none.

    Raises:
        ConfigError: As ``decide``, or nobody here has heard of the run.
    """
    if not (home / FOLDER / f"{run}.json").is_file():
        lines = reversed(read_lines(home / NAME).entries)
        names = [*(line.get("run") for line in lines), *(approval.run for approval in approvals(home))]
        every = dict.fromkeys(name for name in names if name and isinstance(name, str))
        if run not in every:
            raise ConfigError(f"No run {run!r} has asked here; runs that did: {several(every) or 'none'}.")
        build_model(Request, {"run": run, "site": 0}, "The run to be stopped")
        _write(
            home / FOLDER / f"{run}.json", Approval(run, "", "pending", {}, "", _now().isoformat(timespec="seconds"))
        )
    return decide(home, run, "", "denied", 1.0, why)


@_written_down()
def pause(home: Path, why: str = "") -> None:
    """Let nothing of the hospital leave, of whatever run, until ``resume``; nothing is computed or charged. Raises ConfigError
    for a reason of more than one line."""
    _check_why(why)
    now = {"since": _now().isoformat(timespec="seconds"), "by": getpass.getuser(), "why": why}
    append(home, {"event": "paused", "kind": "approval", **now})
    write_file(home / PAUSED, json.dumps(now), mode=SECRET)


@_written_down()
def resume(home: Path) -> None:
    """End a pause. Raises ConfigError where there is none."""
    if not (home / PAUSED).exists():
        raise ConfigError("The hospital has not paused.")
    append(home, {"event": "resumed", "kind": "approval", "by": getpass.getuser()})
    (home / PAUSED).unlink(missing_ok=True)


@_written_down()
def decide(
    home: Path, run: str, terms: str, state: Literal["approved", "denied"], days: float, why: str = ""
) -> Approval:
    """Approves or denies a run under the ``terms``, and writes it into the journal.

    Args:
        home: The hospital's home folder.
        run: The run's name.
        terms: The whole digest, for whoever asks for the run could make two of the same first digits; a denial needs
            none.
        state: The decision.
        days: For how long an approval holds, in days.
        why: The reason, in words; empty for none.

    Raises:
        ConfigError: The run has not asked or now asks under other terms, or the days or the reason are impossible.
    """
    with _settling(home):
        approval, now = approval_named(home, run), _now()
        if state == "approved" and not approval.digest:
            raise ConfigError(
                f"Run {run!r} was stopped before its terms were known here, so there are none to approve; it tells them "
                "when it asks again."
            )
        if state == "approved" and terms != approval.digest:
            short = len(terms) != len(approval.digest)
            digits = f", and give all {len(approval.digest)} digits, not {len(terms)}" if short else ""
            raise ConfigError(
                f"The terms are {terms!r}, but run {run!r} now asks under {approval.digest[:12]}…; look at them with "
                f"`hospital show`{digits}."
            )
        if not 0 < days <= _LONGEST_DAYS:
            raise ConfigError(f"--days is {days:g}; allowed are numbers above 0 and at most {_LONGEST_DAYS}.")
        _check_why(why)
        until = (now + timedelta(days=days)).isoformat(timespec="seconds") if state == "approved" else ""
        decided = replace(
            approval, state=state, decided=now.isoformat(timespec="seconds"), until=until, by=getpass.getuser(), why=why
        )  # fmt: skip
        # The journal first: where it cannot be written, nothing is decided.
        append(
            home,
            {"event": state, "kind": "approval", "run": run, "terms": approval.digest, "by": decided.by, "why": why},
        )
        _write(home / FOLDER / f"{run}.json", decided)
        return decided


@contextmanager
def _settling(home: Path) -> Iterator[None]:
    """Nobody else writes down how a run stands meanwhile, so that no decision is lost."""
    (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
    folder = os.open(home / FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _check_why(why: str) -> None:
    if len(why) > _LONGEST_WHY or not why.isprintable():
        raise ConfigError(
            f"--why must be one printed line of at most {_LONGEST_WHY} characters: the coordinator is told it."
        )


@lru_cache(maxsize=64)
def _digest(run: str, question: str, config: RunConfig) -> str:
    asked = {key: value for key, value in config.flat().items() if key not in ELSEWHERE}
    return digest(run, question, _code(config), json.dumps(asked, sort_keys=True, default=str))


@lru_cache(maxsize=64)
def _code(config: RunConfig) -> str:
    """What would run here: the version of Polyclinic, and a digest of each package of others that the run names.

    The packages are found and not imported.
    """
    named = {"strategies": config.strategy, "objectives": config.objective}
    named |= {"tasks": config.task, "programs": config.task}
    named |= dict.fromkeys(("models", "methods", "games", "densities", "likelihoods"), config.model)
    names = [*named.items(), *(("mods", name) for name in config.mod_names)]
    packages = {brought_by(group, name).partition(".")[0] for group, name in names} - {""}
    digests = [f"{package} ({_digest_of(package)})" for package in sorted(packages)]
    return ", ".join([f"Polyclinic {polyclinic.__version__}", *digests])


@lru_cache(maxsize=64)
def _digest_of(package: str) -> str:
    """The digest of all code of a package, by names and contents of its files."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return "not installed here"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(folder, path) for folder in folders for path in folder.rglob("*") if path.suffix in _CODE]
    files = files or [(Path(str(spec.origin)).parent, Path(str(spec.origin)))]
    hashed = sha256()
    for folder, path in sorted(files):
        content = path.read_bytes() if path.is_file() else b""
        hashed.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return f"SHA-256 {hashed.hexdigest()}"


def _read(path: Path) -> Approval:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (format := content.get("format", FORMAT)) != FORMAT:
            raise DataError(f"{path} has format {format!r}; this version of Polyclinic reads format {FORMAT}.")
        approval = Approval(**content)
        if approval.state not in get_args(State) or (
            approval.state == "approved" and not datetime.fromisoformat(approval.until).tzinfo
        ):
            raise ValueError
    except (OSError, ValueError, TypeError, AttributeError):
        raise DataError(f"{path} cannot be read as an approval; move it away, and the run is pending again.") from None
    return approval


def _write(path: Path, approval: Approval) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(path, json.dumps(asdict(approval), indent=1, default=str), mode=SECRET)


def _now() -> datetime:
    return datetime.now(UTC)
