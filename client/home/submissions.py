"""Whose runs the hospital takes: where its policy names submitters, those that one of them has signed.

A signature is good for the first run that brings it in time, which is written down in the hospital's home and its journal. So a
coordinator cannot submit the same again under another name, and the limits of a submitter count all of their runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from polyclinic.client.home.hospital import Hospital
from polyclinic.client.home.journal import append
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import BudgetRefused, DataError
from polyclinic.files import SECRET, write_file
from polyclinic.releases.kinds import question_of_key, write_question
from polyclinic.releases.survey import Survey
from polyclinic.wire.messages import Request
from polyclinic.wire.submissions import signed_at, submission

FOLDER = "submissions"
#: The event of a line of the journal.
SUBMITTED = "submitted"
# For how long after it was made the first run may bring a signature: what was signed for others is not kept for later.
_DAYS = 30


def check_submitter(hospital: Hospital, request: Request, config: RunConfig) -> None:
    """Checks that a submitter of the policy signed the run, and writes down that the signature is this run's.

    Args:
        hospital: The hospital, whose policy may name submitters.
        request: The message, with the run's name and, for a query of its own, its question.
        config: The configuration as it came from Flower.

    Raises:
        BudgetRefused: The policy names submitters and none of them signed the run, or the signature is another run's.
        DataError: What was written down cannot be read.
    """
    submitters, name = hospital.policy.submitters, config.participation.submitter
    if not submitters:
        return
    if name not in submitters:
        whose = repr(name) if name else "somebody without a name"
        raise BudgetRefused(
            f"{hospital.site}: the policy takes runs that one of its submitters signed, and this one is of {whose}."
        )
    signature, key = config.participation.signature, submitters[name].key
    identity = submission(config.minimal(), signature, bytes.fromhex(key))
    if not identity:
        raise BudgetRefused(
            f"{hospital.site}: the run's settings are not signed with the key that the policy has of {name!r}; submit it with "
            "--key, through a coordinator that changes no setting."
        )
    question = str(getattr(request, "question", ""))
    if question != _question(config, hospital.schema):
        what = "another question than this one" if question else "a question, and no training"
        raise BudgetRefused(f"{hospital.site}: {name!r} signed {what}.")
    path = hospital.home / FOLDER / f"{identity}.json"
    if not path.exists():
        if datetime.now(UTC) - signed_at(signature) > timedelta(days=_DAYS):
            raise BudgetRefused(f"{hospital.site}: the run was signed more than {_DAYS} days ago; submit it anew.")
        # The journal first, which a restore reads.
        entry = {"event": SUBMITTED, "kind": "submission", "run": request.run, "by": name, "terms": identity}
        append(hospital.home, entry)
        write_down(hospital.home, entry)
    if (run := _read(path)["run"]) != request.run:
        raise BudgetRefused(
            f"{hospital.site}: run {run!r} has used this signature of {name!r} already; each run needs its own."
        )


def write_down(home: Path, entry: Mapping[str, Any]) -> None:
    """Writes down whose run has brought a signature, as a line of the journal says, unless another run was quicker."""
    path = home / FOLDER / f"{entry['terms']}.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        write_file(path, json.dumps({"run": entry["run"], "submitter": entry["by"]}), mode=SECRET, exclusive=True)


def submitted_runs(home: Path, submitter: str) -> frozenset[str]:
    """The names of all runs here that a person has submitted. Raises DataError for a file that cannot be read."""
    submissions = map(_read, (home / FOLDER).glob("[!.]*.json"))
    return frozenset(entry["run"] for entry in submissions if entry["submitter"] == submitter)


def _question(config: RunConfig, schema: Schema) -> str:
    """The question of the configuration, as a coordinator that knows the schema asks it; empty where it has none."""
    if not config.question:
        return ""
    question = question_of_key(config.question)
    return write_question(question.of(schema) if isinstance(question, Survey) and not question.columns else question)


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"run": str(content["run"]), "submitter": str(content["submitter"])}
    except (OSError, ValueError, TypeError, KeyError):
        raise DataError(f"{path} cannot be read as a submission; restore it from a backup.") from None
