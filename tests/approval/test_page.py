"""A person at the hospital decides on runs in a browser, at this machine alone and under a secret address."""

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from polyclinic.client.home.approvals import approval_named
from polyclinic.client.home.holds import current_pause
from polyclinic.config import RunConfig
from polyclinic.server.phases.enrolment import enrol_request
from polyclinic.serving.approvals import approval_page
from tests.approval.test_commands import RUN, asked, cli, coordinator, hospital, refusal
from tests.approval.test_decisions import counts, enrols

__all__ = ["asked", "cli", "coordinator", "hospital"]

HERE = "http://127.0.0.1:8640"


def ask(folder: Path, path: str, form: dict[str, str] | None = None, host: str = "127.0.0.1:8640") -> httpx.Response:
    async def answered() -> httpx.Response:
        transport = httpx.ASGITransport(approval_page(folder, "secret"))
        async with httpx.AsyncClient(transport=transport, base_url=HERE, headers={"host": host}) as client:
            return await (client.get(path) if form is None else client.post(path, content=urlencode(form)))

    return asyncio.run(answered())


def test_the_page_shows_what_a_run_asks_and_approves_it_under_the_terms_that_it_shows(asked: Path) -> None:
    page = ask(asked, "/secret/")
    assert page.status_code == 200 and "ε spent: 0 of 2" in page.text
    assert "1.0, 50% of the budget" in page.text and "After each of 3 rounds an update" in page.text
    terms = approval_named(asked / "home", "trial-1").digest
    assert f'name="terms" value="{terms}"' in page.text
    done = ask(asked, "/secret/approve", {"run": "trial-1", "terms": terms, "days": "2"})
    assert (done.status_code, done.headers["location"]) == (303, "./") and not refusal(asked)
    assert "trial-1: approved" in ask(asked, "/secret/").text
    assert ask(asked, "/secret/deny", {"run": "trial-1", "why": "enough"}).status_code == 303
    assert refusal(asked) == "the run was denied here: enough"


@pytest.mark.parametrize(
    ("decision", "form", "says"),
    [
        ("approve", {"run": "trial-1", "terms": "0" * 64, "days": "2"}, "but run &#39;trial-1&#39; now asks under"),
        ("approve", {"run": "trial-1", "days": "soon"}, "Days are &#39;soon&#39;; allowed are numbers above 0."),
        ("deny", {"run": "../ledger"}, "has asked for approval; runs that did: trial-1."),
        ("pause", {"why": "a\nb"}, "must be one printed line"),
        ("forget", {}, "The decision is &#39;forget&#39;; allowed are approve, deny, pause and resume."),
    ],
)
def test_a_decision_that_cannot_be_made_changes_nothing_and_says_why(
    asked: Path, decision: str, form: dict[str, str], says: str
) -> None:
    before = approval_named(asked / "home", "trial-1")
    done = ask(asked, f"/secret/{decision}", form)
    assert done.status_code == 400 and says in done.text
    assert approval_named(asked / "home", "trial-1") == before and current_pause(asked / "home") is None


def test_a_question_without_privacy_and_a_file_that_cannot_be_read_are_told(asked: Path) -> None:
    question = '{"kind": "description", "epsilon": null}'
    enrols(asked / "hospital.toml", RunConfig.build(RUN), enrol_request("ask-1", "", trains=False, question=question))
    assert "One answer to the question, without noise." in ask(asked, "/secret/").text
    (asked / "home" / "approvals" / "trial-1.json").write_text("{")
    page = ask(asked, "/secret/")
    assert page.status_code == 500 and "cannot be read as an approval" in page.text


def test_the_page_pauses_and_resumes(asked: Path) -> None:
    assert ask(asked, "/secret/pause", {"why": "an audit"}).status_code == 303
    assert "The hospital has paused" in ask(asked, "/secret/").text and "an audit" in ask(asked, "/secret/").text
    assert refusal(asked) == "the hospital has paused: an audit"
    assert ask(asked, "/secret/resume", {}).status_code == 303 and current_pause(asked / "home") is None


def test_whoever_lacks_the_secret_address_or_comes_by_another_name_gets_nothing(asked: Path) -> None:
    for path in ("/", "/wrong/", "/secre/", "/secret/../wrong/"):
        assert ask(asked, path).status_code == 404
    assert ask(asked, "/wrong/pause", {}).status_code == 404 and current_pause(asked / "home") is None
    assert ask(asked, "/secret/", host="evil.example").status_code == 400
    assert ask(asked, "/secret/pause", {"why": "x" * 20_000}).status_code == 413


def test_a_coordinators_text_is_no_part_of_the_page_and_no_other_page_can_frame_it(asked: Path) -> None:
    text = "<script>alert(1)</script>"
    counts(asked / "hospital.toml", RunConfig.build({**RUN, "model": text, "evaluation.groups": text}), "trial-2")
    page = ask(asked, "/secret/")
    assert text not in page.text and "&lt;script&gt;" in page.text
    counts(asked / "hospital.toml", RunConfig.build({**RUN, "evaluation.groups": "sex\nrounds = 1"}), "trial-3")
    assert "\nrounds = 1" not in ask(asked, "/secret/").text
    allowed = page.headers["content-security-policy"]
    assert "default-src 'none'" in allowed and "frame-ancestors 'none'" in allowed and "form-action 'self'" in allowed
    assert page.headers["referrer-policy"] == "no-referrer" and page.headers["cache-control"] == "no-store"


def test_the_command_prints_the_address_at_which_the_page_answers(asked: Path) -> None:
    words = [sys.executable, "-m", "polyclinic", "hospital", "page", str(asked)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address), address
            assert "trial-1" in httpx.get(address, timeout=30).text
            assert httpx.get(address.rsplit("/", 2)[0] + "/").status_code == 404
        finally:
            process.send_signal(signal.SIGINT)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
