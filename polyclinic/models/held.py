"""Models of a Python session that no other name leads to: an object that was made on the spot, by a name in this module."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import nn

from polyclinic.digests import digest


def hold(model: Any) -> str:
    """Keep a model for runs of this process; returns the name by which they find it.

    A module is copied, so that what is done with it later changes no run; the same module with the same arrays has the same name.
    """
    if not isinstance(model, nn.Module):
        earlier = next((name for name, held in globals().items() if held is model), None)
        name, entry = earlier or f"held_{sum(key.startswith('held_') for key in globals())}", model
    else:
        arrays = {label: value.detach().cpu().numpy() for label, value in model.state_dict().items()}
        name, entry = f"module_{digest(repr(model), arrays)[:12]}", deepcopy(model)
    globals()[name] = entry
    return f"{__name__}:{name}"


def __getattr__(name: str) -> Any:
    raise AttributeError(
        "the model is an object of the Python session that began the run, which other processes do not have; define it at the "
        "top level of a module"
    )
