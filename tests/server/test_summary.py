"""What a summary says beside its numbers."""

import re
from collections.abc import Callable

import pytest

from polyclinic.federation import RunResult

CYCLIC = {"batching": "cyclic", "rounds": 4, "local_steps": 4}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"sample_rate": 1.0, "noise": "tree"},
            "With a patient in every step of 16, at most 16 times, tree noise leaves",
        ),
        ({"sample_rate": 0.5, "noise": "tree"}, "one step in 2 of 16, at most 8 times, tree noise leaves"),
        ({"sample_rate": 0.25, "noise": "banded"}, None),
        ({"sample_rate": 1.0, "noise": "banded"}, None),
        ({"sample_rate": 1.0, "noise": "independent"}, None),
        ({"sample_rate": 1.0, "noise": "tree", "dp": False}, None),
    ],
)
def test_noise_over_time_that_is_worse_than_independent_noise_is_told(
    quick: Callable[..., RunResult], options: dict[str, object], told: str | None
) -> None:
    notes = quick(**CYCLIC, **options).summary["notes"]
    found = [note for note in notes if "independent noise is better" in note]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        ({"dp": False}, "no formal guarantee", "guarantee is that of the method|Epsilon does not cover"),
        ({"standardise": False, "patients_per_site": 100}, "sent: every model update", "standardise features and"),
        ({}, "the statistics that standardise features and every model update", "secure|masks"),
        ({"secure_aggregation": True, "sites": 2}, "With two hospitals in a round", "no formal guarantee"),
    ],
)
def test_notes_claim_nothing_that_the_run_does_not_have(
    quick: Callable[..., RunResult], options: dict[str, object], said: str, unsaid: str
) -> None:
    notes = " ".join(quick(rounds=1, **options).summary["notes"])
    assert said in notes and not re.search(unsaid, notes)
