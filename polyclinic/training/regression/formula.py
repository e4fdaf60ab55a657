"""A regression's formula, read against the public schema: the columns of its design, and their values in a row.

formulaic reads the operators and decides which categories a term leaves out. What stands between them is read here and never run
as Python: a column, or one of ``CALLS`` of one column, with numbers and texts. Categories, knots and scales are the schema's, so
that all hospitals have the same design whatever their records are.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import comb, prod
from typing import Any

import numpy as np
from numpy.polynomial.legendre import legvander

from polyclinic.ehr.encoding import public_scale
from polyclinic.ehr.schema import Column
from polyclinic.errors import ConfigError, nearest, several
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats

Numbers = Callable[[Floats], Floats]
Products = tuple[tuple[tuple[int, int], ...], ...]
_FUNCTIONS: Mapping[str, Numbers] = {
    "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "exp": np.exp, "I": lambda values: values,
}  # fmt: skip
#: All that may be called in a formula.
CALLS = (
    "C(column), C(column, Treatment('reference')), log, log1p, sqrt, exp and I of one column and numbers, poly(column, degree), "
    "bs(column, df=4) and bs(column, knots=[50, 60])"
)
_ARITHMETIC = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow,
}  # fmt: skip
_CALLED = {"C", "Treatment", "poly", "bs", *_FUNCTIONS}
_UNREADABLE = (SyntaxError, ValueError, TypeError, OverflowError, MemoryError, RecursionError)
_LONGEST, _MOST_TERMS, _MOST_COLUMNS, _MOST_POWER, _MOST_LEVELS, _MOST_DEGREE, _GRID = 500, 1000, 200, 4, 50, 8, 1001
_LARGEST = 1e300  # of a number in a formula


@dataclass(frozen=True, eq=False)
class Source:
    """A column of the records, ``name``, which is one step of a trajectory where it has steps.

    read: Of rows (n, D) of a layout its numbers, or those of its ``levels``; NaN where missing.
    """

    name: str
    column: Column
    read: Numbers
    levels: tuple[str, ...] = ()

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number, by public bounds."""
        return self.column.bounds or (0.0, 1.0)

    @cached_property
    def grid(self) -> Floats:
        """(g,) numbers that it may have: all of whole ones, where they are few."""
        low, high = self.ends
        whole = self.column.kind in ("integer", "binary") and high - low < _GRID
        return np.linspace(low, high, int(high - low) + 1 if whole else _GRID)


@dataclass(frozen=True, eq=False)
class Factor:
    """A part of a term. parts: Names of its columns; of ``categories`` all, the reference first. values: (n, parts) of numbers.

    centre, spread, bound: (parts,) mean, standard deviation and largest size by what is public of its column.
    """

    text: str
    source: Source
    parts: tuple[str, ...]
    values: Numbers
    centre: Floats
    spread: Floats
    bound: Floats
    categories: bool = False

    def columns(self, reduced: bool) -> list[tuple[int, str]]:
        """The numbers and names of its columns in a term. reduced: without the reference."""
        names = [f"{self.text}[{'T.' if reduced else ''}{part}]" for part in self.parts]
        return list(enumerate(names if self.categories or len(names) > 1 else [self.text]))[int(reduced) :]


@dataclass(frozen=True, eq=False)
class Design:
    """The design of a formula: ``names`` of its p columns, each the product of columns of ``factors``; none: the intercept."""

    outcome: Factor
    factors: tuple[Factor, ...]
    names: tuple[str, ...]
    products: Products

    @property
    def intercept(self) -> Bools:
        """(p,) which column is the intercept."""
        return np.array([not product for product in self.products])

    def rows(self, z: Floats) -> tuple[Floats, Floats, Bools]:
        """(n, p) design and (n,) outcomes of rows (n, D), and where nothing of the formula is missing; 0 elsewhere."""
        read = [factor.source.read(z) for factor in (self.outcome, *self.factors)]
        complete = np.asarray(np.isfinite(read).all(axis=0))
        y, *values = (
            factor.values(np.where(complete, own, factor.source.grid[-1]))
            for factor, own in zip((self.outcome, *self.factors), read, strict=True)
        )
        x = np.repeat(complete[:, None] * 1.0, len(self.products), axis=1)
        for at, product in enumerate(self.products):
            for factor, part in product:
                x[:, at] *= values[factor][:, part]
        return x, y[:, -1] * complete, complete

    @cached_property
    def bound(self) -> Floats:
        """(p,) the largest size of each column's values by public bounds."""
        return self._product_of(lambda factor: factor.bound)

    @cached_property
    def centre(self) -> Floats:
        """(p,) public means, of products as of independent factors; 0 of the intercept, and of all where there is none."""
        return self._product_of(lambda factor: factor.centre) * (self.intercept.any() & ~self.intercept)

    @cached_property
    def spread(self) -> Floats:
        """(p,) public standard deviations around ``centre``; 1 of the intercept."""
        squares = self._product_of(lambda factor: factor.centre**2 + factor.spread**2)
        return np.sqrt(np.maximum(squares - self.centre**2, 1e-12 * squares))

    def _product_of(self, of: Callable[[Factor], Floats]) -> Floats:
        values = [of(factor) for factor in self.factors]
        return np.array([float(np.prod([values[f][part] for f, part in product])) for product in self.products])


def design_of(formula: str, layout: Layout) -> Design:
    """The design of a formula such as ``died ~ age + C(region) + age:sex`` over the rows of a layout.

    Raises ConfigError, in one sentence that names the part, for all that is not allowed; nothing of it was run.
    """
    from formulaic import Formula  # a second to load, with pandas
    from formulaic.parser import DefaultFormulaParser

    if len(formula) > _LONGEST:
        raise ConfigError(f"The formula has {len(formula):,} characters; it may have {_LONGEST}.")
    if any(sign in formula for sign in "{}`"):
        raise ConfigError("The formula has a brace or a backtick, neither of which is allowed; write names of columns.")
    try:
        if (terms := _terms(DefaultFormulaParser().get_ast(formula))) > _MOST_TERMS:
            raise ConfigError(f"The formula stands for {terms:,} terms; it may have {_MOST_TERMS}.")
        parsed = Formula(formula)
        left, right = ([[part.expr for part in term.factors] for term in side] for side in (parsed.lhs, parsed.rhs))
    except ConfigError:
        raise
    except Exception:  # its own or Python's, whose traceback tells a user nothing
        raise ConfigError("The formula cannot be read; write one such as died ~ age + C(region).") from None
    if len(left) != 1 or len(left[0]) != 1:
        raise ConfigError("The formula needs one outcome to the left of ~, as in died ~ age.")
    sources = dict(_sources(layout))
    outcome = _factor(left[0][0], sources)
    texts = dict.fromkeys(part for term in right for part in term if part != "1")
    factors = tuple(_factor(text, sources) for text in texts)
    if any(factor.source is outcome.source for factor in factors):
        raise ConfigError(f"The formula has its outcome {outcome.source.column.name!r} among its terms.")
    parts = {factor.text: len(factor.parts) for factor in factors}
    most = sum(prod(parts.get(part, 1) for part in term) for term in right)
    if most > _MOST_TERMS:
        raise ConfigError(f"The formula's categories make {most:,} columns; allowed are {_MOST_COLUMNS}.")
    names, products = _structure(right, factors) if right else ((), ())
    if not 0 < len(names) <= _MOST_COLUMNS:
        raise ConfigError(f"The formula has {len(names)} columns in its design; allowed are 1 to {_MOST_COLUMNS}.")
    return Design(outcome, factors, names, products)


def _terms(tree: Any) -> int:
    """At most how many terms a formula's tree stands for, before formulaic writes them out."""
    if not hasattr(tree, "operator"):
        return 1
    sizes = [min(_terms(part), _MOST_TERMS + 1) for part in tree.args]
    match tree.operator.symbol, sizes:
        case "*" | "/", [left, right]:
            return left + right + left * right
        case ":" | "in", [left, right]:
            return left * right
        case "**" | "^", [left, _]:
            power = int(str(tree.args[1]))
            if not 1 <= power <= _MOST_POWER:
                raise ConfigError(
                    f"The formula has the power {power}; allowed are 1 to {_MOST_POWER}, and I(age**2) of a column."
                )
            return sum(comb(left, factors) for factors in range(1, power + 1))
        case _:
            return sum(sizes)


def _structure(terms: list[list[str]], factors: tuple[Factor, ...]) -> tuple[tuple[str, ...], Products]:
    """Names and products of the columns, as formulaic makes them of a made-up table of each factor's categories."""
    import pandas as pd
    from formulaic import Formula
    from formulaic.parser.types import Factor as Part
    from formulaic.parser.types import Term

    rows = max([2, *(len(factor.parts) for factor in factors)])
    table = pd.DataFrame({"1": np.ones(rows)} | {
        factor.text: pd.Categorical.from_codes(np.arange(rows) % len(factor.parts), list(factor.parts))
        if factor.categories else np.arange(rows) + 1.0
        for factor in factors
    })  # fmt: skip
    looked_up = [
        Term([Part(text, eval_method="literal" if text == "1" else "lookup") for text in term]) for term in terms
    ]
    place = {factor.text: at for at, factor in enumerate(factors)}
    built: list[tuple[str, tuple[tuple[int, int], ...]]] = []
    for encoded in Formula(looked_up).get_model_matrix(table).model_spec.structure:
        for scoped in encoded.scoped_terms:
            columns: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
            for part in scoped.factors:
                at = place[part.factor.expr]
                own = factors[at].columns(part.reduced)
                columns = [(f"{done}:{name}", (*made, (at, number))) for number, name in own for done, made in columns]
            built += columns
    return tuple(name[1:] or "Intercept" for name, _ in built), tuple(product for _, product in built)


def _sources(layout: Layout) -> Iterator[tuple[str, Source]]:
    """By name, the columns of a layout's rows that a formula may have: its features and its label."""

    def number(place: int, low: float, high: float, whole: bool) -> Numbers:
        absent = layout.missing.start + int(layout.nullable[:place].sum()) if layout.nullable[place] else None

        def read(z: Floats) -> Floats:
            values = low + (z[:, place] * layout.std[place] + layout.mean[place] + 1) / 2 * (high - low)
            values = np.rint(values) if whole else values
            return values if absent is None else np.where(z[:, absent] > 0.5, np.nan, values)

        return read

    def code(at: slice, first: bool) -> Numbers:
        """first: the first category has no place of its own."""

        def read(z: Floats) -> Floats:
            lone = 0.5 if first else np.nan
            return np.where(z[:, at].max(axis=1) > 0.5, z[:, at].argmax(axis=1) + float(first), lone - 0.5)

        return read

    for column, at in layout.columns:
        low, high = column.bounds or ((0.0, len(column.categories) - 1.0) if column.kind == "ordinal" else (-1.0, 1.0))
        for step, name in enumerate(column.record_names):
            whole = column.kind != "continuous" and (column.kind != "trajectory" or column.whole)
            if column.kind == "categorical":
                yield name, Source(name, column, code(at, column.drop_first), column.categories)
            elif column.kind != "code_set":
                yield name, Source(name, column, number(at.start + step, low, high, whole), column.categories)
    label = layout.schema.label
    if layout.label_scale:
        centre, scale = layout.label_scale
        rounded: Numbers = np.rint if label.kind == "integer" else np.asarray
        yield label.name, Source(label.name, label, lambda z: rounded(centre + scale * z[:, -1]))
    else:
        yield label.name, Source(label.name, label, code(layout.label, False), label.categories)


def _factor(text: str, sources: Mapping[str, Source]) -> Factor:
    """The factor that a part of the formula states. Raises ConfigError for all others than ``CALLS``."""
    refused = ConfigError(f"The formula's {text!r} is not allowed: a part is a column of the schema, or {CALLS}.")
    try:
        tree = ast.parse(text, mode="eval").body
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _CALLED
    except _UNREADABLE:
        raise refused from None
    if len(names) != 1:
        raise refused
    (name,) = names
    if name not in sources:
        raise ConfigError(
            f"The formula names {name!r}, which is none of its columns, {several(sources, 20)}.{nearest(name, sources)}"
        )
    source, levels = sources[name], sources[name].levels
    match tree:
        case ast.Name() if levels:
            return _categories(text, source, None)
        case ast.Call(ast.Name("C"), [ast.Name()], []):
            return _categories(text, source, None)
        case ast.Call(
            ast.Name("C"), [ast.Name(), ast.Call(ast.Name("Treatment"), [ast.Constant(str() | int() as value)], [])], []
        ):
            return _categories(text, source, str(value))
        case _ if levels:
            raise ConfigError(f"The formula takes {name!r} as a number, but it has categories; write C({name}).")
        case ast.Call(ast.Name("poly"), [ast.Name(), ast.Constant(int() as degree)], []) if 0 < degree <= _MOST_DEGREE:
            return _numeric(text, source, _polynomial(source, degree))
        case ast.Call(ast.Name("bs"), [ast.Name()], given):
            return _numeric(text, source, _spline(text, source, {part.arg: part.value for part in given}))
        case ast.Call(ast.Name(function), [inner], []) if function in _FUNCTIONS:
            apply, arithmetic = _FUNCTIONS[function], _arithmetic(inner, refused)
            return _numeric(text, source, lambda values: apply(arithmetic(values))[:, None])
        case ast.Name():
            return _numeric(text, source, lambda values: values[:, None])
    raise refused


def _arithmetic(node: ast.expr, refused: ConfigError) -> Numbers:
    """A function of a column's numbers, by arithmetic with other numbers."""
    match node:
        case ast.Name(name) if name not in _FUNCTIONS:
            return lambda values: values
        case ast.Constant(int() | float() as value) if abs(value) < _LARGEST:
            number = np.float64(value)
            return lambda values: np.full_like(values, number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _arithmetic(operand, refused)
            return lambda values: -inner(values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            on_left, other, apply = _arithmetic(left, refused), _arithmetic(right, refused), _ARITHMETIC[type(op)]
            return lambda values: apply(on_left(values), other(values))
    raise refused


def _categories(text: str, source: Source, reference: str | None) -> Factor:
    codes = np.arange(float(len(source.levels))) if source.levels else source.grid
    levels = source.levels or tuple(f"{value:g}" for value in codes)
    if len(levels) > max(_MOST_LEVELS, len(source.levels)):
        raise ConfigError(f"The formula's {text!r} needs categories; its column has more than {_MOST_LEVELS} numbers.")
    if reference is not None and reference not in levels:
        raise ConfigError(f"The formula's {text!r} must have one of {', '.join(levels)}.{nearest(reference, levels)}")
    order = sorted(range(len(levels)), key=lambda at: levels[at] != (reference or levels[0]))
    ones = np.ones(len(levels))
    return Factor(
        text, source, tuple(levels[at] for at in order), lambda values: (values[:, None] == codes[order]) * 1.0, 0 * ones, ones,
        ones, True,
    )  # fmt: skip


def _polynomial(source: Source, degree: int) -> Numbers:
    """Legendre's polynomials over the public bounds, where they are orthogonal."""
    low, high = source.ends
    return lambda values: np.asarray(legvander((2 * values - low - high) / (high - low), degree)[:, 1:], np.float64)


def _spline(text: str, source: Source, options: Mapping[str | None, ast.expr]) -> Numbers:
    """B-splines between the public bounds, without the first, which the intercept has; knots given or evenly spaced."""
    from scipy.interpolate import BSpline

    low, high = source.ends
    try:
        given = {name: ast.literal_eval(value) for name, value in options.items()}
        degree, df, knots = int(given.pop("degree", 3)), given.pop("df", None), given.pop("knots", None)
        if not 1 <= degree <= _MOST_DEGREE:  # before so many knots are made
            raise ValueError
        even = np.linspace(low, high, min(int(df or 0), _MOST_LEVELS) - degree + 2)[1:-1] if knots is None else ()
        inner = np.asarray(even if knots is None else knots, float)
        rising = np.diff([low, *inner, high]) > 0
        few = int(df) < degree if knots is None else df is not None
        if given or few or not rising.all() or len(inner) > _MOST_LEVELS:
            raise ValueError
    except _UNREADABLE:
        raise ConfigError(
            f"The formula's {text!r} is not a spline: give df, of 3 or more, or knots that rise between the public bounds "
            f"{low:g} and {high:g}, as bs(age, knots=[50, 60])."
        ) from None
    knotted = np.concatenate([[low] * (degree + 1), inner, [high] * (degree + 1)])
    return lambda values: BSpline.design_matrix(np.clip(values, low, high), knotted, degree).toarray()[:, 1:]


def _numeric(text: str, source: Source, values: Numbers) -> Factor:
    """Raises ConfigError where a value within the public bounds is not a number."""
    with np.errstate(all="ignore"):
        grid = values(source.grid)
    finite = np.isfinite(grid).all(axis=1)
    if not finite.all():
        name, at = source.column.name, source.grid[~finite][0]
        raise ConfigError(f"The formula's {text!r} is not a number where {name} is {at:g}, as it may be; shift {name}.")
    centre, spread = public_scale(source.column) if source.column.bounds else (0.5, 0.5)
    usual, bound = grid[np.abs(source.grid - centre) <= 2.001 * spread], np.maximum(np.abs(grid).max(axis=0), 1e-300)
    deviation = np.where(usual.std(axis=0) > 1e-9 * bound, usual.std(axis=0), bound)
    parts = tuple(str(at + 1) for at in range(grid.shape[1]))
    return Factor(text, source, parts, values, usual.mean(axis=0), deviation, bound)
