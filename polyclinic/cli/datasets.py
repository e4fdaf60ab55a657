"""``polyclinic datasets``: what there is, what one holds, and fetching its files."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.cohort import flow_table
from polyclinic.cli.terminal import Json, console, print_json

app = typer.Typer(help="Datasets by name: what there is, what one holds, and fetching its files.")


@app.callback(invoke_without_command=True)
def datasets(context: typer.Context, as_json: Json = False) -> None:
    """List the datasets."""
    if context.invoked_subcommand is None:
        _list_datasets(as_json)


@app.command("list")
def datasets_list(as_json: Json = False) -> None:
    """List the datasets."""
    _list_datasets(as_json)


def _list_datasets(as_json: bool) -> None:
    from polyclinic.plugins import checked, dataset_named
    from polyclinic.plugins import plugins as known

    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        named = [checked(plugin) for plugin in known() if plugin.group == "datasets"]
    for plugin in named:
        if plugin.problem:
            console(as_json=True).print(f"Left out: {plugin.name} of {plugin.whose}: {plugin.problem}.", soft_wrap=True)
    found = [dataset_named(plugin.name) for plugin in named if not plugin.problem]
    rows = [{"name": d.name, "sites": len(d.natural_sites) or d.default_sites, "patients": d.patients, "rows": d.rows,
             "available": d.available(), "licence": d.licence} for d in found]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    table = Table(box=None)
    for heading in ("name", "sites", "patients", "rows", "available", "licence"):
        table.add_column(heading, justify="left" if heading in ("name", "licence", "available") else "right")
    for row in rows:
        table.add_row(*(("yes" if v else "no") if isinstance(v, bool) else str(v) for v in row.values()))
    console().print(table)


@app.command("show")
def datasets_show(name: str, as_json: Json = False) -> None:
    """Describe one dataset: task, hospitals, columns with their public bounds, licence, citation."""
    from polyclinic.plugins import dataset_named

    found = dataset_named(name)
    if as_json:
        print_json({"name": found.name, "title": found.title, "sites": list(found.natural_sites), "patients": found.patients,
                    "rows": found.rows, "available": found.available(), "licence": found.licence,
                    "citation": found.citation, "description": found.description, "schema": found.schema.as_dict(),
                    "flow": found.flow.as_list() if found.flow else None})  # fmt: skip
        return
    screen = console()
    screen.print(Text.assemble((found.title, "bold"), f" ({found.name})\n{found.description}"))
    shown, more = found.natural_sites[:20], len(found.natural_sites[20:])
    sites = ", ".join(shown) + (f" and {more} more" if more else "") or "none of its own"
    screen.print(f"Licence: {found.licence}\nCite: {found.citation}\nSites: {sites}")
    table = Table(box=None)
    for heading in ("column", "kind", "role", "unit", "public bounds or categories"):
        table.add_column(heading)
    for column in found.schema.columns:
        public = f"{column.bounds[0]:g} to {column.bounds[1]:g}" if column.bounds else ", ".join(column.categories)
        table.add_row(column.name, column.kind, column.role, column.unit, public)
    screen.print(table)
    if found.flow:
        screen.print(flow_table(found.flow))


@app.command("fetch")
def datasets_fetch(name: str, as_json: Json = False) -> None:
    """Bring a dataset's files here, checked by sha256."""
    from polyclinic.plugins import dataset_named

    found = dataset_named(name)
    path = found.fetch() if found.fetch is not None else None
    if as_json:
        print_json({"name": found.name, "path": str(path) if path else None})
    else:
        console().print(
            f"{found.name}: {path}" if path else f"{found.name} comes with Polyclinic; there is nothing to fetch."
        )
