"""Whether all is well at a hospital's node or at a coordinator: one check after the other, each with what to do."""

from __future__ import annotations

import ctypes
import shutil
import sqlite3
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from polyclinic.client.home.journal import NAME
from polyclinic.client.home.records import own_records
from polyclinic.deployment.certificates import days_left, expiry_warnings
from polyclinic.deployment.control import control, nodes, unreachable
from polyclinic.deployment.coordinator import DATABASE, Coordinator
from polyclinic.deployment.flower.refusals import SET, clock_difference, is_refused, registration
from polyclinic.deployment.hospital import HospitalNode
from polyclinic.deployment.monitoring.status import held_out_status, ledger_status
from polyclinic.deployment.submitters import own_key
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import count_records
from polyclinic.errors import PolyclinicError, count_text
from polyclinic.files import SECRET, write_file
from polyclinic.lines import read_lines
from polyclinic.runs.folder import Run
from polyclinic.wire.versions import version_conflict, version_title, versions

OK, WARNING, FAILED = "ok", "warning", "failed"
_LEAST_BYTES, _FEW_BYTES = 1e8, 1e9  # with less the disk check fails, or warns
_HEARTBEAT_SECONDS = 60.0  # after which the coordinator lists a node as offline
_TIME_ERROR = 5  # linux/timex.h: nothing keeps the clock

# What a scrape leaves out: all records, the whole journal or database, and what the coordinator's log would be full of.
_SLOW = ("registered", "records", "journal", "database", "versions")
Outcome = tuple[str, str]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and a sentence, which says what to do where it is not OK."""

    name: str
    state: str
    what: str


def hospital_checks(node: HospitalNode, quick: bool = False) -> list[Check]:
    """Those of a hospital, the ``quick`` ones alone or all: its records are counted, and the number is kept for the next time."""
    address = node.node.coordinator
    return _run_checks(
        quick,
        certificate=lambda: _certificates([node.ca]),
        clock=lambda: _clock(address, node.ca),
        registered=lambda: _check_registration(address, node),
        connected=lambda: _check_connection(node.folder / "flwr" / "heartbeat"),
        disk=lambda: _disk(node.home),
        records=lambda: _records(node),
        ledger=lambda: _ledger(node),
        journal=lambda: _journal(node.home),
        versions=lambda: _versions(_last_coordinator(node.home)),
    )


def coordinator_checks(read: Coordinator, address: str = "", quick: bool = False) -> list[Check]:
    """The checks of a coordinator.

    Args:
        read: The coordinator's folder, read.
        address: The SuperLink's, "" where it runs on this machine.
        quick: Only the quick checks, not all.
    """
    state = read.folder / "state"
    return _run_checks(
        quick,
        certificate=lambda: _certificates(read.certificates),
        nodes=lambda: _nodes(address or read.here, read.folder / "ca.crt"),
        clock=_kept_time,
        disk=lambda: _disk(state),
        database=lambda: _database(state / DATABASE),
        versions=lambda: _versions(_newest_hospitals(read.folder / "runs")),
    )


def _run_checks(quick: bool, **checks: Callable[[], Outcome]) -> list[Check]:
    def outcome(check: Callable[[], Outcome]) -> Outcome:
        try:
            return check()
        except httpx.RequestError as error:
            return FAILED, f"the coordinator does not answer: {unreachable(error)}"
        except (PolyclinicError, OSError, sqlite3.Error) as error:
            return FAILED, str(error)

    return [Check(name, *outcome(check)) for name, check in checks.items() if not (quick and name in _SLOW)]


def _certificates(paths: Sequence[Path]) -> Outcome:
    days, warnings = min(map(days_left, paths)), " ".join(expiry_warnings(paths))
    return FAILED if days < 0 else WARNING if warnings else OK, warnings or f"{days:.0f} days are left"


def _clock(address: str, ca: Path) -> Outcome:
    context = ssl.create_default_context(cafile=str(ca))
    answer = httpx.get(f"https://{address}/health", verify=context, timeout=5.0)  # by the proxy that the node takes
    # Its time has no fractions: on average it was half a second later.
    ahead = (datetime.now(UTC) - parsedate_to_datetime(answer.headers["date"])).total_seconds() - 0.5
    state = FAILED if is_refused(ahead) else WARNING if is_refused(2 * ahead) else OK
    return state, f"{clock_difference(ahead)} {address}'s{'' if state == OK else f'; {SET}'}"


def _check_connection(heartbeat: Path) -> Outcome:
    age = time.time() - heartbeat.stat().st_mtime if heartbeat.exists() else float("inf")
    if age < _HEARTBEAT_SECONDS:
        return OK, f"the coordinator answered the node {age:.0f} seconds ago"
    return FAILED, "the coordinator has not answered the node for a minute; start it, or see why in its log"


def _check_registration(address: str, node: HospitalNode) -> Outcome:
    why = registration(address, node.ca.read_bytes(), (node.folder / node.node.key).read_bytes())
    return FAILED if why else OK, why or "the coordinator knows this hospital's key"


def _records(node: HospitalNode) -> Outcome:
    schema = Schema.from_toml(node.folder / node.hospital.schema_)
    place = "the database" if "://" in node.hospital.data else node.hospital.data
    counted = count_records(own_records(node.hospital, node.folder, schema), schema, place)
    file, patients = node.home / "patients-counted", counted["patients"]
    before = int(file.read_text()) if file.exists() else patients
    write_file(file, str(patients), mode=SECRET)
    what = f"{patients:,} patients in {counted['rows']:,} rows fit the schema"
    if before == patients:
        return OK, what
    return (
        WARNING,
        f"{what}, where there were {before:,} at the last check; a run that began before goes on with those alone",
    )


def _ledger(node: HospitalNode) -> Outcome:
    ledgers = [ledger for ledger in (ledger_status(node), held_out_status(node)) if ledger]
    if all(ledger["intact"] for ledger in ledgers):
        return OK, f"intact; {count_text(ledgers[0]['charges'], 'charge')}"
    return FAILED, "it has been altered; `polyclinic ledger verify` says where"


def _journal(home: Path) -> Outcome:
    journal = read_lines(home / NAME)
    if journal.intact:
        return OK, f"intact; {count_text(len(journal.entries), 'line')}"
    return FAILED, "a line was changed, taken out or put in; compare it with a backup"


def _disk(folder: Path) -> Outcome:
    free = shutil.disk_usage(folder).free
    state = FAILED if free < _LEAST_BYTES else WARNING if free < _FEW_BYTES else OK
    return state, f"{free / 1e9:.1f} GB are free at {folder}{'' if state == OK else '; make room'}"


def _kept_time() -> Outcome:
    """By the kernel's word, which it may not give."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = adjtimex(ctypes.create_string_buffer(1024)) if adjtimex else -1  # zeros: it is asked and not set
    if state == _TIME_ERROR:
        return WARNING, "nothing keeps this machine's clock right; have it kept by a time server (NTP)"
    return OK, "a time server keeps it" if state >= 0 else "nothing here says whether a time server keeps it"


def _nodes(address: str, ca: Path) -> Outcome:
    with control(address, ca, own_key()) as client:
        registered = [node for node in nodes(client) if node["revoked"] is None]
    away = [f"{node['name']} is {node['status']}" for node in registered if node["status"] != "online"]
    count = f"{count_text(len(registered), 'registered node')}"
    return WARNING if away else OK, ", ".join([f"the SuperLink answers, {count}", *away])


def _database(path: Path) -> Outcome:
    if not path.exists():
        return FAILED, "the coordinator was never started here, so there is no database; start it"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        [(result,)] = database.execute("PRAGMA quick_check(1)")
    return (OK, "sound") if result == "ok" else (FAILED, f"{result}; restore the newest backup")


def _last_coordinator(home: Path) -> dict[str, dict[str, Any]]:
    asked = [entry for entry in read_lines(home / NAME).entries if "version" in entry]
    if not asked:
        return {}
    number = str(asked[-1].get("privacy_format", ""))
    return {"the coordinator": {"polyclinic": asked[-1]["version"], "privacy_format": number}}


def _newest_hospitals(runs: Path) -> dict[str, Any]:
    """Those of the newest run that has ended."""
    ended = (run.versions().get("hospitals") for run in reversed(Run.all_in(runs)))
    return next(filter(None, ended), {})


def _versions(others: Mapping[str, Mapping[str, Any]]) -> Outcome:
    ours = versions()
    other = {name: its for name, its in others.items() if its.get("polyclinic") != ours["polyclinic"]}
    unlike = {name: its for name, its in others.items() if version_conflict(its, ours)}
    what = ", ".join(
        [version_title(ours), *(f"{name} has {version_title(its)}" for name, its in (other | unlike).items())]
    )
    if unlike:
        return FAILED, f"{what}; install versions of the same privacy format at all"
    return WARNING if other else OK, what
