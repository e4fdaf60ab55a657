"""The section that says what a run cost: seconds, and bytes over the line."""

from __future__ import annotations

from typing import Any

import pandas as pd

from polyclinic.evaluation.report.formats import Summary, finite

COST = """
<h2>Cost</h2>
<table class="facts"><tbody>
{% for name, value in cost %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
<p class="small muted">Bytes are of the arrays in the messages of training, as hospitals were sent them and sent them
back; seconds of the rounds on the machine that ran them, without what came before the first.</p>
"""


def cost(summary: Summary, rounds: pd.DataFrame) -> dict[str, Any] | None:
    """What the section shows; None where the rounds tell nothing of it."""
    found: list[tuple[str, str]] = []
    seconds, sent = finite(summary.get("seconds")), rounds
    if seconds is not None:
        found.append(("Training", f"{seconds:,.1f} s"))
    for column, name in (("bytes_down", "To the hospitals"), ("bytes_up", "From the hospitals")):
        sent = pd.to_numeric(rounds[column], errors="coerce").dropna() if column in rounds.columns else pd.Series()
        if len(sent):
            found.append((name, f"{size(float(sent.sum()))}; {size(float(sent.mean()))} for a hospital and round"))
    simulated = pd.to_numeric(rounds.get("simulated_seconds", pd.Series()), errors="coerce")
    if simulated.notna().any():
        slowest = simulated.groupby(rounds["round"]).max().sum()
        found.append(("Simulated time", f"{slowest:,.1f} s, each round as long as its slowest hospital"))
    return {"cost": found} if found else None


def size(count: float) -> str:
    """Bytes in the unit that makes a small number of them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
