"""The judge of the schedules notices every promise that is broken: a place made by hand, with one thing of it untrue."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from polyclinic.client.home.journal import append
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.ledger import Ledger, Terms
from tests.chaos.judge import complaints
from tests.chaos.place import DELTA
from tests.chaos.schedules import KEYS

NOISE, ROUNDS, RUN = 4.0, (1, 2, 3), "20261122-120000-abcdef"
STEP = dpsgd_event(KEYS["training.sample-rate"], NOISE, KEYS["training.local-steps"])


@dataclass(frozen=True)
class Told:
    """What came of a run of three rounds at one hospital; ``digests`` of what the server heard, by round."""

    charged: tuple[int, ...] = ROUNDS
    answered: tuple[tuple[int, str], ...] = ((1, "a"), (2, "b"), (2, "b"), (3, "c"))
    digests: tuple[tuple[int, str], ...] = ((1, "a"), (2, "b"), (2, "b"), (3, "c"))
    joined: int = 3
    share: float = 1.0
    named: bool = True
    away: tuple[int, ...] = ()
    model: float = 1.0


@dataclass
class ByHand:
    """As much of a place as the judge looks at."""

    home: Path
    told: Told
    hospitals: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.hospitals = {"north": self}

    def node_names(self) -> dict[str, str]:
        return {"7": "north"}

    def heard(self) -> list[dict[str, Any]]:
        return [
            {"run": RUN, "round": round, "noise_multiplier": NOISE, "node": "7", "digest": digest}
            for round, digest in self.told.digests
        ]


def judged(folder: Path, told: Told) -> list[str]:
    result = folder / RUN
    result.mkdir()
    ledger = Ledger.open(folder / "ledger.sqlite", Terms("north", DELTA))
    for round in told.charged:
        ledger.charge(STEP, "train", RUN, round)
    for round, digest in told.answered:
        append(folder, {"event": "answered", "kind": "train", "run": RUN, "round": round, "digest": digest})
    site = {"epsilon": ledger.epsilon() * told.share, "rounds_joined": told.joined}
    sites = {"north": site} if told.named else {"south": site}
    dropouts = [{"round": round, "site": "north", "reason": "no reply within 12 seconds"} for round in told.away]
    (result / "summary.json").write_text(
        json.dumps({"rounds": 3, "stopped": None, "metrics": {"sites": sites}, "dropouts": dropouts})
    )
    save_file({"weight": np.array([told.model])}, result / "model.safetensors")
    return complaints(ByHand(folder, told), [result], KEYS)  # type: ignore[arg-type]


def test_nothing_is_said_of_a_run_whose_promises_held(tmp_path: Path) -> None:
    assert judged(tmp_path, Told()) == []


def test_a_hospital_that_refused_and_charged_nothing_need_not_be_named(tmp_path: Path) -> None:
    told = judged(tmp_path, Told((), (), (), joined=0, named=False, away=(0,)))
    assert not [words for words in told if words.startswith("north")], told


def test_a_run_may_count_a_round_of_no_answer_and_no_more(tmp_path: Path) -> None:
    away = Told((1, 2), ((1, "a"), (2, "b")), ((1, "a"), (2, "b")), joined=2, away=(3,))
    for folder, share in (("a", 1.2), ("b", 1.4)):
        (tmp_path / folder).mkdir()
        told = judged(tmp_path / folder, replace(away, share=share))
        assert [words for words in told if "the run says epsilon" in words] == told
        assert bool(told) == (share > 1.3), told


UNTRUE: dict[str, tuple[Callable[[Told], Told], str]] = {
    "a charge is skipped": (lambda told: replace(told, charged=(1, 2)), "was answered and not charged"),
    "fresh noise for one charge": (
        lambda told: replace(told, digests=(*told.digests, (2, "other"))),
        "round 2 .* was released 2 times and charged 1",
    ),
    "no line of the journal": (lambda told: replace(told, answered=((1, "a"), (3, "c"))), "is not in the journal"),
    "an answer that nobody heard": (
        lambda told: replace(told, answered=(*told.answered, (3, "other"))),
        "2 answers of round 3 .* left for 1 charges",
    ),
    "the statement leaves it out": (lambda told: replace(told, named=False), "does not say that it took part"),
    "the statement says less": (lambda told: replace(told, share=0.5), "its 3 rounds cost"),
    "the statement says more": (lambda told: replace(told, share=1.2), "the run says epsilon"),
    "a round that never was": (lambda told: replace(told, joined=4), "counts it in 4 rounds"),
    "the model is not finite": (lambda told: replace(told, model=np.inf), "model is not finite"),
}


@pytest.mark.parametrize("what", UNTRUE)
def test_each_broken_promise_is_told(tmp_path: Path, what: str) -> None:
    change, words = UNTRUE[what]
    told = judged(tmp_path, change(Told()))
    assert told and any(re.search(words, one) for one in told), told
