"""How cells are read: marks for missing, numbers however they are written, limits, units, lists of codes.

Pure functions over columns of text. Mappings of hospitals, drafts of schemas and simulations over one's own tables all read by
these. Whether a schema allows a cell is for ``ehr.checks`` to say.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import texts

#: What stands for a missing cell, unless a schema has it as a category.
MISSING = (
    "", "NA", "N/A", "NaN", "nan", "na", "n/a", "n.a.", "N.A.", "#N/A", "null", "NULL", "?", ".", "-", "--",
)  # fmt: skip
_NUMBER = re.compile(
    r"(?P<limit>[<>≤≥]=?)?\s*(?P<number>[-+]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][-+]?\d+)?)\s*"
    r"(?P<unit>(?:(?:[^\W\d_]|[%°/])[^\s\d;<>,]{0,11}[23²³]?)?)"
)
#: A number whose one mark, or all of whose like marks, may separate thousands.
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\.\d{3})+)")
_CODE = re.compile(r"[A-Za-z0-9][\w.\-/*+]{0,14}")
#: Numbers that tables put in place of a missing one.
CODES = frozenset(sign * int("9" * digits) for digits in range(1, 7) for sign in (-1, 1))
# In English, German, French, Spanish, Portuguese and Italian.
NO = frozenset((
    "0", "no", "n", "false", "alive", "survived", "negative", "neg", "absent", "nein", "falsch", "negativ", "lebend",
    "lebt", "überlebt", "non", "faux", "vivant", "négatif", "falso", "negativo", "vivo", "viva", "não", "nao",
))  # fmt: skip
YES = frozenset((
    "1", "yes", "y", "true", "dead", "died", "deceased", "expired", "positive", "pos", "present", "ja", "j", "wahr",
    "positiv", "tot", "verstorben", "gestorben", "oui", "vrai", "décédé", "décédée", "positif", "sí", "si", "verdadero",
    "positivo", "muerto", "muerta", "fallecido", "fallecida", "exitus", "sim", "verdadeiro", "morto", "morta", "sì", "vero",
    "deceduto", "deceduta",
))  # fmt: skip


def trim(values: pd.Series, missing: Collection[str] = MISSING) -> pd.Series:
    """(rows,) cells as text without spaces at the ends, "" where missing; a list becomes codes between semicolons.

    Truth values become 0 and 1, durations hours. "-" is no missing cell of a column that also has "+".

    Examples:
        >>> trim(pd.Series([1.0, None, 2.5])).tolist()
        ['1', '', '2.5']
    """
    if pd.api.types.is_bool_dtype(values.dtype):
        values = values.astype("Int64")
    elif pd.api.types.is_timedelta64_dtype(values.dtype):
        values = values.dt.total_seconds() / 3600
    elif values.dtype == object:
        values = values.map(
            lambda cell: ";".join(map(str, cell)) if isinstance(cell, list | tuple | np.ndarray) else cell
        )
    cells = pd.Series(texts(values), dtype=object)
    marks = set(missing) - ({"-"} if "+" in (unique := set(cells.unique())) else set())
    return cells.where(~cells.isin(marks), "") if marks & unique else cells


def text_table(frame: pd.DataFrame, missing: Collection[str] = ()) -> pd.DataFrame:
    """Every cell of a table as text that ``trim`` gives, "" where it is missing; a blank header becomes the column's number.

    An index is a column where it has a name. R's numbers of rows, under a blank header, are left out.
    missing: more marks than ``MISSING``.
    """
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    marks, names, columns = (*MISSING, *missing), list[str](), {}
    numbering = [list(map(str, range(first, first + len(frame)))) for first in (0, 1)]
    for number, (given, values) in enumerate(frame.reset_index(drop=True).items(), start=1):
        name = str(given).strip()
        blank = not name or name.startswith("Unnamed:")
        name = f"column {number}" if blank else name
        name = name if name not in columns else f"{name} ({number})"
        names.append(name)
        cells = trim(values, marks)
        if not (blank and cells.tolist() in numbering):
            columns[name] = cells
    return pd.DataFrame(columns, index=range(len(frame)))


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of a column, all (rows,) with its index.

    Attributes:
        values: float, NaN where a cell is none.
        beyond: Whether the cell is a limit of measurement (``<0.4``) rather than a number.
        units: The text after the number in lower case, mostly "".
        is_written: Where it is False, all cells are plain numbers.
    """

    values: pd.Series
    beyond: pd.Series
    units: pd.Series
    is_written: bool = True


def read_numbers(cells: pd.Series, decimal: str = ".") -> Numbers:
    """The numbers of a column of text.

    decimal: the mark of "1,500" or "1.500" that stands for the decimal point; the other mark separates thousands. Where a cell
    leaves no doubt ("1,5", "1.500,5", "1,500,000") it does not matter.

    Examples:
        >>> read_numbers(pd.Series(["<0.4", "1,5 kg", "1,500", "none"])).values.tolist()
        [0.4, 1.5, 1500.0, nan]
    """
    row, unique = pd.factorize(cells)
    own = pd.Series(unique, dtype=object)
    plain = own if decimal == "." else own.where(~own.str.contains(".", regex=False))
    values = pd.to_numeric(plain, errors="coerce").astype(np.float64)
    rest = own[values.isna() & (own != "")]
    beyond, units = pd.Series(False, index=own.index), pd.Series("", index=own.index, dtype=object)
    if len(rest):
        parts = rest.str.extract(f"^(?:{_NUMBER.pattern})$")
        values[rest.index] = [_number(text, decimal) for text in parts["number"]]
        beyond[rest.index] = parts["limit"].notna()
        units[rest.index] = parts["unit"].fillna("").str.lower()
    values = values.where(np.isfinite(values))

    def per_row(column: pd.Series) -> pd.Series:
        return pd.Series(column.to_numpy()[row], index=cells.index)

    return Numbers(per_row(values), per_row(beyond & values.notna()), per_row(units), len(rest) > 0)


def _number(text: object, decimal: str) -> float:
    if not isinstance(text, str):
        return np.nan
    marks = [sign for sign in text if sign in ",."]
    if len(set(marks)) == 2:
        point = marks[-1]
    elif len(marks) > 1:
        point = "" if _GROUPED.fullmatch(text) else marks[-1]
    else:
        point = decimal if _GROUPED.fullmatch(text) else "".join(marks)
    whole = text.replace("," if point == "." else ".", "") if point else text.replace(",", "").replace(".", "")
    try:
        return float(whole.replace(point, ".") if point else whole)
    except ValueError:  # several decimal points, as in a date
        return np.nan


def decimal_marks(cells: pd.Series) -> frozenset[str]:
    """The marks, "." and ",", that are decimal points in some cell beyond doubt."""
    unique = pd.Series(cells.unique(), dtype=object)
    marked = unique[unique.str.contains("[,.]", regex=True)].str.extract(f"^(?:{_NUMBER.pattern})$")["number"].dropna()
    last = [(text, mark) for text in marked if (mark := text[max(text.rfind(","), text.rfind("."))]) in ",."]
    return frozenset(mark for text, mark in last if text.count(mark) == 1 and not _GROUPED.fullmatch(text))


def missing_codes(values: pd.Series) -> list[float]:
    """The numbers, such as -9 or 999, that stand more than once and lie far from all others: codes for missing.

    9 is one only beside at most four other whole numbers up to 5.

    Examples:
        >>> missing_codes(pd.Series([120.0, 130.0, 999.0, 999.0, -9.0, -9.0]))
        [-9.0, 999.0]
    """
    given = values.dropna()
    if not (is_code := np.isin(given.to_numpy(), list(CODES))).any():
        return []
    own = given[is_code].value_counts()
    rest, codes = given[~given.isin(CODES)], []
    for code, times in sorted(own.items(), key=lambda pair: -abs(pair[0])):  # what is no code lies among the rest
        few = code != 9 or (rest.nunique() <= 4 and bool((rest % 1 == 0).all()))
        if len(rest) and few and times > 1 and (code < 0 <= rest.min() or code > 1.5 * rest.max() > 0):
            codes.append(float(code))
        else:
            rest = pd.concat([rest, given[given == code]])
    return sorted(codes)


def one_identifier(cells: pd.Series) -> pd.Series:
    """(rows,) identifiers under one spelling: "P1", "p1 " and "P 1" differ in spaces or capital letters alone, 7 and "7.0" in how
    a number is stored. To take two patients for one gives either the protection of both."""
    return cells.str.casefold().str.replace(r"\s+|\.0+$", "", regex=True)


def code_separator(given: pd.Series, most: float = 0.9) -> str:
    """What separates the codes of a column of lists of codes ("A;B"); "" where the cells are no such lists."""
    unique = pd.Series(given.unique(), dtype=object)
    for mark in ";|,":
        if given.str.contains(mark, regex=False).mean() > 1 - most:
            parts = [part.strip() for text in unique for part in text.split(mark) if part.strip()]
            if mark == ";" or sum(bool(_CODE.fullmatch(part)) for part in parts) >= most * len(parts):
                return mark
    return ""


def same_spelling(cells: pd.Series) -> dict[str, str]:
    """For each text the commonest of those that differ from it in capital letters and spaces alone."""
    counts = cells[cells != ""].value_counts()
    commonest: dict[str, str] = {}
    return {text: commonest.setdefault(" ".join(text.casefold().split()), text) for text in counts.index}


def yes_or_no(cells: pd.Series) -> pd.Series | None:
    """Cells that say no or yes in some way (0, false, alive, ...) as 0 and 1, "" where missing; None where one says neither."""
    plain = cells.str.casefold().str.replace(r"\.0+$", "", regex=True)
    is_yes, is_no = plain.isin(YES), plain.isin(NO)
    if not (is_yes | is_no | (cells == "")).all():
        return None
    return pd.Series(np.where(is_yes, "1", np.where(is_no, "0", "")), index=cells.index, dtype=object)


_SCALES = (
    ("none", "minimal", "mild", "moderate", "severe", "very severe", "critical"),
    ("very low", "low", "medium", "high", "very high"),
    ("very poor", "poor", "fair", "good", "very good", "excellent"),
)
_ROMAN = {text: number for number, text in enumerate(("i", "ii", "iii", "iv", "v", "vi", "vii", "viii"), start=1)}


def seen_order(categories: Iterable[str]) -> list[str] | None:
    """Categories in the order that their texts show: numbers, the same words around numbers, or words of one scale; or None.

    Examples:
        >>> seen_order(["NYHA IV", "NYHA I", "NYHA II"]), seen_order(["severe", "mild"]), seen_order(["home", "ward"])
        (['NYHA I', 'NYHA II', 'NYHA IV'], ['mild', 'severe'], None)
    """
    places: dict[str, float] = {}
    words = set()
    for category in categories:
        plain = " ".join(category.casefold().split())
        if scales := [(number, scale.index(plain)) for number, scale in enumerate(_SCALES) if plain in scale]:
            ((scale, places[category]),) = scales
            words.add(str(scale))
        elif match := re.fullmatch(r"(\D*?)(-?\d+(?:\.\d+)?)(\D*)", plain):
            places[category] = float(match[2])
            words.add(f"{match[1]}\0{match[3]}")
        elif (last := plain.split()[-1]) in _ROMAN:
            places[category] = _ROMAN[last]
            words.add(f"{plain.removesuffix(last)}\0")
        else:
            return None
    if len(words) > 1 or len(set(places.values())) < len(places):
        return None
    return sorted(places, key=lambda category: places[category])


def plain_name(name: str) -> str:
    """A column's name without capital letters, spaces and dots, by which hospitals' spellings are compared."""
    return re.sub(r"[\W_]+", "", name.casefold()) or name


def usual_name(names: Iterable[str], usual: Iterable[str]) -> str:
    """The first of the ``usual`` names that is among ``names``, however it is spelt; "" where there is none."""
    own = {plain_name(name): name for name in reversed(list(names))}
    return next((own[plain_name(name)] for name in usual if plain_name(name) in own), "")
