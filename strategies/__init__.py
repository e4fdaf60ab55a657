"""Flower strategies by name. A strategy here is Flower's own class; anything else is named ``package.module:Name``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BuiltIn:
    """Where a strategy that has a name is, which is loaded when it is asked for.

    mean: Whether it begins with the mean of the hospitals' models, which privacy of whole hospitals and secure sums need.
    usual: The configuration keys that it takes where nothing else is given.
    """

    place: str
    mean: bool
    usual: Mapping[str, Any] = field(default_factory=dict)


def _flower(name: str, mean: bool = True, **usual: Any) -> BuiltIn:
    return _at(f"flwr.serverapp.strategy:{name}", mean, usual)


def _ours(place: str, mean: bool = True, **usual: Any) -> BuiltIn:
    return _at(f"polyclinic.strategies.{place}", mean, usual)


def _at(place: str, mean: bool, usual: Mapping[str, Any]) -> BuiltIn:
    return BuiltIn(place, mean, {f"training.{key.replace('_', '-')}": value for key, value in usual.items()})


BUILT_IN: dict[str, BuiltIn] = {
    "fedavg": _flower("FedAvg"),  # McMahan et al. 2017
    # The same with one step over all patients, to which RunConfig holds it.
    "fedsgd": _flower("FedAvg", local_steps=1, sample_rate=1.0, momentum=0.0),
    "fedprox": _flower("FedProx", local_steps=2),  # Li et al. 2020
    "fedavgm": _flower("FedAvgM"),  # Hsu et al. 2019
    "fedadam": _flower("FedAdam"),  # Reddi et al. 2021
    "fedadagrad": _flower("FedAdagrad"),
    "fedyogi": _flower("FedYogi"),
    "fedmedian": _flower("FedMedian", mean=False),  # Yin et al. 2018
    "fedtrimmedavg": _flower("FedTrimmedAvg", mean=False),
    "krum": _flower("Krum", mean=False),  # Blanchard et al. 2017
    "multikrum": _flower("MultiKrum", mean=False),
    "bulyan": _flower("Bulyan", mean=False),  # El Mhamdi et al. 2018
    "qfedavg": _flower("QFedAvg", mean=False),  # Li et al. 2020 (q-FFL)
    "scaffold": _ours("scaffold:Scaffold", mean=False, local_steps=2, momentum=0.0),  # Karimireddy et al. 2020
    "fedbn": _ours("fedbn:FedBN"),  # Li et al. 2021
    "fedper": _ours("fedper:FedPer"),  # Arivazhagan et al. 2019
    "fedrep": _ours("fedrep:FedRep", local_steps=4),  # Collins et al. 2021
    "ditto": _ours("ditto:Ditto"),  # Li et al. 2021b
    "apfl": _ours("apfl:APFL"),  # Deng et al. 2020
    "mr-mtl": _ours("mr_mtl:MRMTL"),  # Liu et al. 2022
    "per-fedavg": _ours("per_fedavg:PerFedAvg"),  # Fallah et al. 2020
    "moon": _ours("moon:MOON"),  # Li et al. 2021c
    "feddyn": _ours("feddyn:FedDyn", mean=False, local_steps=2, momentum=0.0),  # Acar et al. 2021
    "fednova": _ours("fednova:FedNova", mean=False, local_steps=2, momentum=0.0),  # Wang et al. 2020
}
