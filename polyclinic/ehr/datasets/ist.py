"""The International Stroke Trial: 19,435 patients of 466 hospitals in 36 countries, as they were when randomised.

The table is read from $POLYCLINIC_DATA/ist. Features are what was known at randomisation and the treatment drawn;
columns of what came later (D*, F*, O*, DEAD*, ...) are never read but for the outcome itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.datasets.files import Files
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError

PAGE = "https://doi.org/10.7488/ds/104"
#: The file as the University of Edinburgh publishes it; its checksum is not published, its size is.
PUBLISHED = "IST_corrected.csv"
FILES = Files(
    dataset="ist",
    folder="ist",
    url=PAGE,
    published={PUBLISHED: ""},
    copies={PUBLISHED: ("IST.csv.gz", "64e7e6e85e297488cde51c9a0cde43cc89c632ba18883efee4b79adb7cb9b993")},
    by_hand=True,
)
ROWS, COLUMNS = 19435, 112

#: The hospitals (HOSPNUM) by the number of patients they randomised, largest first, ties by number.
_NUMBERS = """
    134 39 121 1 2 6 290 10 73 344 4 96 72 245 48 11 74 60 33 81 102 265 406 105 25 85 294 93 46 264 98 119 312 487
    554 78 3 118 234 113 123 468 18 34 83 32 89 408 35 319 5 129 242 384 51 383 27 256 37 244 191 377 396 226 258 302
    303 30 195 177 252 159 236 257 161 246 31 16 225 86 24 222 53 233 55 20 311 439 70 179 342 365 38 47 66 371 449 17
    149 239 559 15 110 212 283 21 200 240 464 36 196 26 390 334 7 63 127 291 58 210 404 501 56 324 349 366 382 64 77
    79 230 251 351 403 416 529 274 472 496 8 139 144 317 352 415 155 186 306 310 343 13 153 214 437 116 219 328 76 109
    12 429 524 156 181 363 471 354 535 19 29 50 202 231 395 414 420 441 480 124 69 380 462 469 106 515 201 341 392 307
    184 198 229 259 531 551 564 52 87 183 250 331 339 421 61 176 203 313 353 510 527 536 549 568 71 115 175 206 208
    211 345 374 481 190 238 322 452 171 174 189 218 237 375 402 486 519 166 220 268 336 463 467 41 80 107 411 485 503
    504 514 541 57 136 209 278 387 428 488 534 542 548 40 82 255 296 400 410 355 373 413 499 108 217 224 361 368 458
    477 533 9 14 147 207 289 348 362 465 561 88 101 187 409 422 453 520 75 194 204 249 305 308 309 430 434 440 478 539
    543 59 95 126 137 232 346 369 507 528 213 243 320 323 326 482 565 49 90 97 130 131 154 172 193 223 391 405 423 438
    513 558 28 67 122 173 279 299 407 412 516 111 143 228 271 292 301 330 350 372 433 470 483 522 553 557 54 62 65 68
    169 197 293 333 125 180 300 443 495 511 532 550 141 142 158 163 247 262 314 399 418 424 431 461 479 498 547 562
    133 188 215 227 304 337 376 436 457 512 567 164 359 367 419 445 484 491 492 500 506 508 518 545 132 248 281 285
    295 297 332 360 364 381 388 417 435 473 476 523 538 540 563 84 114 117 152 170 178 286 394 447 455 474 502 521 546
    560 135 162 165 241 253 260 267 327 378 425 454 456 497 505
"""
SITES = tuple(f"hospital-{int(number):03d}" for number in _NUMBERS.split())
#: Hospitals none of whose patients has a known state at 6 months.
_UNKNOWN = ("hospital-521", "hospital-505")

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
SCHEMA_DEATH_14 = Schema(
    name="ist-death-14",
    columns=(
        *SCHEMA.columns[:-1],
        Column(name="dead_at_14", kind="binary", role="label", description="1 if dead within 14 days"),
    ),
    rules=SCHEMA.rules,
)
_FEATURES = tuple(column.name for column in SCHEMA.features)


_MONTHS = (("jan", "sty"), ("feb", "lut"), ("mar",), ("apr", "kwi"), ("may", "maj"), ("jun", "cze"), ("jul", "lip"),
           ("aug", "sie"), ("sep", "wrz"), ("oct", "pa"), ("nov", "lis"), ("dec", "gru"))  # fmt: skip


def _month(text: str) -> str:
    """ "1991-01" of "jan-91", or of the Polish "sty-91" that the spreadsheet program of the published table wrote."""
    name, year = text.lower().split("-")
    number = next(place for place, starts in enumerate(_MONTHS, 1) if name.startswith(starts))
    return f"19{year}-{number:02d}"


@lru_cache(maxsize=2)
def _parsed(file: Path) -> pd.DataFrame:
    """All 19,435 patients, hospitals in order of size: patient, site, country, the features, and both outcomes."""
    table = pd.read_csv(file, encoding="latin-1", skipinitialspace=True, low_memory=False)
    wanted = ["HOSPNUM", "COUNTRY", "RDATE", "OCCODE", "ID14", *(name.upper() for name in _FEATURES)]
    if table.shape != (ROWS, COLUMNS) or not set(wanted) <= set(table.columns):
        raise DataError(f"{file} is not the published table of {ROWS} rows and {COLUMNS} columns; get it from {PAGE}.")
    table = table[wanted].rename(columns=str.lower)
    # The pilot phase wrote H for the dose that the main phase wrote M for (Sandercock et al. 2011, table 2).
    table["rxhep"] = table["rxhep"].replace("H", "M")
    table["randomised"] = table.pop("rdate").map(_month)
    table.insert(0, "patient", [f"{row + 1}" for row in range(ROWS)])
    table.insert(1, "site", table.pop("hospnum").map("hospital-{:03d}".format))
    size = table["site"].map(table["site"].value_counts())
    order = np.lexsort((table["site"], -size))
    return table.iloc[order].reset_index(drop=True)


def _read() -> pd.DataFrame:
    return _parsed(FILES.get()[PUBLISHED])


def _labelled(records: pd.DataFrame, schema: Schema, label: pd.Series) -> pd.DataFrame:
    records = records.assign(**{schema.label.name: label.astype("int64")})
    return records[[column.name for column in schema.columns]].reset_index(drop=True)


def load() -> pd.DataFrame:
    """The 19,285 patients whose state at 6 months is known (OCCODE 1 to 4); dead (1) or dependent (2) against the rest."""
    table = _read()
    known = table[table["occode"].between(1, 4)]
    return _labelled(known, SCHEMA, known["occode"] <= 2)


def load_death_14() -> pd.DataFrame:
    """All 19,435 patients; dead within 14 days (ID14) or not."""
    table = _read()
    return _labelled(table, SCHEMA_DEATH_14, table["id14"] == 1)


DATASET = Dataset(
    name="ist",
    title="International Stroke Trial, state at 6 months",
    description="Dead or dependent 6 months after a stroke: 19,285 patients of 464 hospitals in a randomised trial.",
    schema=SCHEMA,
    licence="ODC-By 1.0",
    citation=f"Sandercock, Niewada and Czlonkowska 2011, The International Stroke Trial database, Trials 12:101, {PAGE}",
    patients=19285,
    rows=19285,
    default_sites=20,
    default_partitioner="natural",
    natural_sites=tuple(site for site in SITES if site not in _UNKNOWN),
    flow=Flow.of(("randomised", ROWS, ROWS), ("state at 6 months known", 19285, 19285)),
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
)
DATASET_DEATH_14 = replace(
    DATASET,
    name="ist-death-14",
    title="International Stroke Trial, death within 14 days",
    description="Death within 14 days of a stroke: 19,435 patients of 466 hospitals in a randomised trial.",
    schema=SCHEMA_DEATH_14,
    patients=ROWS,
    rows=ROWS,
    natural_sites=SITES,
    flow=None,
    load=load_death_14,
)
