"""FedProx at hospitals: each step is pulled to the model that was sent (Li et al. 2020).

The server's half is Flower's own ``FedProx``, which tells hospitals ``proximal-mu`` in each message, as every Flower client
takes it. So a hospital that is told one pulls by it, whatever the strategy is called.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.training.local import LocalHalf, Sites, Trained


@dataclass(frozen=True)
class Proximal(LocalHalf):
    """Steps on the loss plus ``mu / 2`` times the squared distance to the model that was sent, equation 2 of the paper."""

    mu: float

    def round(self, sites: Sites) -> Trained:
        models = sites.model
        for _ in range(sites.settings.local_steps):
            gradient = sites.gradient(models)
            models = sites.step(models, gradient.add(models - sites.model, alpha=self.mu))
        return Trained(models)
