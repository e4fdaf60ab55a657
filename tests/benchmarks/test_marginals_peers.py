"""The page of marginals shows what its result file says, and what is compared is as it says."""

import json

import numpy as np

from benchmarks.utility.marginals import PAGE, RESULT, rare, rare_layout, tables, taught, workload
from polyclinic.synthesis.marginals.cells import Table


def test_the_tables_of_the_page_are_those_of_the_result() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert tables(result) in PAGE.read_text(encoding="utf-8")
    assert result["reference"]["commit"] in PAGE.read_text(encoding="utf-8")


def test_at_epsilon_3_ours_teach_no_less_than_the_authors_by_more_than_a_hundredth() -> None:
    rows = [row for row in json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if row["epsilon"] == 3.0]
    means = {(row["cohort"], row["method"]): np.mean([seed["auroc"] for seed in row["seeds"]]) for row in rows}
    theirs = [key for key in means if key[1].startswith("their")]
    assert theirs and all(means[name, who.split()[1]] > means[name, who] - 0.01 for name, who in theirs)


def test_a_rare_outcome_is_rare_and_can_be_learned() -> None:
    layout, z = rare_layout(), rare(6000, 1)
    table = Table.of(layout, 16, 200)
    assert 0.05 < layout.labels(z).mean() < 0.09 and taught(layout, z[:3000], z[3000:]) > 0.75
    cells = table.cells(z)
    assert workload(table, cells, cells) == 0.0 < workload(table, cells[:3000], cells[3000:]) < 0.1
