"""Who may use a coordinator's control: people by name, each with a public key and a role, and how they sign what they ask.

``submitters.toml`` of the coordinator's folder lists them; a SuperLink reads it at every call. Without it, whoever reaches the
control from the coordinator's machine or its networks may use all of it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, RootModel

from polyclinic.config import SUBMITTER_NAME
from polyclinic.deployment.files import replace
from polyclinic.digests import digest
from polyclinic.errors import ConfigError, several
from polyclinic.files import PUBLIC, SECRET, NewFile, check_new
from polyclinic.privacy.secure.signatures import is_signed, new_identity, public_identity, sign
from polyclinic.toml import build_model, read_model

FILE = "submitters.toml"
#: The environment variable that names the file of the submitter's own key.
KEY = "POLYCLINIC_KEY"
NAME_HEADER, SIGNATURE_HEADER = "polyclinic-submitter", "polyclinic-signature"
#: For how many seconds a signed call is good, before and after the time that it names.
TOLERANCE = 300.0
Role = Literal["submit", "admin"]


class Submitter(BaseModel):
    """One line of ``submitters.toml``: an Ed25519 public key in hexadecimal, and what its holder may do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(pattern="^[0-9a-f]{64}$")
    role: Role = "submit"


class _Submitters(RootModel[Annotated[dict[str, Submitter], Field(min_length=1)]]):
    """At least one: where nobody is listed, whoever reaches the control may use it."""


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100, pattern=SUBMITTER_NAME)


class _KeyFile(_Named):
    private: str = Field(pattern="^[0-9a-f]{64}$")


class PublicKey(_Named):
    """What a person gives away: a name and an Ed25519 public key in hexadecimal."""

    key: str = Field(pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True)
class SubmitterKey:
    """A person's own key: a name and an Ed25519 private key of 32 bytes."""

    name: str
    private: bytes

    @classmethod
    def read(cls, path: Path) -> SubmitterKey:
        """Raises ConfigError where there is no such key."""
        file = read_model(_KeyFile, path, "submitter's key", secret=True)
        return cls(file.name, bytes.fromhex(file.private))

    @property
    def public(self) -> str:
        """The public key in hexadecimal."""
        return public_identity(self.private).hex()

    def headers(self, path: str, body: bytes) -> dict[str, str]:
        """What is added to a call, so that the gate knows who asks.

        Args:
            path: The path of the call's address.
            body: What is sent.
        """
        time, nonce = datetime.now(UTC).isoformat(), secrets.token_hex(16)
        signature = sign(self.private, _statement(self.name, time, nonce, path, body)).hex()
        return {NAME_HEADER: quote(self.name), SIGNATURE_HEADER: f"{time} {nonce} {signature}"}


class SigningInterceptor:
    """Signs each call of Flower's client of the control."""

    def __init__(self, key: SubmitterKey) -> None:
        self.key = key

    def intercept(self, context: Any, call_next: Any) -> Any:
        request = context.request
        request.headers.update(self.key.headers(request.url.path, request.content))
        return call_next(context)


def own_key(path: Path | None = None) -> SubmitterKey | None:
    """The key of a file, or of the one that the environment names; None for neither. Raises ConfigError as ``read``."""
    named = path or os.environ.get(KEY)
    return SubmitterKey.read(Path(named)) if named else None


def new_key(name: str, path: Path) -> SubmitterKey:
    """Makes a key in a new file that its owner alone can read, and its public half beside it.

    Args:
        name: The person's name.
        path: The new file, as ``ada.key``; the public half is ``ada.pub``.

    Raises:
        ConfigError: The name is bad, or a file is there already.
    """
    key, public_file = SubmitterKey(name, new_identity()), path.with_suffix(".pub")
    public = build_model(PublicKey, {"name": name, "key": key.public}, "The new key")
    check_new([path, public_file])
    private = tomli_w.dumps({"name": name, "private": key.private.hex()})
    replace({path: NewFile(private, SECRET), public_file: NewFile(tomli_w.dumps(public.model_dump()), PUBLIC)})
    return key


def submitters(folder: Path) -> dict[str, Submitter]:
    """The people whom a coordinator's folder lists, by name. Raises ConfigError for a file that cannot be read."""
    path = folder / FILE
    return read_model(_Submitters, path, "list of submitters").root if path.exists() else {}


def add_submitter(folder: Path, file: Path, role: Role) -> PublicKey:
    """Lists a person in a coordinator's folder; returns the name and the key.

    Args:
        folder: The coordinator's folder.
        file: The file of the person's public key.
        role: What the person may do.

    Raises:
        ConfigError: There is no public key in the file, or name or key are listed already.
    """
    public, listed = read_model(PublicKey, file, "public key", secret=True), submitters(folder)
    same = [name for name, submitter in listed.items() if name == public.name or submitter.key == public.key]
    if same:
        raise ConfigError(f"{same[0]!r} is listed already with this name or this key; `submitter remove` ends that.")
    _write(folder, {**listed, public.name: Submitter(key=public.key, role=role)})
    return public


def remove_submitter(folder: Path, name: str) -> None:
    """Ends a person's rights at once. Raises ConfigError for one who is not listed, or who is the last."""
    listed = submitters(folder)
    if name not in listed:
        raise ConfigError(f"Nobody is listed as {name!r}; listed are {several(listed) or 'none'}.")
    if len(listed) == 1:
        raise ConfigError(
            f"{name!r} is the only person listed; add another first, or delete {folder / FILE}, after which whoever reaches the "
            "control may do everything."
        )
    _write(folder, {other: submitter for other, submitter in listed.items() if other != name})


def problem(listed: Mapping[str, Submitter], name: str, signature: str, path: str, body: bytes) -> str:
    """Why a call is not one of a listed person, as a sentence; empty where it is.

    Args:
        listed: Those who may call, by name.
        name, signature: The call's headers.
        path, body: The call's path, and what was sent.
    """
    if not name or not signature:
        return f"This coordinator asks for a key: use --key FILE, or {KEY}."
    time, nonce, signed = (*signature.split(" "), "", "")[:3]
    try:
        public, given = bytes.fromhex(listed[name].key), bytes.fromhex(signed)
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except (KeyError, ValueError, TypeError):
        return f"{name[:100]!r} is not listed here, or the signature is another's."
    # Spelled otherwise, a call that was made would pass for another one.
    spelled = f"{time} {nonce} {given.hex()}"
    if signature != spelled or not is_signed(public, given, _statement(name, time, nonce, path, body)):
        return f"{name[:100]!r} is not listed here, or the signature is another's."
    if abs(age) > TOLERANCE:
        return f"The call's time is {age:+.0f} seconds from this machine's; set the clock that is wrong."
    return ""


def _statement(name: str, time: str, nonce: str, path: str, body: bytes) -> bytes:
    return digest("polyclinic control", name, time, nonce, path, sha256(body).hexdigest()).encode()


def _write(folder: Path, listed: Mapping[str, Submitter]) -> None:
    content = tomli_w.dumps({name: submitter.model_dump() for name, submitter in listed.items()})
    replace({folder / FILE: NewFile(content, PUBLIC)})
