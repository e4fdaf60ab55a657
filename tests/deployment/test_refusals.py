"""The sentence with which a node ends when its coordinator refuses it."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from flwr.supercore.error import ApiErrorCode

from polyclinic.deployment.flower.refusals import CONNECTED, REVOKED, UNREGISTERED, refusal

NOW = datetime(2026, 11, 23, 12, 0, 0, 500_000, UTC)


def answer(status: int, *, ahead: float = 0.0, body: object = None) -> httpx.Response:
    """The coordinator's, of which the node's clock is ``ahead`` seconds ahead."""
    date = format_datetime((NOW - timedelta(seconds=ahead)).replace(microsecond=0), usegmt=True)
    return httpx.Response(status, headers={"date": date}, content=json.dumps(body).encode())


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (300.0, "about 300 seconds ahead of the coordinator's"),
        (6.0, "about 6 seconds ahead of"),
        (-306.0, "about 306 seconds behind the coordinator's"),
        (-90_000.0, "about 90,000 seconds behind"),
    ],
)
def test_a_wrong_clock_is_named_with_its_error(ahead: float, words: str) -> None:
    said = refusal(answer(401, ahead=ahead), NOW) or ""
    assert said.startswith("this machine's clock is ") and words in said and "set the clock" in said


@pytest.mark.parametrize("ahead", [0.0, 2.0, -200.0])
def test_with_a_clock_that_flower_takes_the_key_is_what_is_refused(ahead: float) -> None:
    said = refusal(answer(401, ahead=ahead), NOW) or ""
    assert "was revoked" in said and "`polyclinic hospital rekey FOLDER`" in said and "clock" not in said


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (UNREGISTERED, ["not registered at the coordinator", "node.pub", "`polyclinic coordinator register "]),
        (REVOKED, ["was revoked", "`polyclinic hospital rekey "]),
        (CONNECTED, ["still counts this node as connected", "try again in a minute"]),
        (None, ["not registered", "or the coordinator still counts this node as connected"]),
    ],
)
def test_a_key_that_is_refused_is_named_with_the_next_step(details: str | None, words: list[str]) -> None:
    body = {"code": int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED), "detail": "Failed to activate SuperNode."}
    said = refusal(answer(412, body=body | ({"extra": details} if details else {})), NOW) or ""
    assert all(word in said for word in words)


@pytest.mark.parametrize("status", [200, 403, 500, 503])
def test_other_answers_end_no_node(status: int) -> None:
    assert refusal(answer(status, ahead=1000.0, body={"code": 1, "detail": "x"}), NOW) is None
