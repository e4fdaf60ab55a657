"""``polyclinic anonymize`` and ``polyclinic coarsen``: records with less detail, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.options import Force
from polyclinic.cli.records.risk import GUARANTEE, INSIDE, Hierarchies, Names, Quasi, Records, SchemaFile, Unit, names
from polyclinic.cli.terminal import Json, answer, loading, number, style_lines, table
from polyclinic.errors import ConfigError
from polyclinic.files import Content, write_outputs

_MOST_DRAWN = 5
Out = Annotated[Path, typer.Option(help="The file to write: .csv, .csv.gz or .parquet.")]
_LOSSES = (
    ("information loss", "loss", 3), ("height", "height", 3), ("precision", "precision", 3),
    ("rows per class, in k", "average_class_size", 2),
)  # fmt: skip


def anonymize(
    records: Records,
    out: Out,
    k: Annotated[int, typer.Option(help="k: smallest number of patients who look alike.")] = 5,
    quasi: Quasi = None,
    sensitive: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="Column that l and t protect; repeatable.")
    ] = None,
    diversity: Annotated[
        int, typer.Option("--l", help="l: smallest number of different sensitive values in a class.")
    ] = 1,
    closeness: Annotated[
        float | None,
        typer.Option("--t", help="t: largest distance between a class's sensitive values and the table's."),
    ] = None,
    suppression: Annotated[float, typer.Option(help="Largest share of patients who may lose a row.")] = 0.05,
    method: Annotated[
        str, typer.Option(help="Algorithm. lattice: one level for a whole column; mondrian: labels by class.")
    ] = "lattice",
    drop: Annotated[Names, typer.Option(metavar="COLUMNS", help="Columns to leave out, such as names.")] = None,
    keep: Annotated[
        Names, typer.Option(metavar="COLUMNS", help="Columns to keep although their cells differ for every patient.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of two values: compare how well it is predicted before and after.")
    ] = None,
    unit: Unit = None,
    hierarchies: Hierarchies = None,
    schema: SchemaFile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw class sizes before and after: .svg or .png.")] = None,
    force: Force = False,
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
    _check_plot(plot)
    target = anonymity.Target(k, diversity, closeness, suppression)
    exposed = exposure.table_of(records, schema, names(quasi), names(sensitive), unit)
    declared = anonymity.read_hierarchies(hierarchies) if hierarchies else {}
    without_unknown(declared, exposed.quasi, str(hierarchies))
    left_out = [*names(drop), *([exposed.unit] if exposed.unit else [])]
    exposure.check_dropped(exposed, left_out, names(keep), label)
    release = anonymity.anonymise(exposed, target, declared, method)  # type: ignore[arg-type]
    auroc = exposure.compare_auroc(exposed, release, label, left_out) if label else None
    # The records' own order would align this release with the table, and with another release of it.
    order = np.random.default_rng().permutation(len(release.records))
    released = release.records.drop(columns=left_out).iloc[order]
    files: dict[Path, Content] = {out: lambda path: anonymity.write_table(released, path)}
    if exposed.schema is not None:
        fitted = anonymity.fitting_schema(exposed.schema, release, left_out)
        files[_beside(out)] = fitted.to_toml
    before = anonymity.equivalence_classes(exposed.table, exposed.quasi, exposed.unit)
    if plot is not None:
        files[plot] = lambda path: _draw(path, plot.suffix, "plot_class_sizes", before.patients, release.sizes, k)
    write_outputs(files, force)
    levels = {name: {"level": at, "of": top} for name, (at, top) in (release.levels or {}).items()} or None
    notes = [INSIDE, GUARANTEE, *exposed.notes, *exposure.release_notes(exposed, left_out)]
    result = {
        "out": str(out), "schema": str(_beside(out)) if exposed.schema is not None else None, "rows": len(exposed.table),
        "released": len(released), "method": method, "k_before": before.k, "k": release.k, "levels": levels,
        "suppressed": int((~release.staying).sum()), "loss": release.loss, "is_least": release.is_least, "auroc": auroc,
        "dropped": left_out, "notes": notes,
    }  # fmt: skip
    schema_place = f"; their schema is {result['schema']}" if result["schema"] else ""
    answer(
        as_json, result,
        f"{out}: {len(released):,} of {len(exposed.table):,} rows, k = {release.k} (was {before.k}){schema_place}",
        table(*_losses(result)), *style_lines("dim", *notes),
    )  # fmt: skip


def coarsen(
    records: Records,
    rules: Annotated[Path, typer.Argument(help="TOML file of the rules.")],
    schema: Annotated[Path, typer.Option(help="TOML file of the records' schema.")],
    out: Out,
    key: Annotated[
        Path | None, typer.Option(help="File of the secret key for shifted dates; it is made if it does not exist.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw pairs of columns before and after, at most five: .svg or .png; not private."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write records made coarser by public rules, and beside them the schema that they fit.

    Rules are public and come from no record. Coarser records are less telling, not private.
    """
    with loading():
        from polyclinic.ehr import anonymity
        from polyclinic.ehr.anonymity.coarsening import coarsen as coarser
        from polyclinic.ehr.anonymity.coarsening import key_in, read_coarsening
        from polyclinic.ehr.schema import Schema
        from polyclinic.ehr.sources import read_records
        from polyclinic.ehr.sources.files import check_suffix

    check_suffix(out)
    _check_plot(plot)
    read, coarsening = Schema.from_toml(schema), read_coarsening(rules)
    if coarsening.needs_key and key is None:
        raise ConfigError("The rules shift dates: give --key FILE, which the hospital keeps secret.")
    secret = key_in(key) if coarsening.needs_key and key is not None else None
    original = read_records(records, read)
    coarse, fitted = coarser(original, read, coarsening, secret)
    files: dict[Path, Content] = {out: lambda path: anonymity.write_table(coarse, path), _beside(out): fitted.to_toml}
    if plot is not None:
        drawn = [
            column.name for column in fitted.columns
            if column.role in ("feature", "label") and column.kind not in ("code_set", "trajectory")
        ][:_MOST_DRAWN]  # fmt: skip
        if len(drawn) < 2:
            raise ConfigError(f"--plot draws pairs of columns; the rules keep {len(drawn)} that can be drawn.")
        files[plot] = lambda path: _draw(path, plot.suffix, "plot_pairs", original[drawn], coarse[drawn])
    write_outputs(files, force)
    answer(
        as_json,
        {"out": str(out), "schema": str(_beside(out)), "rows": len(coarse), "columns": list(coarse.columns)},
        f"{out}: {len(coarse):,} rows; their schema is {_beside(out)}",
        *style_lines("dim", "Coarser records are less telling, not private."),
    )


def _beside(out: Path) -> Path:
    """Where the schema of ``out`` is written: ``released.schema.toml`` of ``released.csv.gz``."""
    return out.with_name(f"{out.name.removesuffix('.gz').rpartition('.')[0]}.schema.toml")


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise ConfigError(f"{plot}: a plot is an .svg or a .png file.")


def _draw(path: Path, suffix: str, figure: str, *data: Any) -> None:
    """The figure of that name in ``evaluation.figures.records``, as a file."""
    from polyclinic.evaluation.figures import records
    from polyclinic.evaluation.figures.canvas import to_bytes

    path.write_bytes(to_bytes(getattr(records, figure)(*data), suffix))


def _losses(result: dict[str, Any]) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    """Headings and rows of a table of how far each column was generalised, and of what that loses."""
    levels, loss, auroc = result["levels"] or {}, result["loss"], result["auroc"]
    rows = [(name, f"{level['level']} of {level['of']}") for name, level in levels.items()]
    rows += [(title, number(loss[key], digits)) for title, key, digits in _LOSSES if key in loss]
    rows.append(("discernibility", f"{loss['discernibility']:,}"))
    if auroc is not None:
        rows += [(f"AUROC on held-out patients, {when}", number(auroc[when])) for when in ("before", "after")]
    return ("generalised", "level") if levels else ("loss", ""), rows
