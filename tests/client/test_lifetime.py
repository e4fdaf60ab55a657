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
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.ledger.statements import statements, with_details
from polyclinic.privacy.ledger.terms import epsilon_of, flat, from_text
from polyclinic.privacy.ledger.verify import verify_all
from polyclinic.wire.messages import RECORD, REFUSED, EnrolRequest, EvaluateRequest
from tests.client.test_hospital import CONFIG, context, ledger, make_hospital, message, model, train
from tests.nursery import python

ROUND = dpsgd_event(0.2, 1.2, 3)
FULL = CONFIG.with_values({"training.sample-rate": 1.0})
ROOT = Path(__file__).resolve().parents[2]
LIFE = "budget = 2.5\ndelta = 1e-3\n"


def evaluate(hospital: Path, **values: Any) -> Message:
    return app(message(EvaluateRequest(**{"run": "r", "site": 0, "round": 1} | values), "evaluate", model()),
               context(hospital))  # fmt: skip


HEAD = "import os, pathlib, signal, sys\nimport tests.client.test_hospital as t\n"


def process(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + script, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def trained(reply: Message) -> bool:
    """Whether the round was done; else it was refused."""
    assert reply.has_content() or reply.error.code == REFUSED
    return reply.has_content()


@pytest.mark.parametrize(("budget", "runs"), [(2.5, 1), (4.0, 2), (5.0, 3)])
def test_a_budget_is_for_life_and_a_statement_tells_its_runs_apart(tmp_path: Path, budget: float, runs: int) -> None:
    """A run of sampled steps counts whole: three of them make 2.12, 3.66 and 4.78."""
    hospital = make_hospital(tmp_path, f"budget = {budget}\ndelta = 1e-3\n")
    names = ["one", "two", "three"]
    done = [trained(train(hospital, 3, run=run, round=number)) for run in names for number in (1, 2, 3)]
    assert done == [True] * 3 * runs + [False] * 3 * (3 - runs)
    assert epsilon(dpsgd_event(0.2, 1.2, 9 * runs), 1e-3) * (1 - 1e-9) <= ledger(hospital).epsilon() <= budget
    statement = with_details(statements([ledger(hospital)])[0])
    assert [run["run"] for run in statement["runs"]] == names[:runs]
    assert all(run["charges"] == 3 for run in statement["runs"])
    assert statement["runs"][0]["epsilon"] == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, 9), 1e-3))
    assert statement["room"]["epsilon"] < epsilon(ROUND, 1e-3)
    assert verify_all(ledger(hospital).path)[0]["intact"]


def test_rounds_of_full_batches_use_the_budget_until_not_one_more_fits(tmp_path: Path) -> None:
    """Of Gaussian sums only those made count, whatever runs declared; several runs have three quarters of delta."""
    hospital = make_hospital(tmp_path, LIFE)
    done = [
        trained(train(hospital, 3, FULL, run=run, round=number, noise_multiplier=6.0))
        for run in ("one", "two", "three", "four")
        for number in (1, 2, 3)
    ]
    assert done == sorted(done, reverse=True) and 3 < sum(done) < len(done)
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(gaussian_event(6.0, 3 * sum(done)), 0.75e-3), rel=1e-3)
    assert ledger(hospital).epsilon() <= 2.5 < epsilon(gaussian_event(6.0, 3 * (sum(done) + 1)), 0.75e-3)


@pytest.mark.slow
def test_two_runs_at_once_never_spend_more_than_the_budget(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE)
    script = (
        "from tests.client.test_lifetime import FULL\n"
        "hospital = pathlib.Path(sys.argv[1])\n"
        "t.context(hospital)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "done = [t.train(hospital, 9, FULL, run=sys.argv[2], round=n, noise_multiplier=6.0) for n in range(1, 10)]\n"
        "print(sum(reply.has_content() for reply in done), flush=True)\n"
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
    assert ledger(hospital).epsilon() <= 2.5 < epsilon(gaussian_event(6.0, 3 * (released + 1)), 0.75e-3)
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
    kill = "def kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    dying = python("-c", HEAD + kill + killed + "t.train(pathlib.Path(sys.argv[1]))\n", str(hospital))
    assert dying.returncode == -signal.SIGKILL
    assert ledger(hospital).epsilon() == epsilon(ROUND, 1e-3)
    first, again = train(hospital), train(hospital)
    for name, array in first.content["arrays"].items():
        assert np.array_equal(array.numpy(), again.content["arrays"][name].numpy())
    assert len(ledger(hospital).events()) == charges
    assert ledger(hospital).epsilon() == epsilon(dpsgd_event(0.2, 1.2, 3 * charges), 1e-3)
    assert first.content[RECORD]["epsilon"] == pytest.approx(ledger(hospital).epsilon(), rel=0.02)
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
        assert epsilon_of(past, ledger(hospital).terms) == ledger(hospital).epsilon()


def test_metrics_that_leave_are_in_the_statement_and_outside_epsilon(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE + "release-metrics = true\n")
    for number in (1, 2):  # each evaluation is of a charged round
        train(hospital, round=number, noise_multiplier=3.0)
    spent = ledger(hospital).epsilon()
    for number in (1, 2):
        assert "auroc" in evaluate(hospital, round=number).content["metrics"]
    told = with_details(statements([ledger(hospital)])[0])
    assert told["epsilon"] == spent
    assert told["outside"] == [{"run": "r", "purpose": "held-out metrics", "times": 2}]
    assert json.dumps(told, allow_nan=False) and verify_all(ledger(hospital).path)[0]["intact"]


def test_a_hospital_that_releases_no_metrics_has_none_in_its_statement(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, LIFE)
    train(hospital)
    evaluate(hospital)
    assert with_details(statements([ledger(hospital)])[0])["outside"] == []
    assert len(ledger(hospital).events()) == 1
