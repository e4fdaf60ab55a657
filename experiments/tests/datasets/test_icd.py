"""Simulated ICD-9 code sets: the vocabulary, frequencies that fall as Zipf's, codes that occur together, the limit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from polyclinic.ehr.datasets import load_shards, mimic
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic_studies.datasets import icd, icd_demos

ICD = dataset_named("icd")
TABLE = icd.generate_icd(5, 20000, 0)
HELD = np.asarray(encode(TABLE, icd.SCHEMA).x) == 1.0
PLACE = {code: place for place, code in enumerate(icd.CODES)}


def test_the_vocabulary_is_1071_categories_of_the_public_dictionary() -> None:
    assert len(icd.CODES) == len(set(icd.CODES)) == 1071 and set(icd.CODES) < set(mimic.CODES)
    kinds = {kind: sum(code[0] == kind for code in icd.CODES) for kind in "VE"}
    assert kinds == {"V": 90, "E": 53}
    assert set(icd.DEADLY) <= set(icd.CODES)
    named = set(icd.LINKS) | {code for later in icd.LINKS.values() for code in later}
    assert named <= set(icd.CODES), "every link is of two categories"


@pytest.mark.parametrize(("code", "chapter"), [("001", "infections"), ("428", "circulatory"), ("999", "injury"),
                                               ("V30", "factors"), ("E880", "causes"), ("770", "perinatal")])  # fmt: skip
def test_chapters(code: str, chapter: str) -> None:
    assert icd.chapter(code) == chapter


def test_frequencies_fall_with_the_rank_and_are_the_generators() -> None:
    overall = np.sort(icd.frequencies())[::-1]
    rank = np.arange(1071)
    assert overall == pytest.approx(icd.COMMONEST * ((1 + icd.OFFSET) / (rank + 1 + icd.OFFSET)) ** icd.ZIPF)
    found = HELD.mean(axis=0)
    assert found.max() == found[PLACE["401"]] and 0.25 < found.max() < 0.45
    assert 100 < (found > 0.01).sum() < 220 and (found > 0).sum() > 900
    rarer = np.argsort(-icd.frequencies())[100:400]
    assert np.corrcoef(np.log(found[rarer] + 1e-5), np.log(icd.frequencies()[rarer]))[0, 1] > 0.8


def test_every_category_follows_from_earlier_ones_alone() -> None:
    made = icd.network()
    number = {place: at for at, place in enumerate(made.order)}
    assert sorted(made.order) == list(range(1071)) and icd.CODES[made.order[0]] == "V30"
    for place in made.order:
        assert all(number[cause] < number[place] for cause in made.causes[place].tolist())
        assert len(set(made.causes[place].tolist())) == len(made.factors[place])
    for cause, later in icd.LINKS.items():
        for code, factor in later.items():
            at = made.causes[PLACE[code]].tolist().index(PLACE[cause])
            assert made.factors[PLACE[code]][at] == factor


def test_no_patient_has_more_codes_than_the_limit() -> None:
    number = HELD.sum(axis=1)
    assert number.max() == icd.MOST_CODES and 7.0 < number.mean() < 10.0
    assert number.std() > 1.5 * np.sqrt((HELD.mean(axis=0) * (1 - HELD.mean(axis=0))).sum()), "wider than independent"


def test_codes_of_a_chain_occur_together() -> None:
    def lift(first: str, second: str) -> float:
        a, b = HELD[:, PLACE[first]], HELD[:, PLACE[second]]
        return float((a & b).mean() / (a.mean() * b.mean()))

    assert lift("038", "995") > 3.0 and lift("585", "403") > 2.0 and lift("428", "427") > 1.3
    assert lift("401", "V30") < 0.3, "the newborn have no hypertension"


def test_death_follows_from_the_codes_and_can_be_learnt() -> None:
    died = TABLE["died"].to_numpy()
    assert 0.07 < died.mean() < 0.15
    model = LogisticRegression(C=0.1, max_iter=300).fit(HELD[:12000], died[:12000])
    assert 0.72 < roc_auc_score(died[12000:], model.decision_function(HELD[12000:])) < 0.9
    assert died[HELD[:, PLACE["348"]]].mean() > 2 * died.mean()


@pytest.mark.parametrize(("sites", "patients"), [(1, 1), (3, 4), (7, 50), (20, 5000)])
def test_sizes_are_exact_and_the_same_for_the_same_arguments(sites: int, patients: int) -> None:
    table = icd.generate_icd(sites, patients, 2)
    assert len(table) == patients == table["patient"].nunique() and table["site"].nunique() == sites
    pd.testing.assert_frame_equal(table, icd.generate_icd(sites, patients, 2))


def test_any_number_of_hospitals_that_differ() -> None:
    by_site = HELD[:, [PLACE["038"], PLACE["414"]]]
    shares = pd.DataFrame(by_site).groupby(TABLE["site"].to_numpy()).mean()
    assert np.ptp(shares[0]) > 0.01 and np.ptp(shares[1]) > 0.02
    assert len(load_shards(ICD, 1, "natural", 0, 1.0)) == 1
    assert not icd.generate_icd(2, 50, 0).equals(icd.generate_icd(2, 50, 1))
    for sites, patients, seed in ((0, 10, 0), (11, 10, 0), (2, 10, -1)):
        with pytest.raises(ConfigError):
            icd.generate_icd(sites, patients, seed)


def test_codes_of_the_two_demos_are_one_row_a_patient_of_the_public_vocabulary() -> None:
    records = icd_demos.load()
    assert len(records) == records["patient"].nunique() == icd_demos.DATASET.patients
    assert set(records["site"]) == {"mimic", "eicu"} and (records["site"] == "mimic").sum() == 100
    sets = records["diagnoses"].str.split(";")
    assert sets.explode().isin(mimic.CODES).all() and (sets.str.len() > 0).all()
    assert encode(records, icd_demos.SCHEMA).x.shape == (len(records), 1234)
