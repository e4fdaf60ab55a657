"""The page of survival shows what its result file says."""

import json

import pytest

from benchmarks.utility.survival import PAGE, RESULT, carry_out, tables


def test_the_tables_of_the_page_are_those_of_the_result() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert tables(result) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_private_hazards_of_a_known_law_are_calibrated() -> None:
    """Made-up patients of a split that no table shows: with gradients shortened to 2 the gaps were .06 to .15."""
    run = carry_out("made_up", "hazards", 3.0, 201)
    assert max(map(abs, run["gaps"])) < 0.05 and run["off"] < 0.13
