"""What returned scores say, against known values and brute force; and files that cannot be what a reviewer saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.review.answers import Key, Review, read_key, read_review, read_reviews
from polyclinic.evaluation.review.scores import analyse, compare, guess_rates, icc, kappa, write_results

DIGEST = "ab" * 32
REAL = np.arange(100) % 2 == 0
KEY = Key(DIGEST, REAL)


def review(name: str, seed: int = 0, shift: float = 0.0, right: float = 0.5) -> Review:
    rng = np.random.default_rng(seed)
    scores = np.clip(np.round(rng.normal(5 + shift * REAL, 2.0)), 0, 10)
    guesses = np.where(rng.random(100) < right, REAL, ~REAL).astype(np.float64)
    return Review(name, f"scores-{name}.json", scores, guesses)


def test_mann_whitney_by_hand() -> None:
    found = compare(np.array([7.0, 8, 9, 1, 2, 3]), np.arange(6) < 3)
    assert found["u"] == 9 and found["auc"]["value"] == 1
    assert found["p"] == pytest.approx(2 / 20)  # of the 20 ways to deal six ranks, the two outermost
    assert found["difference"]["value"] == 6 and found["auc"]["low"] is None  # three of each are too few to draw again
    # Welch by hand: sd 1 each, error sqrt(2/3), 4 degrees of freedom
    assert found["difference"]["high"] == pytest.approx(6 + stats.t.ppf(0.975, 4) * np.sqrt(2 / 3))


def test_mann_whitney_with_ties_counts_pairs() -> None:
    scores = review("A", shift=1.0).scores.copy()
    scores[[3, 10]] = np.nan
    found = compare(scores, REAL)
    real, made = (scores[np.isfinite(scores) & of] for of in (REAL, ~REAL))
    pairs = (real[:, None] > made).sum() + 0.5 * (real[:, None] == made).sum()
    assert found["u"] == pairs and found["auc"]["value"] == pytest.approx(pairs / (len(real) * len(made)))
    assert (found["real"]["patients"], found["synthetic"]["patients"]) == (len(real), len(made)) == (49, 49)
    assert found["auc"]["low"] < found["auc"]["value"] < found["auc"]["high"]
    assert found["real"]["sd"] == pytest.approx(np.std(real, ddof=1))


def test_the_detectable_difference_is_detected_in_four_of_five_reviews() -> None:
    rng = np.random.default_rng(0)
    seen = compare(rng.normal(5.0, 2.0, 400), np.arange(400) < 200)["detectable"]
    scores = rng.normal(5 + 2 * seen * REAL, 2.0, (2000, 100))  # a quarter of the patients see twice the difference
    found = stats.ttest_ind(scores[:, REAL], scores[:, ~REAL], axis=1, equal_var=False).pvalue < 0.05
    assert abs(found.mean() - 0.8) < 0.05


def test_reviewers_are_no_patients() -> None:
    """One reviewer who answers three times knows no more than once."""
    one = review("A", shift=0.7, right=0.6)
    alone = analyse([one], KEY)["pooled"]
    thrice = analyse([Review(name, name, one.scores, one.guesses) for name in "ABC"], KEY)
    for name in ("difference", "p", "auc", "u"):
        assert thrice["pooled"]["scores"][name] == alone["scores"][name]
    accuracy = [found["accuracy"] for found in (alone["guesses"], thrice["pooled"]["guesses"])]
    assert accuracy[0]["value"] == accuracy[1]["value"]
    assert accuracy[0]["high"] - accuracy[0]["low"] == pytest.approx(accuracy[1]["high"] - accuracy[1]["low"], abs=0.03)
    assert thrice["agreement"]["icc"] == pytest.approx(1) and thrice["agreement"]["pairs"][0]["kappa"] == 1


def test_no_difference_is_never_called_equality() -> None:
    """As published: 50 and 50 patients, no significant difference; what follows from it is an interval."""
    found = analyse([review("A", seed=5), review("B", seed=6)], KEY)
    apart, said = found["pooled"]["scores"]["difference"], " ".join(found["verdict"])
    assert apart["low"] < 0 < apart["high"] and found["pooled"]["scores"]["p"] > 0.05
    assert "no evidence that there is none" in said and f"more than {apart['high']:.2f} points above" in said
    assert f"more than {-apart['low']:.2f} below" in said and "not shown to be chance" in said
    told = " ".join(analyse([review("A", shift=3.0, right=0.9)], KEY)["verdict"])
    assert "Real patients looked more real" in told and "were told apart" in told and "no evidence" not in told
    misled = " ".join(analyse([review("A", shift=-3.0, right=0.1)], KEY)["verdict"])
    assert "Synthetic patients looked more real" in misled and "taken for each other" in misled
    apart = analyse([Review("A", "a", np.where(REAL, 10.0, 0.0), np.full(100, np.nan))], KEY)["verdict"]
    assert "were scored differently" in apart[1] and "say nothing" not in " ".join(apart)


def test_guesses_count_both_kinds() -> None:
    guesses = np.where(REAL, 1.0, 0.0)
    guesses[:10] = 1.0  # five synthetic ones called real
    guesses[98:] = np.nan
    found = guess_rates(guesses, REAL)
    assert found["patients"] == 98 and found["accuracy"]["value"] == pytest.approx(93 / 98)
    assert found["specificity"]["value"] == 1 and found["sensitivity"]["value"] == pytest.approx(44 / 49)
    assert found["accuracy"]["low"] == pytest.approx(0.8861, abs=5e-4)  # Wilson's interval of 93 of 98
    assert found["p"] == pytest.approx(stats.binomtest(93, 98).pvalue)


def test_agreement_against_published_examples() -> None:
    rated = np.array(
        [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=np.float64
    )
    assert icc(rated) == pytest.approx(0.29, abs=0.005)  # Shrout and Fleiss 1979, tables 2 and 4
    a, b = (np.repeat(values, [20, 5, 10, 15]).astype(np.float64) for values in ([1, 1, 0, 0], [1, 0, 1, 0]))
    assert kappa(a, b) == pytest.approx(0.4) and kappa(np.ones(3), np.ones(3)) is None
    assert kappa(np.array([1.0, np.nan]), np.array([np.nan, 1.0])) is None and icc(rated[:, :1]) is None


def test_what_is_missing_is_named_and_undefined_values_are_none() -> None:
    one = review("A")
    one.scores[REAL] = np.nan
    one.guesses[:] = np.nan
    found = analyse([one], KEY)
    assert found["reviewers"][0]["missing"]["scores"] == list(range(1, 100, 2))
    assert found["pooled"]["scores"]["p"] is None and found["pooled"]["scores"]["difference"]["value"] is None
    assert "nothing can be compared" in found["verdict"][0] and "No guesses" in found["verdict"][1]
    same = analyse([Review("A", "a", np.full(100, 5.0), np.ones(100))], KEY)
    assert same["pooled"]["scores"]["difference"] == {"value": 0.0, "low": None, "high": None}
    json.dumps([found, same], allow_nan=False)


def test_the_page_escapes_and_says_what_json_says(tmp_path: Path) -> None:
    found = analyse([review("A", shift=1.0), review("B<i>", seed=3)], KEY)
    for _ in range(2):  # once more, when more reviewers have answered
        write_results(found, tmp_path)
    page = (tmp_path / "review.html").read_text()
    assert "B&lt;i&gt;" in page and "B<i>" not in page and "no release with differential privacy" in page
    assert f"{found['pooled']['scores']['difference']['value']:.3f}" in page
    assert json.loads((tmp_path / "review.json").read_text()) == found


def answer(**changes: Any) -> dict[str, Any]:
    return {"patient": 1, "score": 7, "guess": "real"} | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"packet": "cd" * 32}, "of another packet"),
        ({"format": "x"}, "not a file of scores"),
        ({"reviewer": "../x"}, "'reviewer' must be"),
        ({"answers": {}}, "'answers' must be a list"),
        ({"answers": [answer(), answer()]}, "patient 1 is there twice"),
        ({"answers": [answer(score=11)]}, "patient 1: 'score' must be a whole number from 0 to 10"),
        ({"answers": [answer(score=-1)]}, "'score' must be"),
        ({"answers": [answer(score=True)]}, "'score' must be"),
        ({"answers": [answer(score=6.5)]}, "'score' must be"),
        ({"answers": [answer(guess="maybe")]}, "'guess' must be real, synthetic or null"),
        ({"answers": [answer(guess=[])]}, "'guess' must be"),
        ({"answers": [answer(patient=101)]}, "a number from 1 to 100"),
        ({"answers": [{"patient": 1}]}, "exactly the keys"),
        ({"answers": [answer(score=None)]}, "holds no score"),
    ],
)
def test_wrong_files_of_scores_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    file = tmp_path / "scores.json"
    good = {"format": "polyclinic-review-scores/1", "packet": DIGEST, "reviewer": "AB", "answers": [answer()]}
    file.write_text(json.dumps(good))
    assert np.nansum(read_review(file, KEY).scores) == 7
    file.write_text(json.dumps(good | changes))
    with pytest.raises(DataError, match=said):
        read_review(file, KEY)
    file.write_text("{")
    with pytest.raises(DataError, match="as JSON"):
        read_review(file, KEY)


def test_a_wrong_key_and_a_reviewer_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no answer-key.json"):
        read_key(tmp_path)
    key = {
        "format": "polyclinic-review-key/1",
        "packet": DIGEST,
        "packet_sha256": "0",
        "real": [1, 3],
        "synthetic": [2, 4],
    }
    (tmp_path / "answer-key.json").write_text(json.dumps(key))
    assert read_key(tmp_path).real.tolist() == [True, False, True, False]
    (tmp_path / "packet.html").write_text("changed")
    with pytest.raises(DataError, match="SHA-256 differs"):
        read_key(tmp_path)
    for wrong in ([1, 2], [1, 5], ["1", 3], [1, None]):
        (tmp_path / "answer-key.json").write_text(json.dumps(key | {"real": wrong}))
        with pytest.raises(DataError, match="each number from 1 to 4 once"):
            read_key(tmp_path)
    scores = {"format": "polyclinic-review-scores/1", "packet": DIGEST, "reviewer": "AB", "answers": [answer()]}
    for name, initials, encoding in (("a", "AB", "utf-8"), ("b", "ab", "utf-8-sig")):  # the second was typed by hand
        (tmp_path / name).write_text(json.dumps(scores | {"reviewer": initials}), encoding)
    with pytest.raises(DataError, match="both of reviewer 'AB'"):
        read_reviews([tmp_path / "a", tmp_path / "b"], KEY)
    with pytest.raises(ConfigError, match="No file of scores"):
        read_reviews([], KEY)
