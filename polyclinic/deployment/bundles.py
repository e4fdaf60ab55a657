"""Flower's app bundles (FAB): one that brings no code, and which ones a hospital's policy lets its node run.

Flower runs a hospital's part from the bundle that the coordinator sends. So what the hospital's own code says of
bundles counts only before a bundle is unpacked: in the SuperNode (``supernode``), not in the app.
"""

from __future__ import annotations

import hashlib
import io
import tomllib
import zipfile
from collections.abc import Collection
from typing import Any

import tomli_w

import polyclinic
from polyclinic.config import RunConfig

INSTALLED = "installed"
CLIENT_APP = "polyclinic.client_app:app"
_MOST_BYTES = 1_000_000  # of a file in a bundle without code, ten times what all keys need


def own_bundle() -> str:
    """pyproject.toml of an app that brings no code: server and hospitals run the Polyclinic that each has installed."""
    return tomli_w.dumps({
        "project": {
            "name": "polyclinic", "version": polyclinic.__version__,
            "description": "Runs the installed Polyclinic; brings no code", "dependencies": [],
            "license": {"text": "Apache-2.0"},
        },
        "tool": {"flwr": {"app": {
            "publisher": "polyclinic",
            "components": {"serverapp": "polyclinic.server_app:app", "clientapp": CLIENT_APP},
            "config": RunConfig.app_config(),
        }}},
    })  # fmt: skip


def is_own_bundle(content: bytes) -> bool:
    """Whether a bundle is what this version of Polyclinic sends, which brings no code and no settings of its own."""
    config, own = _config(content), tomllib.loads(own_bundle())
    if config is None or not _brings_no_code(content, config):
        return False
    app, sent = config["tool"]["flwr"]["app"], own["tool"]["flwr"]["app"]
    return all(app.get(part) == sent[part] for part in ("components", "config")) and _name_and_version(
        config
    ) == _name_and_version(own)


def refusal(content: bytes, claims: Collection[str], app: str, version: str, allowed: Collection[str]) -> str:
    """Why these bytes may not run here, or an empty string.

    Flower finds the unpacked bundle by what the SuperLink claims, so the claims must be the bundle's own.

    Args:
        content: The bundle.
        claims: What the SuperLink says its SHA-256 is.
        app: The app that the SuperLink says the run is of.
        version: The version that it says the run is of.
        allowed: SHA-256 in hexadecimal, and "installed" for any bundle that brings no code; empty allows every bundle.
    """
    digest = hashlib.sha256(content).hexdigest()
    if not allowed:
        return ""
    if other := set(claims) - {digest}:
        return f"the bundle's SHA-256 is {digest}, but the SuperLink claims {min(other)[:64]!r}"
    config = _config(content)
    if config is None or (app, version) != _name_and_version(config):
        return f"the run is of {app[:80]!r} {version[:40]!r}, but its bundle is not"
    if digest in allowed or (INSTALLED in allowed and _brings_no_code(content, config)):
        return ""
    return f"the bundle with SHA-256 {digest} is not among the policy's allowed-runs"


def _config(content: bytes) -> dict[str, Any] | None:
    """The bundle's pyproject.toml, None where it has none that can be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            if bundle.getinfo("pyproject.toml").file_size > _MOST_BYTES:
                return None
            return tomllib.loads(bundle.read("pyproject.toml").decode("utf-8"))
    except Exception:  # zipfile, zlib and tomllib raise many kinds for a stranger's bytes
        return None


def _name_and_version(config: dict[str, Any]) -> tuple[str, str] | None:
    try:
        project, publisher = config["project"], config["tool"]["flwr"]["app"]["publisher"]
        return f"{publisher}/{project['name']}", project["version"]
    except (KeyError, TypeError):
        return None


def _brings_no_code(content: bytes, config: dict[str, Any]) -> bool:
    """Whether nothing but the app's own description is in it, and that names our app."""
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        if sorted(bundle.namelist()) != [".info/CONTENT", "pyproject.toml"]:
            return False
        if any(file.file_size > _MOST_BYTES for file in bundle.infolist()):
            return False
    try:
        app = config["tool"]["flwr"]["app"]
        named = (app["publisher"], config["project"]["name"], app["components"]["clientapp"])
    except (KeyError, TypeError):
        return False
    return named == ("polyclinic", "polyclinic", CLIENT_APP)
