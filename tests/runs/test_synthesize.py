"""Synthetic records leave as the schema says, all of them or none, with a certificate that ties them to their run."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.files import sha256
from polyclinic.runs.combined import combined_regression
from polyclinic.runs.folder import Run
from polyclinic.runs.synthesize import file_names, synthesize
from polyclinic.synthesis import certificate as certificates
from polyclinic.synthesis import conditions
from polyclinic.synthesis.certificate import privacy_of, verify
from polyclinic.synthesis.combining import combine
from polyclinic.synthesis.inference import analyse_sets
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import save
from polyclinic.types import Arrays, Floats, Ints

SCHEMA = Schema(
    name="ward",
    columns=(
        Column(name="nhs", kind="categorical", role="patient_id"),
        Column(name="hospital", kind="categorical", role="site"),
        Column(name="age", kind="integer", bounds=(18.0, 100.0)),
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="beds", kind="integer", bounds=(0.0, 9.0), nullable=True),
        Column(name="intensive", kind="binary"),
        Column(name="sex", kind="binary", categories=("f", "m")),
        Column(name="ward", kind="categorical", categories=("a, b=1:2", "med", "icu"), nullable=True),
        Column(name="codes", kind="code_set", categories=("250", "401", "428")),
        Column(name="sbp", kind="trajectory", steps=3, bounds=(60.0, 240.0), nullable=True),
        Column(name="stage", kind="ordinal", categories=("I", "II", "III")),
        Column(name="seen", kind="continuous", role="time"),
        Column(name="died", kind="categorical", role="label", categories=("no", "yes", "unknown")),
    ),
)
WRITTEN = [
    "nhs",
    "age",
    "lactate",
    "beds",
    "intensive",
    "sex",
    "ward",
    "codes",
    "sbp_00",
    "sbp_01",
    "sbp_02",
    "stage",
    "died",
]


@dataclass(frozen=True, eq=False)
class Noise:
    """Normal rows around ``centre``; ``obeys`` the labels that it is asked for, or draws its own."""

    layout: Layout
    centre: Floats
    obeys: bool = True

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        z = self.centre + rng.normal(0.0, 1.0, (rows, self.layout.width))
        if labels is not None and self.obeys:
            z[:, self.layout.label] = np.eye(self.layout.classes)[labels]
        return z

    def arrays(self) -> Arrays:
        return {"centre": self.centre}

    def options(self) -> dict[str, Any]:
        return {"obeys": self.obeys}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> "Noise":
        return cls(layout, arrays["centre"], **options)


@dataclass(frozen=True, eq=False)
class Doubtful(Noise):
    """Knows how little is certain of its centre."""

    together = (("age", "died"), ("age", "sex"))
    patients = 500.0

    def anew(self, count: int, rng: np.random.Generator) -> list[Noise]:
        return [Noise(self.layout, self.centre + 0.3 * rng.standard_normal()) for _ in range(count)]


SITE = {"patients": 500, "auroc": None, "epsilon": 1.0, "delta": 1e-3, "risk": None, "budget": 2.0, "rounds_joined": 3}
PRIVATE = {
    "run": "/somewhere/private", "rounds": 3, "seed": 0, "strategy": "synthesis", "dataset": "ward", "simulation": True,
    "metrics": {"sites": {"north": SITE, "south": SITE | {"epsilon": 0.5}}},
    "privacy": {"epsilon": 1.0, "delta": 1e-3, "unit": "patient", "relation": "add-remove", "accountant": "pld", "overlap": 1,
                "composition": "disjoint patients: largest over hospitals", "central": None},
}  # fmt: skip
BARE = PRIVATE | {
    "privacy": PRIVATE["privacy"] | {"epsilon": None, "delta": None},  # type: ignore[operator]
    "metrics": {"sites": {"north": SITE | {"epsilon": None, "delta": None}}},
}


def run_folder(path: Path, summary: dict[str, Any] = PRIVATE, task: str = "synthesis", **changed: Any) -> Path:
    path.mkdir()
    (path / "config.toml").write_text(tomli_w.dumps({"task": task}))
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "ledger.json").write_text('{"sites": {}}')
    SCHEMA.to_toml(path / "schema.toml")
    layout = Layout.of(SCHEMA)
    save(Noise(**{"layout": layout, "centre": np.zeros(layout.width)} | changed), path / "synthesizer.safetensors")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(conditions, "_MOST", 64)
    yield


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_records_are_as_the_schema_says(run: Path, tmp_path: Path, ending: str, small_pieces: None) -> None:
    out = tmp_path / f"rows.{ending}"
    synthesize(run, 300, out)
    found = pd.read_parquet(out) if ending == "parquet" else pd.read_csv(out, dtype={"codes": str})
    assert list(found.columns) == WRITTEN and len(found) == 300
    assert (
        found["nhs"].iloc[0] == "synthetic-000001"
        and found["nhs"].is_unique
        and found["nhs"].iloc[-1] == "synthetic-000300"
    )
    if ending == "csv":
        found["codes"] = found["codes"].fillna("")
    encoded = encode(found, SCHEMA)  # refuses any cell that the schema does not allow
    assert encoded.y is not None and set(encoded.y) == {0, 1, 2}
    assert found["lactate"].isna().any() and found["ward"].isna().any() and found["beds"].isna().any()
    if ending == "parquet":
        assert found["age"].dtype == "int64" and found["beds"].dtype == "Int64" and found["sbp_00"].dtype == "float64"


def test_both_endings_hold_the_same_records_and_pieces_do_not_show(run: Path, tmp_path: Path) -> None:
    for name in ("a.parquet", "a.csv"):
        synthesize(run, 200, tmp_path / name, seed=5, force=True)
    # The last digits of a cell in CSV are those that bring the number back.
    read = pd.read_csv(tmp_path / "a.csv", dtype={"codes": str}).fillna({"codes": ""})
    pd.testing.assert_frame_equal(read, pd.read_parquet(tmp_path / "a.parquet"), check_dtype=False)


def test_the_seed_decides_and_sets_are_independent(run: Path, tmp_path: Path) -> None:
    digests = {}
    for name, seed in (("a.csv", 1), ("b.csv", 1), ("c.csv", 2)):
        certificate = json.loads(synthesize(run, 50, tmp_path / name, seed=seed, sets=2).read_text())
        digests[name] = [one["sha256"] for one in certificate["files"]]
    assert digests["a.csv"] == digests["b.csv"]
    assert len({*digests["a.csv"], *digests["c.csv"]}) == 4
    first, second = (pd.read_csv(tmp_path / f"a-0{number}.csv")["age"] for number in (1, 2))
    assert abs(first.corr(second)) < 0.6


def test_a_column_that_is_missing_in_one_piece_keeps_its_type(tmp_path: Path, small_pieces: None) -> None:
    layout = Layout.of(SCHEMA)
    centre = np.zeros(layout.width)
    centre[dict(zip(layout.names, range(layout.width), strict=True))["beds missing"]] = 1.5
    ward = next(at for column, at in layout.columns if column.name == "ward")
    centre[ward] = -10.0
    folder = run_folder(tmp_path / "gone", centre=centre)
    synthesize(folder, 200, tmp_path / "rows.parquet")
    found = pd.read_parquet(tmp_path / "rows.parquet")
    assert found["ward"].isna().all() and 0 < found["beds"].notna().sum() < 100


def test_counts_by_label_and_by_feature_are_exact(run: Path, tmp_path: Path, small_pieces: None) -> None:
    asked = "died=yes:70,died=unknown:3,intensive=1:100,sex=m:33,ward=a, b=1:2:5,stage=III:90"
    certificate = json.loads(synthesize(run, asked, tmp_path / "rows.parquet").read_text())
    found = pd.read_parquet(tmp_path / "rows.parquet")
    assert len(found) == certificate["rows"] == 301
    ends = np.cumsum([one["rows"] for one in certificate["conditions"]])
    for one, last in zip(certificate["conditions"], ends, strict=True):
        assert (found[one["column"]].iloc[last - one["rows"] : last].astype(str) == one["value"]).all(), one
    assert [one["value"] for one in certificate["conditions"]] == ["yes", "unknown", "1", "m", "a, b=1:2", "III"]
    assert found["nhs"].is_unique


def test_a_generator_that_takes_no_labels_still_gives_exact_counts(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "own", obeys=False)
    synthesize(folder, "died=yes:30,died=no:10", tmp_path / "rows.csv")
    assert pd.read_csv(tmp_path / "rows.csv")["died"].tolist() == ["yes"] * 30 + ["no"] * 10


def test_a_value_that_is_too_rare_is_refused(tmp_path: Path) -> None:
    layout = Layout.of(SCHEMA)
    centre = np.zeros(layout.width)
    centre[next(at for column, at in layout.columns if column.name == "intensive")] = -10.0
    folder = run_folder(tmp_path / "rare", centre=centre)
    with pytest.raises(
        ConfigError, match=r"intensive=1:300 is too rare: the generator gave 0 such rows in 130,000; leave it"
    ):
        synthesize(folder, "intensive=1:300", tmp_path / "rows.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["rare"]
    centre[next(at for column, at in layout.columns if column.name == "intensive")] = -2.5  # one row in 741
    folder = run_folder(tmp_path / "seldom", centre=centre)
    with pytest.raises(ConfigError, match="ask for at most 1[0-9][0-9]") as refused:
        synthesize(folder, "intensive=1:2000", tmp_path / "rows.csv")
    most = re.search(r"at most (\d+)", str(refused.value))
    assert most is not None
    synthesize(folder, f"intensive=1:{most[1]}", tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": 0}, "--rows is 0; it must be 1 or more"),
        ({"rows": -5}, "--rows is -5"),
        ({"rows": ""}, "--condition is ''"),
        ({"sets": 0}, "--sets is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"out": "rows.xlsx"}, r"rows.xlsx'; its ending must be one of .parquet, .csv"),
        ({"out": "nowhere/rows.csv"}, "cannot be written"),
        ({"rows": "intensive=1"}, "the form is COLUMN=VALUE:ROWS"),
        ({"rows": "intensive=2:10"}, "the value '2'; allowed are 0, 1"),
        ({"rows": "died=maybe:10"}, "the value 'maybe'; allowed are no, yes, unknown"),
        ({"rows": "intensiv=1:10"}, "Did you mean 'intensive'?"),
        ({"rows": "age=50:10"}, "column 'age'; allowed are intensive, sex, ward, stage, died"),
        ({"rows": "sex=f:0"}, "asks for 0 rows"),
        ({"rows": "sex=f:5,sex=f:5"}, "names sex=f twice"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(run: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    given = {"rows": 10, "out": "rows.csv"} | options
    with pytest.raises(ConfigError, match=said):
        synthesize(run, given.pop("rows"), tmp_path / given.pop("out"), **given)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_cannot_be_drawn_from_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run's folder"):
        synthesize(tmp_path / "nowhere", 10, tmp_path / "rows.csv")
    with pytest.raises(ConfigError, match="of task 'classification', which has no generator"):
        synthesize(
            run_folder(tmp_path / "other", PRIVATE | {"synthesis": None}, "classification"), 10, tmp_path / "rows.csv"
        )
    (run / "summary.json").write_text("{}")
    with pytest.raises(DataError, match="has no 'privacy'"):
        synthesize(run, 10, tmp_path / "rows.csv")
    (run / "summary.json").write_text("[1")
    with pytest.raises(DataError, match="cannot be read"):
        synthesize(run, 10, tmp_path / "rows.csv")
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="has not finished"):
        synthesize(run, 10, tmp_path / "rows.csv")
    for name in ("synthesizer.safetensors", "ledger.json", "schema.toml"):
        folder = run_folder(tmp_path / f"no {name}")
        (folder / name).unlink()
        with pytest.raises(DataError, match=name):
            synthesize(folder, 10, tmp_path / "rows.csv")
    assert not list(tmp_path.glob("*.csv*"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_generator_writes_nothing_and_takes_nothing_away(tmp_path: Path, value: float) -> None:
    (tmp_path / "rows-01.csv").write_text("earlier")
    folder = run_folder(tmp_path / "diverged", centre=np.full(Layout.of(SCHEMA).width, value))
    with pytest.raises(DataError, match="it has diverged"):
        synthesize(folder, 10, tmp_path / "rows.csv", sets=2, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diverged", "rows-01.csv"]
    assert (tmp_path / "rows-01.csv").read_text() == "earlier"


def test_a_failure_in_a_later_piece_leaves_no_part(run: Path, tmp_path: Path, small_pieces: None) -> None:
    def fail(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesize(run, 500, tmp_path / "rows.parquet", progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_existing_file_is_replaced_only_by_force(run: Path, tmp_path: Path) -> None:
    synthesize(run, 10, tmp_path / "rows.csv", sets=2)
    before = (tmp_path / "rows-02.csv").read_text()
    for out, sets in (("rows.csv", 2), ("rows.csv", 1), ("rows.parquet", 1)):  # the last two have its certificate
        with pytest.raises(ConfigError, match="exists already"):
            synthesize(run, 20, tmp_path / out, sets=sets, seed=9)
    assert (tmp_path / "rows-02.csv").read_text() == before
    synthesize(run, 20, tmp_path / "rows.csv", sets=2, seed=9, force=True)
    assert (tmp_path / "rows-02.csv").read_text() != before and verify(tmp_path / "rows.certificate.json")["intact"]


def test_the_certificate_says_what_the_rows_are(run: Path, tmp_path: Path) -> None:
    path = synthesize(run, 10, tmp_path / "rows.csv", sets=2, seed=3)
    found = json.loads(path.read_text())
    assert path.name == "rows.certificate.json"
    assert found["rows"] == 10 and found["sets"] == 2 and found["seed"] == 3 and found["conditions"] == []
    assert found["columns"] == WRITTEN and found["left_out"] == ["hospital", "seen"]
    assert found["privacy"]["epsilon"] == 1.0 and found["privacy"]["sites"]["south"] == {
        "epsilon": 0.5,
        "delta": 1e-3,
        "budget": 2.0,
    }
    assert found["guarantee"].startswith(
        "Differential privacy of each patient: epsilon 1 at delta 0.001 (add-remove, PLD;"
    )
    assert "Drawing rows costs no further privacy: post-processing." in found["statement"][1]
    assert "simulation" in found["statement"][2]
    assert found["warnings"] == [certificates.UNDER_COVER_PRIVACY]
    assert found["sha256"] == {
        "synthesizer": sha256(run / "synthesizer.safetensors"),
        "ledger": sha256(run / "ledger.json"),
    }
    assert found["schema"]["sha256"] == SCHEMA.digest() and found["run"]["name"] == "run"
    assert str(tmp_path) not in path.read_text() and "/somewhere" not in path.read_text()


def mean_age(rows: pd.DataFrame) -> tuple[float, float]:
    return rows["age"].mean(), rows["age"].var() / len(rows)


def test_models_that_are_drawn_anew_are_certified_with_their_rule_and_its_limits(run: Path, tmp_path: Path) -> None:
    layout = Layout.of(SCHEMA)
    save(Doubtful(layout, np.zeros(layout.width)), run / "synthesizer.safetensors")
    path = synthesize(run, 2000, tmp_path / "several.csv", sets=10)
    found = json.loads(path.read_text())
    assert found["inference"] == {
        "rule": "full",
        "models": "drawn anew for each set",
        "patients": 500.0,
        "measured_together": [["age", "died"], ["age", "sex"]],
        "several": ["codes"],
        "trust": certificates.TRUST,
    }
    assert found["warnings"] == [certificates.TRUST]
    means = [pd.read_csv(tmp_path / f"several-{number:02}.csv")["age"].mean() for number in range(1, 11)]
    assert np.std(means) > 1.0, "2,000 rows of one model differ by 0.5"
    synthesize(run, 2000, tmp_path / "again.csv", sets=10)
    assert (tmp_path / "again-03.csv").read_text() == (tmp_path / "several-03.csv").read_text()
    inference = analyse_sets(path, ["age", "died", "sex"], mean_age)
    expected = combine(
        means, [pd.read_csv(file)["age"].var() / 2000 for file in sorted(tmp_path.glob("several-*.csv"))], "full"
    )
    np.testing.assert_allclose(inference.combined.interval(), expected.interval())
    assert inference.apart == (("died", "sex"),) and not inference.trusted
    assert analyse_sets(path, ["age", "sex"], mean_age).trusted
    # Its codes were not measured with one another, and may all be asked of in one analysis.
    assert analyse_sets(path, ["codes"], lambda rows: (rows["codes"].notna().mean(), 0.1)).apart == (
        ("codes", "codes"),
    )
    with pytest.raises(ConfigError, match="variables names 'ages'; the sets have .*age"):
        analyse_sets(path, ["ages"], mean_age)
    stated = json.loads(path.read_text())["inference"]["patients"]
    with pytest.raises(
        ConfigError, match=rf"is {stated + 1:g}, but .* says that the run was of {stated:,}; leave it out"
    ):
        analyse_sets(path, ["age"], mean_age, patients=stated + 1)
    (tmp_path / "several-02.csv").write_text("age\n")
    with pytest.raises(DataError, match="several-02.csv is missing or not as"):
        analyse_sets(path, ["age"], mean_age)
    one, few = (json.loads(synthesize(run, 5, tmp_path / f"few{sets}.csv", sets=sets).read_text()) for sets in (1, 9))
    assert one["inference"]["rule"] is None and few["inference"]["rule"] is None
    assert one["warnings"] == few["warnings"] == [certificates.UNDER_COVER_ANEW]


def test_rows_of_values_that_were_asked_for_have_no_rule(run: Path, tmp_path: Path) -> None:
    """A share of deaths is then what was asked for."""
    layout = Layout.of(SCHEMA)
    save(Doubtful(layout, np.zeros(layout.width)), run / "synthesizer.safetensors")
    path = synthesize(run, "died=yes:30,died=no:30", tmp_path / "several.csv", sets=10)
    assert json.loads(path.read_text())["inference"]["rule"] is None
    with pytest.raises(ConfigError, match="names no rule"):
        analyse_sets(path, ["died"], mean_age)


def test_a_certificate_names_no_rule_where_none_is_right(run: Path, tmp_path: Path) -> None:
    private = json.loads(synthesize(run, 5, tmp_path / "private.csv", sets=3).read_text())
    assert private["inference"] == {
        "rule": None,
        "models": "one",
        "patients": None,
        "measured_together": [],
        "several": ["codes"],
        "trust": None,
    }
    with pytest.raises(ConfigError, match="names no rule"):
        analyse_sets(tmp_path / "private.certificate.json", ["age"], mean_age)
    bare = run_folder(tmp_path / "without", BARE)
    rules = [
        json.loads(synthesize(bare, 5, tmp_path / f"bare{sets}.csv", sets=sets).read_text())["inference"]["rule"]
        for sets in (1, 2)
    ]
    assert rules == ["single", "partial"]


def test_a_certificate_claims_no_more_than_the_run_has(tmp_path: Path) -> None:
    def certified(name: str, summary: dict[str, Any], **options: Any) -> Any:
        return json.loads(
            synthesize(run_folder(tmp_path / name, summary), 5, tmp_path / f"{name}.csv", **options).read_text()
        )

    bare = certified("bare", BARE, sets=3)
    assert bare["privacy"] is None and bare["guarantee"].startswith("no privacy guarantee") and not bare["warnings"]
    assert bare["statement"][0].startswith("No privacy guarantee") and len(bare["statement"]) == 2
    assert certified("one", BARE)["warnings"] == [certificates.UNDER_COVER_ONE]
    noisy = certified("noisy", PRIVATE)["warnings"]
    assert noisy == [certificates.UNDER_COVER_PRIVACY, certificates.UNDER_COVER_SAMPLE]
    assert "rule '" not in " ".join(noisy)  # none holds
    paper = certified("paper", BARE | {"synthesis": {"guarantee": "None: batch norm.", "model": "dpgan-paper"}})
    assert paper["guarantee"] == f"{certificates.NO_GUARANTEE} None: batch norm." and paper["method"] == {
        "name": "dpgan-paper",
        "class": "Noise",
    }
    unbounded = PRIVATE | {"privacy": PRIVATE["privacy"] | {"epsilon": None}}  # type: ignore[operator]
    assert certified("unbounded", unbounded)["guarantee"] == certificates.UNBOUNDED
    central = {
        "epsilon": 4.0,
        "delta": 0.1,
        "unit": "hospital",
        "relation": "add-remove",
        "accountant": "pld",
        "clip_norm": [1],
    }
    whole = BARE | {"privacy": BARE["privacy"] | {"central": central}}  # type: ignore[operator]
    assert privacy_of(whole) is not None
    assert "each hospital as a whole: epsilon 4 at delta 0.1" in certified("whole", whole)["guarantee"]


def test_verifying_finds_what_was_changed(run: Path, tmp_path: Path) -> None:
    path = synthesize(run, 10, tmp_path / "rows.csv", sets=3)
    states = [one["state"] for one in verify(path, Run(run).certified)["checked"]]
    assert states == ["intact"] * 5 and verify(tmp_path / "rows-02.csv")["intact"]
    (tmp_path / "rows-02.csv").write_text(
        (tmp_path / "rows-02.csv").read_text().replace("synthetic-000004", "synthetic-000005")
    )
    (tmp_path / "rows-03.csv").unlink()
    (run / "ledger.json").write_text("{}")
    found = verify(path, Run(run).certified)
    assert [one["state"] for one in found["checked"]] == ["intact", "changed", "missing", "intact", "changed"]
    assert not found["intact"] and not verify(tmp_path / "rows-02.csv")["intact"]
    assert verify(tmp_path / "rows-01.csv")["intact"]
    (tmp_path / "rows-09.csv").write_text("")
    with pytest.raises(
        ConfigError, match="is a certificate of rows-01.csv, rows-02.csv, rows-03.csv, not of rows-09.csv"
    ):
        verify(tmp_path / "rows-09.csv")
    with pytest.raises(ConfigError, match="has no certificate: there is no .*other.certificate.json"):
        verify(tmp_path / "other.csv")
    path.write_text('{"files": 3}')
    with pytest.raises(DataError, match="is not a certificate"):
        verify(path)


def test_a_folder_with_one_run_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder = run_folder(tmp_path / "runs" / "first")
    assert json.loads(synthesize(tmp_path / "runs", 5, tmp_path / "rows.csv").read_text())["run"]["name"] == "first"
    run_folder(tmp_path / "runs" / "second")
    with pytest.raises(ConfigError, match=f"holds 2 runs; name one: {folder}, "):
        synthesize(tmp_path / "runs", 5, tmp_path / "others.csv")


def test_names_of_sets_sort_by_their_number() -> None:
    assert [path.name for path in file_names(Path("a/b.csv"), 2)] == ["b-01.csv", "b-02.csv"]
    names = [path.name for path in file_names(Path("b.csv"), 100)]
    assert names == sorted(names) and names[0] == "b-001.csv"


def test_a_regression_of_several_sets_is_that_of_each_combined(run: Path, tmp_path: Path) -> None:
    """Against statsmodels, set by set; the rule and what was measured are the certificate's."""
    import statsmodels.formula.api as smf

    layout = Layout.of(SCHEMA)
    save(Doubtful(layout, np.zeros(layout.width)), run / "synthesizer.safetensors")
    path = synthesize(run, 400, tmp_path / "several.csv", sets=10)
    found = combined_regression(run, path, "age ~ C(sex) + intensive + sbp_01")
    tables = [pd.read_csv(file).dropna(subset=["sbp_01"]) for file in sorted(tmp_path.glob("several-*.csv"))]
    fits = [smf.ols("age ~ C(sex) + intensive + sbp_01", table).fit() for table in tables]
    values = [fit.params.to_numpy() for fit in fits], [fit.bse.to_numpy() ** 2 for fit in fits]
    expected = combine(*values, "full", ratio=400 / 500)
    np.testing.assert_allclose([row["estimate"] for row in found.terms.values()], expected.estimate, rtol=1e-6)
    np.testing.assert_allclose(
        [row["low"] for row in found.terms.values()], expected.interval()[0], rtol=1e-4, atol=1e-6
    )
    assert list(found.terms) == ["Intercept", "C(sex)[T.m]", "intensive", "sbp_01"]
    assert "Not measured together" in found.notes[0] and "age and sex" not in found.notes[0]
    assert ("age", "intensive") in found.inference.apart and ("age", "sex") not in found.inference.apart
    done = CliRunner().invoke(
        app, ["combine", str(run), str(path), "--formula", "age ~ C(sex) + intensive + sbp_01", "--json"]
    )
    printed = json.loads(done.stdout)
    assert printed["terms"] == found.terms and printed["sets"] == 10 and printed["rule"] == "full"
    shown = CliRunner().invoke(app, ["combine", str(run), str(path), "--formula", "age ~ C(sex)"]).stdout
    assert "C(sex)[T.m]" in shown and "Combined from 10 sets by rule 'full'." in shown and "Not measured" not in shown
    with pytest.raises(ConfigError, match="The formula names 'ages'"):
        combined_regression(run, path, "ages ~ sex")
    with pytest.raises(ConfigError, match="family is .logit."):
        combined_regression(run, path, "age ~ sex", "logit")
    whole = combined_regression(run, tmp_path / "several-03.csv", "age ~ C(sex)")
    assert whole.inference.combined.sets == 10 and whole.trusted and not whole.interactions
    by_set = combined_regression(run, tmp_path / "several-07.csv", "age ~ C(sex) + intensive + sbp_01")
    assert by_set.terms == found.terms
    other = run_folder(tmp_path / "other")
    with pytest.raises(DataError, match="other/synthesizer.safetensors is not what the sets of .* were drawn from"):
        combined_regression(other, path, "age ~ C(sex)")  # of another schema, codes would mean other things
    unread = CliRunner().invoke(app, ["combine", str(run), str(path), "--formula", "age ~ sex +"])
    assert isinstance(unread.exception, ConfigError) and unread.exception.__cause__ is None


def test_an_interaction_is_not_to_be_trusted(run: Path, tmp_path: Path) -> None:
    """With the outcome it is three columns at once, also where every pair of them was measured."""
    layout = Layout.of(SCHEMA)
    save(Doubtful(layout, np.zeros(layout.width)), run / "synthesizer.safetensors")
    path = synthesize(run, 400, tmp_path / "several.csv", sets=10)
    found = combined_regression(run, path, "age ~ C(sex) * intensive")
    assert found.interactions == ("C(sex)[T.m]:intensive",) and not found.trusted
    assert any(note.startswith("Of C(sex)[T.m]:intensive trust neither") for note in found.notes)


def test_a_certificate_that_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no certificate .*none.certificate.json"):
        combined_regression(run, tmp_path / "none.certificate.json", "age ~ sex")


def test_sets_of_one_model_need_the_number_of_patients(tmp_path: Path) -> None:
    bare = run_folder(tmp_path / "bare", BARE)
    path = synthesize(bare, 300, tmp_path / "several.csv", sets=3)
    with pytest.raises(ConfigError, match="give the number as patients"):
        combined_regression(bare, path, "age ~ intensive")
    few, many = (combined_regression(bare, path, "age ~ intensive", patients=number) for number in (100, 1000))
    widths = [each.terms["intensive"]["high"] - each.terms["intensive"]["low"] for each in (few, many)]
    assert widths[0] > 1.5 * widths[1] and not few.notes
    with pytest.raises(DataError, match="no fewer terms than there are rows"):
        combined_regression(bare, synthesize(bare, 1, tmp_path / "tiny.csv", sets=3), "age ~ 1", patients=300)
    logistic = combined_regression(bare, path, "intensive ~ age", "logistic", patients=300)
    assert logistic.table.columns[0] == "Term" and set(logistic.terms) == {"Intercept", "age"}
