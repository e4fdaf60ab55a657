"""Flower ServerApp: the app that pyproject.toml names. The app itself is in server/app.py."""

import polyclinic  # noqa: F401, I001 - must come first: it waits until polyclinic.__path__ is complete
import sys

from polyclinic.deployment.flower.pauses import pull_soon
from polyclinic.server.app import app

if (grid := sys.modules.get("flwr.superlink.grid.http_grid")) is not None:  # not in a simulation
    pull_soon(grid)

__all__ = ["app"]
