"""``polyclinic coordinator``: a federation's coordinator on a machine of its own, without containers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.nodes import deploying
from polyclinic.cli.nodes.deploying import Folder, LogFormat
from polyclinic.cli.options import Config, Sets
from polyclinic.cli.terminal import Json, answer, assignments, loading, say
from polyclinic.toml import read_toml

if TYPE_CHECKING:
    from polyclinic.deployment.control import Caller
    from polyclinic.deployment.coordinator import Coordinator

app = typer.Typer(no_args_is_help=True, help="A coordinator: its certificate, its SuperLink, its nodes and its runs.")
authority = typer.Typer(no_args_is_help=True, help="A new authority beside the old one, then in its place.")
app.add_typer(authority, name="authority")
submitter = typer.Typer(no_args_is_help=True, help="Who may submit runs here: people, each with a key and a role.")
app.add_typer(submitter, name="submitter")

Address = Annotated[
    str,
    typer.Option("--superlink", help="HOST:PORT of the SuperLink. Default: this machine's.", show_default=False),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", envvar="POLYCLINIC_KEY", help="File of your own key, if the coordinator lists who may submit.",
        show_default=False,
    ),
]  # fmt: skip
Name = Annotated[str, typer.Argument(help="The person's name: letters, digits, spaces, '.', '@', '_' and '-'.")]


class Role(StrEnum):
    """What a person may do at a coordinator."""

    SUBMIT = "submit"
    ADMIN = "admin"


@app.command()
def init(
    folder: Folder,
    host: Annotated[list[str], typer.Option(help="Name or IP address by which hospitals reach it; repeatable.")],
    address: Annotated[
        list[str] | None, typer.Option(help="Another name or IP address for the certificate; repeatable.")
    ] = None,
    listen: Annotated[
        str, typer.Option(help="IP address at which it listens; 0.0.0.0 is all of this machine's.")
    ] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port at which it listens.")] = 8000,
    control_from: Annotated[
        list[str] | None,
        typer.Option(help="Network, such as 10.1.0.0/24, from which runs may be submitted too; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the server's certificate.")] = 825,
    if_missing: deploying.IfMissing = False,
    as_json: Json = False,
) -> None:
    """Make an authority, the coordinator's certificate and its configuration in a folder."""
    with loading():
        from polyclinic.deployment.coordinator import FILE, CoordinatorFile, coordinator_files
        from polyclinic.deployment.files import write_new

    made = not (if_missing and (folder / FILE).exists())
    if made:
        hosts = [*host, *(address or [])]
        values = {"hosts": hosts, "listen": listen, "port": port, "control-from": control_from or []}
        write_new(folder, coordinator_files(folder, CoordinatorFile.build(values, "The coordinator"), days))
    answer(
        as_json, {"folder": str(folder), "made": made, "ca": str(folder / "ca.crt")},
        deploying.is_made(folder, made), f"Give {folder / 'ca.crt'} to every hospital.",
        "Keep ca.key, best offline: who has it can pass for the coordinator.",
    )  # fmt: skip


@app.command()
def start(
    folder: Folder,
    dry_run: deploying.DryRun = False,
    log_format: deploying.Logs = LogFormat.TEXT,
    as_json: Json = False,
) -> None:
    """Start the SuperLink in this process's place: with TLS, node authentication and its database on disk."""
    with deploying.errors_logged(log_format, "coordinator"):
        state = _read(folder)
        file = state.file
        sentence = f"SuperLink for {', '.join(file.hosts)} listens at {file.listen}, port {file.port}."
        facts = {"listen": file.listen, "port": file.port, "hosts": list(file.hosts)}
        starting = deploying.Starting(state.command(), state.settings, state.folder, "coordinator")
        if not dry_run:
            state.close_state()
        deploying.start_or_show(starting, sentence, facts, dry_run, as_json, log_format)


@app.command()
def renew(
    folder: Folder,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the new certificate.")] = 825,
    ca_key: Annotated[Path | None, typer.Option(help="File of the authority's key. Default: FOLDER/ca.key.")] = None,
    as_json: Json = False,
) -> None:
    """Make a new server's certificate, of the new authority where there are two; it says which authority signed."""
    with loading():
        from polyclinic.deployment.certificates import expiry

    signer = _read(folder).renew(days, ca_key)
    until = f"{expiry(folder / 'server.crt'):%Y-%m-%d}"
    done = f"{folder / 'server.crt'} is valid until {until}, signed by {signer}; restart the SuperLink."
    answer(as_json, {"folder": str(folder), "expires": until, "authority": signer}, done)


@authority.command("new")
def new_authority(folder: Folder, as_json: Json = False) -> None:
    """Make a second authority: ca.crt holds both, and the server's certificate stays the first one's."""
    old, new = _read(folder).add_authority()
    answer(
        as_json, {"folder": str(folder), "old": old, "new": new},
        f"{folder / 'ca.crt'} holds the old authority {old} and the new {new}.",
        "Give it to every hospital; when all have it in place, `polyclinic coordinator renew` uses the new one.",
    )  # fmt: skip


@authority.command("drop")
def drop_authority(folder: Folder, as_json: Json = False) -> None:
    """End the old authority, after `renew` with the new one: ca.crt holds the new one alone, and its key is ca.key."""
    new = _read(folder).drop_authority()
    done = f"{folder / 'ca.crt'} holds {new} alone; give it to every hospital, which may still believe the old one."
    answer(as_json, {"folder": str(folder), "authority": new}, done)


@app.command()
def register(
    folder: Folder,
    key: Annotated[Path, typer.Argument(help="The hospital's node.pub.")],
    name: Annotated[str, typer.Option(help="Name by which you know the node.")],
    address: Address = "",
    own: Key = None,
    as_json: Json = False,
) -> None:
    """Let the node with this public key take part."""
    with loading():
        from polyclinic.deployment.control import register as add

    with _caller(folder, address, own).control() as client:
        node = add(client, key, name)
    answer(as_json, {"name": name, "node": node}, f"{name} is registered as node {node}.")


@app.command()
def revoke(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The node's name.")],
    address: Address = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End a node's registration; its key is refused from then on."""
    with loading():
        from polyclinic.deployment.control import revoke as end

    with _caller(folder, address, key).control() as client:
        node = end(client, name)
    answer(as_json, {"name": name, "node": node}, f"{name} (node {node}) takes part no longer.")


@app.command()
def nodes(folder: Folder, address: Address = "", key: Key = None, as_json: Json = False) -> None:
    """List the nodes that were registered, and which of them are there."""
    with loading():
        from polyclinic.deployment.certificates import expiry_warnings
        from polyclinic.deployment.control import nodes as listed

    with _caller(folder, address, key).control() as client:
        registered = listed(client)
    deploying.warn(expiry_warnings(_read(folder).certificates))
    answer(as_json, registered, deploying.listing(("name", "node", "status", "registered"), registered))


@app.command()
def runs(folder: Folder, address: Address = "", key: Key = None, as_json: Json = False) -> None:
    """List the runs that were submitted, with folder, rounds and state, and how to go on with one that broke off."""
    with loading():
        from polyclinic.deployment.submitting import described_runs, folders_by_run, next_step

    read = _read(folder)
    with _caller(folder, address, key).control() as client:
        shown = described_runs(read, client)
    folders = folders_by_run(read.folder / "runs")
    rows = [run | {"rounds": _of(run["done"], run["rounds"]), "state": _state(run)} for run in shown]
    broken_off = [run for run in dict.fromkeys(folders.values()) if not run.finished and not run.is_held]
    answer(
        as_json, shown, deploying.listing(("run", "folder", "submitter", "rounds", "state", "submitted"), rows),
        *(f"{run['run']}: {run['details']}" for run in shown if run["details"]),
        *(next_step(read, run_folder) for run_folder in broken_off),
    )  # fmt: skip


@app.command()
def stop(
    folder: Folder,
    run: Annotated[str, typer.Argument(help="The run's number or its folder's name, as `runs` shows them.")],
    address: Address = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End a run that waits or goes on; its checkpoint stays, so that it can be resumed. Exit 2 for one that has ended."""
    with loading():
        from polyclinic.deployment.submitting import stop as end

    stopped = end(_caller(folder, address, key), run)
    answer(as_json, stopped, f"Run {run}: {stopped['state']}. `polyclinic coordinator runs` says how to go on with it.")


@app.command()
def audit(
    folder: Folder,
    last: Annotated[int, typer.Option(min=0, help="How many of the newest lines to show; 0 shows all.")] = 20,
    as_json: Json = False,
) -> None:
    """Who asked this coordinator's SuperLink for a change, line by line; exit 1 when a line was changed or is missing."""
    with loading():
        from polyclinic.deployment.coordinator import AUDIT

    columns = ("time", "event", "call", "from", "by", "run", "node", "name", "status")
    deploying.show_journal(_read(folder).folder / "state", AUDIT, columns, last, as_json)


@app.command()
def submit(
    folder: Folder,
    config: Config = None,
    sets: Sets = None,
    stream: Annotated[bool, typer.Option("--stream", help="Follow the run to its end.")] = False,
    app_dir: Annotated[
        Path | None,
        typer.Option("--app", help="Folder of a Flower app whose code the hospitals run instead of their own."),
    ] = None,  # fmt: skip
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Run to continue from its checkpoint with its own configuration: its folder, its name, or `latest`."
        ),
    ] = None,
    address: Address = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Start a run at the hospitals' nodes, or go on with one; with --stream, wait for its end and exit 1 when it failed."""
    with loading():
        from polyclinic.config import SECTIONS
        from polyclinic.config.keys import flat_keys
        from polyclinic.deployment.submitting import submit as send

    given = flat_keys(read_toml(config, "configuration file") if config else {}, SECTIONS) | assignments(sets)
    result: dict[str, Any] = send(
        _caller(folder, address, key), given, stream, app_dir, lambda line: say(line, errors=as_json), resume
    )
    answer(as_json, result, f"Run {result['run']}: {result['status']}; results in {result['out']}")


@submitter.command("new")
def new_submitter(
    name: Name,
    file: Annotated[Path, typer.Option("--out", help="New file, such as ada.key; the public half goes to ada.pub.")],
    as_json: Json = False,
) -> None:
    """Make a key of your own, and its public half for administrators of the coordinator and of hospitals that ask for it."""
    with loading():
        from polyclinic.deployment.files import quote
        from polyclinic.deployment.submitters import new_key

    key, public = new_key(name, file), file.with_suffix(".pub")
    answer(
        as_json, {"name": name, "file": str(file), "public": str(public), "key": key.public},
        f"{file} is your key: keep it to yourself. {public} goes to the coordinator, for `coordinator submitter add`.",
        "A hospital that asks for it writes into hospital.toml:", f"[policy.submitters.{quote(name)}]", f'key = "{key.public}"',
    )  # fmt: skip


@submitter.command("add")
def add_submitter(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="PUB", help="The person's public key, as `submitter new` made it.")],
    role: Annotated[
        Role, typer.Option(help="Role. submit: own runs, without own code; admin: everything.")
    ] = Role.SUBMIT,
    as_json: Json = False,
) -> None:
    """Let a person use the coordinator. Once anybody is listed, whoever has no key may change nothing. It holds at once."""
    with loading():
        from polyclinic.deployment.submitters import add_submitter as add

    public = add(_read(folder).folder, file, role.value)
    answer(
        as_json, {**public.model_dump(), "role": role.value}, f"{public.name!r} is listed, with the role {role.value}."
    )


@submitter.command("remove")
def remove_submitter(folder: Folder, name: Name, as_json: Json = False) -> None:
    """End a person's rights, at once; runs that were submitted go on."""
    with loading():
        from polyclinic.deployment.submitters import remove_submitter as remove

    remove(_read(folder).folder, name)
    answer(as_json, {"name": name}, f"{name!r} is listed no longer.")


@submitter.command("list")
def list_submitters(folder: Folder, as_json: Json = False) -> None:
    """Who may use the coordinator, with role and public key; where nobody is listed, whoever reaches it may."""
    with loading():
        from polyclinic.deployment.submitters import submitters

    rows = [{"name": name, **person.model_dump()} for name, person in submitters(_read(folder).folder).items()]
    nobody = "Nobody is listed: whoever reaches the coordinator from its machine or networks may do everything."
    answer(as_json, rows, deploying.listing(("name", "role", "key"), rows) if rows else nobody)


@app.command()
def check(folder: Folder, address: Address = "", as_json: Json = False) -> None:
    """Whether all is well, a line for each check with what to do; exit 1 otherwise."""
    with loading():
        from polyclinic.deployment.monitoring.checks import coordinator_checks

    deploying.report(coordinator_checks(_read(folder), address), as_json)


@app.command()
def backup(folder: Folder, destination: deploying.Destination, as_json: Json = False) -> None:
    """Copy the folder while the SuperLink runs: its nodes and runs, models under way, certificates and keys."""
    read = _read(folder)
    deploying.back_up(
        read.folder, destination, {name: read.folder / name for name in ("state", "runs", "flwr")}, as_json
    )


@app.command()
def restore(backup: deploying.Backup, folder: deploying.Restored, as_json: Json = False) -> None:
    """Put a backup in the folder's place, after its files and its database were checked."""
    with loading():
        from polyclinic.deployment.restore import restore_coordinator

    done = restore_coordinator(backup, folder)
    answer(as_json, done, f"{folder}: the backup of {done['time']}, {done['files']} files.")


@app.command()
def metrics(folder: Folder, host: deploying.MetricsHost = "127.0.0.1", port: deploying.MetricsPort = 9464) -> None:
    """Serve the runs' rounds, hospitals, bytes and epsilon to Prometheus, until stopped."""
    with loading():
        from polyclinic.deployment.monitoring.checks import coordinator_checks
        from polyclinic.deployment.monitoring.metrics import CoordinatorMetrics

    read = _read(folder)
    made = CoordinatorMetrics(read.folder / "runs", read.certificates, lambda: coordinator_checks(read, quick=True))
    deploying.serve_metrics(made, host, port)


def _of(done: int | None, rounds: int | None) -> str:
    """Rounds done of rounds asked for."""
    return f"{done or 0} of {'usual' if rounds is None else rounds}"


def _state(run: Mapping[str, Any]) -> str:
    """A run's state in words, with its place in the queue, or for whose approval it waits."""
    if run["waiting"]:
        return f"waiting for approval at {', '.join(run['waiting'])}"
    return str(run["state"]) if run["place"] is None else f"{run['state']}, place {run['place']}"


def _read(folder: Path) -> Coordinator:
    with loading():
        from polyclinic.deployment.coordinator import Coordinator

    return Coordinator.read(folder)


def _caller(folder: Path, address: str, key: Path | None) -> Caller:
    from polyclinic.deployment.control import Caller

    return Caller(_read(folder), address, key)
