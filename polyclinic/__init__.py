"""Polyclinic: federated learning for health records, with an epsilon that is true.

The front door: ``Federation`` runs a federation in this process and ``RunConfig`` is its configuration.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.2.0.dev0"
__all__ = ["Federation", "RunConfig", "RunResult", "__version__"]

# In a wheel the four federation rooms are directories in here; in a source tree or Flower bundle they stand beside it.
_here = _Path(__path__[0])
if (_here / "server").is_symlink() or not (_here / "server").is_dir():
    __path__.insert(0, str(_here.parent))

if _TYPE_CHECKING:
    from polyclinic.config import RunConfig
    from polyclinic.federation import Federation, RunResult


def __getattr__(name: str) -> object:
    # Lazy, because Flower imports this package from two threads before any room may be imported (docs/architecture.md).
    if name in ("Federation", "RunResult"):
        from polyclinic import federation

        return getattr(federation, name)
    if name == "RunConfig":
        from polyclinic.config import RunConfig

        return RunConfig
    raise AttributeError(f"module 'polyclinic' has no attribute {name!r}")
