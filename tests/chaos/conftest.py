"""The command line in this process, as the tests of deployment have it."""

from tests.deployment.conftest import cli

__all__ = ["cli"]
