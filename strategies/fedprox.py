"""FedProx at hospitals: each step is pulled to the model that was sent (Li et al. 2020).

The server's half is Flower's own ``FedProx``, which tells hospitals ``proximal-mu`` in each message, as every Flower client
takes it. So a hospital that is told one pulls by it, whatever the strategy is called.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.training.local import LocalHalf, Sites, Trained


@dataclass(frozen=True)
class Proximal(LocalHalf):
    """Steps on the loss plus ``mu / 2`` times the squared distance to the model that was sent, equation 2 of the paper.

    Examples:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> sites = SimpleNamespace(model=torch.zeros(1, 1), settings=SimpleNamespace(local_steps=2))
        >>> sites.gradient, sites.step = lambda models: -torch.ones(1, 1), lambda models, gradient: models - 0.5 * gradient
        >>> Proximal(mu=0.0).round(sites).model.item(), Proximal(mu=1.0).round(sites).model.item()
        (1.0, 0.75)
    """

    mu: float

    def round(self, sites: Sites) -> Trained:
        models = sites.model
        for _ in range(sites.settings.local_steps):
            gradient = sites.gradient(models)
            models = sites.step(models, gradient.add(models - sites.model, alpha=self.mu))
        return Trained(models)
