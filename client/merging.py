"""Simulated hospitals that were trained together answer with one mean of their models, for strategies that allow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from polyclinic.arrays import MERGED, WEIGHT, Arrays, to_record, weighted_mean
from polyclinic.messages import RECORD


def join(
    replies: Sequence[RecordDict], key: str, uploads: Sequence[Arrays], models: Sequence[Arrays],
    weights: Sequence[float],
) -> None:  # fmt: skip
    """Put the mean of the ``models`` that the ``uploads`` stand for into one reply, and mark all whose model is in it.

    ``key`` names the record of arrays. A model that is not finite stays alone, so that the server drops its site only.
    """
    mean, joined = weighted_mean(models, weights), list(range(len(models)))
    if not _finite(mean):
        joined = [index for index, model in enumerate(models) if _finite(model)]
        for index in set(range(len(models))) - set(joined):
            replies[index][key] = to_record(uploads[index])
        if not joined:
            return
        mean = weighted_mean([models[index] for index in joined], [weights[index] for index in joined])
    replies[joined[0]][key] = to_record(mean)
    _told(replies[joined[0]])[WEIGHT] = math.fsum(weights[index] for index in joined)
    for index in joined:
        _told(replies[index])[MERGED] = sum(value.nbytes for value in uploads[index].values())


def _told(reply: RecordDict) -> ConfigRecord:
    return cast(ConfigRecord, reply[RECORD])


def _finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(value).all()) for value in arrays.values())
