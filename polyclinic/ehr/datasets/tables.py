"""Anyone's own tables as a dataset for a simulation: hospitals' files or data frames, read as they come, under a drafted schema.

The draft looks at the records, which a simulation may do and a real hospital's schema may not: no epsilon covers it, and the
run's notes say so. What is read otherwise than it stands, and what is left out, is a note too; no note quotes a cell.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.digests import digest
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.inference import FEWEST_ROWS, Seen, draft_column, usual_name
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.files import MISSING, SUFFIXES, found_files
from polyclinic.errors import ConfigError, DataError, nearest, several

SITE = "hospital"
_SITES = ("hospital", "site", "hospital_id", "site_id", "hospitalid", "centre", "center", "clinic")
_LABELS = ("label", "outcome", "target", "died", "death", "mortality", "event")
_MARKS = frozenset(
    (*MISSING, ".", "-", "--", "n.a.", "N.A.", "n/a", "na", "none", "None", "#N/A", "missing", "inf", "-inf")
)
_CODES = frozenset(sign * int("9" * digits) for digits in range(1, 7) for sign in (-1, 1)) - {9}
_NUMBER = re.compile(
    r"(?P<limit>[<>]=?)?\s*(?P<number>[-+]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>[^\W\d_%]?[^\s\d;<>,]{0,11})"
)
_THOUSANDS = r"[-+]?\d{1,3}(,\d{3})+"
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
_PLACES = re.compile(r"zip|postal|postcode|\bplz\b", re.IGNORECASE)
_IDS = re.compile(r"(^|[_\W])(id|nr|no|number|index)$|[a-z](ID|Id|Nr)$")
#: Of the cells of a column, how many at the least must be of a kind for the column to be of it.
_MOST_CELLS = 0.9
_HELD: dict[str, Mapping[str, pd.DataFrame]] = {}


def tables(
    files: str | Sequence[str] = "", label: str = "", patient: str = "", site: str = "", frames: str = ""
) -> Dataset:
    """The dataset of files or data frames.

    Args:
        files: A folder or a pattern of CSV or Parquet files, one for each hospital; one file of all hospitals; or several, each
            as ``path`` or ``name=path``.
        label, patient: Columns of the outcome and of the patient; where they are empty, those of a usual name.
        site: Column of the hospital, where files hold several.
        frames: What ``hold`` returned for data frames, in place of ``files``.

    Raises:
        ConfigError: for a column that does not exist, with the nearest name.
        DataError: for files that cannot be read, and for tables that nothing can be learned from.
    """
    if frames:
        if frames not in _HELD:
            raise ConfigError(
                "The run's tables are data frames of the Python session that began it, which other processes do not have; write "
                "them to files and give Federation.from_tables their paths."
            )
        return _from_frames(frames, label, patient, site)
    places = _places(files)
    stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for _, file in places)
    return _from_files(tuple(name for name, _ in places), stamps, _title(files), label, patient, site)


def hold(frames: Mapping[str, pd.DataFrame]) -> str:
    """Keep data frames, one for each hospital, for runs of this process; returns the text that stands for them."""
    parts = [
        f"{name} {list(frame.columns)} {pd.util.hash_pandas_object(frame.astype(str), index=False).sum()}"
        for name, frame in frames.items()
    ]
    key = digest(*parts)
    _HELD[key] = {name: frame.copy() for name, frame in frames.items()}
    return key


def absolute(place: str) -> str:
    """``path`` or ``name=path`` with the path from the root, so that processes that work elsewhere find it too."""
    name, equals, path = place.rpartition("=")
    return f"{name}{equals}{Path(path).expanduser().resolve()}"


def _places(files: str | Sequence[str]) -> list[tuple[str, Path]]:
    """Each hospital's name and file."""
    given = [files] if isinstance(files, str) else list(files)
    if not any(given):
        raise ConfigError(
            "The dataset 'tables' needs files; give `--data FOLDER`, or dataset-options=\"files='FOLDER', label='COLUMN'\"."
        )
    places = []
    for text in given:
        name, equals, path = text.partition("=")
        for file in found_files(Path(path if equals else text).expanduser()):
            places.append((name.strip() if equals else _stem(file), file))
    names = Counter(name for name, _ in places)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ConfigError(f"Two files are of a hospital named {twice[0]!r}; give them other names, as name=path.")
    return places


def _stem(file: Path) -> str:
    suffix = next(suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix))
    return file.name[: -len(suffix)]


def _title(files: str | Sequence[str]) -> str:
    given = [files] if isinstance(files, str) else list(files)
    return Path(given[0].rpartition("=")[2]).stem.removesuffix(".csv") or "tables"


@lru_cache(maxsize=4)
def _from_frames(key: str, label: str, patient: str, site: str) -> Dataset:
    return _dataset(_HELD[key], f"tables-{key[:8]}", label, patient, site)


@lru_cache(maxsize=4)
def _from_files(
    names: tuple[str, ...], stamps: tuple[tuple[str, int, int], ...], title: str, label: str, patient: str, site: str
) -> Dataset:
    frames = {name: read_cells(Path(file)) for name, (file, _, _) in zip(names, stamps, strict=True)}
    return _dataset(frames, title, label, patient, site)


def read_cells(file: Path) -> pd.DataFrame:
    """A file's cells, of a CSV as text. Raises DataError, without the content, for a file that is no table."""
    try:
        if file.name.lower().endswith(".parquet"):
            return pd.read_parquet(file)
        for encoding in ("utf-8-sig", "latin-1"):
            try:
                head = pd.read_csv(file, header=None, nrows=1, dtype=str, sep="\0", engine="python", encoding=encoding,
                                   quoting=csv.QUOTE_NONE).iloc[0, 0]  # fmt: skip
                separator = max(",;\t|", key=str(head).count)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", pd.errors.ParserWarning)  # lines that are longer than the header
                    return pd.read_csv(
                        file, dtype=str, keep_default_na=False, sep=separator, encoding=encoding, index_col=False
                    )
            except UnicodeDecodeError:
                continue
    except (ValueError, OSError, IndexError, pd.errors.ParserError, pd.errors.ParserWarning):
        pass
    # The readers' own messages can quote a line of the file.
    raise DataError(f"{file}: the file cannot be read; it must be a CSV with a header, or Parquet, not damaged.")


@dataclass
class _Table:
    """Records as they are read, the columns' drafts, and what a person must know of both."""

    records: dict[str, Any] = field(default_factory=dict)
    columns: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, name: str, why: str) -> None:
        self.left_out.setdefault(why, []).append(name)


def _dataset(frames: Mapping[str, pd.DataFrame], title: str, label: str, patient: str, site: str) -> Dataset:
    cells = pd.concat([_text(frame, name) for name, frame in frames.items()], ignore_index=True)
    names = [name for name in cells.columns if name != _OWN]
    label, patient, site = _roles(names, label, patient, site, files=len(frames))
    sites = cells[site] if site else cells[_OWN]
    notes = []
    whole = (cells[label] != "") & (sites != "") & ((cells[patient] != "") if patient else True)
    if lost := int((~whole).sum()):
        notes.append(f"{lost:,} of {len(cells):,} rows lack the label, the patient or the hospital, and are left out.")
    cells, sites = cells[whole].reset_index(drop=True), sites[whole].reset_index(drop=True)
    if cells.empty:
        raise DataError(f"{title}: no row has a value in the label column {label!r}; name another by --label.")
    table, several_sites = _Table(notes=notes), bool(site) or len(frames) > 1
    contents: dict[int, str] = {}
    for name in names:
        if name == patient:
            table.records[name] = sites + "/" + cells[name] if several_sites else cells[name]
            table.columns.append({"name": name, "kind": "categorical", "role": "patient_id"})
            hospitals_of = sites.groupby(cells[name]).nunique()
            if several_sites and (shared := int((hospitals_of > 1).sum())):
                notes.append(
                    f"{shared:,} values of {name!r} occur at several hospitals and are taken for different patients. If they are "
                    f"the same people, set privacy.overlap to {hospitals_of.max()}, so that epsilon covers all their hospitals."
                )
        elif name == site:
            continue
        elif (
            name != label
            and several_sites
            and cells[name].nunique() > 1
            and (cells[name].groupby(sites).nunique() == 1).all()
        ):
            table.leave_out(name, "the same for all of a hospital")
        else:
            _add(table, name, cells[name], name == label, contents)
    if len(table.columns) == 1 + bool(patient):
        raise DataError(f"{title}: no column can be learned from. {' '.join(_left_out(table))}".strip())
    if several_sites:
        column = SITE if SITE not in table.records else f"{SITE} of the table"
        table.records[column] = sites
        table.columns.append({"name": column, "kind": "categorical", "role": "site"})
    values = {"name": title, "unit": "patient" if patient else "record", "columns": table.columns}
    schema = Schema.from_dict(values)
    records = pd.DataFrame(table.records)
    hospitals = tuple(dict.fromkeys(sites)) if several_sites else ()
    head = (
        "The schema was drafted from the records themselves, which no epsilon covers: a simulation may look; real hospitals need "
        "public bounds and categories, which `polyclinic schema infer` lists for confirmation."
    )
    roles = f"The label is {label!r}, the patient {repr(patient) if patient else 'each row'}, the hospital " + (
        f"the value of {site!r}." if site else "the file." if several_sites else "dealt."
    )
    unit = [] if patient else ["No column names the patient, so that each row counts as one: name it by --patient."]
    dealt = (
        []
        if several_sites
        else ["The file names no hospital, so that records were dealt evenly: name the column by --site."]
    )
    return Dataset(
        name=title, title=f"{title}, tables of one's own", description="Tables that were given for this run.", schema=schema,
        licence="yours", citation="yours", patients=records[patient].nunique() if patient else len(records),
        rows=len(records), default_sites=len(hospitals) or 4, default_partitioner="natural" if hospitals else "iid",
        load=records.copy, available=lambda: True, natural_sites=hospitals,
        notes=(head, roles, *unit, *dealt, *table.notes, *_left_out(table)),
    )  # fmt: skip


_OWN = "\0hospital"


def _text(frame: pd.DataFrame, hospital: str) -> pd.DataFrame:
    """Every cell as trimmed text, "" where it is missing; a blank header becomes the column's number."""
    names: list[str] = []
    for number, given in enumerate(frame.columns, start=1):
        name = str(given).strip()
        if not name or name.startswith("Unnamed:"):
            name = f"column {number}"
        names.append(name if name not in names else f"{name} ({number})")
    columns = {}
    for name, (_, values) in zip(names, frame.reset_index(drop=True).items(), strict=True):
        if (
            pd.api.types.is_bool_dtype(values.dtype)
            or pd.api.types.is_float_dtype(values.dtype)
            and (values.dropna() % 1 == 0).all()
        ):
            values = values.astype("Int64")
        text = values.astype("string").fillna("").str.strip()
        columns[name] = text.where(~text.isin(_MARKS), "").astype(object)
    rows = pd.Series(range(len(frame)), dtype="int64")
    numbered = [name for name in columns if name.startswith("column ") and _are(columns[name], rows, rows + 1)]
    return pd.DataFrame(
        {name: cells for name, cells in columns.items() if name not in numbered} | {_OWN: hospital}, index=rows.index
    )


def _are(cells: pd.Series, *numberings: pd.Series) -> bool:
    """Whether the cells are one of the numberings, as R writes names of rows under a blank header."""
    return any(list(cells) == list(numbers.astype(str)) for numbers in numberings)


def _roles(names: Sequence[str], label: str, patient: str, site: str, files: int) -> tuple[str, str, str]:
    for what, name in (("--label", label), ("--patient", patient), ("--site", site)):
        if name and name not in names:
            raise ConfigError(f"{what} names {name!r}, which is no column of the tables.{nearest(name, names)}")
    label = label or usual_name(names, _LABELS)
    if not label:
        raise ConfigError(
            f"The tables need a label; name the column of the outcome by --label: {several(names, most=12)}."
        )
    return label, patient or usual_name(names), site or (usual_name(names, _SITES) if files == 1 else "")


def _add(table: _Table, name: str, cells: pd.Series, is_label: bool, contents: dict[int, str]) -> None:
    """Draft one column and add its records, or leave it out and say why. contents: hashes of the columns before."""
    if is_label:
        _add_label(table, name, cells)
        return
    given, content = cells[cells != ""], hash(tuple(cells))
    if given.nunique() < 2:
        table.leave_out(name, "constant")
    elif content in contents:
        table.leave_out(name, "the same as another column")
    elif reason := _identifier(name, given):
        table.leave_out(name, reason)
    elif (numbers := _numbers(table, name, cells)) is not None:
        if _counts_rows(name, numbers):
            table.leave_out(name, "an identifier")
        else:
            _add_numbers(table, name, numbers)
    elif given.str.contains(";").mean() > 1 - _MOST_CELLS:
        _add_codes(table, name, cells)
    else:
        _add_categories(table, name, cells)
    contents[content] = name


def _drafted(name: str, cells: pd.Series, label: str = "") -> tuple[dict[str, Any], pd.Series]:
    """The draft of a column of categories, and its cells as the draft has them."""
    values = cells.where(cells != "", None)
    seen = Seen()
    seen.look(values)
    draft = draft_column(name, seen, label, "")
    draft.pop("draft", None)
    return draft, pd.to_numeric(values).astype("Int64") if draft["kind"] == "binary" else values


def _add_label(table: _Table, name: str, cells: pd.Series) -> None:
    draft, values = _drafted(name, cells, label=name)
    if draft.get("role") != "label":
        raise DataError(
            f"Column {name!r} cannot be the label: it must hold 0 and 1, or 2 to 20 categories of {FEWEST_ROWS} or more "
            "rows each."
        )
    if rare := int((~cells.isin(draft.get("categories", cells))).sum()):
        raise DataError(
            f"Column {name!r}, the label, has {rare:,} rows of categories that fewer than {FEWEST_ROWS} rows have."
        )
    table.records[name] = values
    table.columns.append(draft)


def _add_categories(table: _Table, name: str, cells: pd.Series) -> None:
    """A column of categories; those of few rows are ``other``."""
    draft, values = _drafted(name, cells)
    if draft.get("role") == "ignore":
        table.leave_out(name, "free text or too many categories")
        return
    if (~cells.isin(["", *draft.get("categories", cells)])).any():
        draft |= {"categories": list(dict.fromkeys([*draft["categories"], "other"])), "other": "other"}
    table.records[name] = values
    table.columns.append(draft)


def _identifier(name: str, given: pd.Series) -> str:
    if _PLACES.search(name):
        return "a place of residence"
    for form in _DATES:
        if pd.to_datetime(given, format=form, errors="coerce").notna().mean() >= _MOST_CELLS:
            return "a date"
    return ""


def _counts_rows(name: str, numbers: pd.Series) -> bool:
    """Whether a column numbers rows or people: whole numbers, each once, in order or by the column's name."""
    given = numbers.dropna()
    once = len(given) >= 20 and given.is_unique and bool((given % 1 == 0).all())
    return once and (given.is_monotonic_increasing or bool(_IDS.search(name)))


def _numbers(table: _Table, name: str, cells: pd.Series) -> pd.Series | None:
    """A column's numbers, NaN where missing; None where it holds categories, 0 and 1 among them.

    Adds the flag of cells that are beyond a limit of measurement, and a note for everything that is read otherwise.
    """
    parts = _parts(cells)
    texts = parts["number"].dropna()
    units = parts["unit"].dropna().str.lower()
    if len(texts) < _MOST_CELLS * len(parts) or units[units != ""].nunique() > 1:
        return None
    commas, points = texts.str.contains(","), texts.str.contains(r"\.")
    decimal = commas.any() and not points.any() and not texts[commas].str.fullmatch(_THOUSANDS).all()
    texts = texts.str.replace(",", "." if decimal else "")
    numbers = pd.to_numeric(texts, errors="coerce").reindex(cells.index)
    if set(numbers.dropna()) <= {0.0, 1.0}:
        return None
    if decimal:
        table.notes.append(f"Column {name!r} has decimal commas.")
    if no_numbers := int(len(parts) - numbers.notna().sum()):
        table.notes.append(f"{no_numbers:,} cells of column {name!r} are no numbers, and count as missing.")
    numbers = _without_codes(table, name, numbers)
    limits = parts["limit"].reindex(cells.index).notna()
    if (beyond := int(limits.sum())) >= FEWEST_ROWS:
        flag = f"{name} beyond limit"
        table.notes.append(
            f"{beyond:,} cells of column {name!r} are beyond a limit of measurement. They are read as the limit, and the column "
            f"{flag!r} says which they are."
        )
        table.records[flag] = limits.astype("Int64")
        table.columns.append({"name": flag, "kind": "binary"})
    return numbers


def _parts(cells: pd.Series) -> pd.DataFrame:
    """The limit, the number and the unit of each cell that is not missing; all missing where it is no number."""
    return cells[cells != ""].str.extract(f"^(?:{_NUMBER.pattern})$")


def _without_codes(table: _Table, name: str, numbers: pd.Series) -> pd.Series:
    """The numbers without codes for missing, as -9 or 999, that lie far from all others."""
    for code in sorted(_CODES & set(numbers.dropna())):
        is_code = numbers == code
        rest = numbers[numbers.notna() & ~is_code]
        far = code < 0 <= rest.min() or code > 1.5 * rest.max() > 0
        if far and (times := int(is_code.sum())) > 1:
            table.notes.append(f"{times:,} cells of column {name!r} are {code:g}, read as a code for missing.")
            numbers = numbers.where(~is_code)
    return numbers


def _add_numbers(table: _Table, name: str, numbers: pd.Series) -> None:
    given = numbers.dropna()
    whole = bool((given % 1 == 0).all())
    low, high = (float(given.quantile(share)) for share in (0.005, 0.995))
    if low == high:
        low, high = float(given.min()), float(given.max())
    if whole:
        low, high = float(np.floor(low)), float(np.ceil(high))
    table.records[name] = numbers.astype("Int64") if whole else numbers.astype(float)
    clipped = given.clip(low, high)
    draft = {
        "name": name, "kind": "integer" if whole else "continuous", "bounds": [low, high], "clip": True,
        "centre": float(clipped.mean()), "spread": float(clipped.std()), "nullable": bool(numbers.isna().any()),
    }  # fmt: skip
    table.columns.append(draft)


def _add_codes(table: _Table, name: str, cells: pd.Series) -> None:
    """A column of lists of codes, separated by semicolons; codes of few rows are ``other``."""
    codes = cells.str.split(";").map(lambda parts: sorted({part.strip() for part in parts} - {""}))
    rows = Counter(code for several_codes in codes for code in several_codes)
    common = sorted(code for code, number in rows.most_common(100) if number >= FEWEST_ROWS)
    if not common:
        table.leave_out(name, "free text or too many categories")
        return
    table.records[name] = codes.map(";".join)
    table.columns.append({"name": name, "kind": "code_set", "categories": [*common, "other"], "other": "other"})


def read_as(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """New rows under a schema that ``tables`` drafted: its features, and its label where the frame has it.

    Numbers may have units and limits as they had there. Raises DataError for a column that is not there, and for a comma that
    may stand for a point or for thousands.
    """
    cells, columns = _text(frame, ""), {column.name: column for column in schema.columns}
    records = {}
    for name, column in columns.items():
        limited = name.removesuffix(" beyond limit")
        source = limited if name not in cells and limited in columns else name
        if column.role not in ("feature", "label") or (column.role == "label" and source not in cells):
            continue
        if source not in cells:
            raise DataError(
                f"The table has no column {source!r}, which the model needs.{nearest(source, cells.columns)}"
            )
        given = cells[source]
        if source != name:
            records[name] = _parts(given)["limit"].reindex(cells.index).notna().astype("Int64")
        elif column.kind in ("integer", "continuous"):
            texts = _parts(given)["number"].reindex(cells.index)
            if texts.str.contains(",").any():
                if texts[texts.str.contains(",", na=False)].str.fullmatch(_THOUSANDS).any():
                    raise DataError(
                        f"Column {name!r} has a comma before three digits, which may stand for a point or for thousands; write "
                        "numbers with points."
                    )
                texts = texts.str.replace(",", ".")
            numbers = pd.to_numeric(texts, errors="coerce")
            records[name] = numbers.round().astype("Int64") if column.kind == "integer" else numbers
        elif column.kind == "binary" and not column.categories:
            records[name] = pd.to_numeric(given, errors="coerce").astype("Int64")
        elif column.kind == "code_set":
            records[name] = given.str.split(";").map(
                lambda codes: ";".join(code.strip() for code in codes if code.strip())
            )
        else:
            records[name] = given.where(given != "", None)
    return pd.DataFrame(records)


def _left_out(table: _Table) -> list[str]:
    return [f"Left out as {why}: {several(names, most=8)}." for why, names in table.left_out.items()]
