"""The EHR experiment's figures: what privacy costs, and whether attributes look like patients'."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from polyclinic_studies.ehr_flow.cohort import COLUMNS
from polyclinic_studies.ehr_flow.tables import AS_PUBLISHED, BEFORE, Found, Key
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE

_COLOURS = {BEFORE: ORANGE, AS_PUBLISHED: ORANGE, "flow": BLUE, "moments": GREEN}
_PAPER = {
    "accuracy": {32.0: 0.91, 16.0: 0.85, 8.0: 0.85, 4.0: 0.81},
    "error": {32.0: 47.4, 16.0: 58.4, 8.0: 61.4, 4.0: 80.1},
}
_SHOWN = ("wedge", "rv_systolic", "systemic_resistance", "pulmonary_acceleration", "lvef")


def figures(found: Found, shown: Mapping[Key, Any]) -> dict[str, Figure]:
    """``utility``: scores by epsilon; ``marginals``: one synthetic set of each method at the smallest epsilon."""
    return {"utility": _utility(found), "marginals": _marginals(found, shown)}


def _utility(found: Found) -> Figure:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axes, (name, words) in zip(
        panels, (("accuracy", "accuracy (SVM)"), ("error", "mean square error, mmHg²")), strict=True
    ):
        for arm, colour in _COLOURS.items():
            levels = sorted(level for one, level in found if one == arm and level < inf)
            if not levels:
                continue
            means = [fmean(found[arm, level][name]) for level in levels]
            errors = [float(np.std(found[arm, level][name])) for level in levels]
            axes.errorbar(levels, means, errors, color=colour, marker="o", capsize=3, label=_label(arm))
        axes.plot(
            list(_PAPER[name]),
            list(_PAPER[name].values()),
            color=GREY,
            marker="s",
            ls="--",
            label="published (their patients)",
        )
        axes.axhline(fmean(found["original", inf][name]), color=GREY, lw=1, ls=":", label="original patients")
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
        axes.set_xlabel("ε of one release")
        axes.set_ylabel(words)
    panels[1].legend(fontsize=7, loc="upper right")
    plt.close(figure)
    return figure


def _marginals(found: Found, shown: Mapping[Key, Any]) -> Figure:
    least = min(level for _, level in found)
    figure, panels = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
    places = (0, *(COLUMNS.index(name) + 1 for name in _SHOWN))
    for axes, place, name in zip(panels.flat, places, ("mean pulmonary pressure", *_SHOWN), strict=True):
        real = np.asarray(shown["original", inf][place])
        edges = np.linspace(real.min() - real.std(), real.max() + real.std(), 25)
        axes.hist(real, edges, density=True, color="0.85", label="patients")
        for arm in ("flow", "moments", AS_PUBLISHED):
            if (arm, least) in shown:
                made = np.asarray(shown[arm, least][place])
                axes.hist(
                    made,
                    edges,
                    density=True,
                    histtype="step",
                    color=_COLOURS[arm],
                    label=f"{_label(arm)}, ε = {least:g}",
                )
        axes.set_title(name.replace("_", " "), fontsize=9)
        axes.set_yticks([])
    panels.flat[0].legend(fontsize=7)
    plt.close(figure)
    return figure


def _label(arm: str) -> str:
    return f"{arm} (no guarantee)" if arm == AS_PUBLISHED else arm
