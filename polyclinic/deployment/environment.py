"""The process environment and the paths that Flower's programs get from us."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path

from polyclinic.deployment.certificates import check_host, warn_daily
from polyclinic.errors import ConfigError

CERTIFICATES = "POLYCLINIC_CERTIFICATES"  # paths of those whose end a program warns of, as in PATH


def flower_settings(home: Path) -> dict[str, str]:
    """What is set for every Flower program: its files in ``home``, no telemetry, no look at an update, no installing."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # Else a header could name another address than the connection's, and the gate believes addresses.
        "FORWARDED_ALLOW_IPS": "",
    }


def watch_certificates() -> None:
    """Let Flower's log warn daily of each certificate that is about to end, of those that CERTIFICATES names."""
    from flwr.common.logger import log

    paths = [Path(path) for path in os.environ.get(CERTIFICATES, "").split(os.pathsep) if path]
    warn_daily(paths, lambda sentence: log(WARNING, "%s", sentence))


def with_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the settings, and Flower's programs, which lie beside this Python, on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | dict(settings) | {"PATH": path}


def endpoint(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[IPv6]:PORT``. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not colon
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
        or (":" in bare) != (bare != host)
    ):
        raise ConfigError(f"{text!r} is not an address; it is HOST:PORT, such as coordinator.example:8000.")
    return check_host(bare), int(port)


def join_address(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_here(listen: str) -> str:
    """The address by which a program of the same machine reaches a server that listens there."""
    address = ipaddress.ip_address(listen)
    if not address.is_unspecified:
        return listen
    return "127.0.0.1" if address.version == 4 else "::1"
