"""The errors that a user sees: one clear sentence each, with the exit code that the command line returns."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class PolyclinicError(Exception):
    """Work that failed for a reason the user can act on; the message is one sentence."""

    exit_code = 1


class ConfigError(PolyclinicError):
    """A configuration value is unknown, of the wrong type or impossible."""

    exit_code = 2


class DataError(PolyclinicError):
    """Records, a schema or a file do not have the declared form; never quotes a patient's cell."""

    exit_code = 2


class BudgetRefused(PolyclinicError):
    """A charge would exceed a hospital's privacy budget; nothing was spent and no data was read."""

    exit_code = 3


def nearest(name: str, names: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the one of ``names`` that begins with ``name``, is closest to it or has it, or nearly, as a
    word; or "".

    Examples:
        >>> nearest("LOS", ["closed", "LOS (days)"]), nearest("los", ["total_LOS"])
        (" Did you mean 'LOS (days)'?", " Did you mean 'total_LOS'?")
        >>> nearest("brest", ["heart-disease", "breast-cancer"])
        " Did you mean 'breast-cancer'?"
    """
    every, name = list(names), str(name)  # of a damaged file it may be bytes
    plain = name.casefold()
    begun = [x for x in every if re.match(rf"{re.escape(plain)}(\b|_)", x.casefold())]
    close = begun or get_close_matches(name, every, n=1)
    words = {x: re.split(r"[\W_]+", x.casefold()) for x in every}
    match = close or [
        x for cutoff in (1.0, 0.8) for x in every if get_close_matches(plain, words[x], n=1, cutoff=cutoff)
    ]
    return f" Did you mean {match[0]!r}?" if match and name else ""


def count_text(number: int, what: str) -> str:
    """A number of things in words: the plural, but of one.

    Examples:
        >>> count_text(1, "charge"), count_text(2000, "charge")
        ('1 charge', '2,000 charges')
    """
    return f"{number:,} {what if number == 1 else f'{what}s'}"


def decimal_hint(text: object) -> str:
    """A sentence's end for text that is a number with a decimal comma, and "" for any other.

    Examples:
        >>> decimal_hint("3,5"), decimal_hint("3;5")
        (' with a point: 3.5', '')
    """
    is_number = re.fullmatch(r"-?\d*,\d+(e-?\d+)?", str(text), re.IGNORECASE)
    return f" with a point: {str(text).replace(',', '.')}" if is_number else ""


def why(error: BaseException) -> str:
    """What a stranger's code raised, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Whatever a stranger's code raises within becomes a ConfigError that begins with ``what``; ours stay as they are."""
    try:
        yield
    except PolyclinicError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {why(error)}.") from error


# Where a researcher's own code is not.
_NOT_THEIRS = {"polyclinic", "flwr", "opacus", "torch", "click", "typer", "ray", *sys.stdlib_module_names} - {
    "__main__"
}


def traceback_of(error: BaseException) -> str:
    """The traceback of an error from where a stranger's code begins; empty where no such code took part."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames]
    begin = next((index for index, name in enumerate(names) if name not in _NOT_THEIRS), None)
    if begin is None:
        return ""
    stack = traceback.StackSummary.extract(iter(frames[begin:]))
    lines = [*stack.format(), *traceback.format_exception_only(error)]
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


def several(names: Iterable[str], most: int = 5, between: str = ", ") -> str:
    """The names, or the first of them where there are more: ``"a, b and 9,998 more"``.

    A name that cannot be printed on one line, as a damaged file may hold, is escaped.

    Args:
        names: The names, in their order.
        most: How many are given at most.
        between: What stands between them.
    """
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return between.join(name if name.isprintable() else repr(name) for name in every[:most]) + more


def without_name(name: str, reason: str) -> str:
    """A hospital's reason without its own name before it, for a line that names it already."""
    return reason.removeprefix(f"{name}: ")


def whose(reasons: Iterable[tuple[str, str]], between: str = "; ") -> str:
    """Every reason once, after the names of the hospitals that gave it; one that quotes its hospital's name stays as it is."""
    names: dict[str, list[str]] = {}
    for name, reason in sorted(set(reasons)):
        names.setdefault(without_name(name, reason), []).append(name)
    sentences = (
        reason if all(repr(name) in reason for name in named) else f"{several(named)}: {reason}"
        for reason, named in names.items()
    )
    return several(sorted(sentences), between=between)
