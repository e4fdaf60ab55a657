"""The examples in the docstrings of intervals run; what they are of is tested beside those who use them."""

import doctest

from polyclinic.evaluation import intervals


def test_the_examples_are_true() -> None:
    found = doctest.testmod(intervals)
    assert found.attempted > 5 and not found.failed
