"""What a run tells of whole hospitals where they make the noise of a secure sum together: its ledger and statement."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from polyclinic.compression import flattened
from polyclinic.config import RunConfig, secure_terms
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.statements import statements
from polyclinic.server.central import FEDERATION
from polyclinic.server.cohort import secure_threshold
from polyclinic.types import Arrays


def secure_ledger(config: RunConfig, path: Path) -> Ledger:
    """The ledger of whole hospitals, in the server's file. It has no budget: the noise is given, not an epsilon."""
    return Ledger.open(path, Terms(FEDERATION, config.central.delta, unit="hospital"))


def secure_statement(config: RunConfig, ledger: Ledger, cohort: int, origin: Arrays) -> dict[str, Any]:
    """What the summary says of the guarantee to whole hospitals, in the form of ``central_statement``.

    origin: like each hospital's answer (``Program.origin``).
    """
    terms, size = ledger.terms, flattened(origin).size
    agreed = secure_terms(config, size, cohort, secure_threshold(config, cohort))
    return {
        "epsilon": ledger.spent(), "delta": terms.delta, "unit": terms.unit, "relation": terms.relation,
        "accountant": terms.accountant, "budget": terms.budget, "noise_multiplier": config.secure.noise,
        "sample_rate": 1.0, "clip_norm": [config.secure.clip_norm], "expected_sites": cohort,
        "noise_to_signal": agreed.scale * agreed.step * math.sqrt(cohort * size) / (cohort * config.secure.clip_norm),
        "noise": "distributed", "warning": None, "secure": True,
        "ledger": statements([ledger])[0],
    }  # fmt: skip
