"""The report of a made-up run: it opens without a network, escapes what it shows, and says plainly what holds."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.privacy_text import risk_sentence, share
from polyclinic.evaluation.report import render_report, write_plots

WriteRun = Callable[..., Path]  # the fixture of conftest.py
SITES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")


class Page(HTMLParser):
    """Text and tags of a page; every tag that needs closing is closed in order."""

    void = {"meta", "img", "link", "br"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)


def page_of(run: Path) -> Page:
    return Page(render_report(run).read_text(encoding="utf-8"))


def figures_of(page: Page) -> list[str]:
    sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    return [b64decode(source.removeprefix("data:image/svg+xml;base64,")).decode() for source in sources]


def test_report_of_a_private_run_says_what_holds(write_run: WriteRun) -> None:
    page = page_of(write_run())
    expected = [
        "epsilon 3.40 at delta 1.0e-5, per patient",
        "add-remove",
        "pld",
        "3.40 of 4",
        "12 of 12",
        "true-positive rate of at most 9.13 % at a 1 % false-positive rate",  # rounded up: it is a bound
        "0.861",
        "What it does not cover",
        "who can repeat the noise can take it away",
        "a constant prediction: 0.553",
        'dataset = "heart-disease"',
        '"polyclinic": "0.1.0"',
        "ab" * 32,
        *SITES,
    ]
    for words in expected:
        assert words in page.text, words
    assert "No privacy guarantee" not in page.text and "Warning" not in page.text
    assert len(figures_of(page)) == 3


def test_report_loads_nothing(write_run: WriteRun) -> None:
    html = render_report(write_run()).read_text(encoding="utf-8")
    page = Page(html)
    assert "http://" not in html and "https://" not in html and "@import" not in html and "url(" not in html
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "base"}
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert all((attributes.get("src") or "data:").startswith("data:") for _, attributes in page.tags)
    policy = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy == [f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"]
    for figure in figures_of(page):
        assert "<script" not in figure and "<image" not in figure


def test_everything_the_run_wrote_is_escaped(write_run: WriteRun) -> None:
    evil = '"><script>alert(1)</script>&$x$'

    def poison(summary: dict[str, Any]) -> None:
        summary["dataset"] = summary["strategy"] = summary["run"] = summary["seed"] = evil
        summary["notes"] = [evil]
        summary["dropouts"] = [{"round": 3, "site": evil, "reason": evil}]
        summary["comparison"] = {"alone": {"sites": {evil: {"auroc": 0.7, "accuracy": 0.6}}}}
        summary["privacy"] = summary["privacy"] | {"unit": evil, "relation": evil, "accountant": evil}
        summary["statement"]["sites"][evil]["intact"] = False

    run = write_run(sites=(evil, "hospital-2"), change=poison)
    (run / "config.toml").write_text(evil)
    (run / "versions.json").write_text(evil)
    html = render_report(run).read_text(encoding="utf-8")
    assert html.count("<script") == 1 and "alert(1)" in html
    assert evil in Page(html).text
    assert not any("<script" in figure for figure in figures_of(Page(html)))


def test_null_metrics_read_undefined_and_absent_ones_do_not(write_run: WriteRun) -> None:
    def blank(summary: dict[str, Any]) -> None:
        summary["metrics"]["sites"]["hospital-2"]["auroc"] = None
        summary["metrics"]["sites"]["hospital-3"]["auroc"] = float("nan")
        summary["metrics"]["macro"] = {}

    html = render_report(write_run(change=blank)).read_text(encoding="utf-8")
    assert html.count(">undefined</td>") == 2 and html.count(">–</td>") == 2
    assert "hold one class only" in html and "not measured in this run" in html
    assert "nan" not in Page(html).text.lower().split()


@pytest.mark.parametrize(
    ("value", "said"), [(0.0912001, "9.13 %"), (0.0912, "9.12 %"), (0.99999, "100 %"), (0.01, "1 %")]
)
def test_a_risk_is_rounded_up(value: float, said: str) -> None:
    assert share(value) == said


def test_a_summary_of_before_there_were_risks_is_still_shown(write_run: WriteRun) -> None:
    def forget(summary: dict[str, Any]) -> None:
        summary["privacy"] = summary["statement"] = {k: v for k, v in summary["statement"].items() if k != "risk"}
        for site in (*summary["metrics"]["sites"].values(), *summary["statement"]["sites"].values()):
            del site["risk"]

    assert "Risk:" not in page_of(write_run(change=forget)).text


@pytest.mark.parametrize("relation", ["", "substitute"])
def test_a_risk_has_no_words_of_a_relation_that_is_not_its_own(write_run: WriteRun, relation: str) -> None:
    with pytest.raises(ConfigError, match=f"relation must be one of add-remove, replace-one, got '{relation}'"):
        risk_sentence({"advantage": 0.1, "tpr_at_1_percent_fpr": 0.02}, "patient", relation)
    page = page_of(write_run(change=lambda summary: summary["privacy"].update(relation=relation)))
    assert "took part" not in page.text and "see the accountant's documentation" in page.text


def test_run_without_dp_says_there_is_no_guarantee(write_run: WriteRun) -> None:
    page = page_of(write_run(private=False))
    assert "No privacy guarantee. This model was trained without differential privacy" in page.text
    assert "There is no privacy guarantee." in page.text and "no guarantee" in page.text
    assert "Differentially private" not in page.text and "What epsilon covers" not in page.text
    assert len(figures_of(page)) == 2


def test_dropouts_are_shown_with_their_reasons(write_run: WriteRun) -> None:
    def drop(summary: dict[str, Any]) -> None:
        refused = [{"round": n, "site": "hospital-3", "reason": "budget refused"} for n in (9, 10, 11, 12)]
        summary["dropouts"] = [{"round": 4, "site": "hospital-3", "reason": "budget refused"}, *refused]
        summary["dropouts"].append({"round": 2, "site": "hospital-1", "reason": "no reply in 30 s"})

    text = page_of(write_run(change=drop)).text
    assert "hospital-3 4, 9–12 budget refused" in text and "hospital-1 2 no reply in 30 s" in text
    assert "every hospital that was asked answered" in page_of(write_run()).text


def test_comparison_columns_appear_only_where_given(write_run: WriteRun) -> None:
    def compare(summary: dict[str, Any]) -> None:
        sites = {name: {"auroc": 0.888, "accuracy": 0.801} for name in SITES[:3]} | {SITES[3]: {"auroc": None}}
        summary["comparison"] = {
            "without_dp": {"pooled": {"auroc": 0.899, "accuracy": 0.81}, "sites": sites},
            "alone": {"sites": sites},
        }

    page = page_of(write_run(change=compare))
    assert "Without privacy" in page.text and "Trained alone" in page.text and "0.899" in page.text
    assert page.text.count("0.888") == 8, "three hospitals and their mean, twice"
    assert "columns of comparison" in page.text
    assert "Trained alone" not in page_of(write_run()).text

    def compare_one(summary: dict[str, Any]) -> None:
        compare(summary)
        del summary["comparison"]["alone"]

    text = page_of(write_run(change=compare_one)).text
    assert "Without privacy" in text and "Trained alone" not in text


def test_thousands_of_hospitals_stay_readable_and_the_page_small(write_run: WriteRun) -> None:
    names = tuple(f"site-{i:04d}" for i in range(3000))

    def vary(summary: dict[str, Any]) -> None:
        for i, (name, site) in enumerate(summary["metrics"]["sites"].items()):
            site["auroc"] = 0.5 + i / 10_000 if i else None
            summary["dropouts"].append({"round": 1, "site": name, "reason": f"{name} was away"})
        summary["statement"]["sites"]["site-1234"]["intact"] = False

    run = write_run(sites=names, count=2, change=vary)
    page = page_of(run)
    assert (run / "report.html").stat().st_size < 500_000
    assert page.text.count("site-") < 250
    for name in (*names[1:11], *names[-10:]):
        assert re.search(rf"{name} \S+ 0\.\d+", page.text), name
    assert "3,000 hospitals the table shows the 10 with the lowest and the 10 with the highest AUROC" in page.text
    assert "at most 0.650 at half" in page.text and "And 2,940 more in summary.json" in page.text
    assert (
        "site-1234 3.40 4 1.0e-5 9.13 % 38.2 % 2 broken" in page.text and "2,980 more are in ledger.json" in page.text
    )


def test_very_many_hospitals_without_metrics_are_shown_in_part(write_run: WriteRun) -> None:
    def bare(summary: dict[str, Any]) -> None:
        for site in summary["metrics"]["sites"].values():
            site |= {"auroc": None, "epsilon": None}

    page = page_of(write_run(sites=tuple(f"s{i}" for i in range(90)), count=1, change=bare))
    assert "The table shows 20 of 90 hospitals" in page.text
    assert "What s0, s1, s2, s3, s4 and 85 more spent is not known" in page.text


def test_training_loss_is_named_as_not_covered_where_it_was_recorded(write_run: WriteRun) -> None:
    run = write_run()
    words = "computed on the very patients trained on"
    assert words in page_of(run).text
    pd.read_parquet(run / "rounds.parquet").drop(columns="train_loss").to_parquet(run / "rounds.parquet")
    assert words not in page_of(run).text


def test_production_run_is_not_called_a_simulation(write_run: WriteRun) -> None:
    text = page_of(write_run(change=lambda summary: summary.update(simulation=False))).text
    assert "Records stayed at their hospital" in text and "simulat" not in text
    assert "take it away" not in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["statement"]["sites"]["hospital-2"].update(intact=False), "ledger of hospital-2 does not verify"),
        (lambda s: s["privacy"].update(delta=0.01), "Delta is not below one over the number of patients"),
        (
            lambda s: s["metrics"]["sites"]["hospital-4"].update(epsilon=None),
            "What hospital-4 spent is not known",
        ),
    ],
)
def test_what_a_reader_must_not_miss_is_a_warning(write_run: WriteRun, change: Any, words: str) -> None:
    text = page_of(write_run(change=change)).text
    assert "Warning." in text and words in text


def test_sparse_summary_still_renders(write_run: WriteRun) -> None:
    run = write_run(rounds=pd.DataFrame({"round": [1], "site": ["a"], "loss": [None], "auroc": [None]}))
    (run / "summary.json").write_text("{}")
    (run / "config.toml").unlink()
    (run / "versions.json").unlink()
    page = page_of(run)
    assert "No privacy guarantee" in page.text and "not recorded" in page.text


@pytest.mark.parametrize("name", ["summary.json", "rounds.parquet"])
def test_unfinished_or_torn_folder_is_one_clear_sentence(write_run: WriteRun, name: str) -> None:
    run = write_run()
    (run / name).write_text("torn")
    with pytest.raises(DataError, match="cannot be read"):
        render_report(run)
    (run / name).unlink()
    with pytest.raises(DataError, match=f"no {name}"):
        render_report(run)


def test_plots_are_written_as_svg_and_png(write_run: WriteRun) -> None:
    run = write_run()
    written = write_plots(run)
    assert {path.name for path in written} == {
        f"{n}.{e}" for n in ("rounds", "loss", "epsilon") for e in ("svg", "png")
    }
    assert all(path.parent == run / "plots" and path.stat().st_size > 1000 for path in written)
