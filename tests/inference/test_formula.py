"""A formula's design: as statsmodels has it of pooled records, by the schema alone, and nothing of it run as Python."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.training.regression.formula import design_of
from tests.inference.records import LAYOUT, records, rows

TABLE = records()
Z = rows(TABLE)


@pytest.mark.parametrize("formula", [
    "died ~ age + sex", "died ~ 0 + region", "stay ~ age * C(region) + bmi:sex", "died ~ C(region, Treatment('south')):smokes",
    "visits ~ (age + sex + region)**2 - age:sex", "stay ~ grade + ward + I(age**2) + np_log", "died ~ region:ward + region",
    "log(visits + 1) ~ I((age - 60) / 10) + sqrt(bmi)", "died ~ C(sex) + bs(bmi, knots=[20, 26, 32])", "died ~ 1",
])  # fmt: skip
def test_a_design_is_that_of_pooled_records(formula: str) -> None:
    from formulaic import Formula
    from formulaic.transforms.basis_spline import basis_spline

    formula = formula.replace("np_log", "log(age)")
    table = TABLE.copy()
    for name in ("region", "grade", "ward", "smokes"):
        column = next(column for column in LAYOUT.schema.columns if column.name == name)
        table[name] = pd.Categorical(table[name], list(column.categories))

    def bs(x: object, knots: list[float]) -> object:
        return basis_spline(x, knots=knots, lower_bound=12, upper_bound=60, _state={})

    theirs = (
        Formula(formula)
        .get_model_matrix(table, context={"bs": bs, "log": np.log, "sqrt": np.sqrt}, na_action="drop")
        .rhs
    )
    design = design_of(formula, LAYOUT)
    x, _, complete = design.rows(Z)
    mine = pd.DataFrame(x[complete], columns=list(design.names))
    assert len(mine) == len(theirs) and mine.shape[1] == theirs.shape[1]
    by_theirs = theirs.to_numpy(dtype=float)
    # The same columns, whatever their names and order.
    for column in mine.to_numpy().T:
        assert np.abs(by_theirs - column[:, None]).max(axis=0).min() < 1e-9 * max(1.0, np.abs(column).max())
    if "bs" not in formula:
        assert set(mine) == set(theirs.columns)


def test_public_scales_bound_every_row_and_a_lone_category_moves_no_column() -> None:
    design = design_of("died ~ age * region + poly(bmi, 3) + log(visits + 1)", LAYOUT)
    x = design.rows(Z)[0]
    assert (np.abs(x) <= design.bound * (1 + 1e-12)).all() and (design.spread > 0).all()
    north = rows(TABLE[TABLE["region"] == "north"])
    assert design.rows(north)[0].shape[1] == x.shape[1]
    alone = np.concatenate([design.rows(Z[at : at + 1])[0] for at in range(20)])
    assert (alone == x[:20]).all()


@pytest.mark.parametrize("part", [
    "__import__('os').system('true')", "I(__import__('os'))", "{age}", "Q('age')", "age.values", "I(age[0])", "center(age)",
    "C(age, contr.sum)", "exp(exp)", "log(lambda: 1)", "I(age if 1 else 2)", "eval('1')", "open('x')", "I(age**bmi)", "C('age')",
    "bs(age)", "bs(age, df=open('x'))", "bs(age, knots=[10, 200])", "poly(age, 99)", "I('a' * 9**9)", "`age; 1`", ".",
    "I(9**9**9)", "hashed(age)", "I(age + 1" + "0" * 400 + ")", "bs(age, df=1e999)", "bs(age, df=2)",
    "lag(age)", "C(bmi)", "log(region)", "C(region, Treatment('east'))", "nobody", "log(age - 50)",
    "age**2**2", "2.5",
    "bs(age, df=4, degree=-10000000000)", "bs(age, degree=1e400)", f"I(age * 1{'0' * 400})", "I(age - 1e400)",
])  # fmt: skip
def test_nothing_else_is_allowed_and_nothing_of_it_is_run(part: str) -> None:
    with pytest.raises(ConfigError, match="formula"):
        design_of(f"died ~ sex + {part}", LAYOUT)


@given(text=st.text(max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        design_of(text, LAYOUT)
    except ConfigError as error:
        assert str(error).count("\n") == 0


@pytest.mark.parametrize(("formula", "said"), [
    ("age + sex", "needs one outcome|cannot be read"), ("died + sex ~ age", "one outcome"), ("died ~ died", "outcome 'died'"),
    ("died ~ ag", "Did you mean 'age'"), ("died ~ log(visits)", "not a number where visits is 0"), ("a" * 501, "may have 500"),
    ("died ~ (age + bmi + sex)**9", "power 9; allowed are 1 to 4"), ("died ~ age**2**2", "cannot be read|terms|column"),
    ("died ~ " + "*".join("abcdefghijklmnopqrst"), "terms; it may"),
    ("died ~ (" + "+".join("abcdefghijklmnopqrstuvwxyz") + ")**4", "terms; it may"),
    ("died ~ " + ":".join(["C(age)", "C(visits)", "C(sex)"] * 3), "columns|number"),
    ("died ~ 0", "allowed are 1 to"), ("", "outcome|cannot"),
])  # fmt: skip
def test_a_refusal_says_what_and_how(formula: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        design_of(formula, LAYOUT)
