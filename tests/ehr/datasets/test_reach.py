"""The commands that the datasets' pages show reach the AUROC they state, near to one model of all records on the same split."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from polyclinic.config import RunConfig
from polyclinic.ehr import Rows
from polyclinic.ehr.datasets import builtin, load_shards

PAGES = Path(__file__).resolve().parents[3] / "docs" / "datasets"
CLAIM = re.compile(
    r"^```text\npolyclinic (run --dataset [^\n]*)\n```\n\nPooled ([\d.]+), federated ([\d.]+): within ([\d.]+)\.", re.M
)
CLAIMS = [
    (page.stem, *found) for page in sorted(PAGES.glob("*.md")) for found in CLAIM.findall(page.read_text("utf-8"))
]


def pooled_auroc(arguments: list[str]) -> float:
    """Of logistic regression on the training rows of all the run's hospitals; the better of two penalties."""
    keys = dict(pair.split("=", 1) for flag, pair in zip(arguments, arguments[1:], strict=False) if flag == "-c")
    keys |= {flag[2:]: value for flag, value in zip(arguments, arguments[1:], strict=False) if flag.startswith("--")}
    config = RunConfig.model_validate({key: keys[key] for key in ("dataset", "sites", "partitioner") if key in keys})
    dataset = builtin()[config.dataset]
    shards = load_shards(dataset, config.sites, config.partitioner or dataset.default_partitioner, 0, config.alpha)

    def arrays(rows: list[Rows]) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([r.x for r in rows]), np.concatenate([r.y for r in rows])

    (x, y), (x_test, y_test) = arrays([s.train for s in shards]), arrays([s.test for s in shards])
    scale = StandardScaler().fit(x)
    x, x_test = np.nan_to_num(scale.transform(x)), np.nan_to_num(scale.transform(x_test))
    models = [LogisticRegression(C=penalty, max_iter=2000).fit(x, y) for penalty in (0.01, 1.0)]
    return max(float(roc_auc_score(y_test, model.predict_proba(x_test)[:, 1])) for model in models)


def test_the_pages_make_their_claims() -> None:
    assert {claim[0] for claim in CLAIMS} == {"ist", "eicu-demo", "diabetes-130"} and len(CLAIMS) == 4


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=[f"{page}-{place}" for place, (page, *_) in enumerate(CLAIMS)])
def test_federated_is_near_pooled(claim: tuple[str, ...], as_json: Callable[..., Any], tmp_path: Path) -> None:
    page, line, pooled, federated, distance = claim
    if not builtin()[page].available():
        pytest.skip(f"the files of {page} are not in the folder that POLYCLINIC_DATA names")
    arguments = shlex.split(line)
    expected, found = pooled_auroc(arguments), as_json(*arguments, "--out", str(tmp_path))["metrics"]
    assert found["pooled"]["auroc"] > expected - float(distance)
    assert expected == pytest.approx(float(pooled), abs=0.002)
    assert found["pooled"]["auroc"] == pytest.approx(float(federated), abs=0.004)
    table = dict(
        re.findall(r"^\| (hospital-\d+) \| \d+ \| ([\d.]+) \|$", (PAGES / f"{page}.md").read_text("utf-8"), re.M)
    )
    if table.keys() == found["sites"].keys():
        for site, auroc in table.items():
            assert found["sites"][site]["auroc"] == pytest.approx(float(auroc), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
def test_every_hospital_of_the_stroke_trial_takes_part(
    private: bool, ist_files: Path, as_json: Callable[..., Any], tmp_path: Path
) -> None:
    options = () if private else ("--no-dp",)
    found = as_json(
        "run", "--dataset", "ist", "--sites", "464", "--rounds", "2", "--out", str(tmp_path), *options
    )["metrics"]  # fmt: skip
    assert len(found["sites"]) == 464 and found["pooled"]["auroc"] > 0.5
    lone = [site for site in found["sites"].values() if site["patients"] == 1]
    assert len(lone) == 13 and all(site["auroc"] is None and site["rounds_joined"] == 2 for site in lone)
    assert all(
        (site["epsilon"] or 0.0) <= 3.0 and (site["epsilon"] is None) != private for site in found["sites"].values()
    )
