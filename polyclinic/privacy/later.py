"""What other packages import and a run does not use, imported when it is first asked for: a third of a run's start.

dp-accounting takes SciPy's statistics, which read the text of their own documentation, for one normal distribution, and
Flower a client of HTTP. While such a package is imported, stand-ins lie where those modules would; afterwards they are gone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

#: The modules that wait, by the package that imports them.
WAITING = {
    "dp_accounting": ("scipy.stats", "scipy.signal", "scipy.optimize"),
    "flwr": ("httpx",),
}


class _StandIn(ModuleType):
    """A module that is imported when something of it is asked for that it has not itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class Normal:
    """``scipy.stats.norm`` as far as dp-accounting asks it, the same to the last bit."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        self._loc, self._scale = loc, scale

    def __call__(self, loc: float = 0.0, scale: float = 1.0) -> Normal:
        return Normal(loc, scale)

    def cdf(self, x: Any) -> Any:
        return _special().ndtr((x - self._loc) / self._scale)

    def logcdf(self, x: Any) -> Any:
        return _special().log_ndtr((x - self._loc) / self._scale)

    def ppf(self, share: Any) -> Any:
        return _special().ndtri(share) * self._scale + self._loc

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("scipy.stats").norm(self._loc, self._scale), name)


def _special() -> Any:
    return import_module("scipy.special")


def fftconvolve(one: Any, other: Any) -> Any:
    """``scipy.signal.fftconvolve`` of two vectors of float64, the same to the last bit."""
    import numpy as np

    one, other = np.asarray(one), np.asarray(other)
    if min(one.shape[0], other.shape[0]) <= 1 or one.ndim > 1:
        return import_module("scipy.signal").fftconvolve(one, other)
    fft: Any = import_module("scipy.fft")
    length = len(one) + len(other) - 1
    fast = [fft.next_fast_len(length, True)]
    product = fft.rfftn(one, fast, axes=[0]) * fft.rfftn(other, fast, axes=[0])
    return fft.irfftn(product, fast, axes=[0])[:length].copy()


_READY: dict[str, dict[str, Any]] = {"scipy.stats": {"norm": Normal()}, "scipy.signal": {"fftconvolve": fftconvolve}}


@contextmanager
def _standing_in(names: Sequence[str]) -> Iterator[None]:
    made = {name: _StandIn(name) for name in names if name not in sys.modules}
    for name, module in made.items():
        module.__dict__.update(_READY.get(name, {}))
    sys.modules |= made
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Around:
    """Another loader, with the stand-ins of its package while it works."""

    def __init__(self, inner: Any, names: Sequence[str]) -> None:
        self._inner, self._names = inner, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        with _standing_in(self._names):
            self._inner.exec_module(module)


class _Finder:
    """A finder of modules, as ``sys.meta_path`` has them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in WAITING else None
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Around(spec.loader, WAITING[name]))
        return spec


def import_later() -> None:
    """Have the modules of ``WAITING`` wait, in packages that this process has not imported yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, _Finder()))
