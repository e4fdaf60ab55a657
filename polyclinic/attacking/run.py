"""All attacks that fit a finished simulated run, with what its epsilon allows beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyclinic.attacking.model import attack_model
from polyclinic.attacking.synthetic import attack_synthetic
from polyclinic.attacking.target import LeftOut, Target, read_target
from polyclinic.auditing import subject_of_run
from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.attacks.section import FILE
from polyclinic.evaluation.report import render_report
from polyclinic.training.auditing.canaries import guess

# Where a run claims no delta, the one at which its lower bound is stated.
_USUAL_DELTA, _CONFIDENCE = 1e-5, 0.95


def attack_run(
    path: Path, *, seed: int = 0, shadows: int = 16, sensitive: Sequence[str] = (), delta: float | None = None,
    canaries: int = 300, doing: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:  # fmt: skip
    """Every attack that fits the run; writes ``attacks.json`` into its folder and its report anew, and returns what it wrote.

    shadows: models for LiRA, 0 leaves it out.  sensitive: columns to guess.  delta: of the lower bounds; the run's without.
    canaries: of the audit, 0 leaves it out.  doing: told what is under way.
    Raises ConfigError as ``read_target`` and for a column that cannot be guessed.
    """
    target = read_target(path, seed)
    private = target.summary["privacy"]["private"]
    at = delta or (target.summary["privacy"]["delta"] if private else None) or _USUAL_DELTA
    left_out: LeftOut = []
    if target.config.synthesis:
        found = attack_synthetic(target, at, doing)
    else:
        found = attack_model(target, at, shadows, sensitive, left_out, doing)
    doing("canaries")
    audit = _audit(target, seed, delta, canaries, left_out)
    privacy = target.summary["privacy"]
    whole: dict[str, Any] = {
        "run": str(target.folder.path), "dataset": target.config.dataset, "seed": seed,
        "members": target.members.patients, "non_members": target.non_members.patients, "unit": privacy["unit"],
        "claimed": {name: privacy[name] for name in ("epsilon", "delta", "relation")},
        "allowed": privacy.get("risk") if private else None, "audit": audit, "membership": [], "attributes": [],
        "gradients": None, "closest": None, "identification": [], **found, "left_out": left_out,
    }  # fmt: skip
    partial = target.folder.path / f"{FILE}.partial"
    partial.write_text(json.dumps(whole, indent=2, allow_nan=False), encoding="utf-8")
    partial.replace(target.folder.path / FILE)
    render_report(target.folder.path)
    return whole


def _audit(target: Target, seed: int, delta: float | None, canaries: int, left_out: LeftOut) -> dict[str, Any] | None:
    if not canaries:
        left_out.append({"attack": "audit with canaries", "why": "no canaries were asked for"})
        return None
    try:
        subject = subject_of_run(target.folder.path, seed, delta=delta)
        found = guess(subject, canaries, (canaries // 3,), _CONFIDENCE, white_box=True)
    except PolyclinicError as error:
        left_out.append({"attack": "audit with canaries", "why": str(error)})
        return None
    return asdict(found) | {"epsilon_claimed": subject.epsilon, "delta": subject.delta}
