"""The choice among a game's generators by all hospitals, after the last round: each names its best, and the server counts."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from polyclinic.privacy.selection import choice_event
from polyclinic.programs import Choice
from polyclinic.programs.synthetic import judge
from polyclinic.server.calibration import declared_plan
from polyclinic.server.exchange.learning import Learning
from polyclinic.server.exchange.replies import accept, problem
from polyclinic.server.exchange.sites import put
from polyclinic.server.phases.evaluation import evaluate_again
from polyclinic.server.state import Run, RunState
from polyclinic.wire.arrays import from_record, to_record
from polyclinic.wire.messages import QUESTION, SELECT, SelectRequest


def select(run: Run, state: RunState, learning: Learning, choice: Choice) -> None:
    """Chooses among the candidates that were learned, and judges the last round anew.

    Args:
        run: The run after its last round.
        state: The run's state, which is changed.
        learning: The program's half at the server, with the candidates.
        choice: How hospitals choose.
    """
    _choose(run, state, learning, choice)
    evaluate_again(run, state)


def _choose(run: Run, state: RunState, learning: Learning, choice: Choice) -> None:
    """Have the hospitals choose ``selected`` of the candidates; rows are then drawn from those.

    A hospital's first choice weighs most, and a hospital by its patients that were paid for. Without any reply, or fewer
    candidates than are to be chosen (rounds that diverged), the last generator stays.
    """
    config, candidates = run.config, learning.half.candidates(learning.state)
    rounds = [*candidates]
    if len(rounds) <= choice.selected:
        return
    judges = [judge(candidate, choice.rows, config.seed) for candidate in candidates.values()]
    beside = to_record({
        "weight": np.stack([arrays["0.weight"] for arrays in judges]), "bias": np.stack([arrays["0.bias"] for arrays in judges]),
    })  # fmt: skip

    request = SelectRequest(
        run=run.name, site=0, home=run.home, round=config.rounds, selected=choice.selected, epsilon=choice.epsilon or None,
        plan=declared_plan(run.privacy),
    )  # fmt: skip
    exchange = put(run.grid, run.sites, SELECT, request, config.timeout, RecordDict({QUESTION: beside}))
    votes = np.zeros(len(rounds))
    if choice.epsilon:
        event = choice_event(choice.epsilon, choice.selected)
        state.ask(exchange, SELECT, event, event)
    for site, reply in accept(exchange, state, config.rounds, problem, request=SELECT):
        chosen = _read_choice(reply, choice.selected, len(rounds))
        weight = state.public_patients.get(site.name, 1.0)
        votes[chosen] += weight * (choice.selected - np.arange(len(chosen)))
    if votes.any():
        learning.choose([rounds[index] for index in np.argsort(-votes, kind="stable")[: choice.selected]])


def _read_choice(reply: Message, selected: int, candidates: int) -> np.ndarray:
    """Indices of candidates in a reply; none of one that does not name as many different ones as were asked for."""
    record = reply.content.get("arrays")
    indices = from_record(record).get("chosen") if isinstance(record, ArrayRecord) else None
    if (
        indices is None
        or indices.shape != (selected,)
        or indices.dtype.kind not in "iu"
        or len(set(indices.tolist())) < selected
    ):
        return np.zeros(0, dtype=np.int64)
    return indices if indices.min() >= 0 and indices.max() < candidates else np.zeros(0, dtype=np.int64)
