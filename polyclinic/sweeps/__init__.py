"""Sweeps: which runs there are (``plan``), how they are carried out (``carrying``), and what they come to (``tables``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyclinic.sweeps.carrying import Execute, Outcome, Watch, carry_out
from polyclinic.sweeps.plan import Planned, check, in_order, plan
from polyclinic.sweeps.tables import Sweep, combine, results, write_page, write_tables

__all__ = ["Outcome", "Planned", "Sweep", "Watch", "carry_out", "check", "in_order", "plan", "sweep"]


def sweep(runs: Sequence[Planned], execute: Execute, jobs: int = 1, watch: Watch | None = None) -> Sweep:
    """Carry out the runs in their configurations' ``out``, and write tables and page there. Errors as ``carry_out``."""
    folder = Path(runs[0].config.out).expanduser().resolve()
    outcomes = carry_out(runs, folder, execute, jobs, watch)
    table = results(outcomes)
    result = Sweep(folder, outcomes, table, combine(table, runs))
    write_tables(result)
    write_page(result)
    return result
