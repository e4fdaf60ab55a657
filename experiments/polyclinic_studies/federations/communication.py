"""Three ways to send less: fewer hospitals a round, fewer rounds, smaller messages (breast cancer, 8 hospitals, an MLP).

Each way is trained without privacy, and the two ends with it; shown is the loss over rounds and over bytes.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, markdown
from polyclinic.inspection.result import RunResult
from polyclinic_studies.parts import Parts

SETTINGS: dict[str, Any] = {
    "dataset": "breast-cancer", "sites": 8, "model": "mlp", "hidden": "64,32", "training.learning-rate": 0.1,
    "training.momentum": 0.0,
    "training.sample-rate": 0.2, "rounds": 40, "privacy.dp": False,
}  # fmt: skip
SMALL = {"upload.form": "difference", "upload.precision": "int8"}
WAYS: dict[str, dict[str, Any]] = {
    "FedSGD: one step a round": {"training.local-steps": 1},
    "FedAvg: ten steps a round": {"training.local-steps": 10},
    "a quarter of the hospitals a round": {"training.local-steps": 10, "participation.fraction": 0.25},
    "differences in half precision": {"training.local-steps": 10, "upload.form": "difference", "upload.precision": "half"},
    "differences in 8 bits": {"training.local-steps": 10, **SMALL},
    "a tenth of each difference, 8 bits": {"training.local-steps": 10, **SMALL, "upload.share": 0.1},
    "FedAvg, ε = 10": {"training.local-steps": 10, "privacy.dp": True, "privacy.epsilon": 10.0},
    "a tenth of each difference, 8 bits, ε = 10": {
        "training.local-steps": 10, **SMALL, "upload.share": 0.1, "privacy.dp": True, "privacy.epsilon": 10.0,
    },
}  # fmt: skip
GOAL = 0.15


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form trains three rounds."""
    settings = SETTINGS | ({"rounds": 3} if asked.quick else {})
    parts = Parts(asked.out, say)
    rows = {name: _curve(parts.run(name, settings | way)) for name, way in WAYS.items()}
    return Findings(
        {**settings, "ways": WAYS}, (), {"rows": rows}, table(rows, settings["rounds"]), {"curve": plot(rows)}
    )


def _curve(result: RunResult) -> dict[str, list[float]]:
    """Pooled loss after each round, and the bytes sent up and both ways till then."""
    rounds = result.rounds
    sent = rounds.groupby("round")[["bytes_up", "bytes_down"]].sum().cumsum()
    pooled = rounds[rounds.site == "pooled"].set_index("round")
    return {
        "loss": pooled.loss.tolist(), "auroc": pooled.auroc.tolist(), "bytes_up": sent.bytes_up.tolist(),
        "bytes": (sent.bytes_up + sent.bytes_down).tolist(),
    }  # fmt: skip


def table(rows: dict[str, dict[str, list[float]]], rounds: int) -> str:
    """What each way reached, and what it sent, in Markdown."""
    head = [
        "way", f"loss after {rounds} rounds", "AUROC", "kilobytes up a round", f"rounds to loss {GOAL}",
        f"kilobytes up to loss {GOAL}",
    ]  # fmt: skip
    lines = []
    for name, row in rows.items():
        reached = next((index for index, loss in enumerate(row["loss"]) if loss <= GOAL), None)
        until = (
            ("not reached", "-") if reached is None else (str(reached + 1), f"{row['bytes_up'][reached] / 1000:.1f}")
        )
        each = row["bytes_up"][-1] / len(row["loss"]) / 1000
        lines.append([name, f"{row['loss'][-1]:.3f}", f"{row['auroc'][-1]:.3f}", f"{each:.1f}", *until])
    return markdown(head, lines)


def plot(rows: dict[str, dict[str, list[float]]]) -> Figure:
    """Pooled loss over rounds, and over bytes sent up."""
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    for index, (name, row) in enumerate(rows.items()):
        style = {"color": f"C{index}", "linestyle": "--" if "ε" in name else "-", "linewidth": 1.4}
        by_round.plot(range(1, len(row["loss"]) + 1), row["loss"], label=name, **style)
        by_bytes.plot([sent / 1000 for sent in row["bytes_up"]], row["loss"], **style)
    by_round.set(xlabel="round", ylabel="loss over all held-out patients", ylim=(0, 0.8))
    by_bytes.set(xlabel="kilobytes sent by hospitals", xscale="log")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure
