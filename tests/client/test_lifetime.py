"""A real hospital's ledger over its life: several runs, processes at once, kills, and what it tells of itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import polyclinic
from polyclinic.client.app import app
from polyclinic.messages import RECORD, REFUSED, EnrolRequest, EvaluateRequest
from polyclinic.privacy.accounting import dpsgd_event, epsilon
from polyclinic.privacy.ledger_terms import epsilon_of, flat, from_text
from polyclinic.privacy.ledger_verify import verify_all
from polyclinic.privacy.statements import detailed, statements
from tests.client.test_hospital import context, ledger, make_hospital, message, model, train

ROUND = dpsgd_event(0.2, 1.2, 3)
ROOT = Path(__file__).resolve().parents[2]
LIFE = "budget = 2.5\ndelta = 1e-3\n"


def evaluate(hospital: Path, **values: Any) -> Message:
    return app(message(EvaluateRequest(**{"run": "r", "site": 0, "round": 1} | values), "evaluate", model()),
               context(hospital))  # fmt: skip


def process(script: str, *arguments: str) -> subprocess.Popen[str]:
    head = "import os, pathlib, signal, sys\nimport tests.client.test_hospital as t\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + script, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_budget_is_for_life_and_a_statement_tells_its_runs_apart(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE)
    replies = [train(hospital, 3, run=run, round=number) for run in ("one", "two", "three") for number in (1, 2, 3)]
    refused = [reply for reply in replies if not reply.has_content()]
    accepted = len(replies) - len(refused)
    assert 3 <= accepted < 9 and all(reply.error.code == REFUSED for reply in refused)
    spent = ledger(hospital).spent()
    assert epsilon(dpsgd_event(0.2, 1.2, 3 * accepted), 1e-3) * (1 - 1e-9) <= spent <= 2.5
    told = detailed(statements([ledger(hospital)])[0])
    assert [one["run"] for one in told["runs"]] == ["one", "two", "three"][: len(told["runs"])]
    assert sum(one["charges"] for one in told["runs"]) == accepted
    assert told["runs"][0]["epsilon"] == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, 9), 1e-3))
    assert told["room"]["epsilon"] < epsilon(ROUND, 1e-3)
    assert verify_all(ledger(hospital).path)[0]["intact"]


def test_two_runs_at_once_never_spend_more_than_the_budget(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE)
    script = (
        "hospital = pathlib.Path(sys.argv[1])\n"
        "t.context(hospital)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(sum(t.train(hospital, 3, run=sys.argv[2], round=n).has_content() for n in range(1, 7)), flush=True)\n"
    )
    both = [process(script, str(hospital), run) for run in ("one", "two")]
    for one in both:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    released = sum(int(one.communicate(timeout=240)[0]) for one in both)
    assert released == len(ledger(hospital).events()) > 2
    assert epsilon(dpsgd_event(0.2, 1.2, 3 * released), 1e-3) * (1 - 1e-9) <= ledger(hospital).spent() <= 2.5
    assert verify_all(ledger(hospital).path)[0]["intact"]


@pytest.mark.parametrize(
    ("killed", "charges"),
    [
        # The numbers never left, but nobody can know: they are paid for, and fresh ones are too.
        ("from polyclinic.training import classification as c\nc.train = lambda *a, **k: kill()\n", 2),
        # The reply was kept before it could leave: it leaves now, as the same numbers.
        (
            "from polyclinic.client import charging as c\nkeep = c.write_release\n"
            "c.write_release = lambda *a, **k: (keep(*a, **k), kill())\n",
            1,
        ),
    ],
    ids=["before the reply was kept", "after the reply was kept"],
)
def test_fault_22_a_kill_between_charge_and_release_never_leaves_a_release_unpaid(
    tmp_path: Path, killed: str, charges: int
) -> None:
    """Golden list 2.27: the process dies by SIGKILL, is started again, and is asked the same question again."""
    hospital = make_hospital(tmp_path, LIFE)
    dying = process(
        "def kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n" + killed + "t.train(pathlib.Path(sys.argv[1]))\n",
        str(hospital),
    )
    dying.communicate(timeout=120)
    assert dying.returncode == -signal.SIGKILL
    assert ledger(hospital).spent() == epsilon(ROUND, 1e-3)
    first, again = train(hospital), train(hospital)
    for name, array in first.content["arrays"].items():
        assert np.array_equal(array.numpy(), again.content["arrays"][name].numpy())
    assert len(ledger(hospital).events()) == charges
    assert ledger(hospital).spent() == epsilon(dpsgd_event(0.2, 1.2, 3 * charges), 1e-3)
    assert first.content[RECORD]["epsilon"] == pytest.approx(ledger(hospital).spent(), rel=0.02)
    assert verify_all(ledger(hospital).path)[0]["intact"]


def test_a_hospital_tells_where_its_patients_may_be_and_what_it_was_charged(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, "budget = 9.0\ndelta = 1e-3\npatients-elsewhere = 2\n")
    assert (
        app(
            message(EnrolRequest(run="r", site=0, version=polyclinic.__version__), "query.enrol"), context(hospital)
        ).content[RECORD]["elsewhere"]
        == 2
    )
    train(hospital)
    train(hospital, run="other")
    for reply in (train(hospital, run="other", round=2), train(hospital), evaluate(hospital)):
        past = from_text(str(reply.content[RECORD]["charged"]))
        assert [count for _, count in flat(past)] == [3]
        assert epsilon_of(past, ledger(hospital).terms) == ledger(hospital).spent()


def test_metrics_that_leave_are_in_the_statement_and_outside_epsilon(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE + "release-metrics = true\n")
    for number in (1, 2):  # each evaluation is of a charged round
        train(hospital, round=number, noise_multiplier=3.0)
    spent = ledger(hospital).spent()
    for number in (1, 2):
        assert "auroc" in evaluate(hospital, round=number).content["metrics"]
    told = detailed(statements([ledger(hospital)])[0])
    assert told["epsilon"] == spent
    assert told["outside"] == [{"run": "r", "purpose": "held-out metrics", "times": 2}]
    assert json.dumps(told, allow_nan=False) and verify_all(ledger(hospital).path)[0]["intact"]


def test_a_hospital_that_releases_no_metrics_has_none_in_its_statement(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE)
    train(hospital)
    evaluate(hospital)
    assert detailed(statements([ledger(hospital)])[0])["outside"] == []
    assert len(ledger(hospital).events()) == 1
