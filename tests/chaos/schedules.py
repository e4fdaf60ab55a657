"""Random schedules of faults from a seed, and how one is carried out: a run, the faults, whoever looks after it, the judge."""

from __future__ import annotations

import json
import random
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyclinic.deployment.control import Caller, control, runs
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.submitting import submit
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.server.checkpoint import load_checkpoint
from tests.chaos.faults import FAULTS, Strike, folders
from tests.chaos.judge import complaints
from tests.chaos.place import DELTA, EPSILON, NAMES, Place, held

KEYS: dict[str, Any] = {
    "participation.min-sites": 2, "rounds": 3, "training.local-steps": 10, "training.sample-rate": 0.2,
    "privacy.epsilon": EPSILON, "privacy.delta": DELTA, "timeout": 12.0,
    "checkpoints.keep": 2, "evaluation.every": 3, "participation.approval-wait": 20.0,
}  # fmt: skip
_MOST_SECONDS, _MOST_SUBMISSIONS = 480.0, 20


@dataclass(frozen=True)
class Schedule:
    seed: int
    strikes: tuple[Strike, ...]

    @property
    def runs(self) -> int:
        return 2 if any(planned.fault == "two runs at once" for planned in self.strikes) else 1


def schedule(seed: int) -> Schedule:
    """One to three faults of different kinds, at random times, for random times, at random hospitals."""
    draws = random.Random(seed)
    kinds = draws.sample(list(FAULTS), draws.choice([1, 2, 2, 3]))
    return Schedule(seed, tuple(_strike(kind, draws) for kind in kinds))


def strike(fault: str, seed: int, hospital: str) -> Strike:
    """A fault at a hospital, its times from the seed."""
    return replace(_strike(fault, random.Random(seed)), hospital=hospital)


def _strike(fault: str, draws: random.Random) -> Strike:
    early = draws.random() < 0.2
    return Strike(fault, draws.choice(NAMES), early, draws.uniform(0, 10), draws.uniform(1, 10), draws.randrange(2**31))


@dataclass
class Story:
    """What happened. ``submissions``: how often each run had to be given to the coordinator until it was done."""

    schedule: Schedule
    struck: dict[str, str] = field(default_factory=dict)
    submissions: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    dropouts: list[str] = field(default_factory=list)
    epsilon: dict[str, float | None] = field(default_factory=dict)
    auroc: float | None = None
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def carry_out(place: Place, plan: Schedule) -> Story:
    """The runs of a schedule, through its faults, to their end; leaves the place healed."""
    story, begun = Story(plan), time.monotonic()
    place.fresh()
    for planned in plan.strikes:
        if before := FAULTS[planned.fault].before:
            before(place, planned)
    under_way = [
        Run(place, place.federation.co / "runs" / f"{plan.seed}-{number}-{time.time_ns()}")
        for number in range(plan.runs)
    ]
    for run in under_way:
        run.submit()
    threads = [threading.Thread(target=_strike_it, args=(place, planned, story)) for planned in plan.strikes]
    for thread in threads:
        thread.start()
    while not all(run.done for run in under_way) and time.monotonic() < begun + _MOST_SECONDS:
        place.restart_fallen()
        for run in under_way:
            run.look_after()
        time.sleep(1)
    for thread in threads:
        thread.join()
    place.heal()
    story.submissions, story.said = [run.submissions for run in under_way], sum((run.said for run in under_way), [])
    story.complaints += [f"a run was lost after {run.submissions} submissions" for run in under_way if not run.done]
    results = [run.folder for run in under_way if run.done and run.folder]
    story.complaints += complaints(place, results, KEYS)
    _tell(story, results)
    story.seconds = round(time.monotonic() - begun, 1)
    return story


def _strike_it(place: Place, strike: Strike, story: Story) -> None:
    deadline = time.monotonic() + _MOST_SECONDS / 4
    while not strike.early and not place.asked() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(strike.at)
    try:
        story.struck[strike.fault] = f"{strike.hospital}: {FAULTS[strike.fault].strike(place, strike)}"
    except Exception:
        story.complaints.append(f"{strike.fault} could not be done: {traceback.format_exc()}")


def _tell(story: Story, results: list[Path]) -> None:
    for folder in results:
        summary = json.loads((folder / "summary.json").read_text())
        story.dropouts += [f"round {drop['round']}, {drop['site']}: {drop['reason']}" for drop in summary["dropouts"]]
        story.epsilon = {name: site["epsilon"] for name, site in summary["metrics"]["sites"].items()}
        story.auroc = summary["metrics"]["pooled"]["auroc"] or summary["metrics"]["macro"]["auroc"]


class Run:
    """One run, given to the coordinator again from its checkpoint, or anew where there is none, until it is done."""

    def __init__(self, place: Place, out: Path) -> None:
        self._place, self._out, self._id, self._since = place, out, "", 0.0
        self.submissions = 0
        self.said: list[str] = []

    @property
    def folder(self) -> Path | None:
        found = folders(self._out)
        return found[-1] if found else None

    @property
    def done(self) -> bool:
        return self.folder is not None and (self.folder / "report.html").is_file()

    def submit(self) -> None:
        """Nothing where the coordinator does not answer; whoever looks after the run tries again."""
        co, folder = Coordinator.read(self._place.federation.co), self.folder
        resume = folder if folder and (folder / "checkpoint.safetensors").is_file() else None
        values = {} if resume else KEYS | {"out": str(self._out)}
        try:
            told = submit(Caller(co), values, False, None, lambda line: None, resume)
        except PolyclinicError as error:
            self._note(str(error))
            return
        self._id, self._since = told["run"], time.monotonic()
        self.submissions += 1

    def look_after(self) -> None:
        if self.done or (self.folder and held(self.folder)) or not self._place.federation.serving():
            return
        if self.submissions >= _MOST_SUBMISSIONS:
            return
        if self._id and not self._ended():
            return
        self._mend()
        self.submit()

    def _ended(self) -> bool:
        """Whether the submitted run is over, or has no process that carries it out."""
        co = self._place.federation.co
        try:
            with control(Coordinator.read(co).here, co / "ca.crt") as client:
                found = next((run for run in runs(client) if run["run"] == self._id), None)
        except PolyclinicError:
            return False
        if found is None:
            return True
        if found["status"].startswith("finished"):
            self._note(str(found["details"]))
            return True
        if self._place.server_apps():
            self._since = time.monotonic()
        return time.monotonic() > self._since + 4

    def _mend(self) -> None:
        """As a person would who was told that the checkpoint is damaged: with the newest one that was kept."""
        checkpoint = self.folder / "checkpoint.safetensors" if self.folder else None
        if checkpoint is None or not checkpoint.exists():
            return
        try:
            load_checkpoint(checkpoint)
        except DataError:
            if any("is not a checkpoint" in said for said in self.said):
                kept = sorted((checkpoint.parent / "checkpoints").glob("*.safetensors"))
                checkpoint.unlink()
                if kept:
                    checkpoint.write_bytes(kept[-1].read_bytes())

    def _note(self, said: str) -> None:
        if said and said not in self.said:
            self.said.append(said)
