"""SIMULATED patients of a hospital as sets of ICD-9 categories, and death; no record is of a real person.

The width and the number of patients are those of PPGAN (Liu et al. 2019) and DPGAN on MIMIC-III: 1,071 categories of some
46,000 patients. A category's overall frequency falls with its rank (Zipf). Categories follow from each other in chains of
comorbidity: a patient gets them one after another, and each that is there multiplies the risk of a few later ones, so that codes
occur together and some patients have many. It is a Bayesian network, sampled from its first category to its last; there are no
latent classes in it, as the generators that are tried on it fit them. No patient has more than MOST_CODES; who would have more
keeps as many of them, drawn evenly. Death depends on the codes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import mimic
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.datasets.simulated import check_size, enrolment, patient_names, simulated_dataset, site_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.types import Bools, Floats, Ints

PATIENTS = 46000
DEFAULT_SITES = 5
MOST_CODES = 20
#: Share of patients with the commonest category, and how the share falls with rank.
COMMONEST, ZIPF, OFFSET = 0.42, 1.2, 6.0
#: No category is likelier than this in any patient, nor its risk multiplied by more.
LIKELIEST, MOST_RISK = 0.9, 40.0
#: Standard deviation, between hospitals, of the logarithm of a chapter's frequency.
HOSPITAL_SPREAD = 0.08
#: How many patients the categories' own risks are set by, so that frequencies are Zipf's.
_REFERENCE = 20000

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

#: Category -> later ones, and by how much it multiplies their risk.
LINKS: dict[str, dict[str, float]] = {
    "V30": {"V29": 40.0, "774": 40.0, "765": 30.0, "769": 30.0, "770": 30.0, "779": 30.0},
    "401": {"272": 1.8, "414": 1.5, "250": 1.4, "V58": 1.4}, "428": {"427": 2.2, "414": 1.8, "518": 1.6, "584": 1.8, "424": 3.0},
    "427": {"424": 2.0, "V58": 2.2, "458": 1.8, "997": 1.5}, "414": {"272": 2.2, "410": 4.0, "412": 5.0, "440": 3.0},
    "250": {"585": 2.2, "357": 9.0, "272": 1.5, "707": 2.0}, "272": {"V45": 1.6, "440": 2.0},
    "518": {"486": 2.5, "038": 2.2, "507": 3.0, "496": 1.8}, "584": {"276": 2.2, "038": 2.5, "585": 2.5, "785": 2.0},
    "585": {"403": 9.0, "V45": 3.0, "588": 12.0, "285": 1.8}, "486": {"038": 2.0, "995": 1.8, "496": 1.8},
    "038": {"995": 9.0, "785": 5.0, "286": 4.0, "707": 1.8, "041": 3.0}, "995": {"785": 4.0, "286": 2.0},
    "571": {"572": 20.0, "456": 15.0, "789": 5.0, "070": 6.0, "287": 2.5, "286": 3.0},
    "305": {"303": 8.0, "571": 3.0, "496": 2.0},
    "496": {"491": 9.0, "V46": 5.0}, "197": {"198": 12.0, "V10": 2.5}, "331": {"294": 12.0, "342": 2.0},
    "807": {"805": 5.0, "E812": 6.0, "860": 8.0}, "E812": {"805": 5.0, "808": 5.0, "823": 4.0},
}  # fmt: skip
#: What a birth at this stay multiplies the risk of every category by that is not of the newborn.
OF_NEWBORN = 0.01
_NEWBORN = {"V29", "774", "765", "769", "770", "779"}

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


@dataclass(frozen=True)
class Network:
    """order: (J,) places of the categories, each after all that it follows from.  causes: (J,) of each place, the places that it
    follows from.  factors: what each of them multiplies its risk by.  own: (J,) risk of who has none of them.
    """

    order: tuple[int, ...]
    causes: tuple[Ints, ...]
    factors: tuple[Floats, ...]
    own: Floats

    def risk(self, place: int, held: Bools) -> Floats:
        """(patients,) what the categories that patients have, (J, patients), multiply the risk of one by."""
        logarithm = np.log(self.factors[place]).astype(np.float32) @ held[self.causes[place]].astype(np.float32)
        return np.asarray(np.exp(np.minimum(logarithm, np.log(MOST_RISK))), dtype=np.float64)


def frequencies() -> Floats:
    """(J,) the share of patients that each category is meant to have, before the limit on codes."""
    common = _COMMON.split()
    others = sorted(set(CODES) - set(common))
    rng = np.random.default_rng(np.random.SeedSequence([*b"icd codes"]))
    order = [*common, *(others[place] for place in rng.permutation(len(others)))]
    rank = np.array([order.index(code) for code in CODES])
    return np.asarray(COMMONEST * ((1.0 + OFFSET) / (rank + 1.0 + OFFSET)) ** ZIPF)


@lru_cache(maxsize=1)
def network() -> Network:
    """The network of comorbidity, the same for every seed.

    Beside the named links a category follows from up to four commoner ones, most of them of its own chapter. The own risks are
    set one after another, on patients drawn so far, so that every category is as frequent as Zipf's law says.
    """
    rng = np.random.default_rng(np.random.SeedSequence([*b"icd network"]))
    shares, places = frequencies(), {code: place for place, code in enumerate(CODES)}
    chapters = np.array([chapter(code) for code in CODES])
    birth = places["V30"]
    # A birth stands first, and what a named link leads to behind its cause.
    order = [birth, *(int(place) for place in np.argsort(-shares, kind="stable") if place != birth)]
    for cause, later in LINKS.items():
        for code in later:
            if order.index(places[code]) < order.index(places[cause]):
                order.remove(places[code])
                order.insert(order.index(places[cause]) + 1, places[code])
    causes, factors = [np.zeros(0, dtype=np.int64)] * len(CODES), [np.zeros(0)] * len(CODES)
    held, own = np.zeros((len(CODES), _REFERENCE), dtype=bool), np.zeros(len(CODES))
    made = Network(tuple(order), tuple(causes), tuple(factors), own)
    for number, place in enumerate(order):
        named = {places[cause]: later[CODES[place]] for cause, later in LINKS.items() if CODES[place] in later}
        if place != birth:
            earlier = [one for one in order[1:number] if one not in named]
            weights = shares[earlier] * np.where(chapters[earlier] == chapters[place], 12.0, 1.0)
            chosen = (
                rng.choice(earlier, min(4, len(earlier)), False, weights / weights.sum()).tolist() if earlier else []
            )
            named |= {one: float(np.exp(rng.gamma(2.0, 0.35))) for one in chosen}
            if CODES[place] not in _NEWBORN:
                named[birth] = OF_NEWBORN
        causes[place], factors[place] = np.array(list(named), dtype=np.int64), np.array(list(named.values()))
        made = Network(tuple(order), tuple(causes), tuple(factors), own)
        risk = made.risk(place, held) if named else np.ones(_REFERENCE)
        own[place] = shares[place] / risk.mean()
        for _ in range(3):  # some patients' risks are at the limit
            own[place] *= shares[place] / np.minimum(own[place] * risk, LIKELIEST).mean()
        held[place] = rng.random(_REFERENCE) < np.minimum(own[place] * risk, LIKELIEST)
    return made


def generate_icd(sites: int, patients: int, seed: int) -> pd.DataFrame:
    """Simulated patients as one table: ``patients`` rows, one for each, with the hospital's name in ``site``.

    Hospitals differ in how frequent chapters are. The same table for the same arguments. Raises ConfigError unless
    1 <= sites <= patients and seed >= 0.
    """
    check_size("a simulation", sites, patients, seed)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *b"icd"]))
    site = rng.permutation(enrolment(sites, patients, rng))
    kinds = [chapter(code) for code in CODES]
    often = {kind: np.exp(HOSPITAL_SPREAD * rng.standard_normal(sites))[site] for kind in dict.fromkeys(kinds)}
    comorbidity = network()
    held = np.zeros((len(CODES), patients), dtype=bool)
    for place in comorbidity.order:
        risk = comorbidity.own[place] * often[kinds[place]] * comorbidity.risk(place, held)
        held[place] = rng.random(patients, dtype=np.float32) < np.minimum(risk, LIKELIEST)
    held = _at_most(np.ascontiguousarray(held.T), MOST_CODES, rng)
    logit = INTERCEPT + held @ np.array([DEADLY.get(code, OTHER) for code in CODES])
    row, column = np.nonzero(held)
    sets = np.split(np.array(CODES, dtype=object)[column], np.searchsorted(row, np.arange(1, patients)))
    return pd.DataFrame(
        {
            "patient": patient_names("patient", patients),
            "site": site_names(sites)[site],
            "diagnoses": [";".join(one) for one in sets],
            "died": (rng.random(patients) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int64),
        }
    )


def _at_most(held: Bools, most: int, rng: np.random.Generator) -> Bools:
    """(patients, codes) the same, with an even choice of ``most`` of the codes in every row that has more."""
    for row in np.flatnonzero(held.sum(axis=1) > most):
        own = np.flatnonzero(held[row])
        held[row, rng.permutation(own)[most:]] = False
    return held


def _dataset(patients: int) -> Dataset:
    return simulated_dataset(
        "Simulated ICD-9 code sets",
        "SIMULATED sets of 1,071 ICD-9 categories in chains of comorbidity, and death in hospital; any number of hospitals.",
        SCHEMA, generate_icd, DEFAULT_SITES, patients, "Liu et al. 2019 (PPGAN)",
    )  # fmt: skip


DATASET = _dataset(PATIENTS)
#: A fifth of the patients, so that several simulations are run in the time of one.
FIFTH = _dataset(PATIENTS // 5)
