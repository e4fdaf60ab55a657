"""``polyclinic datasets``: what there is, what one holds, and fetching its files."""

from __future__ import annotations

import typer
from rich.text import Text

from polyclinic.cli.records.cohort import flow_table
from polyclinic.cli.terminal import Json, answer, json_alone, say, table
from polyclinic.errors import several

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
    from polyclinic.plugins import TABLES, dataset_named, with_problem
    from polyclinic.plugins import plugins as known

    with json_alone(as_json):
        named = [with_problem(plugin) for plugin in known() if plugin.group == "datasets" and plugin.name != TABLES]
    for plugin in named:
        if plugin.problem:
            say(f"Left out: {plugin.name} of {plugin.whose}: {plugin.problem}.", errors=True)
    datasets = [dataset_named(plugin.name) for plugin in named if not plugin.problem]
    rows = [{"name": d.name, "sites": len(d.natural_sites) or d.default_sites, "patients": d.patients, "rows": d.rows,
             "available": d.available(), "licence": d.licence} for d in datasets]  # fmt: skip
    cells = ([("yes" if v else "no") if isinstance(v, bool) else str(v) for v in row.values()] for row in rows)
    headings = ("name", "sites", "patients", "rows", "available", "licence")
    answer(as_json, rows, table(headings, cells, words=("available", "licence")))


@app.command("show")
def datasets_show(name: str, as_json: Json = False) -> None:
    """Describe one dataset: task, hospitals, columns with their public bounds, licence, citation."""
    from polyclinic.plugins import dataset_named

    dataset = dataset_named(name)
    value = {
        "name": dataset.name, "title": dataset.title, "sites": list(dataset.natural_sites),
        "patients": dataset.patients, "rows": dataset.rows, "available": dataset.available(),
        "licence": dataset.licence, "citation": dataset.citation,
        "description": dataset.description, "schema": dataset.schema.as_dict(),
        "flow": dataset.flow.as_list() if dataset.flow else None,
    }  # fmt: skip
    sites = several(dataset.natural_sites, most=20) or "none of its own"
    headings = ("column", "kind", "role", "unit", "public bounds or categories")
    columns = (
        (c.name, c.kind, c.role, c.unit, f"{c.bounds[0]:g} to {c.bounds[1]:g}" if c.bounds else ", ".join(c.categories))
        for c in dataset.schema.columns
    )
    answer(
        as_json, value, Text.assemble((dataset.title, "bold"), f" ({dataset.name})\n{dataset.description}"),
        f"Licence: {dataset.licence}\nCite: {dataset.citation}\nSites: {sites}",
        table(headings, columns, words=headings),
        *([flow_table(dataset.flow)] if dataset.flow else []),
    )  # fmt: skip


@app.command("fetch")
def datasets_fetch(name: str, as_json: Json = False) -> None:
    """Bring a dataset's files here, checked by sha256."""
    from polyclinic.plugins import dataset_named

    dataset = dataset_named(name)
    path = dataset.fetch() if dataset.fetch is not None else None
    answer(
        as_json, {"name": dataset.name, "path": str(path) if path else None},
        f"{dataset.name}: {path}" if path else f"{dataset.name} comes with Polyclinic; there is nothing to fetch.",
    )  # fmt: skip
