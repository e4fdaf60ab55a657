"""The experiment of ``digits`` with MNIST, where its files are given."""

from __future__ import annotations

from polyclinic.reproduce.digits import pictures
from polyclinic.reproduce.experiment import Asked, Findings, Say


def run(asked: Asked, say: Say) -> Findings:
    """The experiment into ``asked.out``. Raises ConfigError without the files."""
    return pictures("mnist", asked, say)
