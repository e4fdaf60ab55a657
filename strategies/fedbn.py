"""FedBN: normalisation layers stay at each hospital (Li et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp.strategy import FedAvg
from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.training.local import LocalHalf
from polyclinic.training.modules import normalisation_arrays


class FedBN(FedAvg):
    """FedAvg over what is shared, of which normalisation layers are no part.

    Examples:
        >>> FedBN.Local().stays(nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))[:2]
        ['1.weight', '1.bias']
        >>> FedBN.Local().stays(nn.Linear(30, 2))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: Configuration key 'strategy' has the value 'fedbn', but the ...
    """

    associative = True

    @dataclass(frozen=True)
    class Local(LocalHalf):
        """Plain steps on a model whose normalisation layers are the hospital's own."""

        def stays(self, module: nn.Module) -> list[str]:
            names = normalisation_arrays(module)
            if not names:
                raise ConfigError(
                    "Configuration key 'strategy' has the value 'fedbn', but the model has no normalisation layers to keep at "
                    "hospitals; take strategy 'fedper' and name the layers, or 'fedavg'."
                )
            return names
