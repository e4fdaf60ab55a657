"""A hospital's folder: its records' description, policy, node key and the coordinator's authority, and how its node starts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from polyclinic.client.home.policy import HospitalFile, Policy
from polyclinic.deployment.bundles import INSTALLED
from polyclinic.deployment.certificates import check_authority, check_private_key, make_node_key
from polyclinic.deployment.environment import CERTIFICATES, endpoint, flower_settings
from polyclinic.deployment.files import FolderFile, commented_toml, quote, replace, unless_refused
from polyclinic.errors import ConfigError
from polyclinic.files import PUBLIC, SECRET, NewFile
from polyclinic.privacy.accounting import usual_delta
from polyclinic.toml import read_model

FILE, NODE = "hospital.toml", "node.toml"
_PEOPLE = "submitters"  # a table of the policy, which is last in the file


class NodeFile(FolderFile):
    """``node.toml`` of a hospital's folder: to whom its node connects, and as whom; paths are relative to it.

    ``coordinator``: HOST:PORT
    ``ca``: the coordinator's authority
    ``key``: the node's private key
    ``port``: of the loopback, at which the node's own processes reach it
    ``trusted_signers``: Flower's file of signers (YAML), one of whom must have signed a bundle
    """

    coordinator: str
    ca: str = "ca.crt"
    key: str = "node.key"
    port: int = Field(9094, ge=1, le=65535)
    trusted_signers: str = ""

    @field_validator("coordinator")
    @classmethod
    def _coordinator(cls, value: str) -> str:
        unless_refused(endpoint, value)
        return value


@dataclass(frozen=True)
class HospitalNode:
    """A hospital's folder and what its two files say."""

    folder: Path
    node: NodeFile
    hospital: HospitalFile

    @classmethod
    def read(cls, folder: Path) -> HospitalNode:
        """Raises ConfigError when the folder holds no sound node.toml and hospital.toml with its policy."""
        missing = f"{folder} holds no {NODE}; `polyclinic hospital init` makes one."
        node = read_model(NodeFile, folder / NODE, "node's file", missing=missing)
        hospital = cls(folder.resolve(), node, HospitalFile.read(folder / FILE))
        Policy.build(hospital.hospital.policy, str(folder / FILE))
        return hospital

    @property
    def policy(self) -> Policy:
        return Policy.build(self.hospital.policy, str(self.folder / FILE))

    @property
    def ca(self) -> Path:
        return self.folder / self.node.ca

    @property
    def home(self) -> Path:
        """Folder of the ledger, the journal and all that must outlive a message."""
        return self.folder / self.hospital.home

    @property
    def ledger(self) -> Path:
        return self.home / "ledger.sqlite"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of its SuperNode; no secret is in it."""
        own = {"POLYCLINIC_HOSPITAL": str(self.folder / FILE), CERTIFICATES: str(self.ca)}
        return flower_settings(self.folder / "flwr") | own

    @property
    def passwords(self) -> list[str]:
        """The records' password as it can be read now, for what must be hidden; none where it cannot."""
        options, passwords = self.hospital.source, []
        if name := options.get("password-env"):
            passwords.append(os.environ.get(name, ""))
        if file := options.get("password-file"):
            with suppress(OSError, UnicodeDecodeError):
                passwords.append((self.folder / file).read_text(encoding="utf-8").rstrip("\r\n"))
        return [password for password in passwords if password]

    def command(self) -> list[str]:
        """The SuperNode's arguments, with TLS, its key and its hospital.toml.

        Raises ConfigError when the authority's certificate or the key is missing, damaged or expired, or Flower cannot be
        given the folder's name.
        """
        for path in (self.ca, self.folder / self.node.key):
            if not path.is_file():
                raise ConfigError(f"There is no {path}, which {NODE} names.")
        check_authority(self.ca)
        check_private_key(self.folder / self.node.key)
        hospital = str(self.folder / FILE)
        if '"' in hospital or "\\" in hospital:
            raise ConfigError(f"Flower cannot be told the path {hospital}: it has a quotation mark or a backslash.")
        signers = (
            ["--trusted-entities", str(self.folder / self.node.trusted_signers)] if self.node.trusted_signers else []
        )
        return [
            sys.executable, "-P", "-m", "polyclinic.deployment.flower.supernode", "--superlink", self.node.coordinator,
            "--root-certificates", str(self.ca), "--auth-supernode-private-key", str(self.folder / self.node.key),
            "--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(self.node.port), *signers,
            "--node-config", f"hospital={quote(hospital)}",
        ]  # fmt: skip


def new_key(node: HospitalNode) -> str:
    """Replace the node's key pair; the public one, which the coordinator must register before the node may return."""
    key = make_node_key(node.hospital.site)
    # The public half first: where the second step fails, the node goes on as whom it was.
    public, private = NewFile(f"{key.public}\n", PUBLIC), NewFile(key.private, SECRET)
    replace({node.folder / "node.pub": public, node.folder / node.node.key: private})
    return key.public


@dataclass(frozen=True)
class Records:
    """What hospital.toml says of the records; ``source``: the options of their source."""

    data: str
    source: dict[str, str]
    schema: bytes


def hospital_files(
    site: str, records: Records, node: NodeFile, ca: bytes, budget: float, delta: float
) -> dict[str, NewFile]:
    """All that ``init`` writes, by name; nothing is written here.

    Args:
        site: The hospital's name.
        records: Where its records are, and their schema.
        node: The content of its ``node.toml``.
        ca: The certificate of the coordinator's authority, in PEM.
        budget: The policy's lifetime epsilon.
        delta: The policy's delta.

    Raises:
        ConfigError: The name is empty, or the budget or delta is bad.
    """
    if not site.strip():
        raise ConfigError("The site needs a name.")
    values = {name: value.default for name, value in Policy.model_fields.items() if name != _PEOPLE} | {
        "budget": budget, "delta": delta, "allowed_runs": (INSTALLED,),
    }  # fmt: skip
    Policy.build(values, "The hospital")
    key = make_node_key(site)
    return {
        "schema.toml": NewFile(records.schema, PUBLIC),
        "ca.crt": NewFile(ca, PUBLIC),
        "node.key": NewFile(key.private, SECRET),
        "node.pub": NewFile(f"{key.public}\n", PUBLIC),
        NODE: NewFile(_NODE_HEAD + commented_toml(node.model_dump(), _NODE_MEANINGS), PUBLIC),
        "flwr/README": NewFile("Flower's own files; nothing of them need be kept.\n", PUBLIC),
        "home/README": NewFile(
            b"The ledger and all that must outlive a message; back it up, never copy it to a second node.\n", SECRET
        ),
        FILE: NewFile(_text(site, records, values), SECRET),
    }


def check_delta(delta: float, patients: int) -> None:
    """Raises ConfigError for a delta at which handing out one patient's row would count as protection."""
    if delta * patients >= 1:
        raise ConfigError(
            f"The delta {delta:g} is not below 1/patients ({patients:,} patients were counted); give a tenth of that, "
            f"--delta {usual_delta(patients):g}."
        )


_NODE_HEAD = "# The hospital's node: to whom it connects, and as whom. Paths are relative to this file.\n"
_NODE_MEANINGS = {
    "ca": "The authority whose certificate the coordinator must show, and the key by which the coordinator knows this node.",
    "port": "Of this machine's loopback, for the node's own processes; a second node on one machine needs another.",
    "trusted_signers": "Flower's file of signers (flower-supernode --trusted-entities), one of whom must have signed a bundle; "
    '"" asks for none.',
}
_MEANINGS = {
    "budget": "Epsilon that these records may ever spend; raising it is your decision.",
    "delta": "Below 1/patients, better a tenth of that; fixed once the ledger exists.",
    "accountant": "How the ledger adds up: pld or rdp.",
    "relation": "Whom epsilon protects: add-remove or replace-one; fixed once the ledger exists.",
    "allowed_tasks": "What may be asked for.",
    "allowed_models": "Models that a run may name; anything else would be code of the server's choice.",
    "allowed_objectives": "What a model may be trained towards; anything else would be code of the server's choice.",
    "allowed_strategies": "Strategies whose half at hospitals may be run here; one without such a half needs no permission.",
    "allowed_mods": "Flower mods that a run may put around your answers; anything else would be code of the server's choice.",
    "allowed_runs": 'Bundles that the node runs: "installed" is any that brings no code, others by SHA-256; [] runs all.',
    "patients_elsewhere": "In how many other hospitals of a federation one patient of yours may be, at most.",
    "smallest_shard": "With fewer training patients no part is taken.",
    "smallest_noise_multiplier": "Less noise is refused whatever the budget.",
    "most_local_steps": "A round that asks for more work is refused.",
    "most_parameters": "A larger model is refused.",
    "allow_without_privacy": "Whether anything may be computed without noise.",
    "only_secure_aggregation": "Whether updates may leave in secure sums only.",
    "known_hospitals": "Keys of the hospitals to sum with (`polyclinic identity`); [] takes those that the server passes on.",
    "allow_splits": "Whether a run may choose who is held out; each release is then charged to both ledgers, none is exact.",
    "allow_shared_noise": "Whether updates may leave with a share of the noise alone, in a secure sum that has the rest.",
    "release_metrics": "Whether exact metrics of held-out patients, and their exact number, may leave in place of private ones.",
    "most_evaluations_per_run": "Exact evaluations of one run, at most.",
    "most_evaluations": "Exact evaluations over the life of the ledger, at most.",
    "metrics_epsilon": "Epsilon of one run's private metrics, on the held-out patients' own account under budget; 0: none.",
    "release_predictions": "Whether scores and labels of held-out patients may leave, row by row.",
    "release_groups": "Columns, as sex, whose group may leave beside each score; [] lets none.",
    "most_epsilon_per_run": "Epsilon that one run may cost, at most; inf: as much as the budget has.",
    "most_epsilon_per_month": "Epsilon that all runs of any thirty days may cost together; inf: as much as the budget has.",
    "require_approval": "Whether each run waits until somebody here approves it (`polyclinic hospital pending`).",
    "approval_days": "How many days an approval holds.",
}


def _text(site: str, records: Records, policy: dict[str, Any]) -> str:
    source = "".join(f"{name} = {quote(value)}\n" for name, value in records.source.items())
    return f"""\
# A hospital: its records and what may leave them. Paths are relative to this file.
site = {quote(site)}
data = {quote(records.data)}
schema = "schema.toml"
# The ledger and what must outlive a message: storage that is backed up.
home = "home"
{f"{chr(10)}[source]{chr(10)}{source}" if source else ""}
# The server can only ask; this decides.
[policy]
{commented_toml(policy, _MEANINGS)}
# Whose runs are taken, by the key that `polyclinic coordinator submitter new` printed; with nobody here, anybody's.
# [policy.{_PEOPLE}.ada]
# key = "…"
# most-epsilon-per-run = inf
# most-epsilon-per-month = inf
"""
