"""``polyclinic coordinator``: a federation's coordinator on a machine of its own, without containers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.deploying import (
    Destination,
    Folder,
    IfMissing,
    LogFormat,
    Logs,
    MetricsHost,
    MetricsPort,
    Starting,
    errors_told,
    serve_metrics,
    show_backup,
    start_or_show,
    table,
    warn,
)
from polyclinic.cli.terminal import Json, answer, assignments, console, loading, print_json

app = typer.Typer(no_args_is_help=True, help="A coordinator: its certificate, its SuperLink, its nodes and its runs.")

Address = Annotated[str, typer.Option("--superlink", help="HOST:PORT of the SuperLink, where it is not this machine.")]


@app.command()
def init(
    folder: Folder,
    host: Annotated[list[str], typer.Option(help="Name or IP address by which hospitals reach it; repeatable.")],
    address: Annotated[
        list[str] | None, typer.Option(help="Further name or IP address for the certificate; repeatable.")
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
    if_missing: IfMissing = False,
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
    if as_json:
        print_json({"folder": str(folder), "made": made, "ca": str(folder / "ca.crt")})
        return
    screen = console()
    screen.print(f"{folder}: {'made' if made else 'there already; nothing was changed'}.", soft_wrap=True)
    screen.print(f"Give {folder / 'ca.crt'} to every hospital.", soft_wrap=True)
    screen.print("Keep ca.key, best offline: who has it can pass for the coordinator.")


@app.command()
def start(
    folder: Folder,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command instead.")] = False,
    log_format: Logs = LogFormat.TEXT,
    as_json: Json = False,
) -> None:
    """Start the SuperLink in this process's place: with TLS, node authentication and its database on disk."""
    with loading():
        from polyclinic.deployment.coordinator import Coordinator

    with errors_told(log_format, "coordinator"):
        found = Coordinator.read(folder)
        file = found.file
        sentence = f"SuperLink for {', '.join(file.hosts)} listens at {file.listen}, port {file.port}."
        told = {"listen": file.listen, "port": file.port, "hosts": list(file.hosts)}
        starting = Starting(found.command(), found.settings, found.folder, "coordinator")
        if not dry_run:
            found.close_state()
        start_or_show(starting, sentence, told, dry_run, as_json, log_format)


@app.command()
def renew(
    folder: Folder,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the new certificate.")] = 825,
    ca_key: Annotated[
        Path | None, typer.Option(help="The authority's key, where it is kept elsewhere than in FOLDER/ca.key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a new server's certificate of the same authority; hospitals need nothing new."""
    with loading():
        from polyclinic.deployment.certificates import expiry
        from polyclinic.deployment.coordinator import Coordinator

    Coordinator.read(folder).renew(days, ca_key)
    until = expiry(folder / "server.crt").strftime("%Y-%m-%d")
    answer(
        as_json,
        {"folder": str(folder), "expires": until},
        f"{folder / 'server.crt'} is valid until {until}; restart the SuperLink.",
    )


@app.command()
def register(
    folder: Folder,
    key: Annotated[Path, typer.Argument(help="The hospital's node.pub.")],
    name: Annotated[str, typer.Option(help="Name by which you know the node.")],
    address: Address = "",
    as_json: Json = False,
) -> None:
    """Let the node with this public key take part."""
    with loading():
        from polyclinic.deployment.control import register as add

    with _control(folder, address) as client:
        node = add(client, key, name)
    answer(as_json, {"name": name, "node": node}, f"{name} is registered as node {node}.")


@app.command()
def revoke(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The node's name.")],
    address: Address = "",
    as_json: Json = False,
) -> None:
    """End a node's registration; its key is refused from then on."""
    with loading():
        from polyclinic.deployment.control import revoke as end

    with _control(folder, address) as client:
        node = end(client, name)
    answer(as_json, {"name": name, "node": node}, f"{name} (node {node}) takes part no longer.")


@app.command()
def nodes(folder: Folder, address: Address = "", as_json: Json = False) -> None:
    """List the nodes that were registered, and which of them are there."""
    with loading():
        from polyclinic.deployment.certificates import expiry_warnings
        from polyclinic.deployment.control import nodes as listed
        from polyclinic.deployment.coordinator import Coordinator

    with _control(folder, address) as client:
        found = listed(client)
    warn(expiry_warnings(Coordinator.read(folder).certificates))
    answer(as_json, found, table(("name", "node", "status", "registered"), found))


@app.command()
def runs(folder: Folder, address: Address = "", as_json: Json = False) -> None:
    """List the runs that were submitted, with their folders' names, how they ended, and how to go on with one that broke off."""
    with loading():
        from polyclinic.deployment.control import runs as listed
        from polyclinic.deployment.coordinator import Coordinator
        from polyclinic.deployment.submitting import folders_by_run, next_step

    with _control(folder, address) as client:
        found = listed(client)
    read = Coordinator.read(folder)
    folders = folders_by_run(read.folder / "runs")
    shown = [run | {"folder": folders[run["run"]].name if run["run"] in folders else None} for run in found]
    if as_json:
        print_json(shown)
        return
    screen = console()
    # Flower's words are "finished:completed", "finished:failed" and the like.
    screen.print(table(("run", "folder", "status", "submitted"),
                       [run | {"status": run["status"].removeprefix("finished:")} for run in shown]))  # fmt: skip
    for run in shown:
        if run["details"]:
            screen.print(f"{run['run']}: {run['details']}", soft_wrap=True)
    for run_folder in dict.fromkeys(folders.values()):
        if not run_folder.finished and not run_folder.is_held:
            screen.print(next_step(read, run_folder), soft_wrap=True)


@app.command()
def submit(
    folder: Folder,
    sets: Annotated[
        list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="Any configuration key; repeatable.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Follow the run to its end.")] = False,
    app_dir: Annotated[
        Path | None,
        typer.Option("--app", help="Folder of a Flower app whose code hospitals shall run, instead of their own."),
    ] = None,  # fmt: skip
    resume: Annotated[
        Path | None,
        typer.Option(
            help="A run that goes on from its checkpoint, as it was configured: its folder, its name, or `latest`."
        ),
    ] = None,
    address: Address = "",
    as_json: Json = False,
) -> None:
    """Start a run at the hospitals' nodes, or go on with one; with --stream, wait for its end and exit 1 when it failed."""
    with loading():
        from polyclinic.deployment.coordinator import Coordinator
        from polyclinic.deployment.submitting import submit as send

    screen = console(as_json)
    result: dict[str, Any] = send(
        Coordinator.read(folder),
        assignments(sets),
        stream,
        app_dir,
        address,
        lambda line: screen.print(line, soft_wrap=True),
        resume,
    )
    answer(as_json, result, f"Run {result['run']}: {result['status']}; results in {result['out']}")


@app.command()
def backup(folder: Folder, destination: Destination, as_json: Json = False) -> None:
    """Copy the folder while the SuperLink runs: its nodes and runs, models under way, certificates and keys."""
    with loading():
        from polyclinic.deployment.backup import back_up
        from polyclinic.deployment.coordinator import Coordinator

    read = Coordinator.read(folder)
    parts = {name: read.folder / name for name in ("state", "runs", "flwr")}
    show_backup(back_up(read.folder, destination, parts), as_json)


@app.command()
def metrics(folder: Folder, host: MetricsHost = "127.0.0.1", port: MetricsPort = 9464) -> None:
    """Serve the runs' rounds, hospitals, bytes and epsilon to Prometheus, until stopped."""
    with loading():
        from polyclinic.deployment.coordinator import Coordinator
        from polyclinic.deployment.metrics import CoordinatorMetrics

    read = Coordinator.read(folder)
    serve_metrics(CoordinatorMetrics(read.folder / "runs", read.certificates), host, port)


def _control(folder: Path, address: str) -> Any:
    from polyclinic.deployment.control import control
    from polyclinic.deployment.coordinator import Coordinator

    found = Coordinator.read(folder)
    return control(address or found.here, found.folder / "ca.crt")
