"""Smaller uploads: differences instead of models, fewer bits, only the largest numbers.

A hospital encodes its trained model after the noise was added, so all of this is post-processing; the server decodes it
against the model that it sent. Seide et al. 2014 and Stich et al. 2018 (top-k with error feedback); Alistarh et al. 2017
(stochastic rounding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import Stream
from polyclinic.types import Arrays

_LEVELS = 127
_PRECISIONS: dict[str, np.dtype[Any]] = {
    "full": np.dtype(np.float32),
    "half": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}


@dataclass(frozen=True)
class Compression:
    """How uploads are encoded; the defaults leave a model as it is. ``share`` below 1 needs ``difference``."""

    difference: bool = False
    precision: str = "full"
    share: float = 1.0

    @property
    def active(self) -> bool:
        return self.difference or self.precision != "full"


def encode(
    trained: Arrays, given: Arrays, how: Compression, rounding: Stream, residual: np.ndarray | None = None
) -> tuple[Arrays, np.ndarray | None]:
    """The upload of ``trained``, and what was left out of it (P,), which is ``residual`` of the site's next call.

    All floating point arrays, flattened in order of their names, become ``values`` (n,). With them go ``scale`` (1,)
    for int8 and ``indices`` (n,) int32 where only a share is sent. Other arrays are not sent, since nothing trains
    them.

    Args:
        trained: The arrays after training.
        given: The arrays before it, from which a difference is taken.
        how: The precision, the share of the entries, and whether a difference is sent.
        rounding: The stream of random numbers that rounds to int8.
        residual: What was left out of the site's last upload, (P,); None for the first.

    Returns:
        The upload, and what was left out; None where every entry is sent.
    """
    vector = flatten(trained) - flatten(given) if how.difference else flatten(trained)
    upload: Arrays = {}
    chosen = vector
    if how.share < 1:
        vector = vector if residual is None else vector + residual
        size = max(1, round(how.share * len(vector)))
        indices = np.sort(np.argpartition(np.abs(vector), len(vector) - size)[-size:])
        upload["indices"], chosen = indices.astype(np.int32), vector[indices]
    if how.precision == "int8":
        scale = np.float32(np.abs(chosen).max(initial=0.0) / _LEVELS)
        steps = chosen / (scale or np.float32(1))
        upload["scale"] = np.array([scale], dtype=np.float32)
        # Up or down with probabilities that make the mean exact.
        upload["values"] = np.clip(np.floor(steps + rounding.uniform(len(steps))), -_LEVELS, _LEVELS).astype(np.int8)
    else:
        upload["values"] = chosen.astype(_PRECISIONS[how.precision])
    if how.share == 1:
        return upload, None
    left_out = (vector - _vector(upload, len(vector))).astype(np.float32)
    # A model that overflowed must not spoil every later upload.
    return upload, np.where(np.isfinite(left_out), left_out, np.float32(0))


def decode(upload: Arrays, given: Arrays, how: Compression) -> Arrays:
    """The model that an upload stands for.

    Args:
        upload: The arrays of ``encode``.
        given: The model that was sent to the site.
        how: The compression that the site was to use.

    Raises:
        ConfigError: The upload is not one that ``encode`` makes for ``given``.
    """
    size = sum(value.size for value in given.values() if _trains(value))
    expected = (
        {"values"} | ({"scale"} if how.precision == "int8" else set()) | ({"indices"} if how.share < 1 else set())
    )
    sent = upload.get("values", np.empty(0))
    if set(upload) != expected or sent.dtype != _PRECISIONS[how.precision] or sent.ndim != 1:
        raise ConfigError(f"the upload's arrays are not {', '.join(sorted(expected))} in {_PRECISIONS[how.precision]}")
    if "scale" in expected and (upload["scale"].shape != (1,) or upload["scale"].dtype.kind != "f"):
        raise ConfigError("the upload's scale is not one number")
    if how.share < 1:
        indices = upload["indices"]
        if (
            indices.shape != sent.shape
            or indices.dtype.kind not in "iu"
            or (len(indices) and not (indices.min() >= 0 and indices.max() < size))
        ):
            raise ConfigError("the upload's indices are not those of the model")
    elif len(sent) != size:
        raise ConfigError(f"the upload has {len(sent)} numbers, the model has {size}")
    vector = _vector(upload, size)
    if how.difference:
        vector = flatten(given) + vector
    return unflatten(vector, given)


def _vector(upload: Arrays, size: int) -> np.ndarray:
    values = upload["values"].astype(np.float32)
    if "scale" in upload:
        values *= upload["scale"][0]
    if "indices" not in upload:
        return values
    vector = np.zeros(size, dtype=np.float32)
    vector[upload["indices"]] = values
    return vector


def flatten(arrays: Arrays, dtype: type[np.floating[Any]] = np.float32) -> np.ndarray:
    """The floating point numbers of a model in one vector (P,), in order of the arrays' names."""
    return np.concatenate([arrays[name].astype(dtype).ravel() for name in sorted(arrays) if _trains(arrays[name])])


def unflatten(vector: np.ndarray, like: Arrays) -> Arrays:
    """The model whose ``flatten`` is ``vector``, in the shapes and types of ``like``; what nothing trains is as there."""
    model, start = dict(like), 0
    for name in sorted(like):
        value = like[name]
        if _trains(value):
            model[name] = vector[start : start + value.size].reshape(value.shape).astype(value.dtype)
            start += value.size
    return model


def _trains(value: np.ndarray) -> bool:
    return bool(np.issubdtype(value.dtype, np.floating))
