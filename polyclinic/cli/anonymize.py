"""``polyclinic anonymize`` and ``polyclinic coarsen``: records with less detail, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polyclinic.cli.risk import GUARANTEE, HIERARCHIES, INSIDE, RECORDS, SCHEMA, UNIT, Names, names
from polyclinic.cli.terminal import Json, console, loading, number, print_json
from polyclinic.errors import ConfigError
from polyclinic.files import Content, write_outputs

OUT = typer.Option(help="The file to write: .csv, .csv.gz or .parquet.", show_default=False)
FORCE = typer.Option("--force", help="Replace files that exist.")


def anonymize(
    records: Annotated[Path, RECORDS],
    out: Annotated[Path, OUT],
    k: Annotated[int, typer.Option(help="Patients who look alike, at least.")] = 5,
    quasi: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="What an outsider may know, as in age,sex,zip; repeatable.")
    ] = None,
    sensitive: Annotated[Names, typer.Option(metavar="COLUMNS", help="What l and t are about; repeatable.")] = None,
    diversity: Annotated[int, typer.Option("--l", help="Values of a sensitive column in a class, at least.")] = 1,
    closeness: Annotated[
        float | None,
        typer.Option("--t", help="Distance of a class's sensitive values to the table's, at most.", show_default=False),
    ] = None,
    suppression: Annotated[float, typer.Option(help="Share of patients who may lose a row.")] = 0.05,
    method: Annotated[
        str, typer.Option(help="lattice: one level for a whole column; mondrian: labels by class.")
    ] = "lattice",
    drop: Annotated[Names, typer.Option(metavar="COLUMNS", help="Columns to leave out, such as names.")] = None,
    keep: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="Columns to keep although every patient's cell differs.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of two values: compare how well it is predicted before and after.", show_default=False
        ),
    ] = None,
    unit: Annotated[str | None, UNIT] = None,
    hierarchies: Annotated[Path | None, HIERARCHIES] = None,
    schema: Annotated[Path | None, SCHEMA] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw class sizes before and after: .svg or .png.", show_default=False)
    ] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Json = False,
) -> None:
    """Write a k-anonymous table: coarser quasi-identifiers, few suppressed rows, the least loss that reaches the target.

    The column of patients' ids is left out. With --schema, the schema of the new table is written beside it.

    It looks at the records, inside the hospital: the result is k-anonymous, which is not differential privacy.
    """
    with loading():
        import numpy as np

        from polyclinic.ehr import anonymity
        from polyclinic.ehr.anonymity import exposure
        from polyclinic.ehr.anonymity.hierarchies import without_unknown
        from polyclinic.ehr.sources.files import check_suffix

    check_suffix(out)
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise ConfigError(f"{plot}: a plot is an .svg or a .png file.")
    target = anonymity.Target(k, diversity, closeness, suppression)
    table = exposure.table_of(records, schema, names(quasi), names(sensitive), unit)
    declared = anonymity.read_hierarchies(hierarchies) if hierarchies else {}
    without_unknown(declared, table.quasi, str(hierarchies))
    left_out = [*names(drop), *([table.unit] if table.unit else [])]
    exposure.check_dropped(table, left_out, names(keep), label)
    release = anonymity.anonymise(
        table.table, table.quasi, target, table.sensitive, table.unit, declared, method, table.schema  # type: ignore[arg-type]
    )  # fmt: skip
    auroc = exposure.learned(table, release, label, left_out) if label else None
    # The records' own order would align this release with the table, and with another release of it.
    order = np.random.default_rng().permutation(len(release.records))
    released = release.records.drop(columns=left_out).iloc[order]
    files: dict[Path, Content] = {out: lambda path: anonymity.write_table(released, path)}
    if table.schema is not None:
        fitted = anonymity.fitting_schema(table.schema, release, left_out)
        files[_beside(out)] = fitted.to_toml
    before = anonymity.equivalence_classes(table.table, table.quasi, table.unit)
    if plot is not None:
        files[plot] = lambda path: _draw(path, before.patients, release.sizes, k, plot.suffix)
    write_outputs(files, force)
    levels = {name: {"level": at, "of": top} for name, (at, top) in (release.levels or {}).items()} or None
    found = {
        "out": str(out), "schema": str(_beside(out)) if table.schema is not None else None, "rows": len(table.table),
        "released": len(released), "method": method, "k_before": before.k, "k": release.k, "levels": levels,
        "suppressed": int((~release.kept).sum()), "loss": release.loss, "is_least": release.is_least, "auroc": auroc,
        "dropped": left_out, "notes": [INSIDE, GUARANTEE, *table.notes, *exposure.release_notes(table, left_out)],
    }  # fmt: skip
    print_json(found) if as_json else _print(found)


def coarsen(
    records: Annotated[Path, RECORDS],
    rules: Annotated[Path, typer.Argument(help="TOML file of the rules.", show_default=False)],
    schema: Annotated[Path, typer.Option(help="TOML file of the records' schema.", show_default=False)],
    out: Annotated[Path, OUT],
    key: Annotated[
        Path | None,
        typer.Option(help="File of the secret key for shifted dates, made if there is none.", show_default=False),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Json = False,
) -> None:
    """Write records made coarser by public rules, and beside them the schema that they fit.

    Rules are public and come from no record. Coarser records are less telling, not private.
    """
    with loading():
        from polyclinic.ehr import anonymity
        from polyclinic.ehr.coarsening import coarsen as coarser
        from polyclinic.ehr.coarsening import key_in, read_coarsening
        from polyclinic.ehr.schema import Schema
        from polyclinic.ehr.sources import read_records
        from polyclinic.ehr.sources.files import check_suffix

    check_suffix(out)
    read, coarsening = Schema.from_toml(schema), read_coarsening(rules)
    if coarsening.needs_key and key is None:
        raise ConfigError("The rules shift dates: give --key FILE, which the hospital keeps secret.")
    secret = key_in(key) if coarsening.needs_key and key is not None else None
    table, fitted = coarser(read_records(records, read), read, coarsening, secret)
    write_outputs({out: lambda path: anonymity.write_table(table, path), _beside(out): fitted.to_toml}, force)
    if as_json:
        print_json({"out": str(out), "schema": str(_beside(out)), "rows": len(table), "columns": list(table.columns)})
        return
    screen = console()
    screen.print(f"{out}: {len(table):,} rows; their schema is {_beside(out)}", soft_wrap=True)
    screen.print("Coarser records are less telling, not private.", style="dim")


def _beside(out: Path) -> Path:
    """Where the schema of ``out`` is written: ``released.schema.toml`` of ``released.csv.gz``."""
    return out.with_name(f"{out.name.removesuffix('.gz').rpartition('.')[0]}.schema.toml")


def _draw(path: Path, before: Any, after: Any, k: int, suffix: str) -> None:
    from polyclinic.evaluation.figures.canvas import to_bytes
    from polyclinic.evaluation.figures.records import plot_class_sizes

    path.write_bytes(to_bytes(plot_class_sizes(before, after, k), suffix))


def _print(found: dict[str, Any]) -> None:
    screen = console()
    schema = f"; their schema is {found['schema']}" if found["schema"] else ""
    screen.print(
        f"{found['out']}: {found['released']:,} of {found['rows']:,} rows, k = {found['k']} (was {found['k_before']}){schema}",
        soft_wrap=True,
    )
    table = Table(box=None)
    table.add_column("generalised" if found["levels"] else "loss")
    table.add_column("level" if found["levels"] else "", justify="right")
    for name, one in (found["levels"] or {}).items():
        table.add_row(name, f"{one['level']} of {one['of']}")
    if found["levels"]:
        table.add_section()
    loss = found["loss"]
    for title, key, digits in (("information loss", "loss", 3), ("height", "height", 3), ("precision", "precision", 3),
                               ("rows per class, in k", "average_class_size", 2)):  # fmt: skip
        if key in loss:
            table.add_row(title, number(loss[key], digits))
    table.add_row("discernibility", f"{loss['discernibility']:,}")
    if found["auroc"] is not None:
        table.add_row("AUROC on held-out patients, before", number(found["auroc"]["before"]))
        table.add_row("AUROC on held-out patients, after", number(found["auroc"]["after"]))
    screen.print(table)
    for note in found["notes"]:
        screen.print(note, style="dim", soft_wrap=True)
