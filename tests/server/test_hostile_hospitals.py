"""A hospital that answers with what it should not: its reply is left out with a reason, and the others' model stands."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from polyclinic.client_app import app as honest
from polyclinic.config import RunConfig
from polyclinic.errors import PolyclinicError
from polyclinic.messages import ENROL, RECORD, STATISTICS
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger_terms import entry_of, to_text
from polyclinic.server.app import coordinate
from polyclinic.server.run_folder import RunFolder
from polyclinic.server.state import RunState
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

HOSTILE = 2
Arrays = dict[str, np.ndarray]


class Wire(LocalGrid):
    """Every reply comes by itself, as over a wire."""

    merges = False


def changed(change: Callable[[Arrays], Arrays]) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        for key, record in list(content.array_records.items()):
            arrays = change({name: array.numpy() for name, array in record.items()})
            content[key] = ArrayRecord({name: Array(value) for name, value in arrays.items()})

    return tamper


def told(name: str, value: object) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        content[RECORD][name] = value  # type: ignore[index,assignment]

    return tamper


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
    "1e+12 examples": lambda content: content["metrics"].update({"num-examples": 1e12}),  # type: ignore[union-attr,arg-type]
}
lie: dict[str, Callable[[RecordDict], None]] = {}
hostile = ClientApp()


at = {"now": MessageType.TRAIN}


def _answer(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    if context.node_id == HOSTILE and message.metadata.message_type == at["now"]:
        lie["now"](reply.content)
    return reply


hostile.train()(_answer)
hostile.evaluate()(_answer)
for _query in ("enrol", "statistics"):
    hostile.query(_query)(_answer)


def run(tmp_path: Path, **options: object) -> tuple[Arrays, list[dict[str, str]]]:
    config = RunConfig.build({"rounds": 1, "local-steps": 2, "out": str(tmp_path), "min-sites": 2, **options})
    grid = Wire(AppReference(__name__, "hostile"), 4, config.flat())
    outcome, summary = coordinate(grid, config, RunFolder.create(config))
    return outcome.state.arrays, summary["dropouts"]


@pytest.mark.parametrize("words", LIES)
def test_a_reply_that_cannot_be_is_left_out_with_its_reason(tmp_path: Path, words: str) -> None:
    lie["now"] = LIES[words]
    arrays, dropouts = run(tmp_path)
    assert [drop["site"] for drop in dropouts] == ["hospital-2"] and words in dropouts[0]["reason"]
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
    assert state.epsilon == {"north": 0.5} and not state.charged


@pytest.mark.parametrize("words", ["not finite", "does not have shape", "is missing", "cannot be read as"])
def test_so_is_a_count_that_cannot_be(tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", STATISTICS)
    lie["now"] = LIES[words]
    _, dropouts = run(tmp_path)
    assert [(drop["site"], drop["round"]) for drop in dropouts] == [("hospital-2", 0)] and words in dropouts[0][
        "reason"
    ]


def test_so_is_an_enrolment_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", ENROL)
    lie["now"] = told("delta", "much")
    _, dropouts = run(tmp_path)
    assert len(dropouts) == 1 and "when it enrols cannot be read" in dropouts[0]["reason"]


BAD_PREDICTIONS: dict[str, Callable[[Arrays], Arrays]] = {
    "labels that do not exist": lambda told: told | {"labels": told["labels"] + 7},
    "probabilities above 1": lambda told: told | {"scores": told["scores"] * 3},
    "other rows": lambda told: told | {"patient": told["patient"][:-1]},
    "other classes": lambda told: told | {"scores": np.hstack([told["scores"], 0 * told["scores"][:, :1]])},
    "nothing": lambda told: {"x": told["labels"]},
}


@pytest.mark.parametrize("change", BAD_PREDICTIONS)
def test_so_are_predictions_that_cannot_be(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", MessageType.EVALUATE)
    lie["now"] = changed(BAD_PREDICTIONS[change])
    _, dropouts = run(tmp_path)
    assert [drop["reason"] for drop in dropouts] == ["its predictions of held-out patients cannot be read"]
    found = json.loads(next(tmp_path.glob("*/summary.json")).read_text())["evaluation"]
    assert set(found["sites"]) == {"hospital-1", "hospital-3", "hospital-4"}


def test_a_huge_update_moves_a_robust_strategy_no_more_than_an_honest_one(tmp_path: Path) -> None:
    lie["now"] = changed(lambda arrays: {name: value + 1e6 for name, value in arrays.items()})
    plain, _ = run(tmp_path)
    robust, _ = run(tmp_path, strategy="fedmedian")
    assert max(abs(value).max() for value in plain.values()) > 1e4
    assert max(abs(value).max() for value in robust.values()) < 10
