"""``python -m polyclinic.deployment.supernode``: flower-supernode that runs only the bundles of the policy's allowed-runs.

The check stands in the node's process, before a bundle is stored or unpacked; code that a bundle brings cannot reach it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from logging import ERROR
from pathlib import Path
from typing import Any

from polyclinic.client.policy import HospitalFile, Policy
from polyclinic.deployment.bundles import refusal
from polyclinic.errors import ConfigError


def main() -> None:
    """flower-supernode's own arguments; POLYCLINIC_HOSPITAL names the hospital.toml."""
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    if not callable(getattr(node, "_verify_fab", None)) or not callable(getattr(node, "_pull_and_store_message", None)):
        sys.exit("This flwr has no place for the check of allowed-runs; install flwr 1.41.")
    pull, verify = node._pull_and_store_message, node._verify_fab
    node._pull_and_store_message = _checked(pull, _allowed)
    node._verify_fab = _verdict(verify)
    flower_supernode()


def _allowed() -> Collection[str]:
    """The policy's allowed-runs as the file says now; a file that cannot be read allows nothing."""
    path = Path(os.environ["POLYCLINIC_HOSPITAL"])
    try:
        return Policy.build(HospitalFile.read(path).policy, str(path)).allowed_runs
    except ConfigError as error:
        return (f"nothing, since {error}",)


def _checked(pull: Callable[..., Any], allowed: Callable[[], Collection[str]]) -> Callable[..., Any]:
    """Flower's step that fetches a message, with the bundle of each run it does not know yet judged as it arrives."""

    def checked(*, get_run: Any, get_fab: Any, trusted_entities: Any, **rest: Any) -> Any:
        runs: list[Any] = []

        def run(run_id: int) -> Any:
            runs.append(get_run(run_id))
            return runs[-1]

        def fab(fab_hash: str, run_id: int) -> Any:
            found = get_fab(fab_hash, run_id)
            told = runs[-1]
            why = refusal(found.content, (found.hash_str, told.fab_hash), told.fab_id, told.fab_version, allowed())
            licence = {} if trusted_entities else {"valid_license": "not asked for"}
            return replace(found, verifications={**found.verifications, **licence, _REFUSAL: why})

        # An entry makes Flower ask its verifier; where signers are trusted, the names are theirs.
        return pull(get_run=run, get_fab=fab, trusted_entities=trusted_entities or {_REFUSAL: ""}, **rest)

    return checked


def _verdict(verify: Callable[..., bool]) -> Callable[..., bool]:
    def verdict(fab: Any, trusted_entities: dict[str, str]) -> bool:
        from flwr.common.logger import log

        verifications = dict(fab.verifications)
        if why := verifications.pop(_REFUSAL, "no check was made"):
            log(ERROR, "This hospital does not run what the coordinator sent: %s.", why)
            return False
        return set(trusted_entities) == {_REFUSAL} or verify(
            replace(fab, verifications=verifications), trusted_entities
        )

    return verdict


_REFUSAL = "polyclinic-refusal"

if __name__ == "__main__":
    main()
