"""`polyclinic serve`: runs in a browser while they train."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import loading, say, style_lines
from polyclinic.errors import ConfigError


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder that holds the runs' folders.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8600,
) -> None:
    """Show runs in a browser, live while they train; read-only. Ends with Ctrl-C."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder of runs: it does not exist.")
    with loading():
        from polyclinic.serving import app
    listener = app.listen(host, port)
    local, is_named = _is_local(host), host not in ("0.0.0.0", "::")  # noqa: S104 - it is compared with
    names = [host, "127.0.0.1", "localhost", "[::1]"] if is_named else ["*"]
    shown = f"[{host}]" if ":" in host else host
    say(f"Runs in {folder}: http://{shown}:{listener.getsockname()[1]} (Ctrl-C ends it)")
    warning = "Whoever reaches this address sees unperturbed metrics of held-out patients: there is no password."
    if not is_named:
        warning += (
            " Any name is allowed in the Host header, so that a page of another site that a user of "
            "this network opens can read them, too (DNS rebinding); name the one address to listen at instead."
        )
    say(*([] if local else style_lines("yellow", warning)))
    app.serve(app.application(folder.resolve(), names), listener)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
