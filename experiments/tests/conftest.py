"""The fixtures of Polyclinic's own tests; `make slow` runs these tests, of a package of its own, whole."""

from pathlib import Path

import pytest

from tests.conftest import as_json, command, heart_disease, quick

__all__ = ["as_json", "command", "heart_disease", "quick"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
