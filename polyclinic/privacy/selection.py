"""Choosing the best of several candidates (epochs, checkpoints, settings) by what private records say of each.

What is chosen tells of the records that it was chosen by, so there is no choice here without a charge. A sweep whose every
run is charged needs nothing more if all of it may be told; this is for a choice by records that no run was charged for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.mechanisms import report_noisy_max
from polyclinic.privacy.streams import Stream

PURPOSE = "selection"


def best_of(
    candidates: int, counts: Callable[[], Sequence[int]], epsilon: float, ledger: Ledger, stream: Stream, run: str,
    round: int = 0,
) -> int:  # fmt: skip
    """The index of about the best candidate, by report-noisy-max.

    It is charged to ``ledger`` at pure ``epsilon``, whatever the number of candidates. Only the index may be told, no count.
    The best is within ln(candidates / p) / epsilon of the count chosen with probability 1 - p (Dwork and Roth 2014, report
    noisy max; McKenna and Sheldon 2020).

    Args:
        candidates: How many there are, 2 or more.
        counts: Called once, after the charge. It gives for each candidate how many patients speak for it (say, those that it
            classifies rightly). One patient added or removed changes each by at most 1, and an added one lowers none; under
            "replace-one" the accountant counts two.
        epsilon: What the choice costs, at delta 0.
        ledger: Of the patients who are counted.
        stream: Draws the noise.
        run: The name of the run, for the ledger.
        round: The number of the round, for the ledger.

    Raises:
        ConfigError: before anything is charged, for fewer than 2 candidates or an epsilon that is not positive and finite.
        BudgetRefused: with ``counts`` never called, if the budget does not allow it.
        TypeError: if ``counts`` does not give a whole number for each candidate.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from polyclinic.privacy.ledger import Terms
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5, budget=3.0))
        >>> best_of(3, lambda: [40, 90, 42], 0.5, ledger, keyed_stream(0, "choice"), run="sweep"), round(ledger.epsilon(), 2)
        (1, 0.5)
    """
    if candidates < 2:
        raise ConfigError(f"candidates must be at least 2 to choose among them, got {candidates}.")
    mechanism = report_noisy_max(epsilon, monotone=True)
    ledger.charge(mechanism.event, PURPOSE, run, round)
    scores = np.asarray(counts())
    if scores.shape != (candidates,) or scores.dtype.kind not in "iu":
        raise TypeError(f"counts must give {candidates} whole numbers.")
    return int(mechanism.choose(scores.astype(np.int64), stream).value)


def choice_event(epsilon: float, selected: int) -> DpEvent:
    """What ``best_few`` costs: as many choices of one, which together are pure ``epsilon``.

    Examples:
        >>> choice_event(epsilon=1.0, selected=4)
        SelfComposedDpEvent(event=ApproximateDpEvent(epsilon=0.25, delta=0.0), count=4)
    """
    return SelfComposedDpEvent(report_noisy_max(epsilon / selected, monotone=True).event, selected)


def best_few(counts: Sequence[int], selected: int, epsilon: float | None, stream: Stream) -> list[int]:
    """The indices of about the best ``selected`` candidates, best first, by whole counts.

    Call it after ``choice_event`` is charged. One candidate is chosen after the other by report-noisy-max, each with fresh
    noise and its share of ``epsilon`` (peeling: Durfee and Rogers 2019).

    Args:
        counts: As in ``best_of``; more than ``selected`` of them.
        selected: How many are chosen.
        epsilon: Of all choices together; None takes the best as they are, without privacy.
        stream: Draws the noise.

    Raises:
        TypeError: if ``counts`` are not more than ``selected`` whole numbers.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> best_few([40, 90, 42, 85], selected=2, epsilon=2.0, stream=keyed_stream(0, "choice"))
        [1, 3]
    """
    scores = np.asarray(counts)
    if scores.ndim != 1 or len(scores) <= selected or scores.dtype.kind not in "iu":
        raise TypeError(f"counts must be more than {selected} whole numbers.")
    left, chosen = list(range(len(scores))), []
    for _ in range(selected):
        if epsilon is None:
            place = int(np.argmax(scores[left]))
        else:
            mechanism = report_noisy_max(epsilon / selected, monotone=True)
            place = int(mechanism.choose(scores[left].astype(np.int64), stream).value)
        chosen.append(left.pop(place))
    return chosen
