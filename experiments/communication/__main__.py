"""Three ways to send less: fewer hospitals a round, fewer rounds, smaller messages (breast cancer, 8 hospitals, an MLP).

``python -m experiments.communication`` trains each way without privacy, and the two ends with it, and writes results.json,
table.md and curve.svg (loss over rounds and over bytes) beside this file.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from polyclinic import Federation
from polyclinic.versions import recorded_versions

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {
    "sites": 8, "model": "mlp", "hidden": "64,32", "learning_rate": 0.1, "momentum": 0.0, "sample_rate": 0.2, "rounds": 40,
    "dp": False,
}  # fmt: skip
SMALL = {"upload": "difference", "upload_precision": "int8"}
WAYS: dict[str, dict[str, Any]] = {
    "FedSGD: one step a round": {"local_steps": 1},
    "FedAvg: ten steps a round": {"local_steps": 10},
    "a quarter of the hospitals a round": {"local_steps": 10, "fraction_train": 0.25},
    "differences in half precision": {"local_steps": 10, "upload": "difference", "upload_precision": "half"},
    "differences in 8 bits": {"local_steps": 10, **SMALL},
    "a tenth of each difference, 8 bits": {"local_steps": 10, **SMALL, "upload_share": 0.1},
    "FedAvg, ε = 10": {"local_steps": 10, "dp": True, "epsilon": 10.0},
    "a tenth of each difference, 8 bits, ε = 10": {
        "local_steps": 10, **SMALL, "upload_share": 0.1, "dp": True, "epsilon": 10.0,
    },
}  # fmt: skip
GOAL = 0.15


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        hospitals = Federation.from_dataset("breast-cancer", out=out, **SETTINGS)
        rows = {name: _curve(hospitals, options) for name, options in WAYS.items()}
    results = {
        "machine": platform.platform(),
        "versions": recorded_versions(),
        "settings": SETTINGS,
        "ways": WAYS,
        "rows": rows,
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False), encoding="utf-8")
    (HERE / "table.md").write_text(table(rows), encoding="utf-8")
    plot(rows).savefig(HERE / "curve.svg", metadata={"Date": None})


def _curve(hospitals: Federation, options: dict[str, Any]) -> dict[str, list[float]]:
    """Pooled loss after each round, and the bytes sent up and both ways till then."""
    rounds = hospitals.run(**options).rounds
    sent = rounds.groupby("round")[["bytes_up", "bytes_down"]].sum().cumsum()
    pooled = rounds[rounds.site == "pooled"].set_index("round")
    return {
        "loss": pooled.loss.tolist(), "auroc": pooled.auroc.tolist(), "bytes_up": sent.bytes_up.tolist(),
        "bytes": (sent.bytes_up + sent.bytes_down).tolist(),
    }  # fmt: skip


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    """What each way reached, and what it sent, in Markdown."""
    lines = [
        f"| way | loss after {SETTINGS['rounds']} rounds | AUROC | kilobytes up a round | rounds to loss {GOAL} | "
        f"kilobytes up to loss {GOAL} |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        reached = next((index for index, loss in enumerate(row["loss"]) if loss <= GOAL), None)
        until = (
            ("not reached", "-") if reached is None else (str(reached + 1), f"{row['bytes_up'][reached] / 1000:.1f}")
        )
        each = row["bytes_up"][-1] / len(row["loss"]) / 1000
        lines.append(
            f"| {name} | {row['loss'][-1]:.3f} | {row['auroc'][-1]:.3f} | {each:.1f} | {until[0]} | {until[1]} |"
        )
    return "\n".join(lines) + "\n"


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


if __name__ == "__main__":
    main()
