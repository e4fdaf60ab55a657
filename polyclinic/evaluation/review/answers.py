"""The answer key of a packet and the files that reviewers give back, checked before anything is computed from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.review.form import LONGEST_INITIALS, MOST_SCORE, SCORES_FORMAT
from polyclinic.evaluation.review.packet import KEY, KEY_FORMAT, PACKET
from polyclinic.files import reason
from polyclinic.types import Bools, Floats

_GUESSES = {"real": 1.0, "synthetic": 0.0, None: np.nan}


@dataclass(frozen=True, eq=False)
class Key:
    """The packet's digest, and which patients are real (patients,), in the order of their packet numbers."""

    packet: str
    real: Bools


@dataclass(frozen=True, eq=False)
class Review:
    """One reviewer's answers by packet number, each (patients,) and NaN where missing: scores 0 to 10, guesses 1 for real."""

    reviewer: str
    file: str
    scores: Floats
    guesses: Floats


def read_key(folder: Path) -> Key:
    """The answer key in a packet's folder. Raises ConfigError where there is none, DataError where it or the form changed."""
    path = folder / KEY
    if not path.is_file():
        raise ConfigError(f"{folder} holds no {KEY}; give the folder that `polyclinic review make` wrote.")
    document = _json(path)
    numbers = [document.get(name) for name in ("real", "synthetic")]
    if document.get("format") != KEY_FORMAT or not all(isinstance(patients, list) for patients in numbers):
        raise DataError(f"{path} is not an answer key of format {KEY_FORMAT!r}.")
    real, synthetic = (np.array(patients, dtype=object) for patients in numbers)
    count = len(real) + len(synthetic)
    if sorted([*real, *synthetic], key=str) != sorted(range(1, count + 1), key=str):
        raise DataError(f"{path}: 'real' and 'synthetic' must hold each number from 1 to {count} once.")
    form = folder / PACKET
    if form.is_file() and sha256(form.read_bytes()).hexdigest() != document.get("packet_sha256"):
        raise DataError(f"{form} is not the form that {KEY} is of: its SHA-256 differs.")
    return Key(str(document.get("packet")), np.isin(np.arange(1, count + 1), real.astype(np.int64)))


def read_reviews(files: Sequence[Path], key: Key) -> list[Review]:
    """The reviews in the files, one of each reviewer. Raises DataError as ``read_review``, ConfigError without a file."""
    if not files:
        raise ConfigError("No file of scores is given; give at least one that a reviewer saved.")
    by_reviewer: dict[str, Review] = {}
    for file in files:
        review = read_review(file, key)
        if review.reviewer in by_reviewer:
            raise DataError(
                f"{by_reviewer[review.reviewer].file} and {file} are both of reviewer {review.reviewer!r}; "
                "give one of them."
            )
        by_reviewer[review.reviewer] = review
    return list(by_reviewer.values())


def read_review(file: Path, key: Key) -> Review:
    """Return one file of scores.

    Args:
        file: What a reviewer gave back.
        key: The packet's answer key.

    Raises:
        DataError: For another packet's file, and for one without a score.
        DataError: With the patient's number, for a score that is no whole number from 0 to 10, or a guess other than
            real, synthetic or null.
        DataError: For a patient that is not in the packet or there twice.
    """
    document = _json(file)
    if document.get("format") != SCORES_FORMAT:
        raise DataError(f"{file} is not a file of scores of format {SCORES_FORMAT!r}.")
    if document.get("packet") != key.packet:
        raise DataError(f"{file} is of another packet: its digest is not the answer key's.")
    reviewer, answers = document.get("reviewer"), document.get("answers")
    if not (isinstance(reviewer, str) and reviewer.isalnum() and len(reviewer) <= LONGEST_INITIALS):
        raise DataError(f"{file}: 'reviewer' must be 1 to {LONGEST_INITIALS} letters or digits.")
    if not isinstance(answers, list):
        raise DataError(f"{file}: 'answers' must be a list.")
    scores, guesses = np.full(len(key.real), np.nan), np.full(len(key.real), np.nan)
    seen: set[int] = set()
    for place, answer in enumerate(answers, start=1):
        if not isinstance(answer, dict) or set(answer) != {"patient", "score", "guess"}:
            raise DataError(f"{file}: answer {place} must have exactly the keys patient, score and guess.")
        number, score, guess = (answer[name] for name in ("patient", "score", "guess"))
        if not (_whole(number) and 1 <= number <= len(key.real)):
            raise DataError(f"{file}: answer {place}: 'patient' must be a number from 1 to {len(key.real)}.")
        if number in seen:
            raise DataError(f"{file}: patient {number} is there twice.")
        if score is not None and not (_whole(score) and 0 <= score <= MOST_SCORE):
            raise DataError(
                f"{file}: patient {number}: 'score' must be a whole number from 0 to {MOST_SCORE}, or null."
            )
        if not isinstance(guess, str | None) or guess not in _GUESSES:
            raise DataError(f"{file}: patient {number}: 'guess' must be real, synthetic or null.")
        seen.add(number)
        scores[number - 1] = np.nan if score is None else score
        guesses[number - 1] = _GUESSES[guess]
    if np.isnan(scores).all():
        raise DataError(f"{file} holds no score.")
    return Review(reviewer.upper(), str(file), scores, guesses)  # as the form writes initials


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))  # editors may put a mark before it
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} cannot be read as JSON.") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} must hold one JSON object.")
    return document
