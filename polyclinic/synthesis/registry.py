"""Methods of sums by name: what makes one of a layout and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyclinic.synthesis import marginals
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.methods.mixture import HospitalMoments
from polyclinic.synthesis.methods.moments import Moments

METHODS: Mapping[str, Callable[..., Any]] = {
    "moments": Moments, "independent": Independent, "latent": Latent, "mixture": HospitalMoments, "marginals": marginals.make,
}  # fmt: skip
