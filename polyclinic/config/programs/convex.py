"""The section of the convex tasks, which release one minimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from polyclinic.config.keys import Keys
from polyclinic.config.programs.kinds import Kind

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig

#: What the convex tasks take where nothing is given.
EXPONENTIAL = "exponential-mechanism"
DEFAULTS: dict[str, dict[str, object]] = {
    "output-perturbation": {"rounds": 1, "privacy.max-grad-norm": 2.0, "training.weight-decay": 0.1},
    "objective-perturbation": {"rounds": 1, "privacy.max-grad-norm": 2.0, "training.weight-decay": 0.03},
    EXPONENTIAL: {"rounds": 1, "privacy.max-grad-norm": 2.0, "training.weight-decay": 0.05},
}


def check_convex(config: RunConfig) -> None:
    """Raises ValueError for a minimiser that one patient could move anywhere, or a draw that would take too long."""
    if config.training.weight_decay == 0:
        raise ValueError(
            f"training.weight-decay is 0 but task is {config.task!r}: without a regulariser one patient may move the minimiser "
            "anywhere; give training.weight-decay a value above 0, such as 0.1"
        )
    if config.task != EXPONENTIAL or not config.privacy.dp:
        return
    from polyclinic.privacy.perturbation import least_decay  # takes dp-accounting, which --help does without

    least = least_decay(config.privacy.max_grad_norm)
    if config.training.weight_decay < least:
        raise ValueError(
            f"training.weight-decay is {config.training.weight_decay:g} but task is {EXPONENTIAL!r} with "
            f"privacy.max-grad-norm {config.privacy.max_grad_norm:g}: drawing a model would take too long; give "
            f"training.weight-decay at least {least:.2g}"
        )


def convex_settings(config: RunConfig) -> dict[str, Any]:
    """What the section adds to the settings of a round."""
    return {"perturbation": config.convex.perturbation}


def convex_kind(given: Mapping[str, Any]) -> Kind:
    """The kind of a convex task; ``given`` are flat keys."""
    reads = frozenset({"evaluation", "hidden"} | ({"convex"} if given["task"] != EXPONENTIAL else set()))
    return Kind("convex", reads, DEFAULTS[given["task"]], check_convex, convex_settings, steps=False)


#: A task or program of one's own, or of another package.
OTHERS = Kind(
    "supervised", Kind.reads | {"task-options", "convex"},
    settings=convex_settings,
)  # fmt: skip


class Convex(Keys):
    """Tasks output-perturbation and objective-perturbation."""

    perturbation: Literal["gaussian", "gamma"] = Field(
        "gaussian", description="Noise of the release; gamma has a pure epsilon."
    )
