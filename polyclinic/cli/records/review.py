"""``polyclinic review``: a packet of real and synthetic patients for clinicians to judge, and what their scores say."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, interval, loading, number, style_lines, table
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.ehr.schema import Schema
    from polyclinic.ehr.shard import Checked

app = typer.Typer(no_args_is_help=True, help="Blinded review: can clinicians tell synthetic patients from real ones?")


@app.command()
def make(
    synthetic: Annotated[
        Path,
        typer.Argument(help="A table that `synthesize` wrote, or a RUN folder to draw from.")
    ],
    out: Annotated[Path, typer.Option(help="New folder, which stays at the hospital.")],
    records: Annotated[
        str | None,
        typer.Option(help="Real records: what a hospital.toml names by 'data', or a hospital.toml.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead of --records: the records of a dataset by name.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="TOML file of the schema; a RUN has its own.")
    ] = None,
    patients: Annotated[int, typer.Option(help="How many patients, of whom half are real.")] = 100,
    seed: Annotated[
        int | None,
        typer.Option(help="Makes the same packet again; whoever knows it can tell who is real. Default: drawn.",
                     show_default=False)
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="CSV file with columns code and name: what codes mean.")
    ] = None,
    leave_out_copies: Annotated[
        bool, typer.Option("--leave-out-copies", help="Leave out synthetic patients that equal a real one.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write a form of real and synthetic patients for clinicians, and apart from it its answer key.

    The form holds REAL RECORDS. It stays at the hospital, so it is no release and spends no epsilon.
    """
    if (records is None) == (dataset is None):
        raise ConfigError("Give exactly one of --records (real records) and --dataset (a dataset by name).")
    with loading():
        from polyclinic.evaluation.review.packet import (
            STAYS,
            choose,
            read_names,
            read_synthetic,
            schema_of_run,
            write_packet,
        )

    seed = secrets.randbits(48) if seed is None else seed
    code_names = read_names(names) if names else {}
    with tempfile.TemporaryDirectory() as folder:
        if synthetic.is_dir():
            own, source = schema_of_run(synthetic, Path(folder) / "drawn.parquet", 4 * patients, seed)
        else:
            own, source = None, synthetic
        described = _schema(schema, dataset, own)
        made = read_synthetic(source, described)
    real = _real(records, dataset, described)
    packet = choose(real, made, described, patients, seed, leave_out_copies)
    key = write_packet(
        packet, described, seed, out, code_names, {"real": records or str(dataset), "synthetic": str(synthetic)}
    )
    result = {
        "folder": str(out),
        **{name: key[name] for name in ("packet", "patients", "copies_left_out", "one_record_each")},
    }
    lines: list[str | Text] = [
        f"{out / 'packet.html'}: {patients} patients, for each reviewer",
        f"{out / 'answer-key.json'}: for whoever runs the review, and for no reviewer",
    ]
    if packet.copies:
        lines += style_lines("yellow", f"Left out: {packet.copies:,} synthetic patients that equal a real one.")
    if packet.one_record:
        lines.append("Synthetic patients have one record each, so of each real one a single record was drawn.")
    if not code_names and any(column.kind == "code_set" for column in described.columns):
        lines.append("Codes are shown as they are; --names FILE gives them names.")
    answer(as_json, result, *lines, *style_lines("yellow", STAYS))


@app.command()
def score(
    folder: Annotated[Path, typer.Argument(help="The packet's folder, with its answer key.")],
    files: Annotated[list[Path], typer.Argument(metavar="SCORES...", help="Files that the reviewers saved.")],
    as_json: Json = False,
) -> None:
    """Compare the scores and guesses of real and synthetic patients; writes review.json and review.html into FOLDER."""
    with loading():
        from polyclinic.evaluation.review.answers import read_key, read_reviews
        from polyclinic.evaluation.review.scores import analyse, write_results

    key = read_key(folder)
    analysis = analyse(read_reviews(files, key), key)
    write_results(analysis, folder)
    answer(
        as_json,
        analysis,
        _score_table(analysis),
        *analysis["verdict"],
        *style_lines("dim", *analysis["notes"]),
        f"Page: {folder / 'review.html'}",
    )


def _score_table(analysis: dict[str, Any]) -> Table:
    def cells(name: str, results: dict[str, Any]) -> Iterator[str]:
        scores = results["scores"]
        yield name
        for kind in ("real", "synthetic"):
            yield f"{number(scores[kind]['mean'], 2)} ({number(scores[kind]['sd'], 2)})"
        yield from (interval(scores["difference"], 2), number(scores["p"]), interval(scores["auc"], 2))
        yield interval(results["guesses"]["accuracy"], 2)

    headings = ("reviewer", "real, mean (sd)", "synthetic", "difference", "p", "real above synthetic", "guesses right")
    rows = [*((reviewer["reviewer"], reviewer) for reviewer in analysis["reviewers"]), ("pooled", analysis["pooled"])]
    return table(headings, ([*cells(*row)] for row in rows))


def _schema(given: Path | None, dataset: str | None, own: Schema | None) -> Schema:
    """The schema of what reviewers see: the one given, else the run's, else the dataset's."""
    with loading():
        from polyclinic.ehr.schema import Schema
        from polyclinic.evaluation.review.grid import bare
        from polyclinic.plugins import dataset_named

    if given is not None:
        return bare(Schema.from_toml(given))
    if own is not None:
        return bare(own)
    if dataset is not None:
        return bare(dataset_named(dataset).schema)
    raise ConfigError("--schema is not given; the TOML file of the records' schema is needed beside a table.")


def _real(records: str | None, dataset: str | None, schema: Schema) -> Checked:
    with loading():
        from polyclinic.client.home.policy import HospitalFile
        from polyclinic.client.home.records import own_records
        from polyclinic.ehr.schema import Schema
        from polyclinic.ehr.shard import check_chunks, check_records
        from polyclinic.plugins import dataset_named, open_source

    if dataset is not None:
        return check_records(dataset_named(dataset).load(), schema, dataset)
    assert records is not None
    if not records.endswith(".toml"):
        return check_chunks(open_source(records, Path(), {}, schema), schema, records)
    hospital, folder = HospitalFile.read(Path(records)), Path(records).resolve().parent
    whole = Schema.from_toml(folder / hospital.schema_)
    return check_chunks(own_records(hospital, folder, whole), schema, hospital.data)
