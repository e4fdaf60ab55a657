"""The words of code and pages: plain_english.json has the most that each file may leave to repair, and it only falls."""

import json

from tests.plain_english import COUNTS, PARTICIPLE, counts, sentences


def test_no_file_has_more_unclear_names_long_sentences_or_parameters_without_a_word_than_before() -> None:
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    for path, of_file in counts().items():
        for kind, number in of_file.items():
            most = allowed.get(path, {}).get(kind, 0)
            assert number <= most, (
                f"{path} has {number} of {kind}, at most {most}: see python -m tests.plain_english {path}"
            )


def test_sentences_end_with_their_paragraph_entry_or_cell_and_code_is_none() -> None:
    text = (
        "A first one. A second\ngoes on.\n\n- an entry\n- `x. Y`, another\n\n```sh\nrun. Me\n```\n| a cell | b. C |\n"
    )
    assert [line for line, _ in sentences(text)] == [1, 1, 4, 5, 10, 10, 10]


def test_functions_are_not_named_by_participles() -> None:
    names = ("clipped", "_described", "given", "embed", "reseed", "need", "clip", "with_labels", "arrays_to_score")
    assert [name for name in names if PARTICIPLE.fullmatch(name)] == ["clipped", "_described", "given"]
