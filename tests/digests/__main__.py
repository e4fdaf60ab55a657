"""``python -m tests.digests``: do the short runs still give what they gave?

It prints the runs whose results differ from the table, and ends with 1 if there are any. A landing that means to change them
writes the new results into the table, each with the reason:

    python -m tests.digests scaffold ditto --why "SCAFFOLD keeps its control variates in float64."
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.digests.results import arithmetic, differences, results, run
from tests.digests.runs import RUNS
from tests.digests.table import Table, line


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.digests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)} (all)")
    parser.add_argument("--why", help="write the new results of these runs into the table, for this reason")
    asked = parser.parse_args()
    if unknown := set(asked.runs) - set(RUNS):
        parser.error(f"there is no run named {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    table, here, changed = Table.read(), arithmetic(), []
    anew = bool(asked.why) and table.arithmetic not in ("", here)
    if anew and asked.runs:
        parser.error(
            "this processor computes otherwise than the one that the table was made on: name no runs, and all are written anew"
        )
    for name in asked.runs or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            now = results(run(RUNS[name], Path(folder)))
        before = table.results(name)
        unlike = differences(before, now, exact=table.arithmetic == here)
        print(f"{name}: {'differs in ' + ', '.join(unlike) if unlike else 'as before'}", flush=True)
        if unlike or anew:
            changed.append(name)
            table.runs[name] = {"results": now, "why": [*table.why(name), line(now, asked.why or "")]}
    if asked.why:
        table.arithmetic = here
        table.write()
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
