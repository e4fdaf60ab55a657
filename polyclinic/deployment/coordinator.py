"""A coordinator's folder: its file, authority, certificate and Flower's configuration, and how its SuperLink is started."""

from __future__ import annotations

import ipaddress
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, field_validator

from polyclinic.deployment.certificates import (
    CA_DAYS,
    SERVER_DAYS,
    authority_of,
    check_host,
    check_server,
    fingerprint,
    issuer,
    make_authority,
    make_server,
    read_certificates,
)
from polyclinic.deployment.environment import CERTIFICATES, flower_settings, join_address, reached_here
from polyclinic.deployment.files import FolderFile, commented_toml, quote, replace, unless_refused
from polyclinic.errors import ConfigError
from polyclinic.files import PUBLIC, SECRET, NewFile
from polyclinic.toml import read_model

FILE = "coordinator.toml"
DATABASE = "superlink.db"
NEW_KEY = "ca-new.key"  # the second authority's, until the first is dropped
AUDIT = "audit.jsonl"  # beside the database: who asked for which change
LINK = "coordinator"  # the SuperLink's name in Flower's configuration


class CoordinatorFile(FolderFile):
    """``coordinator.toml``; its folder holds all else.

    ``hosts``: names and addresses by which hospitals reach it, as in its certificate
    ``listen``: the IP address at which it listens
    ``port``: the port at which it listens
    ``control_from``: networks (CIDR), besides the machine itself, from which nodes are registered and runs are
        submitted
    ``at_once``: how many runs go at once, 0 for all; others wait in order
    """

    hosts: tuple[str, ...] = Field(min_length=1)
    listen: str = "0.0.0.0"
    port: int = Field(8000, ge=1, le=65535)
    control_from: tuple[str, ...] = ()
    at_once: int = Field(0, ge=0)

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            unless_refused(check_host, host)
        return value

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        return str(ipaddress.ip_address(value))

    @field_validator("control_from")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_network(network)) for network in value)

    @property
    def certified(self) -> list[str]:
        """What the certificate must name: Flower's own programs connect to the address at which it listens."""
        local = ["localhost", "127.0.0.1", "::1", reached_here(self.listen)]
        return list(dict.fromkeys([*self.hosts, *local]))


@dataclass(frozen=True)
class Coordinator:
    """A coordinator's folder and what its file says."""

    folder: Path
    file: CoordinatorFile

    @classmethod
    def read(cls, folder: Path) -> Coordinator:
        """Raises ConfigError when the folder holds no sound coordinator.toml."""
        missing = f"{folder} holds no {FILE}; `polyclinic coordinator init` makes one."
        return cls(folder.resolve(), read_model(CoordinatorFile, folder / FILE, "coordinator's file", missing=missing))

    @property
    def here(self) -> str:
        """HOST:PORT for programs of the coordinator's own machine."""
        return join_address(reached_here(self.file.listen), self.file.port)

    @property
    def settings(self) -> dict[str, str]:
        """The environment of its SuperLink and ServerApps; the gate's networks travel in it."""
        variables = {
            "POLYCLINIC_CONTROL_FROM": " ".join(self.file.control_from),
            "POLYCLINIC_HOSPITALS": "real",
            "POLYCLINIC_STATE": str(self.folder / "state"),
            "POLYCLINIC_AT_ONCE": str(self.file.at_once),
            CERTIFICATES: os.pathsep.join(map(str, self.certificates)),
        }
        return flower_settings(self.folder / "flwr") | variables

    @property
    def certificates(self) -> list[Path]:
        """The server's certificate and the authority's."""
        return [self.folder / "server.crt", self.folder / "ca.crt"]

    def command(self) -> list[str]:
        """The SuperLink's arguments, with TLS, node authentication and its database on disk.

        Raises ConfigError when a certificate, a key or the database's folder is missing, or TLS could not use them now.
        """
        names = ("ca.crt", "server.crt", "server.key", "state")
        missing = [name for name in names if not (self.folder / name).exists()]
        if missing:
            raise ConfigError(
                f"{self.folder} lacks {missing[0]}; `polyclinic coordinator init` makes it in a new folder."
            )
        check_server(self.folder / "server.crt", self.folder / "server.key", self.folder / "ca.crt")
        ca, certificate, key, state = (str(self.folder / name) for name in names)
        return [
            sys.executable, "-P", "-m", "polyclinic.deployment.flower.superlink", "--host", self.file.listen,
            "--port", str(self.file.port), "--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key,
            "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation", "subprocess",
            "--database", f"{state}/{DATABASE}",
        ]  # fmt: skip

    def close_state(self) -> None:
        """Let the owner alone read the SuperLink's database and its folder, whatever the umask.

        Reports in ``runs``, which the same process's children write, go by the umask as before.
        """
        state = self.folder / "state"
        with suppress(OSError):  # what belongs to somebody else stays as that one made it
            state.chmod(0o700)
        with suppress(OSError):
            (state / DATABASE).touch(mode=SECRET)  # SQLite would make it, and the files beside it, by the umask
            for path in state.glob(f"{DATABASE}*"):
                path.chmod(SECRET)

    def flower_config(self, address: str = "") -> str:
        """Flower's config.toml, by which `flwr` finds this SuperLink."""
        return _flower_config(address or self.here, self.folder / "ca.crt")

    def renew(self, days: int = SERVER_DAYS, ca_key: Path | None = None) -> str:
        """A new server's certificate, for the hosts that coordinator.toml names now; the fingerprint of who signed it.

        Args:
            days: Validity of the new certificate.
            ca_key: The private key of an authority of ca.crt; by default this folder's, and of two the new one's.

        Raises:
            ConfigError: When the authority's key cannot be read, or is the key of another authority.
        """
        authorities, new_key = read_certificates(self.folder / "ca.crt"), self.folder / NEW_KEY
        ca_key = ca_key or (new_key if len(authorities) > 1 and new_key.exists() else self.folder / "ca.key")
        try:
            authority = authority_of(ca_key.read_bytes(), str(ca_key), authorities)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read; renewing needs the authority's key.") from None
        server = make_server(authority, self.file.certified, days)
        # Certificate and key are two files: a start between the two steps fails and is tried again.
        new = {"server.key": NewFile(server.key, SECRET), "server.crt": NewFile(server.certificate, PUBLIC)}
        replace({self.folder / name: file for name, file in new.items()})
        return fingerprint(issuer(self.folder / "server.crt", self.folder / "ca.crt"))

    def add_authority(self) -> list[str]:
        """Make a second authority beside the first; the fingerprints of ca.crt, the new one's last.

        Raises ConfigError when ca.crt holds two already, or the first is damaged.
        """
        ca = self.folder / "ca.crt"
        if len(read_certificates(ca)) > 1:
            raise ConfigError(f"{ca} holds two authorities; `polyclinic coordinator authority drop` ends the old one.")
        second = make_authority(self.file.hosts[0])
        # The key first: where the second step fails, renewing goes on with the first authority.
        key, both = NewFile(second.key, SECRET), NewFile(ca.read_bytes().rstrip() + b"\n" + second.certificate, PUBLIC)
        replace({self.folder / NEW_KEY: key, ca: both})
        return list(map(fingerprint, read_certificates(ca)))

    def drop_authority(self) -> str:
        """Leave the new authority alone in ca.crt, its key in ca.key's place; its fingerprint.

        Raises ConfigError when there is one authority only, or the server's certificate is the old one's.
        """
        ca, new_key = self.folder / "ca.crt", self.folder / NEW_KEY
        *old, new = read_certificates(ca)
        if not old:
            raise ConfigError(f"{ca} holds one authority only; `polyclinic coordinator authority new` makes a second.")
        if issuer(self.folder / "server.crt", ca) != new:
            raise ConfigError("The old authority signed server.crt; run `polyclinic coordinator renew` first.")
        # The key first: where the second step fails, dropping is tried again.
        keys = {self.folder / "ca.key": NewFile(new_key.read_bytes(), SECRET)} if new_key.exists() else {}
        replace(keys | {ca: NewFile(new.public_bytes(Encoding.PEM), PUBLIC)})
        new_key.unlink(missing_ok=True)
        return fingerprint(new)


def coordinator_files(folder: Path, file: CoordinatorFile, days: int = SERVER_DAYS) -> dict[str, NewFile]:
    """All that ``init`` writes into ``folder``, by name; nothing is written here.

    Args:
        folder: The coordinator's folder.
        file: The content of its ``coordinator.toml``.
        days: For how many days the server's certificate is valid.

    Raises:
        ConfigError: An address or a name cannot be.
    """
    authority = make_authority(file.hosts[0], max(CA_DAYS, days))
    server = make_server(authority, file.certified, days)
    config = _flower_config(join_address(reached_here(file.listen), file.port), folder.resolve() / "ca.crt")
    return {
        "ca.crt": NewFile(authority.certificate, PUBLIC),
        "ca.key": NewFile(authority.key, SECRET),
        "server.crt": NewFile(server.certificate, PUBLIC),
        "server.key": NewFile(server.key, SECRET),
        "flwr/config.toml": NewFile(config, PUBLIC),
        "state/README": NewFile(b"superlink.db holds the registered nodes and all runs; back it up.\n", SECRET),
        FILE: NewFile(_HEAD + commented_toml(file.model_dump(), _MEANINGS), PUBLIC),
    }


_HEAD = "# The coordinator of a federation; `polyclinic coordinator renew` after a change of hosts or listen.\n\n"
_MEANINGS = {
    "hosts": "Names and addresses by which hospitals reach it; they stand in its certificate.",
    "listen": "IP address (0.0.0.0: all of this machine's) and port at which it listens.",
    "control_from": "Networks, besides this machine itself, from which nodes may be registered and runs submitted, such as "
    '"10.1.0.0/24".',
    "at_once": "How many runs go at once; others wait in the order in which they were submitted. 0: all that were submitted.",
}


def _flower_config(address: str, ca: Path) -> str:
    return f"""\
[superlink]
default = "{LINK}"

[superlink.{LINK}]
address = {quote(address)}
root-certificates = {quote(str(ca))}
"""
