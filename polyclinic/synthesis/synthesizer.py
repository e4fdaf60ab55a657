"""What every method of synthesis ends in: something that draws rows, and how it is kept in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyclinic.errors import DataError, PolyclinicError
from polyclinic.files import write_file
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints

_META = "synthesizer"


class Synthesizer(Protocol):
    """Draws rows of a ``layout``. It is made of what was released alone, so that drawing costs no privacy."""

    @property
    def layout(self) -> Layout: ...

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D) drawn rows.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by the synthesizer's own frequencies.
        """
        ...

    def arrays(self) -> Arrays:
        """Its numbers."""
        ...

    def options(self) -> dict[str, Any]:
        """What else ``load`` needs, as JSON."""
        ...


class Unsure(Synthesizer, Protocol):
    """One that knows how little is certain of it: what was released, and of how many patients.

    together: the pairs of columns that were measured together; empty where nothing can be drawn anew.
    """

    @property
    def together(self) -> list[tuple[str, str]]: ...

    @property
    def patients(self) -> float: ...

    def anew(self, count: int, rng: np.random.Generator) -> Sequence[Synthesizer]:
        """``count`` synthesizers drawn from the posterior, given what was released."""
        ...


def unsure(synthesizer: Synthesizer | None) -> Unsure | None:
    """The synthesizer itself where models can be drawn anew; None of any other."""
    return cast(Unsure, synthesizer) if getattr(synthesizer, "together", ()) else None


def describe(synthesizer: Synthesizer) -> dict[str, Any]:
    """What a file says of it: its ``kind``, its class as ``package.module:Class`` by which it is read again, and ``options``."""
    return {"kind": f"{type(synthesizer).__module__}:{type(synthesizer).__name__}", "options": synthesizer.options()}


def made_again(layout: Layout, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Synthesizer:
    """The synthesizer of ``describe`` and its arrays. Its class is imported by name, which is code.

    Args:
        layout: The layout of the rows.
        description: What ``describe`` gave: ``kind`` and ``options``.
        arrays: The arrays by name.
    """
    module, _, name = str(description["kind"]).partition(":")
    make: Callable[..., Synthesizer] = getattr(import_module(module), name).load
    return make(layout, arrays, description["options"])


def save(synthesizer: Synthesizer, path: Path) -> None:
    """Write ``synthesizer`` whole, or leave what was there."""
    # One entry, for the file has several in any order.
    meta = {_META: json.dumps(describe(synthesizer))}
    arrays = {name: np.array(value, order="C") for name, value in synthesizer.arrays().items()}
    write_file(path, lambda aside: save_file(arrays, aside, meta))


def load(path: Path, layout: Layout) -> Synthesizer:
    """The synthesizer in a file. Its class is imported by name, which is code: read only files of your own runs.

    Raises DataError for a missing or damaged file, one of another schema, or one with an array that cannot be.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            meta = json.loads(file.metadata()[_META])
        return made_again(layout, meta, arrays)
    except PolyclinicError as error:
        raise DataError(f"{path} holds no synthesizer of this schema: {str(error).rstrip('.')}.") from None
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, ImportError, AttributeError) as error:
        raise DataError(f"{path} holds no synthesizer of this schema: {type(error).__name__}.") from None
