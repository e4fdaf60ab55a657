"""Polyclinic: federated learning for health records, with an epsilon that is true.

``Federation`` runs a federation in this process. Its configuration is ``RunConfig``, with the sections ``Privacy``,
``Training`` and the others of ``polyclinic.config``.
The function ``simulate`` runs any Flower app at simulated nodes, with the workers of ``Resources``.
A strategy's half at hospitals is a ``LocalHalf``, which is given ``Sites`` and returns what it ``Trained``.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.2.0"
__all__ = [
    "Central",
    "Checkpoints",
    "Convex",
    "Data",
    "Evaluation",
    "Federation",
    "LocalHalf",
    "Participation",
    "Pass",
    "Penalty",
    "Posterior",
    "Privacy",
    "Resources",
    "RunConfig",
    "RunResult",
    "Secure",
    "Simulation",
    "Sites",
    "Synthesis",
    "Tracking",
    "Trained",
    "Training",
    "Upload",
    "__version__",
    "simulate",
]

# In a wheel the four federation rooms are directories in here; in a source tree or Flower bundle they stand beside it.
_here = _Path(__path__[0])
if (_here / "server").is_symlink() or not (_here / "server").is_dir():
    __path__.insert(0, str(_here.parent))

if _TYPE_CHECKING:
    from polyclinic.config import (
        Central,
        Checkpoints,
        Convex,
        Data,
        Evaluation,
        Participation,
        Posterior,
        Privacy,
        RunConfig,
        Secure,
        Simulation,
        Synthesis,
        Tracking,
        Training,
        Upload,
    )
    from polyclinic.federation import Federation
    from polyclinic.inspection.result import RunResult
    from polyclinic.sim.simulation import Resources, simulate
    from polyclinic.training.local import LocalHalf, Pass, Penalty, Sites, Trained


def __getattr__(name: str) -> object:
    # Lazy, because Flower imports this package from two threads before any room may be imported (docs/architecture.md).
    if name == "Federation":
        from polyclinic import federation

        return federation.Federation
    if name == "RunResult":
        from polyclinic.inspection import result

        return result.RunResult
    if name in ("Resources", "simulate"):
        from polyclinic.sim import simulation

        return getattr(simulation, name)
    if name in ("LocalHalf", "Pass", "Penalty", "Sites", "Trained"):
        from polyclinic.training import local

        return getattr(local, name)
    if name in __all__:
        from polyclinic import config

        return getattr(config, name)
    raise AttributeError(f"module 'polyclinic' has no attribute {name!r}")
