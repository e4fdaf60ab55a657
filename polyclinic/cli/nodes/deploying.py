"""What the commands of a coordinator and of a hospital share."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import answer, console, loading, print_json, say, table
from polyclinic.errors import PolyclinicError

if TYPE_CHECKING:
    from polyclinic.deployment.monitoring.checks import Check

Folder = Annotated[Path, typer.Argument(help="Folder of its files.")]
Destination = Annotated[Path, typer.Argument(help="New folder for the copy.")]
Backup = Annotated[Path, typer.Argument(help="Folder of the backup.")]
Restored = Annotated[Path, typer.Argument(help="Folder to make; move an old one aside first.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command and start nothing.")]
IfMissing = Annotated[
    bool, typer.Option("--if-missing", help="Change nothing if the folder was made before. Default: refuse.")
]
_TIMES = ("registered", "submitted", "finished", "asked")
MetricsHost = Annotated[
    str, typer.Option("--host", help="Address to listen on. With 0.0.0.0 other machines can read the metrics.")
]
MetricsPort = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on, at /metrics.")]


class LogFormat(StrEnum):
    """How a node's log is written: as Flower's programs write it, or as one JSON object a line."""

    TEXT = "text"
    JSON = "json"


Logs = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar="POLYCLINIC_LOG_FORMAT", help="Format of the log; json is one object a line on stdout."
    ),
]


def serve_metrics(collector: Any, host: str, port: int) -> None:
    """Answer Prometheus until Ctrl-C or SIGTERM.

    Args:
        collector, host, port: As in ``monitoring.metrics.serve``, with its errors.
    """
    from polyclinic.deployment.monitoring.metrics import serve

    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # for every thread, so that only the next line but one gets them
    server = serve(collector, host, port)
    say(f"Metrics are at http://{host}:{port}/metrics")
    try:
        signal.sigwait(stops)
    finally:
        server.shutdown()


@dataclass(frozen=True)
class Starting:
    """A program to start: its arguments, what is set in its environment, and the folder in which it runs.

    ``site``: who speaks in its log; ``hidden``: what its log must not hold.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    folder: Path
    site: str
    hidden: Sequence[str] = ()


@contextmanager
def errors_logged(log_format: LogFormat, site: str = "") -> Iterator[None]:
    """Foreseen errors as a line of the log, where that is JSON."""
    try:
        yield
    except PolyclinicError as error:
        if log_format is LogFormat.TEXT:
            raise
        from polyclinic.deployment.monitoring.logs import Lines
        from polyclinic.deployment.monitoring.relay import write

        write(Lines(site).event("error", str(error)))
        raise typer.Exit(error.exit_code) from None


def start_or_show(
    starting: Starting, sentence: str, facts: Mapping[str, Any], dry_run: bool, as_json: bool, log_format: LogFormat
) -> None:
    """Say the sentence and start the program, whose every signal and exit code are then this process's.

    Args:
        starting: The program.
        sentence: What a person is told before it starts.
        facts: With ``as_json``, the keys of the object beside ``command`` and ``environment``.
        dry_run: The program is only shown.
        as_json: Whether it is shown as JSON in place of the sentence.
        log_format: With a log of text the program replaces this process. With one of JSON it is this process's child, and what
            it writes comes out as JSON.

    Raises:
        PolyclinicError: The program cannot be started. typer.Exit: It ended, with its exit code.
    """
    from polyclinic.deployment.environment import with_settings
    from polyclinic.deployment.monitoring.logs import Lines
    from polyclinic.deployment.monitoring.relay import end_as, relay, write

    structured = log_format is LogFormat.JSON and not dry_run
    lines = Lines(starting.site, starting.hidden)
    if as_json:
        print_json({**facts, "command": list(starting.command), "environment": dict(starting.settings)})
    elif structured:
        write(lines.event("info", sentence))
    else:
        say(shlex.join(starting.command) if dry_run else sentence)
    if dry_run:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    environment = with_settings(starting.settings)
    if structured:
        raise typer.Exit(end_as(relay(starting.command, environment, starting.folder, lines)))
    try:
        os.chdir(starting.folder)
        os.execve(starting.command[0], list(starting.command), environment)
    except OSError as error:
        raise PolyclinicError(f"{starting.command[0]} cannot be started: {error.strerror}.") from None


def report(checks: Sequence[Check], as_json: bool) -> None:
    """A line for each check; exit 1 unless all is well."""
    well = all(check.state == "ok" for check in checks)
    lines = (f"{check.state:8}{check.name:12} {check.what}" for check in checks)
    answer(as_json, {"ok": well, "checks": [asdict(check) for check in checks]}, *lines)
    if not well:
        raise typer.Exit(1)


def is_made(folder: Path, made: bool) -> str:
    """The first line of what ``init`` says."""
    return f"{folder}: {'made' if made else 'there already; nothing was changed'}."


def warn(sentences: Sequence[str]) -> None:
    """Print each sentence on stderr."""
    say(*(Text.assemble(("Warning:", "bold yellow"), f" {sentence}") for sentence in sentences), errors=True)


def back_up(folder: Path, destination: Path, parts: Mapping[str, Path], as_json: bool) -> None:
    """Copy a folder, and say what was copied. Errors as those of ``deployment.backup``.

    Args:
        folder, destination, parts: As in ``deployment.backup.back_up``.
        as_json: Whether it is said as JSON.
    """
    with loading():
        from polyclinic.deployment import backup

    copied = backup.back_up(folder, destination, parts)
    size = f"{copied['files']} files, {copied['bytes']:,} bytes"
    answer(as_json, copied, f"{copied['backup']}: {size}; private keys are among them.")


def show_journal(home: Path, name: str, columns: Sequence[str], last: int, as_json: bool) -> None:
    """Show the newest lines of a journal.

    Args:
        home: The folder that holds the journal.
        name: The journal's file in it.
        columns: The keys of an entry that are shown, in their order; JSON has all of them.
        last: How many of the newest lines are shown; 0 shows all.
        as_json: Whether they are shown as JSON.

    Raises:
        DataError: The journal cannot be read.
        PolyclinicError: It was altered; it is shown before.
    """
    with loading():
        from polyclinic.lines import read_lines

    journal = read_lines(home / name)
    shown = journal.entries[-last:] if last else journal.entries
    value = {
        "entries": list(shown), "lines": len(journal.entries), "intact": journal.intact, "torn": journal.torn,
        "head": journal.head,
    }  # fmt: skip
    lines = ("  ".join(filter(None, (_printable(entry.get(column, "")) for column in columns))) for entry in shown)
    newest = f"The newest {len(shown)} of " if len(shown) < len(journal.entries) else ""
    answer(
        as_json,
        value,
        *lines,
        f"{newest}{len(journal.entries)} lines, {journal.torn} cut short by a crash; head {journal.head}",
    )
    if not journal.intact:
        raise PolyclinicError(f"{home / name}: a line was changed, taken out or put in.")


def _printable(value: Any) -> str:
    """A value as text; what a message brought could otherwise look like another line, or move the cursor."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def listing(headings: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of the rows' values by heading, where unknown values are empty.

    On a screen that is too narrow each row is a block of lines, a heading and its value in each.
    """
    cells = [[_cell(heading, row[heading]) for heading in headings] for row in rows]
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *cells, strict=True)) - 2
    if width <= console().width:
        return table(headings, cells, words=headings)
    lines = [line for row in cells for line in (*zip(headings, row, strict=True), ("", ""))]
    made = table(("", ""), lines[:-1], words=("",))
    made.show_header = False
    return made


def _cell(heading: str, value: Any) -> str:
    text = "" if value is None else str(value)
    return text[:16].replace("T", " ") if heading in _TIMES else text
