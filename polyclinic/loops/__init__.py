"""Inner loops over numbers: plain Python on NumPy arrays, which numba compiles when a run is long enough for it to pay.

To import numba and load what it compiled before takes a third of a second, so that nothing here does so until
``compile_loop`` is called. It compiles for the processor at hand, once a machine, in a few seconds. The result stays beside
the module, or in the user's folder for caches where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import FunctionType
from typing import Any

_NOTHING: Mapping[str, Any] = {}


def compile_loop(
    function: Callable[..., Any], signature: str, bound: Mapping[str, Any] = _NOTHING
) -> Callable[..., Any]:
    """Return the function in machine code, which lets go of Python's lock.

    Every operation rounds as it stands: numba joins no multiplication and addition, and does not reorder sums.

    Args:
        function: Plain Python on NumPy arrays.
        signature: The types of its parameters, in numba's words.
        bound: What names of the function's module mean in the compiled one, such as functions of ``inline``.
    """
    from numba import njit

    made = _again(function, bound)
    # By this name numba keeps it, and looks at nothing but the function's own module for changes.
    made.__qualname__ = f"{function.__name__}-{_source()}"
    try:
        return njit(signature, nogil=True, error_model="numpy", cache=True)(made)
    except (RuntimeError, OSError):  # nowhere to keep it, as in a container that is read-only
        return njit(signature, nogil=True, error_model="numpy")(made)


def inline(function: Callable[..., Any], bound: Mapping[str, Any] = _NOTHING) -> Callable[..., Any]:
    """The function as part of those that ``compile_loop`` compiles with it."""
    from numba import njit

    return njit(error_model="numpy", forceinline=True)(_again(function, bound))


@cache
def _source() -> str:
    """A digest of the modules here."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return blake2b(b"".join(file.read_bytes() for file in files), digest_size=8).hexdigest()


def casts() -> dict[str, Any]:
    """For ``inline``: ``_bits`` of a float32 as int32, ``_value`` of them."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def cast(before: Any, after: Any, form: Any) -> Any:
        def same_bits(_: Any, given: Any) -> Any:
            return after(before), lambda context, builder, signature, given: builder.bitcast(given[0], form)

        return intrinsic(same_bits)

    return {
        "_bits": cast(types.float32, types.int32, ir.IntType(32)),
        "_value": cast(types.int32, types.float32, ir.FloatType()),
    }


def _again(function: Callable[..., Any], bound: Mapping[str, Any]) -> FunctionType:
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**function.__globals__, **bound}, function.__name__)
