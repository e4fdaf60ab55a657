"""The notebooks are run from top to bottom in a folder of their own, without a network, and what their prose says is checked."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
OFFLINE = """
import socket

def connect(self, address, there=socket.socket.connect):
    assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), f"the network: {address}"
    return there(self, address)

socket.socket.connect = connect
"""
#: By notebook: what has to be true at its end, in its own names.
HOLDS = {
    "first_federation": """
assert 2.9 < result.sites["epsilon"].max() <= 3.0 and result.privacy["unit"] == "patient"
assert charges["epsilon_after"].is_monotonic_increasing and len(charges) == 1 + 8
assert len(result.rounds.query("site == 'pooled'")) == 8 and result.pooled["auroc"] > 0.95
gains = loss.drop(columns="alone, no privacy").lt(loss["alone, no privacy"], axis=0)
assert gains["together, no privacy"].tolist() == [True, True, True, False], loss
assert not gains["together, ε = 3"].any() and (result.sites["auroc"] > 0.95).all(), loss
assert result.report().stat().st_size > 50_000
assert "RunResult" in repr(result) and "<table" in result._repr_html_() and "&epsilon; = 2.99" in result._repr_html_()
""",
    "own_strategy_and_model": """
assert {run.config.strategy for run in damped} == {"__main__:Damped"} and result.config.model == "__main__:wide"
assert [run.privacy["epsilon"] for run in damped] == [run.privacy["epsilon"] for run in plain]
first = [[run.rounds.query("site == 'pooled'")["loss"].iloc[at] for run in runs] for at in (0, -1) for runs in (plain, damped)]
assert first[2] != first[3], "the strategy did nothing"
assert type(result.model[1]).__name__ == "GELU" and result.pooled["auroc"] > 0.9
assert (plain[0].summary["engine"], result.summary["engine"]) == ("linear", "layered")
""",
    "synthetic_patients": """
assert all(len(table) == 1600 for table in made.values())
assert {round(run.privacy["epsilon"], 1) for name, run in runs.items() if name != "no privacy"} == {2.0}
off = {name: correlations(real, table, names).frobenius for name, table in tables.items()}
assert off["no privacy"] < 3 < off["shared noise"] < off["own noise"], off
assert shape(made["own noise"]).median() < shape(made["shared noise"]).median() < shape(made["no privacy"]).median()
assert min(judged[name]["gbm"].value for name in ("own noise", "shared noise")) > 0.9 > 0.6 > judged["no privacy"]["gbm"].value
Path("shared noise.csv").write_text("changed")
assert not verify("shared noise.csv")["intact"]
""",
    "what_does_epsilon_buy": """
mean = lost.mean(axis=1)
assert mean[0.3] < -0.1 < mean[1.0] < mean[3.0:].min() and mean[3.0:].max() - mean[3.0:].min() < 0.01, mean
assert mean[1.0] < alone.min() < mean[3.0:].min(), "from ε = 3 on the federation is level with each hospital alone"
auc = found.set_index(["attack", "model"])
assert auc.loc[("LiRA", "no privacy"), "low"] > 0.6
assert auc.loc[("LiRA", "ε = 1"), "low"] < 0.5 < auc.loc[("LiRA", "ε = 1"), "high"]
assert lira["ε = 1"]["bound"]["epsilon_lower"] <= 1 and attacks["ε = 1"]["allowed"]["advantage"] < 0.13
""",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_or_traces_of_a_machine(path: Path) -> None:
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    assert dict(book.metadata) == METADATA
    assert book.cells[0].source.startswith("# ") and path.stem in HOLDS
    assert len({cell.id for cell in book.cells}) == len(book.cells)
    for cell in book.cells:
        assert not cell.metadata, cell.id
        assert not re.search(r"(^|[\s\"'(])(/(work|tmp|home|Users|root)/|[A-Z]:\\)", cell.source), cell.source
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, cell.id
            assert cell.source.count("\n") < 22, f"{cell.id} is too long to be read at a glance"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_what_it_says_holds(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PYTHONPATH", ROOT), ("IPYTHONDIR", tmp_path), ("JUPYTER_RUNTIME_DIR", tmp_path / "kernel")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("POLYCLINIC_DATA", raising=False)
    book = nbformat.read(path, 4)
    book.cells = [new_code_cell(OFFLINE), *book.cells, new_code_cell(HOLDS[path.stem])]
    (tmp_path / "here").mkdir()
    client = NotebookClient(
        book, timeout=1200, kernel_name="python3", coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path / "here")}},
    )  # fmt: skip
    client.execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            _quiet(cell)


def _quiet(cell: NotebookNode) -> None:
    """No warnings, and progress in lines that are written over."""
    for output in cell.outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", output.text
            assert output.text.count("\n") < 40, f"{cell.source} floods the page:\n{output.text}"
