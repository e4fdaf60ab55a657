"""The built-in datasets, and their shards for a simulation. A dataset's own module is loaded when it is asked for."""

from typing import TYPE_CHECKING

from polyclinic.ehr.datasets.catalogue import BUILT_IN, builtin, load_shards
from polyclinic.ehr.datasets.dataset import Dataset

if TYPE_CHECKING:
    from polyclinic.ehr.datasets.icu import generate_icu
    from polyclinic.ehr.datasets.trial import generate_trial

__all__ = ["BUILT_IN", "Dataset", "builtin", "generate_icu", "generate_trial", "load_shards"]


def __getattr__(name: str) -> object:
    if name == "generate_icu":
        from polyclinic.ehr.datasets.icu import generate_icu

        return generate_icu
    if name == "generate_trial":
        from polyclinic.ehr.datasets.trial import generate_trial

        return generate_trial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
