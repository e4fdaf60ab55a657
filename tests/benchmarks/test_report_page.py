"""The benchmark of the report's page measures a real run; no test asserts a time."""

from pathlib import Path

import pytest

from benchmarks.report_page import MOST_BYTES, measured, sentences


@pytest.mark.slow
def test_a_real_run_is_measured_against_the_limits(tmp_path: Path) -> None:
    found = measured(tmp_path, sites=2, rounds=1, turns=1)
    assert 50_000 < found["report"]["bytes"] < MOST_BYTES
    assert found["share_of_limit"]["bytes"] == found["report"]["bytes"] / MOST_BYTES
    assert "2 hospitals and 1 rounds" in sentences(found)
