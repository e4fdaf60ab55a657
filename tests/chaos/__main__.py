"""``python -m tests.chaos --schedules 100 --seed 1``: random fault schedules, and what came of them.

Each place is a coordinator and three hospitals of its own. A schedule that is in the folder already is not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS
from tests.chaos.place import made
from tests.chaos.schedules import carry_out, schedule
from tests.deployment.conftest import command_line

# What a fault says that found nothing to strike.
_MISSED = ("no round came", "no checkpoint came", "killed 0", "nothing to kill", "left out")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the first; each has the next (1)")
    parser.add_argument("--places", type=int, default=2, help="federations side by side (2)")
    parser.add_argument("--out", type=Path, default=Path("experiments/results/chaos"), help="folder of the results")
    parser.add_argument("--one", type=int, nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    (asked.out / "schedules").mkdir(parents=True, exist_ok=True)
    if asked.one is not None:
        return _carry_out(asked.out, asked.one)
    seeds = [seed for seed in range(asked.seed, asked.seed + asked.schedules) if not _path(asked.out, seed).exists()]
    workers = [
        subprocess.Popen([sys.executable, "-m", "tests.chaos", "--out", asked.out, "--one", *map(str, seeds[at :: asked.places])])
        for at in range(asked.places)
        if seeds[at :: asked.places]
    ]  # fmt: skip
    failed = [worker for worker in workers if worker.wait()]
    stories = [json.loads(path.read_text()) for path in sorted((asked.out / "schedules").glob("*.json"))]
    text = tell(stories, f"--schedules {asked.schedules} --seed {asked.seed} --places {asked.places}")
    (asked.out / "README.md").write_text(text)
    print(text)
    return 1 if failed or any(story["complaints"] for story in stories) else 0


def _path(out: Path, seed: int) -> Path:
    return out / "schedules" / f"{seed:04d}.json"


def _carry_out(out: Path, seeds: list[int]) -> int:
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, made(Path(folder), command_line) as place:
        for seed in seeds:
            story = carry_out(place, schedule(seed))
            partial = _path(out, seed).with_suffix(".partial")
            partial.write_text(json.dumps(story.as_dict(), indent=1).replace(folder, "PLACE"))
            partial.replace(_path(out, seed))
            print(f"schedule {seed}: {story.seconds:.0f} s, {story.struck}, {story.complaints or 'held'}", flush=True)
    return 0


def tell(stories: list[dict[str, Any]], arguments: str) -> str:
    """The results as a page."""
    struck = Counter(fault for story in stories for fault in _hit(story))
    resumed = sum(count > 1 for story in stories for count in story["submissions"])
    runs = sum(len(story["submissions"]) for story in stories)
    broken = [(story["schedule"]["seed"], words) for story in stories for words in story["complaints"]]
    rows = "".join(f"| {fault} | {struck[fault]} | {_came_of(fault, stories)} |\n" for fault in FAULTS)
    minutes = sum(story["seconds"] for story in stories) / 60
    lines = "".join(f"- schedule {seed}: {words}\n" for seed, words in broken) or "None.\n"
    return f"""# Random fault schedules

`python -m tests.chaos {arguments}` on {platform.machine()} with 2 cores: {len(stories)} schedules, {runs} runs of 3 rounds at 3
hospitals, {sum(struck.values())} faults, {minutes:.0f} minutes of places. {resumed} runs were given to the coordinator more
than once. Made by `tests/chaos/__main__.py` from `schedules/*.json`.

## Promises that were broken

{lines}
## Faults

| fault | struck | runs that went through with it: given once, resumed or begun anew; rounds that hospitals missed |
|---|---|---|
{rows}"""


def _hit(story: dict[str, Any]) -> list[str]:
    """The faults that found something to strike."""
    return [fault for fault, told in story["struck"].items() if not any(words in told for words in _MISSED)]


def _came_of(fault: str, stories: list[dict[str, Any]]) -> str:
    found = [story for story in stories if fault in _hit(story)]
    once = sum(count == 1 for story in found for count in story["submissions"])
    more = sum(count > 1 for story in found for count in story["submissions"])
    return f"{once}, {more}; {sum(len(story['dropouts']) for story in found)}" if found else "-"


if __name__ == "__main__":
    sys.exit(main())
