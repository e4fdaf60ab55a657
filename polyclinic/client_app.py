"""Flower ClientApp: the app that pyproject.toml names. The app itself is in client/app.py."""

import polyclinic  # noqa: F401, I001 - must come first: it waits until polyclinic.__path__ is complete
from polyclinic.client.app import app

__all__ = ["app"]
