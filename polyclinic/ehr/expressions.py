"""Conditions over the columns of a table, as a person writes them: ``age >= 18 and not missing(sbp)``.

The grammar is Python's, of which only this is allowed:

- comparisons (also chained), and ``in`` and ``not in`` a list;
- ``and``, ``or``, ``not`` and ``+ - * /``;
- numbers, texts, names of columns and the functions of ``FUNCTIONS``.

Nothing is ever run as Python, every part is checked when the text is read, and no cell of a table is ever quoted.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.checks import texts
from polyclinic.ehr.dates import read_dates, whole_years
from polyclinic.ehr.events import matching
from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.types import Bools, Floats

FUNCTIONS = {
    "missing": "missing(x): the cell is missing, or the number cannot be had",
    "has": "has(x, \"I21*\", ...): the set of codes x, separated by ';', has one of these",
    "abs": "abs(x): the number without its sign",
    "days": "days(a, b): from date a to date b",
    "years": "years(a, b): whole years from date a to date b",
    "column": 'column("a name"): a column whose name is no single word',
}
LONGEST, DEEPEST = 2000, 60
_ARITHMETIC = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide}
_COMPARISONS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
                ast.Eq: operator.eq, ast.NotEq: operator.ne}  # fmt: skip
_DAY = np.timedelta64(1, "D")


@dataclass(frozen=True)
class Expression:
    """A condition that was read and checked, by ``parse``.

    Attributes:
        names: The columns that it reads.
        reads: As what, each "number", "text", "date" or "set of codes". ``holds`` never raises where every cell can be
            read so.
        compared: Numbers and texts that a column is compared with, or is to be among.

    Examples:
        >>> condition = parse("age >= 60 and not missing(sbp)")
        >>> condition.names
        ('age', 'sbp')
        >>> condition.holds(pd.DataFrame({"age": [72, 80, 45], "sbp": [140, None, 120]})).tolist()
        [True, False, False]
    """

    text: str
    names: tuple[str, ...]
    condition: Callable[[pd.DataFrame], Bools]
    reads: frozenset[tuple[str, str]]
    compared: frozenset[tuple[str, str | float]]

    def holds(self, table: pd.DataFrame) -> Bools:
        """Return (rows,) where the condition is true.

        A comparison with a missing cell is false, also one by ``!=`` or ``not in``. So is one with a number that is not
        defined (a division by 0). ``not`` makes it true, since every condition is either true or false. Cells are
        numbers against a number, under arithmetic, and where two columns are compared by ``< <= > >=``. Against a text
        they are dates by these comparisons, else texts.

        Raises:
            DataError: Naming the column, where a cell that must be a number or a date is none.
        """
        return self.condition(table)


def parse(text: str, columns: Collection[str] | None = None, what: str = "expression") -> Expression:
    """Return the condition that ``text`` states.

    Args:
        text: The condition, as in ``age >= 18 and sex == 'F'``.
        columns: The columns that it may name; None means any.
        what: What the message begins with.

    Raises:
        ConfigError: In one sentence that begins with ``what``, for all that is not allowed.

    Examples:
        >>> patients = pd.DataFrame({"los": [1, 5, 9], "sex": ["F", "M", "M"]})
        >>> parse("los > 7 or sex == 'F'", columns=patients.columns).holds(patients).tolist()
        [True, False, True]
        >>> parse("lso > 7", columns=patients.columns)
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: expression: there is no column 'lso'. Did you mean 'los'?
    """
    if len(text) > LONGEST:
        raise ConfigError(f"{what} has {len(text):,} characters; it may have {LONGEST:,}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(" ".join(text.splitlines()).strip(), mode="eval").body
        if _depth(tree) > DEEPEST:
            raise ConfigError(f"it is nested deeper than {DEEPEST} levels; write several conditions.")
        reader = _Reader(columns)
        condition = reader.condition(tree)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ConfigError(f"{what} cannot be read; write a condition such as: age >= 18 and sex == 'F'.") from None
    names = tuple(dict.fromkeys(reader.names))
    return Expression(text, names, condition, frozenset(reader.reads), frozenset(reader.compared))


def numbers(cells: pd.Series, what: str) -> Floats:
    """Cells as floats, NaN where they are missing or infinite. Raises DataError for others.

    Examples:
        >>> numbers(pd.Series(["1.5", "", "inf"]), "column 'crp'").tolist()
        [1.5, nan, nan]
    """
    if pd.api.types.is_numeric_dtype(cells):
        return _finite(cells.to_numpy(dtype=np.float64, na_value=np.nan))
    cell_texts = pd.Series(texts(cells), dtype=object)
    out = pd.to_numeric(cell_texts.where(cell_texts != ""), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if (np.isnan(out) & (cell_texts != "").to_numpy()).any():
        raise DataError(f"{what}: a cell is not a number; compare the column with a text, in quotes.")
    return _finite(out)


class _Reader:
    """Makes functions of a table from the parts of a condition, and notes the columns that they read."""

    def __init__(self, columns: Collection[str] | None) -> None:
        self.columns, self.names = columns, list[str]()
        self.reads, self.compared = set[tuple[str, str]](), set[tuple[str, str | float]]()

    def condition(self, node: ast.expr) -> Callable[[pd.DataFrame], Bools]:
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = [self.condition(value) for value in values]
                joined = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return lambda table: np.asarray(joined.reduce([part(table) for part in parts]), dtype=bool)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.condition(operand)
                return lambda table: ~inner(table)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                pairs = zip([left, *rights[:-1]], ops, rights, strict=True)
                parts = [self._comparison(first, op, other) for first, op, other in pairs]
                return lambda table: np.asarray(np.logical_and.reduce([part(table) for part in parts]), dtype=bool)
            case ast.Call() if _function(node) == "missing":
                (cell,) = _arguments(node, 1)
                return self._missing(cell)
            case ast.Call() if _function(node) == "has":
                return self._has(node)
        if self._column(node) is not None:
            raise ConfigError(f"{_text_of(node)} is not a condition; compare it, such as by {_text_of(node)} == 1.")
        raise ConfigError(
            f"{_text_of(node)} is not a condition; allowed are comparisons, and, or, not, missing() and has()."
        )

    def number(self, node: ast.expr) -> Callable[[pd.DataFrame], Floats]:
        match node:
            case ast.Constant():
                constant = _number(node)
                return lambda table: np.full(len(table), constant)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                inner = self.number(operand)
                return (lambda table: -inner(table)) if isinstance(sign, ast.USub) else inner
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                number_of_left, other, apply = self.number(left), self.number(right), _ARITHMETIC[type(op)]
                return lambda table: _calculate(apply, number_of_left(table), other(table))
            case ast.Call() if _function(node) == "abs":
                inner = self.number(_arguments(node, 1)[0])
                return lambda table: np.abs(inner(table))
            case ast.Call() if _function(node) in ("days", "years"):
                begin, end = (self.date(part) for part in _arguments(node, 2))
                if _function(node) == "years":
                    return lambda table: whole_years(begin(table), end(table)).to_numpy(dtype=np.float64)
                return lambda table: ((end(table) - begin(table)) / _DAY).to_numpy(dtype=np.float64)
        name = self._needed_column(node, "number")
        return lambda table: numbers(table[name], f"column {name!r}")

    def date(self, node: ast.expr) -> Callable[[pd.DataFrame], pd.Series]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                day = read_dates(pd.Series([_text(node)]), "")
            except DataError:
                raise ConfigError(f"{_text_of(node)} is not a date of the form '2020-01-31'.") from None
            return lambda table: day.iloc[np.zeros(len(table), dtype=np.int64)].reset_index(drop=True)
        name = self._needed_column(node, "date")
        return lambda table: read_dates(table[name], f"column {name!r}")

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Callable[[pd.DataFrame], Bools]:
        if isinstance(op, ast.In | ast.NotIn):
            return self._among(left, right, isinstance(op, ast.In))
        if type(op) not in _COMPARISONS:
            raise ConfigError("'is' is not known; write ==, or missing(x).")
        self._note_compared(left, right)
        self._note_compared(right, left)
        apply, same = _COMPARISONS[type(op)], isinstance(op, ast.Eq | ast.NotEq)
        plain = [self._column(side) is not None for side in (left, right)]
        quoted = [isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right)]
        if all(quoted):
            raise ConfigError(f"{_text_of(left)} and {_text_of(right)} are both texts; one side must be a column.")
        if same and all(a or b for a, b in zip(plain, quoted, strict=True)):
            left_text, other = self._text(left), self._text(right)
            return lambda table: _compare(apply, left_text(table), other(table))
        if any(quoted) and any(plain):
            begin, end = self.date(left), self.date(right)
            return lambda table: np.asarray(apply(begin(table), end(table)), dtype=bool)
        first, second = self.number(left), self.number(right)
        return lambda table: _compare(apply, first(table), second(table))

    def _among(self, left: ast.expr, right: ast.expr, inside: bool) -> Callable[[pd.DataFrame], Bools]:
        cells = right.elts if isinstance(right, ast.List | ast.Tuple | ast.Set) else []
        if not cells:
            raise ConfigError("'in' needs a list, such as [1, 2] or ['F', 'M'].")
        for cell in cells:
            self._note_compared(left, cell)
        if all(isinstance(cell, ast.Constant) and isinstance(cell.value, str) for cell in cells):
            text, wanted = self._text(left), [_text(cell) for cell in cells]
            return lambda table: _among(text(table), wanted, inside)
        number, allowed = self.number(left), [_number(cell) for cell in cells]
        return lambda table: _among(number(table), allowed, inside)

    def _missing(self, node: ast.expr) -> Callable[[pd.DataFrame], Bools]:
        if (name := self._column(node)) is not None:
            return lambda table: np.array([cell == "" for cell in texts(table[name])], dtype=np.bool_)
        number = self.number(node)
        return lambda table: np.isnan(number(table))

    def _has(self, call: ast.Call) -> Callable[[pd.DataFrame], Bools]:
        cell, *codes = _arguments(call, None)
        name, wanted = self._needed_column(cell, "set of codes"), [_text(code) for code in codes]
        if not wanted:
            raise ConfigError(f"has() needs codes: {FUNCTIONS['has']}.")
        return lambda table: _has(table[name], wanted)

    def _text(self, node: ast.expr) -> Callable[[pd.DataFrame], NDArray[np.object_]]:
        if isinstance(node, ast.Constant):
            constant = _text(node)
            return lambda table: np.full(len(table), constant, dtype=object)
        name = self._needed_column(node, "text")
        return lambda table: np.array([cell or None for cell in texts(table[name])], dtype=np.object_)

    def _needed_column(self, node: ast.expr, what: str) -> str:
        if (name := self._column(node)) is None:
            raise ConfigError(f"{_text_of(node)} stands where a {what} or a column must.")
        self.reads.add((name, what))
        return name

    def _note_compared(self, cell: ast.expr, value: ast.expr) -> None:
        """Note where a column alone is compared with a number or a text."""
        constant = _constant(value)
        if constant is not None and (name := self._column(cell)) is not None:
            self.compared.add((name, constant))

    def _column(self, node: ast.expr) -> str | None:
        """The column that a part of the condition names; None for other parts."""
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Call) and _function(node) == "column":
            name = _text(_arguments(node, 1)[0])
        else:
            return None
        if self.columns is not None and name not in self.columns:
            raise ConfigError(f"there is no column {name!r}.{nearest(name, self.columns)}")
        self.names.append(name)
        return name


def _function(call: ast.Call) -> str:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name not in FUNCTIONS:
        raise ConfigError(
            f"{_text_of(call)} is not allowed; functions are {', '.join(FUNCTIONS)}.{nearest(name, FUNCTIONS)}"
        )
    return name


def _arguments(call: ast.Call, count: int | None) -> list[ast.expr]:
    if call.keywords or any(isinstance(part, ast.Starred) for part in call.args) or count not in (None, len(call.args)):
        raise ConfigError(f"{_text_of(call)} is not how it is written: {FUNCTIONS[_function(call)]}.")
    if not call.args:
        raise ConfigError(f"{_text_of(call)} needs more: {FUNCTIONS[_function(call)]}.")
    return call.args


def _number(node: ast.expr) -> float:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        try:
            value = float(node.value)  # type: ignore[arg-type]
        except OverflowError:
            value = np.inf
        if np.isfinite(value):
            return value
    raise ConfigError(f"{_text_of(node)} is not a finite number.")


def _constant(node: ast.expr) -> str | float | None:
    """The number or the text that a part of the condition is; None for other parts."""
    match node:
        case ast.Constant(value=str()):
            return _text(node)
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return _number(node)
    return None


def _text(node: ast.expr) -> str:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise ConfigError(f"{_text_of(node)} must be a text in quotes.")
    if not node.value.strip():
        raise ConfigError("an empty text equals no cell; write missing(x).")
    return node.value.strip()


def _text_of(node: ast.expr) -> str:
    """A part of the condition as one short word for a message."""
    words = " ".join(ast.unparse(node).split())
    return words if len(words) <= 40 else f"{words[:37]}..."


def _depth(tree: ast.AST) -> int:
    layer, depth = [tree], 0
    while layer:
        layer, depth = [child for node in layer for child in ast.iter_child_nodes(node)], depth + 1
    return depth


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _calculate(apply: np.ufunc, left: Floats, right: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return _finite(apply(left, right))


def _compare(apply: Callable[..., object], left: NDArray, right: NDArray) -> Bools:  # type: ignore[type-arg]
    present = ~(pd.isna(left) | pd.isna(right))
    return np.asarray(present & np.asarray(apply(left, right)), dtype=bool)


def _among(cells: NDArray, wanted: list[str] | list[float], inside: bool) -> Bools:  # type: ignore[type-arg]
    inside_list = pd.Series(cells).isin(wanted).to_numpy(dtype=bool)
    return np.asarray(inside_list if inside else ~inside_list & ~pd.isna(cells), dtype=bool)


def _has(cells: pd.Series, wanted: list[str]) -> Bools:
    codes = pd.Series(texts(cells), dtype=object).str.split(";").explode().astype(object).str.strip()
    matches = pd.Series(matching(codes, wanted) & (codes != "").to_numpy(), index=codes.index)
    return np.asarray(matches.groupby(level=0).any(), dtype=bool)
