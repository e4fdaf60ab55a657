"""The kinds of question, and how one is written into a message and read again."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from polyclinic.errors import ConfigError
from polyclinic.releases.question import Question
from polyclinic.releases.relations import Relations
from polyclinic.releases.statistics import Statistic
from polyclinic.releases.survey import Survey

_QUESTION: TypeAdapter[Any] = TypeAdapter(Annotated[Statistic | Survey | Relations, Field(discriminator="kind")])


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


def decisive(question: Question) -> dict[str, Any]:
    """What of a question decides the numbers of its answer, as plain values."""
    told: dict[str, Any] = _QUESTION.dump_python(question, exclude={"kind"})
    return {name: "\n".join(value) if isinstance(value, tuple) else value for name, value in told.items()}
