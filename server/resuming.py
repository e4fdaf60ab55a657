"""Whether the files that a run goes on from still hold all that its checkpoint counts on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from polyclinic.errors import DataError
from polyclinic.messages import site_home, state_file
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.statements import statements
from polyclinic.server.state import RunState


def check_ledgers(path: Path, told_of: Mapping[str, float]) -> None:
    """Raises DataError when a site's ledger is missing, altered, or shows less than the checkpoint was told."""
    ledgers = Ledger.read_all(path) if told_of else {}
    for statement in statements([ledgers.get(site) or Ledger.read(path, site) for site in told_of]) if told_of else ():
        site, events = statement["site"], statement["events"]
        # A site tells the quick bound after a charge and the exact one after evaluating; the ledger holds the first.
        shown = [statement["epsilon"], events[-1]["epsilon_after"]] if events else [0.0]
        most = math.inf if None in shown else max(shown)
        if not statement["intact"] or most < told_of[site] * (1 - 1e-9):
            raise DataError(
                f"The ledger {path} shows less for {site!r} than the checkpoint, or was altered; restore it before "
                "the run goes on."
            )


def check_states(home: Path, sites: Sequence[str], run: str, state: RunState) -> None:
    """Raises DataError when a simulated site has lost what it kept after its last round: it would begin anew, silently."""
    for site in sites:
        if site in state.trained:
            path = state_file(site_home(home, site), run, state.trained[site])
            try:
                with safe_open(path, framework="numpy"):
                    pass
            except (OSError, SafetensorError):
                raise DataError(
                    f"{path}, what {site!r} kept after round {state.trained[site]}, is missing or damaged; restore it "
                    "before the run goes on."
                ) from None
