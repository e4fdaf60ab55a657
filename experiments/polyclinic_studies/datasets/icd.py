"""SIMULATED patients of a hospital as sets of ICD-9 categories, and death; no record is of a real person.

The width and the number of patients are those of PPGAN (Liu et al. 2019) and DPGAN on MIMIC-III: 1,071 categories of some
46,000 patients. A category's overall frequency falls with its rank (Zipf); a patient belongs to one of ten latent classes of
comorbidity, which multiply the frequencies of chapters of ICD-9, and has a burden, which multiplies all of them. So codes
occur together, and a generator of independent codes is seen to be one. No patient has more than MOST_CODES; who would have
more keeps as many of them, drawn evenly. Death depends on the codes alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import mimic
from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.types import Bools, Floats

PATIENTS = 46000
DEFAULT_SITES = 5
MOST_CODES = 20
#: Share of patients with the commonest category before class and burden act, and how the share falls with rank.
COMMONEST, ZIPF, OFFSET = 0.45, 1.2, 6.0
#: Shape of the gamma law of a patient's burden, whose mean is 1.
BURDEN = 3.0
#: No category is likelier than this in any patient.
LIKELIEST = 0.9
_CHUNK = 4096

# The external causes that emergency departments code; of the others the dictionary's every category.
_CAUSES = {"E849", "E968"} | {f"E{n}" for n in (*range(810, 820), *range(878, 889), *range(930, 940), *range(940, 960))}
CODES = tuple(code for code in mimic.CODES if code[0] != "E" or code in _CAUSES)

#: The categories that adult intensive care codes most, in about that order; the others follow in a fixed random order.
_COMMON = """
    401 428 427 414 250 272 518 584 285 276 599 V45 585 403 410 486 038 995 244 507 530 305 496 785 997 998 511 V58
    424 493 707 041 287 286 458 780 V10 571 440 412 564 573 578 600 070 311 300 733 715 274 327 331 342 348
    V30 V29 774 765 769 770 779
"""

_CHAPTERS = {"infections": (1, 139), "neoplasms": (140, 239), "endocrine": (240, 279), "blood": (280, 289),
             "mental": (290, 319), "nervous": (320, 389), "circulatory": (390, 459), "respiratory": (460, 519),
             "digestive": (520, 579), "genitourinary": (580, 629), "pregnancy": (630, 679), "skin": (680, 709),
             "bones": (710, 739), "congenital": (740, 759), "perinatal": (760, 779), "symptoms": (780, 799),
             "injury": (800, 999)}  # fmt: skip

#: Latent class -> share of patients, factor of chapters not named, and of the chapters and categories that are.
CLASSES: dict[str, tuple[float, float, dict[str, float]]] = {
    "cardiac": (0.20, 0.7, {"circulatory": 3.0, "endocrine": 1.6, "pregnancy": 0.0, "perinatal": 0.0}),
    "sepsis": (0.12, 0.8, {"infections": 4.0, "respiratory": 2.2, "genitourinary": 1.8, "perinatal": 0.0,
                           "038": 9.0, "995": 9.0, "785": 7.0, "584": 3.0}),
    "renal": (0.08, 0.8, {"genitourinary": 4.0, "circulatory": 1.5, "endocrine": 2.0, "perinatal": 0.0,
                          "585": 9.0, "403": 9.0, "V45": 4.0}),
    "lung": (0.10, 0.7, {"respiratory": 3.5, "circulatory": 1.2, "mental": 1.5, "perinatal": 0.0}),
    "trauma": (0.11, 0.45, {"injury": 6.0, "causes": 9.0, "nervous": 1.3, "mental": 1.5, "perinatal": 0.0, "995": 0.5}),
    "cancer": (0.08, 0.6, {"neoplasms": 12.0, "blood": 2.5, "symptoms": 1.5, "perinatal": 0.0}),
    "liver": (0.07, 0.7, {"digestive": 5.0, "blood": 2.5, "mental": 2.0, "perinatal": 0.0, "571": 9.0, "572": 9.0}),
    "neurological": (0.08, 0.6, {"nervous": 7.0, "mental": 2.5, "symptoms": 2.0, "perinatal": 0.0}),
    "surgical": (0.08, 0.7, {"digestive": 2.0, "injury": 2.5, "bones": 3.0, "factors": 2.0, "perinatal": 0.0}),
    "newborn": (0.08, 0.02, {"perinatal": 45.0, "congenital": 12.0, "V29": 45.0, "V30": 45.0}),
}  # fmt: skip

#: What a category adds to the logit of death; every other adds OTHER, and none at all gives INTERCEPT.
DEADLY = {"038": 0.9, "785": 1.3, "427": 0.35, "518": 0.9, "584": 0.6, "348": 1.4, "197": 1.2, "198": 1.0, "431": 1.3,
          "570": 1.5, "572": 1.0, "286": 0.8, "507": 0.7, "995": 0.5, "428": 0.3, "V45": -0.3, "401": -0.4}  # fmt: skip
INTERCEPT, OTHER = -3.7, 0.06

SCHEMA = Schema(
    name="icd",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id"),
        Column(name="site", kind="categorical", role="site"),
        Column(name="diagnoses", kind="code_set", categories=CODES, description="ICD-9 categories, all admissions"),
        Column(name="died", kind="binary", role="label", description="1 if the patient dies in hospital"),
    ),
)


def chapter(code: str) -> str:
    """The chapter of an ICD-9 category; ``factors`` of a V code, ``causes`` of an E code."""
    if not code.isdigit():
        return "factors" if code[0] == "V" else "causes"
    return next(name for name, (first, last) in _CHAPTERS.items() if first <= int(code) <= last)


@lru_cache(maxsize=1)
def frequencies() -> Floats:
    """(classes, codes) how often a patient of a class and of burden 1 has a code; the same for every seed."""
    rng = np.random.default_rng(np.random.SeedSequence([*b"icd codes"]))
    common = _COMMON.split()
    others = sorted(set(CODES) - set(common))
    order = [*common, *(others[place] for place in rng.permutation(len(others)))]
    rank = np.array([order.index(code) for code in CODES])
    zipf = COMMONEST * ((1.0 + OFFSET) / (rank + 1.0 + OFFSET)) ** ZIPF
    chapters = [chapter(code) for code in CODES]
    factors = np.array(
        [
            [named.get(code, named.get(name, rest)) for code, name in zip(CODES, chapters, strict=True)]
            for _, rest, named in CLASSES.values()
        ]
    )
    # Within a chapter a class has categories of its own, or a chapter would be all that a patient shows.
    factors *= rng.gamma(2.0, 0.5, factors.shape)
    share = np.array([share for share, _, _ in CLASSES.values()])
    return np.asarray(zipf * factors / (share @ factors))


def generate_icd(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Simulated patients as one table: ``patients`` rows, one for each, with the hospital's name in ``site``.

    Hospitals differ in the shares of the latent classes. The same table for the same arguments. Raises ConfigError
    unless 1 <= sites <= patients and seed >= 0.
    """
    check_size("a simulation", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"icd"]))
    site = rng.permutation(enrolment(sites, patients, rng))
    share = np.array([share for share, _, _ in CLASSES.values()])
    cases = rng.dirichlet(50.0 * share, sites)
    group = (rng.random(patients)[:, None] > np.cumsum(cases, axis=1)[site][:, :-1]).sum(axis=1)
    burden = rng.gamma(BURDEN, 1.0 / BURDEN, patients)
    deadly = np.array([DEADLY.get(code, OTHER) for code in CODES])
    codes = np.array(CODES, dtype=object)

    cells: list[str] = []
    logit = np.empty(patients)
    for start in range(0, patients, _CHUNK):
        rows = slice(start, min(start + _CHUNK, patients))
        chance = np.minimum(burden[rows, None] * frequencies()[group[rows]], LIKELIEST)
        held = _at_most(rng.random(chance.shape, dtype=np.float32) < chance, MOST_CODES, rng)
        logit[rows] = INTERCEPT + held @ deadly
        row, place = np.nonzero(held)
        found = np.split(codes[place], np.searchsorted(row, np.arange(1, len(held))))
        cells += [";".join(one) for one in found]
    return pd.DataFrame(
        {
            "patient": patient_names("patient", patients),
            "site": site_names(sites)[site],
            "diagnoses": cells,
            "died": (rng.random(patients) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int64),
        }
    )


def _at_most(held: Bools, most: int, rng: np.random.Generator) -> Bools:
    """(patients, codes) the same, with an even choice of ``most`` of the codes in every row that has more."""
    for row in np.flatnonzero(held.sum(axis=1) > most):
        own = np.flatnonzero(held[row])
        held[row, rng.permutation(own)[most:]] = False
    return held


DATASET = simulated_dataset(
    "Simulated ICD-9 code sets",
    "SIMULATED sets of 1,071 ICD-9 categories with latent classes of comorbidity, and death in hospital; any "
    "number of hospitals.",
    SCHEMA,
    generate_icd,
    DEFAULT_SITES,
    PATIENTS,
    "Liu et al. 2019 (PPGAN)",
)
