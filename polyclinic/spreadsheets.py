"""Text of another party in a CSV file that a person may open in a spreadsheet."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_text(value: T) -> T | str:
    """The cell ``value``; text that a spreadsheet could take for a formula is returned with an apostrophe before it.

    Numbers are returned as they are. OWASP, "CSV Injection".

    >>> as_text('=HYPERLINK("http://example.org")')
    '\\'=HYPERLINK("http://example.org")'
    >>> as_text("St. Elsewhere"), as_text(-1.5)
    ('St. Elsewhere', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) else value
