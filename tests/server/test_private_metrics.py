"""Private metrics in a run: asked for after the planned rounds, pooled, told apart from exact ones, and not believed blindly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger

Quick = Callable[..., RunResult]


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    hospitals = Federation.from_dataset("breast-cancer", out=str(tmp_path / "runs"))
    return lambda **options: hospitals.run(rounds=2, **options)


def accounts(result: RunResult) -> dict[str, Ledger]:
    return Ledger.read_all(Path(result.summary["run"]) / "sites" / "held-out.sqlite")


def test_a_simulation_has_exact_metrics_unless_it_asks_for_private_or_none(quick: Quick) -> None:
    exact, none = (quick(evaluation={"metrics": metrics}).summary for metrics in ("exact", "none"))
    private = quick(evaluation={"metrics": "private", "epsilon": 6.0}).summary
    assert exact["model_sha256"] == private["model_sha256"] == none["model_sha256"]
    assert exact["private_metrics"] is None and none["private_metrics"] is None
    assert exact["metrics"]["pooled"]["auroc"] == pytest.approx(private["metrics"]["pooled"]["auroc"], abs=0.1)
    assert exact["metrics"]["pooled"]["auroc"] != private["metrics"]["pooled"]["auroc"]
    assert none["metrics"]["pooled"]["auroc"] is None
    sites = private["private_metrics"]["sites"].values()
    assert all(5.0 < site["epsilon"] <= 6.0 and site["metrics"]["accuracy"]["error"] > 0 for site in sites)
    assert any("Private metrics" in note for note in private["notes"])
    assert not any("without noise" in note for note in private["notes"])


def test_planned_evaluations_share_the_epsilon(quick: Quick) -> None:
    once, twice = quick(evaluation={"metrics": "private"}), quick(evaluation={"metrics": "private", "releases": 2})
    for result, releases in ((once, 1), (twice, 2)):
        assert all(len(ledger.events()) == releases and ledger.epsilon() <= 1.0 for ledger in accounts(result).values())
    less, more = (next(iter(r.summary["private_metrics"]["sites"].values()))["deviation"] for r in (once, twice))
    assert more > 1.3 * less


def test_runs_of_one_seed_share_noise_where_they_are_the_same_run_alone(quick: Quick) -> None:
    def patients(**options: Any) -> dict[str, float]:
        sites = quick(evaluation={"metrics": "private"}, **options).summary["private_metrics"]["sites"]
        return {name: site["metrics"]["patients"]["value"] for name, site in sites.items()}

    first = patients()
    assert patients() == first
    other = patients(training={"learning-rate": 0.1})
    assert not any(other[name] == pytest.approx(first[name], abs=1e-6) for name in first)


def test_the_report_tells_private_metrics_with_the_error_of_their_noise(quick: Quick) -> None:
    result = quick(evaluation={"metrics": "private"})
    page = (Path(result.summary["run"]) / "report.html").read_text(encoding="utf-8")
    assert "Private metrics" in page and "±" in page and "an account of their own" in page
    # Epsilon and risk at the top are of patients trained on; held-out patients paid for the metrics, of which none is exact.
    top = " ".join(page[: page.index("</header>") + 4000].split())
    assert "per patient trained on." in top
    assert "Risk of patients trained on: " in top and "Held-out patients: private metrics cost them epsilon 0.99" in top
    assert "exact numbers about held-out patients" not in page
    exact = (Path(quick().summary["run"]) / "report.html").read_text(encoding="utf-8")
    assert "exact numbers about held-out patients" in exact and "trained on.</strong>" not in exact
    assert "Private metrics</h3>" not in (Path(quick().summary["run"]) / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def first_hospital_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change the counts, or what is said of them, in the reply of the hospital with number 0."""
    from polyclinic.client import evaluation
    from polyclinic.wire.arrays import to_record
    from polyclinic.wire.messages import COUNTS, RECORD

    honest = evaluation._counts

    def change(counts: Callable[[np.ndarray], Any] = lambda counts: counts, **said: Any) -> None:
        def lying(call: Any, *args: Any) -> Any:
            content = honest(call, *args)
            if call.request.site == 0:
                content[COUNTS] = to_record({"counts": counts(content[COUNTS]["counts"].numpy())})
                for name, value in said.items():
                    content[RECORD][name.replace("_", "-")] = value
            return content

        monkeypatch.setattr(evaluation, "_counts", lying)

    return change


def test_counts_cost_at_least_what_their_noise_says(quick: Quick, first_hospital_says: Callable[..., None]) -> None:
    honest = quick(evaluation={"metrics": "private"}).summary["private_metrics"]["sites"]
    name = next(iter(honest))
    first_hospital_says(held_out_epsilon=0.001)
    understated = quick(evaluation={"metrics": "private"}).summary["private_metrics"]["sites"][name]
    assert understated["epsilon"] == pytest.approx(honest[name]["epsilon"], rel=1e-3) and honest[name]["epsilon"] > 0.9
    first_hospital_says(held_out_epsilon=0.001, deviation=honest[name]["deviation"] / 2)
    assert quick(evaluation={"metrics": "private"}).summary["private_metrics"]["sites"][name]["epsilon"] > 1.9


def _longer(counts: np.ndarray) -> Any:
    return np.concatenate([counts, counts])


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (lambda counts: counts * np.nan, {}),
        (_longer, {}),
        (lambda counts: counts, {"held_out_epsilon": float("inf")}),
        (lambda counts: counts, {"held_out_epsilon": -1.0}),
        (lambda counts: counts, {"deviation": 0.0}),
        (lambda counts: counts, {"deviation": 1e-300}),
        (lambda counts: counts, {"deviation": "much"}),
    ],
)
def test_private_metrics_that_make_no_sense_are_left_out(
    quick: Quick, first_hospital_says: Callable[..., None], counts: Callable[[np.ndarray], Any], said: dict[str, Any]
) -> None:
    first_hospital_says(counts, **said)
    summary = quick(evaluation={"metrics": "private"}).summary
    names = [*summary["metrics"]["sites"]]
    assert set(summary["private_metrics"]["sites"]) == set(names[1:])
    assert summary["metrics"]["sites"][names[0]]["auroc"] is None and np.isfinite(
        summary["metrics"]["pooled"]["accuracy"]
    )
    assert any("cannot be read" in drop["reason"] for drop in summary["dropouts"])
