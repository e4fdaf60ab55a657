"""What a built-in dataset is: a public schema, a loader, its files, and the facts a user asks for before training on it.

Files are under $POLYCLINIC_DATA or in the user's download cache, each known by its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.schema import Schema
from polyclinic.errors import DataError
from polyclinic.files import write_file


@dataclass(frozen=True)
class Dataset:
    """A dataset that comes with Polyclinic; none of its fields needs the data to be present.

    Args:
        patients, rows: Published totals.
        load: Returns the records as a new table; raises DataError if the files are absent.
        available: Whether load would work without a download.
        natural_sites: The hospitals in the data (empty: none known).
        fetch: Downloads the files to the user's cache and returns the folder (None: nothing to do).
        generate: (sites, patients, seed) -> records, for simulated datasets.
        fixed_split: The name of a column of the records that holds 'train' or 'test', used with the natural sites.
        flow: How the published rows came to be these, where the loader leaves some out; public, as the data are.
        notes: What may make a run's result wrong, in sentences.
        readings: What else was read otherwise than it stands.
        own_numbers: A patient is the hospital's name, a slash and the hospital's own number, by which its split goes.
    """

    name: str
    title: str
    description: str
    schema: Schema
    licence: str
    citation: str
    patients: int
    rows: int
    default_sites: int
    default_partitioner: str
    load: Callable[[], pd.DataFrame]
    available: Callable[[], bool]
    natural_sites: tuple[str, ...] = ()
    simulated: bool = False
    fetch: Callable[[], Path] | None = None
    generate: Callable[[int, int, int], pd.DataFrame] | None = None
    fixed_split: str | None = None
    flow: Flow | None = None
    notes: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    own_numbers: bool = False

    def with_labels(self, names: Sequence[str]) -> Dataset:
        """The dataset with these columns as its labels, and without the rows that lack one of them.

        Raises ConfigError and DataError as ``Schema.with_labels``.
        """
        load, generate = self.load, self.generate

        def whole(records: pd.DataFrame) -> pd.DataFrame:
            return records.dropna(subset=list(names)).reset_index(drop=True)

        return replace(
            self, schema=self.schema.with_labels(names), load=lambda: whole(load()),
            generate=None if generate is None else lambda sites, patients, seed: whole(generate(sites, patients, seed)),
        )  # fmt: skip


def hospital_names(key: str) -> tuple[str, ...]:
    """``hospital-001``, ... of the numbers that ``hospitals.toml`` lists under ``key``."""
    numbers = tomllib.loads(Path(__file__).with_name("hospitals.toml").read_text(encoding="utf-8"))[key]
    return tuple(f"hospital-{number:03d}" for number in numbers)


@dataclass(frozen=True)
class Files:
    """Files that a dataset is read from.

    Args:
        dataset: Its name, for `polyclinic datasets fetch`.
        folder: The subfolder of $POLYCLINIC_DATA and of the cache.
        url: What a file's name is appended to or, where archive is set, the address of a zip that holds them all.
        published: file -> SHA-256 (hex), or "" where none is published.
        copies: file -> a compressed copy that is read in its stead, and its SHA-256.
        archive: Whether ``url`` is a zip of all files.
        by_hand: Nothing is downloaded for the user, and ``url`` is the page to get the files from.
    """

    dataset: str
    folder: str
    url: str
    published: Mapping[str, str]
    copies: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    archive: bool = False
    by_hand: bool = False

    def place(self) -> Path | None:
        """The folder that holds every file or its copy: $POLYCLINIC_DATA first, else the cache, else None."""
        declared = os.environ.get("POLYCLINIC_DATA")
        places = [Path(declared) / self.folder] if declared else []
        return next((place for place in (*places, self._cache()) if self._all_in(place)), None)

    def available(self) -> bool:
        """Whether the files are at hand."""
        return self.place() is not None

    def get(self, names: tuple[str, ...] = ()) -> dict[str, Path]:
        """The checked paths of the files (of all where no name is given), downloaded first where absent.

        Raises DataError for a file that is not the known one, or that cannot be downloaded.
        """
        place = self.place() or self.fetch()
        return {name: self._verify(place, name) for name in names or self.published}

    def fetch(self, url: str | None = None, target: Path | None = None) -> Path:
        """The folder with the files, downloaded to the user's cache where they are missing; raises DataError."""
        if self.by_hand:
            return self._require_place()
        url, target = url or self.url, target or self._cache()
        try:
            if self.archive:
                self._unpack(url, target)
            else:
                for name, digest in self.published.items():
                    _retrieve(f"{url}{name}", digest, name, target)
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise DataError(
                f"{self.dataset}: its files could not be downloaded from {url} ({type(error).__name__}); go online and run "
                f"`polyclinic datasets fetch {self.dataset}`, or set POLYCLINIC_DATA to a folder whose subfolder "
                f"{self.folder} holds {', '.join(self.published)}."
            ) from None
        return target

    def _require_place(self) -> Path:
        if (place := self.place()) is not None:
            return place
        copies = ", ".join(copy for copy, _ in self.copies.values())
        raise DataError(
            f"{self.dataset}: its files cannot be fetched for you; download {', '.join(self.published)} from {self.url} and set "
            f"POLYCLINIC_DATA to a folder whose subfolder {self.folder} holds them{f' (or {copies})' if copies else ''}."
        )

    def _unpack(self, url: str, target: Path) -> None:
        if self._all_in(target):
            return
        with ZipFile(_retrieve(url, None, "archive.zip", target)) as archive:
            members = {Path(member).name: member for member in archive.namelist()}
            for name, digest in self.published.items():
                content = archive.read(members[name])
                if hashlib.sha256(content).hexdigest() != digest:
                    raise ValueError(name)
                write_file(target / name, content)

    def _cache(self) -> Path:
        import pooch

        return Path(pooch.os_cache("polyclinic")) / self.folder

    def _file_of(self, place: Path, name: str) -> tuple[Path, str] | None:
        places = [(place / name, self.published[name])]
        if name in self.copies:
            copy, digest = self.copies[name]
            places.insert(0, (place / copy, digest))
        return next(((file, digest) for file, digest in places if file.is_file()), None)

    def _all_in(self, place: Path) -> bool:
        return all(self._file_of(place, name) for name in self.published)

    def _verify(self, place: Path, name: str) -> Path:
        file_and_digest = self._file_of(place, name)
        if file_and_digest is None or (
            file_and_digest[1] and hashlib.sha256(file_and_digest[0].read_bytes()).hexdigest() != file_and_digest[1]
        ):
            file = place / name if file_and_digest is None else file_and_digest[0]
            raise DataError(
                f"{file} is not the published file (its SHA-256 differs); delete it and download it anew from {self.url}."
            )
        return file_and_digest[0]


def _retrieve(url: str, digest: str | None, name: str, target: Path) -> Path:
    import pooch

    expected_hash = None if digest is None else f"sha256:{digest}"
    return Path(pooch.retrieve(url, known_hash=expected_hash, fname=name, path=target))
