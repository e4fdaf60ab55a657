"""The page of boosting shows what its result file says."""

import json

from benchmarks.utility.boosting import PAGE, RESULT, goals, tables


def test_the_tables_of_the_page_are_those_of_the_result() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert tables(result) in PAGE.read_text(encoding="utf-8")
    assert result["goals"] == goals(result["rows"])
