"""A hospital that answers with what it should not: its reply is left out with a reason, and the others' model stands."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from polyclinic.client_app import app as honest
from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger.terms import entry_of, to_text
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.server.state import RunState
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.types import Arrays
from polyclinic.wire.messages import ENROL, RECORD, STATISTICS


class Wire(LocalGrid):
    """Every reply comes by itself, as over a wire."""

    merges = False


def changed(change: Callable[[Arrays], Arrays], **parts: object) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        for key, record in list(content.array_records.items()):
            arrays = change({name: array.numpy() for name, array in record.items()})
            content[key] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
            for array in content.array_records[key].values():
                array.__dict__ |= parts

    return tamper


def told(name: str, value: object) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        content[RECORD][name] = value  # type: ignore[index,assignment]

    return tamper


def metric(name: str, value: float | list[float]) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].update({name: value})  # type: ignore[union-attr,arg-type]


def renamed(name: str, other: str) -> Callable[[RecordDict], None]:
    return lambda content: content.update({other: content.pop(name)})


LIES: dict[str, Callable[[RecordDict], None]] = {
    "not finite": changed(lambda arrays: {name: value * np.nan for name, value in arrays.items()}),
    "does not have shape": changed(lambda arrays: {name: np.zeros((9999, 3), np.float32) for name in arrays}),
    "is missing": changed(lambda arrays: {f"other.{name}": value for name, value in arrays.items()}),
    "not those of the model": changed(lambda arrays: {**arrays, "more": np.zeros(3, np.float32)}),
    "carries no MetricRecord": lambda content: [content.pop(key) for key in list(content.metric_records)] and None,
    "cannot be read as": lambda content: content.update(
        {
            key: ArrayRecord({name: Array("float32", (2, 2), "numpy.ndarray", b"no array") for name in record})
            for key, record in content.array_records.items()
        }
    ),
    "of its ledger cannot be read": told("epsilon", "much"),
    "is not a finite number": metric("steps", float("nan")),
    "'num-examples' is not a finite number": metric("num-examples", [1.0, 2.0]),
    "'num-examples' is not a number above 0": metric("num-examples", 0.0),
    "exactly one MetricRecord": lambda content: content.update({"more": MetricRecord({"x": 1})}),
    "in which they were sent": renamed("arrays", "others"),
    "named 'metrics'": renamed("metrics", "others"),
    "does not hold numbers": changed(lambda arrays: {name: value.astype("U9") for name, value in arrays.items()}),
    "cannot be read": changed(lambda arrays: arrays, dtype="no-type"),
    "cannot be read as an": changed(lambda arrays: arrays, shape=(10**9, 10**9)),
    "read as an array": changed(lambda arrays: arrays, data=b"PK\x03\x04 no archive"),
    "1e+12 examples": lambda content: content["metrics"].update({"num-examples": 1e12}),  # type: ignore[union-attr,arg-type]
}
lies: dict[int, Callable[[RecordDict], None]] = {}
hostile = ClientApp()


at = {"now": MessageType.TRAIN}


def _answer(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    if context.node_id in lies and message.metadata.message_type == at["now"]:
        lies[context.node_id](reply.content)
    return reply


hostile.train()(_answer)
hostile.evaluate()(_answer)
for _query in ("enrol", "statistics"):
    hostile.query(_query)(_answer)


def run(tmp_path: Path, *liars: Callable[[RecordDict], None], **options: object) -> tuple[Arrays, list[dict[str, str]]]:
    """A run of four hospitals, or one more than ``liars``, of which all but the first lie."""
    lies.clear()
    lies.update(enumerate(liars, 2))
    sites = max(4, len(liars) + 1)
    given = {"rounds": 1, "training.local-steps": 2, "out": str(tmp_path), "sites": sites, **options}
    config = RunConfig.build(given)
    grid = Wire(AppReference(__name__, "hostile"), sites, config.flat())
    outcome, summary = coordinate(grid, config, Run.create(config, pictures=False))
    return outcome.state.arrays, summary["dropouts"]


def check_left_out(dropouts: list[dict[str, str]], words: Sequence[str], round: int) -> None:
    """Hospitals from the second on are left out in ``round``, each with its words."""
    reasons = dict(sorted((drop["site"], drop["reason"]) for drop in dropouts if drop["round"] == round))
    assert list(reasons) == [f"hospital-{number:02d}" if len(words) > 8 else f"hospital-{number}"
                             for number in range(2, len(words) + 2)]  # fmt: skip
    for reason, word in zip(reasons.values(), words, strict=True):
        assert word in reason


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian", "scaffold"])
def test_a_reply_that_cannot_be_is_left_out_with_its_reason(tmp_path: Path, strategy: str) -> None:
    """All of them in one run; in the order of means, of each model by itself, and with control variates beside the models."""
    # Without privacy nobody counts patients before the first round, and what a hospital says of them is believed.
    words = [words for words in LIES if words != "1e+12 examples" or strategy != "scaffold"]
    arrays, dropouts = run(
        tmp_path, *(LIES[one] for one in words), strategy=strategy, privacy={"dp": strategy != "scaffold"}
    )
    check_left_out(dropouts, words, 1)
    assert all(np.isfinite(value).all() for value in arrays.values())


def often(count: int) -> str:
    return to_text(((entry_of(gaussian_event(10.0)), count),))


@pytest.mark.parametrize(
    "told",
    [{"epsilon": float("nan")}, {"epsilon": -1.0}, {"epsilon": 1.0, "charged": often(-3)},
     {"epsilon": 1.0, "charged": often(10**9)}, {"epsilon": 1.0, "charged": "[" * 100_000}],
    ids=["no number", "negative", "charged less than never", "too often to be accounted", "deep"],
)  # fmt: skip
def test_what_no_ledger_says_is_not_kept_for_the_statement(told: dict[str, float | str]) -> None:
    state = RunState({}, epsilon={"north": 0.5})
    with pytest.raises(PolyclinicError, match="north says of its ledger cannot be read"):
        state.hear("north", ConfigRecord(told))  # type: ignore[arg-type]
    assert state.epsilon == {"north": 0.5} and not state.accounts


COUNTS: dict[str, Callable[[RecordDict], None]] = {
    **{
        words: LIES[words]
        for words in ("not finite", "does not have shape", "is missing", "does not hold numbers", "cannot be read as")
    },
    "not those of 1e+09 patients": changed(lambda arrays: {name: value + 1e12 for name, value in arrays.items()}),
    "it says that it has -1.09": changed(lambda arrays: {name: 0 * value - 3 for name, value in arrays.items()}),
}


def test_so_is_a_count_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", STATISTICS)
    _, dropouts = run(tmp_path, *COUNTS.values(), privacy={"dp": False}, data={"standardise": "measured"})
    check_left_out(dropouts, list(COUNTS), 0)


def test_another_name_of_its_record_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", STATISTICS)
    assert not run(tmp_path, renamed("arrays", "others"))[1]


def test_so_is_an_enrolment_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", ENROL)
    _, dropouts = run(tmp_path, told("delta", "much"))
    assert len(dropouts) == 1 and "when it enrols cannot be read" in dropouts[0]["reason"]


BAD_PREDICTIONS: dict[str, Callable[[Arrays], Arrays]] = {
    "labels that do not exist": lambda told: told | {"labels": told["labels"] + 7},
    "probabilities above 1": lambda told: told | {"scores": told["scores"] * 3},
    "other rows": lambda told: told | {"patient": told["patient"][:-1]},
    "other classes": lambda told: told | {"scores": np.hstack([told["scores"], 0 * told["scores"][:, :1]])},
    "nothing": lambda told: {"x": told["labels"]},
}


def test_so_are_predictions_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", MessageType.EVALUATE)
    _, dropouts = run(tmp_path, *map(changed, BAD_PREDICTIONS.values()))
    check_left_out(dropouts, ["its predictions of held-out patients cannot be read"] * len(BAD_PREDICTIONS), 1)
    found = json.loads(next(tmp_path.glob("*/summary.json")).read_text())["evaluation"]
    assert set(found["sites"]) == {"hospital-1"}


BAD_METRICS: dict[str, Callable[[RecordDict], None]] = {
    "'loss' is not a finite number": metric("loss", float("inf")),
    "'patients' is not a finite number": metric("patients", float("nan")),
    "'auroc' is not a finite number": metric("auroc", [0.5, 0.6]),
    "carries no MetricRecord": LIES["carries no MetricRecord"],
}


def test_so_are_metrics_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", MessageType.EVALUATE)
    fewer = lambda content: content["metrics"].pop("num-examples")  # noqa: E731  (which only the mean over hospitals lacks)
    _, dropouts = run(tmp_path, *BAD_METRICS.values(), fewer)
    check_left_out(dropouts, list(BAD_METRICS), 1)


def test_a_huge_update_moves_a_robust_strategy_no_more_than_an_honest_one(tmp_path: Path) -> None:
    huge = changed(lambda arrays: {name: value + 1e6 for name, value in arrays.items()})
    plain, _ = run(tmp_path, huge)
    robust, _ = run(tmp_path, huge, strategy="fedmedian")
    assert max(abs(value).max() for value in plain.values()) > 1e4
    assert max(abs(value).max() for value in robust.values()) < 10
