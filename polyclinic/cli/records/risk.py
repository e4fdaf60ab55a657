"""``polyclinic risk`` and ``polyclinic link``: how far patients of a table can be told apart, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, loading, number, style_lines, table
from polyclinic.errors import ConfigError

Names = list[str] | None
Records = Annotated[Path, typer.Argument(help="CSV or Parquet file of records.")]
Quasi = Annotated[
    Names, typer.Option(metavar="COLUMNS", help="Columns that an outsider may know, such as age,sex,zip; repeatable.")
]
Unit = Annotated[
    str | None,
    typer.Option(
        help="Column that names the patient; each counts once. Default: the schema's patient_id, or each row is a patient."
    ),
]
SchemaFile = Annotated[Path | None, typer.Option(help="TOML file of the schema, whose roles then name the columns.")]
Hierarchies = Annotated[Path | None, typer.Option(help="TOML file of how columns are generalised.")]

GUARANTEE = (
    "k-anonymity is no guarantee against an outsider who knows more than these columns, nor differential privacy."
)
INSIDE = "These figures are exact and come from patients' records: they are not private and stay in the hospital."
_SHOWN_SETS = 12
_MEASURES = {
    "l": "l-diversity", "entropy_l": "entropy l-diversity", "recursive_c": "recursive (c, l): c above", "alpha": "alpha",
    "t": "t-closeness", "basic_beta": "basic beta-likeness", "enhanced_beta": "enhanced beta-likeness",
    "delta": "delta-disclosure",
}  # fmt: skip


def risk(
    records: Records,
    quasi: Quasi = None,
    sensitive: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="Column that nobody may learn, such as disease; repeatable.")
    ] = None,
    unit: Unit = None,
    schema: SchemaFile = None,
    largest_set: Annotated[int, typer.Option(help="Largest number of quasi-identifiers in a set.", min=1)] = 4,
    as_json: Json = False,
) -> None:
    """Say how many patients stand alone in a table, by which columns, and what its classes tell of sensitive ones.

    It looks at the records themselves, inside the hospital: what it prints is not private.
    """
    with loading():
        from polyclinic.ehr.anonymity import exposure

    exposed = exposure.table_of(records, schema, names(quasi), names(sensitive), unit)
    notes = [INSIDE, GUARANTEE, *exposed.notes]
    result = {"records": str(records), **exposure.assess(exposed, largest_set), "notes": notes}
    answer(as_json, result, *_describe_risk(result))


def link(
    records: Records,
    outside: Annotated[Path, typer.Argument(help="CSV or Parquet file that an outsider has.")],
    on: Annotated[
        list[str], typer.Option(metavar="COLUMNS", help="Columns of both tables, such as born,sex,zip; repeatable.")
    ],
    after: Annotated[Path | None, typer.Option(help="The anonymised records, which are attacked as well.")] = None,
    sensitive: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="Column that the outsider wants to learn; repeatable.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Column that names the patient. Default: each row is a patient.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=NUMBER",
            help="How far apart a column's numbers may lie and still match, such as age=1; repeatable.",
        ),
    ] = None,
    hierarchies: Hierarchies = None,
    as_json: Json = False,
) -> None:
    """Attack a table: join it to an outside one, and count the people who are found; of names none is printed."""
    with loading():
        from polyclinic.ehr import anonymity
        from polyclinic.ehr.anonymity import exposure

    shared, wanted = names(on), names(sensitive)
    result = exposure.attack(
        anonymity.Records(anonymity.read_table(records), shared, wanted, unit), anonymity.read_table(outside),
        anonymity.read_table(after) if after else None, anonymity.read_hierarchies(hierarchies) if hierarchies else {},
        _tolerances(tolerance or []),
    )  # fmt: skip
    result["notes"] = [INSIDE, GUARANTEE, *result["notes"]]
    attacks = {"before": result["before"], **({"after": result["after"]} if after else {})}
    rows = {
        "people of the outside table": "people", "who fit any patient": "matched",
        "found: one patient fits, and no one else": "re_identified", "narrowed to 2 to 4 patients": "narrowed",
        "patients who fit, on average": "mean_candidates",
    }  # fmt: skip
    cells = [(title, *(_figure(attack[key]) for attack in attacks.values())) for title, key in rows.items()]
    cells += [
        (f"whose {name} is certain", *(_figure(attack["disclosed"][name]) for attack in attacks.values()))
        for name in wanted
    ]
    linked = table((f"linked by {', '.join(shared)}", *attacks), cells)
    answer(as_json, {"on": shared, **result}, linked, *style_lines("dim", *result["notes"]))


def _tolerances(given: list[str]) -> dict[str, float]:
    """By column the number of each ``COLUMN=NUMBER``. Raises ConfigError for what is none."""
    tolerances = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            tolerances[name.strip()] = float(number)
        except ValueError:
            raise ConfigError(f"--tolerance is {text!r}; give a column and a number, as age=1.") from None
    return tolerances


def names(given: Names) -> list[str]:
    """The columns of an option that takes ``a,b`` and may be repeated."""
    return list(dict.fromkeys(name.strip() for text in given or [] for name in text.split(",") if name.strip()))


def _describe_risk(result: dict[str, Any]) -> Iterator[str | Text | Table]:
    yield (
        f"{result['patients']:,} patients in {result['rows']:,} rows, told apart by {', '.join(result['quasi'])}: "
        f"k = {result['k']}, {result['classes']:,} classes, {result['unique']:,} patients ({result['unique_share']:.1%}) alone"
    )
    yield f"Chance to find a patient by them: {result['highest_risk']:.1%} at most, {result['average_risk']:.1%} on average"
    # The sets by which most patients stand alone, the fewest columns first where they tell the same.
    sets = result["sets"]
    worst = sorted(sets, key=lambda subset: (-subset["unique"], len(subset["columns"])))[:_SHOWN_SETS]
    more = f" (of {len(sets)} sets, the {len(worst)} worst)" if len(sets) > len(worst) else ""
    yield table(
        (f"known columns{more}", "k", "classes", "patients alone", "share"),
        ((", ".join(row["columns"]), str(row["k"]), f"{row['classes']:,}", f"{row['unique']:,}", f"{row['share']:.1%}")
         for row in worst),
    )  # fmt: skip
    if sensitive := result["sensitive"]:
        yield table(
            ("worst class, by sensitive column", *sensitive),
            ((title, *("infinite" if spread[key] is None else _figure(spread[key]) for spread in sensitive.values()))
             for key, title in _MEASURES.items()),
        )  # fmt: skip
    yield from style_lines("dim", *result["notes"])


def _figure(value: float | int | None) -> str:
    return f"{value:,}" if isinstance(value, int) else number(value)
