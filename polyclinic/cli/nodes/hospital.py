"""``polyclinic hospital``: a hospital's node on a machine of its own, without containers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.nodes import approving, deploying
from polyclinic.cli.nodes.deploying import Folder, LogFormat
from polyclinic.cli.terminal import Json, answer, intact_or_altered, loading, pairs, significant
from polyclinic.errors import ConfigError, count_text

if TYPE_CHECKING:
    from polyclinic.deployment.hospital import HospitalNode

app = typer.Typer(no_args_is_help=True, help="A hospital: its policy, its node's key, its node, and how it stands.")


for _command in (
    approving.pending, approving.show, approving.approve, approving.deny, approving.stop, approving.pause, approving.resume,
    approving.page,
):  # fmt: skip
    app.command()(_command)


@app.command()
def init(
    folder: Folder,
    site: Annotated[str, typer.Option(help="The hospital's name in reports.")],
    data: Annotated[str, typer.Option(help="Records: file, folder, pattern, SOURCE:PLACE, or a database's URL.")],
    schema: Annotated[Path, typer.Option(help="The federation's public schema; it is copied.")],
    coordinator: Annotated[str, typer.Option(help="HOST:PORT of the coordinator.")],
    ca: Annotated[Path, typer.Option(help="The coordinator's ca.crt; it is copied.")],
    budget: Annotated[float, typer.Option(help="Epsilon that these records may ever spend.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of the budget: below 1/patients, better a tenth of that.")] = 1e-5,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the source, such as query=... or password-file=FILE; repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Loopback port for the processes of the node.")] = 9094,
    check: Annotated[bool, typer.Option("--check/--no-check", help="First read all records under the schema.")] = True,
    if_missing: deploying.IfMissing = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Describe the records, write a strict policy and make the node's key in a folder."""
    with loading():
        from polyclinic.deployment.certificates import check_authority
        from polyclinic.deployment.files import write_new
        from polyclinic.deployment.hospital import FILE, NodeFile, check_delta, hospital_files
        from polyclinic.deployment.records import count_cells, records_of

    made = not (if_missing and (folder / FILE).exists())
    counts: dict[str, Any] | None = None
    if made:
        records = records_of(data, pairs("--source", source), schema)
        node = NodeFile.build({"coordinator": coordinator, "port": port}, "The node")
        files = hospital_files(site, records, node, check_authority(ca), budget, delta)
        counts = count_cells(records, schema) if check else None
        if counts:
            check_delta(delta, counts["patients"])
        elif delta > 1e-5:
            deploying.warn([f"The patients were not counted; make sure that delta {delta:g} is below 1/patients."])
        write_new(folder, files)
    public = (folder / "node.pub").read_text(encoding="utf-8").strip()
    counted = []
    if counts:
        counted = [
            f"{counts['rows']:,} rows of {counts['patients']:,} patients fit the schema (exact counts: not for others)."
        ]
    answer(
        as_json, {"folder": str(folder), "made": made, "public_key": public, "records": counts},
        deploying.is_made(folder, made), *counted,
        f"Read the policy in {folder / FILE}, and send the coordinator this public key ({folder / 'node.pub'}):", public,
    )  # fmt: skip


@app.command()
def start(
    folder: Folder,
    dry_run: deploying.DryRun = False,
    log_format: deploying.Logs = LogFormat.TEXT,
    as_json: Json = False,
) -> None:
    """Start the node in this process's place: with TLS, its key, and only the bundles that the policy allows."""
    with deploying.errors_logged(log_format):
        state = _read(folder)
        site, coordinator = state.hospital.site, state.node.coordinator
        starting = deploying.Starting(state.command(), state.settings, state.folder, site, state.passwords)
        facts, sentence = {"site": site, "coordinator": coordinator}, f"{site} connects to {coordinator}."
        deploying.start_or_show(starting, sentence, facts, dry_run, as_json, log_format)


@app.command()
def rekey(folder: Folder, as_json: Json = False) -> None:
    """Replace the node's key, after a revocation or a theft; the coordinator must register the new one."""
    with loading():
        from polyclinic.deployment.hospital import new_key

    public = new_key(_read(folder))
    answer(as_json, {"folder": str(folder), "public_key": public}, public)


@app.command()
def status(
    folder: Folder,
    as_json: Json = False,
) -> None:
    """Whether the coordinator answers, when certificates end, and what the ledger says; also where no coordinator answers."""
    with loading():
        from polyclinic.deployment.certificates import expiry_warnings
        from polyclinic.deployment.monitoring.status import hospital_status

    node = _read(folder)
    state = hospital_status(node)
    answer(as_json, state, *_lines(state))
    deploying.warn(expiry_warnings([node.ca]))


@app.command()
def check(folder: Folder, as_json: Json = False) -> None:
    """Whether all is well, a line for each check with what to do; exit 1 otherwise. It reads all records, and shows no cell."""
    with loading():
        from polyclinic.deployment.monitoring.checks import hospital_checks

    deploying.report(hospital_checks(_read(folder)), as_json)


@app.command()
def journal(
    folder: Folder,
    last: Annotated[int, typer.Option(min=0, help="How many of the newest lines to show; 0 shows all.")] = 20,
    as_json: Json = False,
) -> None:
    """What was asked of this hospital and what left it, line by line; exit 1 when a line was changed or is missing."""
    with loading():
        from polyclinic.client.home.journal import NAME

    deploying.show_journal(_read(folder).home, NAME, ("time", "event", "kind", "run", "round", "why"), last, as_json)


@app.command()
def backup(folder: Folder, destination: deploying.Destination, as_json: Json = False) -> None:
    """Copy the folder while its node runs: ledger, journal, what was kept beside them, policy and keys."""
    node = _read(folder)
    deploying.back_up(node.folder, destination, {"home": node.home, "flwr": node.folder / "flwr"}, as_json)


@app.command()
def restore(
    backup: deploying.Backup,
    folder: deploying.Restored,
    journal: Annotated[
        Path | None,
        typer.Option(help="The newest journal.jsonl that survived, such as the damaged folder's."),
    ] = None,
    without_journal: Annotated[
        bool, typer.Option("--without-journal", help="No journal survived: charges after the backup are forgotten.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a backup in the folder's place, with all charges of the newest journal; the hospital has paused afterwards."""
    with loading():
        from polyclinic.deployment.restore import restore_hospital

    if (journal is None) != without_journal:
        raise ConfigError("Give one of --journal FILE and --without-journal: the journal holds what the backup lacks.")
    done = restore_hospital(backup, folder, journal)
    if without_journal:
        deploying.warn([
            f"What was charged after {done['time']} is forgotten; lower `budget` by what the coordinator's runs state since then."
        ])  # fmt: skip
    answer(
        as_json, done, f"{folder}: the backup of {done['time']}, and {done['charges']} later charges of the journal.",
        f"Read the policy, then `polyclinic hospital resume {folder}`, and start the node.",
    )  # fmt: skip


@app.command()
def metrics(folder: Folder, host: deploying.MetricsHost = "127.0.0.1", port: deploying.MetricsPort = 9464) -> None:
    """Serve this hospital's messages, bytes, refusals and epsilon to Prometheus, until stopped."""
    with loading():
        from polyclinic.deployment.monitoring.checks import hospital_checks
        from polyclinic.deployment.monitoring.metrics import HospitalMetrics

    node = _read(folder)
    metrics = HospitalMetrics(node.home, node.ca, lambda: hospital_checks(node, quick=True))
    deploying.serve_metrics(metrics, host, port)


def identity(
    hospital: Annotated[Path, typer.Argument(help="The hospital.toml of a real hospital.")],
    as_json: Json = False,
) -> None:
    """Print a hospital's public key, for the known-hospitals of the others' policies; made in its home if there is none."""
    with loading():
        from polyclinic.client.home import identity as keys
        from polyclinic.client.home.policy import HospitalFile
        from polyclinic.privacy.secure.signatures import public_identity

    described = HospitalFile.read(hospital)
    key = public_identity(keys.identity(hospital.resolve().parent / described.home)).hex()
    answer(as_json, {"site": described.site, "public_key": key}, key)


def _read(folder: Path) -> HospitalNode:
    with loading():
        from polyclinic.deployment.hospital import HospitalNode

    return HospitalNode.read(folder)


def _lines(state: dict[str, Any]) -> list[str]:
    coordinator, ledger, held_out = state["coordinator"], state["ledger"], state["held_out"]
    standing = coordinator["problem"]
    if coordinator["reachable"]:
        standing = f"answers, certificate until {coordinator['expires']} ({coordinator['days']} days)"
    spent = "unbounded" if ledger["epsilon"] is None else significant(ledger["epsilon"])
    budget = "unlimited" if ledger["budget"] is None else f"{ledger['budget']:g}"
    lines = [
        f"{state['site']}",
        f"Coordinator {coordinator['address']}: {standing}",
        f"Authority: until {state['authority']['expires']} ({state['authority']['days']} days)",
        f"Ledger: ε = {spent} of {budget} at δ = {ledger['delta']:g}, {count_text(ledger['charges'], 'charge')}; "
        f"{intact_or_altered(ledger['intact'])}",
    ]
    if month := ledger["month"]:
        cost = "unbounded" if month["epsilon"] is None else significant(month["epsilon"])
        left = "" if month["room"] is None else f"; room in it for one more release of ε = {significant(month['room'])}"
        lines.append(f"Limit of thirty days: ε = {cost} of {month['limit']:g}{left}")
    if ledger["most_per_run"] is not None:
        lines.append(f"Limit of a run: ε = {ledger['most_per_run']:g}")
    if ledger["room"] is not None:
        lines.append(
            f"Room: for one more release of ε = {significant(ledger['room'])}, or several that cost as much together"
        )
    if held_out:
        lines.append(
            f"Held-out patients: ε = {significant(held_out['epsilon'])}, {count_text(held_out['charges'], 'charge')}; "
            f"{intact_or_altered(held_out['intact'])}"
        )
    if pause := state["paused"]:
        lines.insert(1, f"Paused since {pause['since']} by {pause['by']}{': ' if pause['why'] else ''}{pause['why']}")
    charges = ledger["last"]
    return [
        *lines, *(f"  {last['time'][:19]}  {last['run']}  round {last['round']}  {last['purpose']}" for last in charges)
    ]  # fmt: skip
