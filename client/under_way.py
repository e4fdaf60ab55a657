"""Noise over time at a hospital: whether the process that it kept may go on, by its ledger."""

from __future__ import annotations

import numpy as np

from polyclinic.arrays import Arrays
from polyclinic.client.calls import Call
from polyclinic.client.charging import behind
from polyclinic.client.hospital import open_ledgers
from polyclinic.messages import TrainRequest
from polyclinic.training.draws import begun, without_draws
from polyclinic.training.task import TrainSettings

# The ledger's charge under which the process was last used.
_CHARGE = "charge"
MARKS = (_CHARGE,)


def usable(call: Call[TrainRequest], state: Arrays, settings: TrainSettings) -> Arrays:
    """What the hospital kept before this round; of a noise process only where its next steps were never used.

    The ledger knows, whatever files were lost or restored: the run's newest charge must be that under which the state was
    written. A simulation makes the same noise again, and so the same release. Raises DataError where the ledger is older
    than the state.
    """
    if not begun(state, settings):
        return state
    if not call.hospital.simulated:
        charges, written = _charges(call), state[_CHARGE].tobytes().decode() if _CHARGE in state else ""
        if written not in charges:
            raise behind(call.hospital, f"the noise of run {call.request.run!r}")
        if written != charges[-1]:
            return without_draws(state)
    return state


def marks(call: Call[TrainRequest]) -> Arrays:
    """What is kept beside a noise process, written in a round that was just charged, so that ``usable`` knows it again."""
    if call.hospital.simulated:
        return {}
    return {_CHARGE: np.frombuffer(_charges(call)[-1].encode(), dtype=np.uint8)}


def _charges(call: Call[TrainRequest]) -> list[str]:
    """The hashes of the ledger's charges for training in the run, in order."""
    return [row.hash for row in open_ledgers([call.hospital])[0].charges("train", call.request.run)]
