"""What people at the hospital have put on hold, as its node reads it: with few imports, for a node that waits takes memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.client.home.own_files import JOURNAL
from polyclinic.lines import read_lines
from polyclinic.wire.messages import ENROL

FOLDER, PAUSED = "approvals", "paused.json"
#: Of the files in the folder; one that is being written begins with a dot.
FILES = "[!.]*.json"


def current_pause(home: Path) -> dict[str, str] | None:
    """Since when, by whom and why the hospital has paused, or None. A file that cannot be read is a pause without a reason."""
    try:
        content = json.loads((home / PAUSED).read_text(encoding="utf-8"))
        return {name: str(content[name]) for name in ("since", "by", "why")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return {"since": "", "by": "", "why": ""}


def obstacle(home: Path, message: str) -> str:
    """Why the answer to a message may not be sent any more, and writes so into the journal; empty where it may.

    The node asks before it sends, since a coordinator may take its time to fetch an answer. What enrolment says is of no
    record, and may leave.

    Args:
        home: The hospital's home folder.
        message: The identity of the message that was answered.

    Raises:
        OSError: The journal cannot be written.
        DataError: The journal cannot be read, or has a newer format.
    """
    pause = current_pause(home)
    reasons = {path.stem: _denial(path) for path in (home / FOLDER).glob(FILES)}
    denied = {run: why for run, why in reasons.items() if why is not None}
    if not (pause or denied):
        return ""
    lines = read_lines(home / JOURNAL).entries
    answered: dict[str, Any] = next((line for line in reversed(lines) if line.get("message") == message), {})
    if answered.get("event") != "answered" or answered["kind"].startswith(ENROL):
        return ""
    if pause:
        why = f"the hospital has paused{because(pause['why'])}"
    elif answered.get("run") in denied:
        why = f"the run was denied here{because(denied[answered['run']])}"
    else:
        return ""
    from polyclinic.client.home.journal import append

    same: dict[str, Any] = {name: answered[name] for name in ("kind", "message", "run", "round") if name in answered}
    append(home, {"event": "refused", **same, "why": why})
    return why


def _denial(path: Path) -> str | None:
    """Why a run was denied, None where it was not. A file that cannot be read is a denial without a reason, of its run alone."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["why"]) if content["state"] == "denied" else None
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def because(why: str) -> str:
    """A reason as it ends a sentence; empty for none."""
    return f": {why}" if why else ""
