"""The section of the convex tasks, which release one minimiser."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polyclinic.config.keys import Keys

#: What output and objective perturbation take where nothing is given.
CONVEX_DEFAULTS: dict[str, dict[str, object]] = {
    "output-perturbation": {"rounds": 1, "privacy.max-grad-norm": 2.0, "training.weight-decay": 0.1},
    "objective-perturbation": {"rounds": 1, "privacy.max-grad-norm": 2.0, "training.weight-decay": 0.03},
}


class Convex(Keys):
    """Tasks output-perturbation and objective-perturbation."""

    perturbation: Literal["gaussian", "gamma"] = Field(
        "gaussian",
        description="Noise of the release; gamma has a pure epsilon.",
    )
