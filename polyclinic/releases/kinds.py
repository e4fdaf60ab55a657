"""The kinds of question, and how one is written into a message and read again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, cast
from urllib.parse import quote, unquote

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.releases.description import Description
from polyclinic.releases.question import Question
from polyclinic.releases.relations import Relations
from polyclinic.releases.statistics import Statistic
from polyclinic.releases.survey import Survey

_QUESTION: TypeAdapter[Any] = TypeAdapter(
    Annotated[Statistic | Survey | Relations | Description, Field(discriminator="kind")]
)


def write_question(question: Question) -> str:
    """The question as JSON, as hospitals are sent it."""
    return _QUESTION.dump_json(question).decode()


@lru_cache(maxsize=16)
def read_question(text: str) -> Question:
    """The question that a message holds. Raises ConfigError naming the field that is missing, wrong or unknown."""
    try:
        question: Question = _QUESTION.validate_json(text)
        return question
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("question", *first["loc"])))
        raise ConfigError(f"Message field {place!r}: {first['msg']}.") from None


def question_as_key(question: Question) -> str:
    """The question as a configuration key's text, with what hospitals are not sent: percent-encoded JSON, without quotes."""
    return quote(json.dumps(dataclasses.asdict(cast(Any, question))))


def question_of_key(text: str) -> Question:
    """The question that ``question_as_key`` wrote. Raises ConfigError as ``read_question`` does."""
    return read_question(unquote(text))


def answer_as_json(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer with the schema or the imputer that it made as plain values."""
    plain = dict(answer)
    if schema := plain.get("schema"):
        plain["schema"] = schema.as_dict()
    if imputer := plain.get("imputer"):
        plain["imputer"] = imputer.as_dict()
    return plain


def answer_of_json(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The answer that ``answer_as_json`` wrote."""
    answer = dict(plain)
    if schema := answer.get("schema"):
        answer["schema"] = Schema.from_dict(schema)
    if imputer := answer.get("imputer"):
        moments = np.array(imputer["mean"]), np.array(imputer["covariance"])
        answer["imputer"] = Imputer.from_moments(tuple(imputer["features"]), *moments)
    return answer


def decisive(question: Question) -> dict[str, Any]:
    """What of a question decides the numbers of its answer, as plain values."""
    fields: dict[str, Any] = _QUESTION.dump_python(question, exclude={"kind"})
    return {name: "\n".join(value) if isinstance(value, tuple) else value for name, value in fields.items()}
