"""FedPer: some of the model's layers, as its head, stay at each hospital (Arivazhagan et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp.strategy import FedAvg
from torch import nn

from polyclinic.training.local import LocalHalf
from polyclinic.training.modules import matching_arrays


class FedPer(FedAvg):
    """FedAvg over the layers that are shared.

    Examples:
        >>> FedPer.Local().stays(nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 2)))
        ['2.weight', '2.bias']
        >>> FedPer.Local(layers="*.bias").stays(nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 2)))
        ['0.bias', '2.bias']
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Plain steps on a model of which some arrays are the hospital's own.

        layers: Patterns of the arrays' names, separated by spaces, as ``head.* *.bias``; empty takes those of the module's last
            layer.
        """

        layers: str = ""

        def stays(self, module: nn.Module) -> list[str]:
            return matching_arrays(module, self.layers)
