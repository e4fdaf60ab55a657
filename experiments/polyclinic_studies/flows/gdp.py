"""The privacy accounting of differentially private normalizing flows: what the paper claims, and what holds.

Su, Wang, Schiavazzi and Liu 2023's sigma, mu and epsilon beside PLD, RDP and Opacus' PRV, under both neighbouring relations
(target R5).
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic_studies.flows.gdp_claims import CLOSE, PAPER, UNACCOUNTED, Claim, Line, duality_gap, line
from polyclinic_studies.tables import BLUE, GREY, ORANGE

_QUICK = 2


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form takes the paper's last two lines."""
    lines = []
    for claim in PAPER[-_QUICK:] if asked.quick else PAPER:
        lines.append(line(claim))
        say(f"{claim.experiment}, sigma {claim.noise_multiplier:g}: claimed {claim.epsilon:g}, "
            f"PLD {lines[-1].epsilon['add-remove']['pld']:.3f}")  # fmt: skip
    results = {"lines": [_json(row) for row in lines], "unaccounted": dict(UNACCOUNTED)}
    return Findings({"claims": len(lines)}, _targets(lines), results, table(lines), {"claims": _figure(lines)})


def _targets(lines: list[Line]) -> tuple[Target, ...]:
    """R5 asks half a per cent."""
    added = [row.epsilon["add-remove"] for row in lines]
    pairs: tuple[tuple[str, list[float]], ...] = (
        (
            "ε by GDP at the published noise, from the claimed ε: largest of all lines",
            [duality_gap(row.claim) for row in lines],
        ),
        ("ε by PLD, from Opacus' PRV: largest of all lines", [one["pld"] / one["prv"] - 1 for one in added]),
    )
    return tuple(
        Target("R5", what, "", f"{max(abs(value) for value in values):.2%}", "within .5 %",
               max(abs(value) for value in values) <= CLOSE, exact="accounting")
        for what, values in pairs
    )  # fmt: skip


def _json(row: Line) -> dict[str, Any]:
    claim: Claim = row.claim
    return {
        "experiment": claim.experiment, "sigma": claim.noise_multiplier, "sample rate": claim.sample_rate,
        "steps": claim.steps, "delta": claim.delta, "claimed epsilon": claim.epsilon, "claimed mu": list(claim.mu),
        "mu": row.mu, "epsilon": row.epsilon, "runs": claim.runs, "epsilon of all runs": row.together,
        "holds": row.holds, "holds where a patient is replaced": row.holds_replaced,
        "delta times patients": claim.delta * claim.patients,
    }  # fmt: skip


def table(lines: list[Line]) -> str:
    """The table, with what holds and what does not, in Markdown."""
    header = ["experiment", "σ", "q", "T", "δ", "μ printed", "μ", "ε claimed", "GDP", "PLD", "PRV", "RDP", "claim",
              "replaced: GDP", "PLD", "RDP", "claim", "all runs: PLD", "δ x patients"]  # fmt: skip
    rows = []
    for row in lines:
        claim, added, replaced = row.claim, row.epsilon["add-remove"], row.epsilon["replace-one"]
        excess = added["pld"] / claim.epsilon - 1
        holds = "holds" if excess <= 0 else f"holds but for {100 * excess:.2f} %" if row.holds else "does not hold"
        more = f"{replaced['pld'] / claim.epsilon:.1f} times the claim"
        rows.append([
            claim.experiment, f"{claim.noise_multiplier:g}", f"{claim.sample_rate:.3g}", str(claim.steps),
            f"{claim.delta:g}", ", ".join(f"{mu:g}" for mu in claim.mu) or "not printed", f"{row.mu:.3f}",
            f"{claim.epsilon:g}", *(f"{added[name]:.3f}" for name in ("gdp", "pld", "prv", "rdp")), holds,
            *(f"{replaced[name]:.2f}" for name in ("gdp", "pld", "rdp")), "holds" if row.holds_replaced else more,
            f"{row.together:.1f} ({claim.runs})", f"{claim.delta * claim.patients:.2g}",
        ])  # fmt: skip
    reasons = "\n".join(f"- {what}: {why}." for what, why in UNACCOUNTED)
    return (
        f"{markdown(header, rows)}\nGDP is the paper's way, and approximate; PLD, PRV and RDP are upper bounds. None of them "
        f"sees, and no line above is therefore a guarantee of what was released:\n\n{reasons}\n"
    )


def _figure(lines: list[Line]) -> Figure:
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    axis = figure.subplots()
    places = range(len(lines))
    shown = (
        ("claimed", GREY, [row.claim.epsilon for row in lines]),
        ("PLD, a patient added or removed", BLUE, [row.epsilon["add-remove"]["pld"] for row in lines]),
        ("PLD, a patient replaced", ORANGE, [row.epsilon["replace-one"]["pld"] for row in lines]),
        ("PLD, all runs on the same patients", "#CC79A7", [row.together for row in lines]),
    )
    for i, (label, colour, values) in enumerate(shown):
        axis.bar([place + 0.2 * (i - 1.5) for place in places], values, 0.2, color=colour, label=label)
    axis.set(yscale="log", ylabel="ε")
    axis.set_xticks(
        list(places), [f"{row.claim.experiment}\nσ = {row.claim.noise_multiplier:g}" for row in lines], fontsize=8
    )
    axis.legend(frameon=False, fontsize=8)
    return figure
