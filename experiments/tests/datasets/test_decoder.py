"""medGAN's decoder: learnt from public records, used by the game, and refused before any charge where it does not fit."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from polyclinic import Federation
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import dataset_named
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.layout import Layout
from polyclinic_studies.datasets.icd import generate_icd
from polyclinic_studies.decoder import learn_decoder

ICD = dataset_named("icd").schema


def test_a_decoder_is_learnt_and_the_game_begins_with_it(tmp_path: Path) -> None:
    public = generate_icd(1, 300, 7)
    path = tmp_path / "decoder.safetensors"
    first, later = (learn_decoder(public, ICD, path, epochs=epochs) for epochs in (1, 60))
    assert later < 0.6 * first
    decoder = load_file(path)
    layout = Layout.of(ICD)
    game = make(layout, name="medgan", **{"decoder-file": str(path)})
    weights = first_state(game, layout, 0).weights
    np.testing.assert_array_equal(weights["core.body.1.weight"], decoder["weight"])
    again = tmp_path / "again.safetensors"
    assert learn_decoder(public, ICD, again, epochs=60) == later
    np.testing.assert_array_equal(load_file(again)["weight"], decoder["weight"])


@pytest.mark.slow
def test_what_is_no_decoder_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    codes = Schema.from_dict({"name": "few", "unit": "record", "columns": [
        {"name": "codes", "kind": "code_set", "categories": ["a", "b"]}, {"name": "y", "kind": "binary", "role": "label"},
    ]})  # fmt: skip
    learn_decoder(pd.DataFrame({"codes": ["a", "a;b"], "y": [0, 1]}), codes, tmp_path / "few.safetensors", epochs=1)
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    for name in ("few.safetensors", "torn.safetensors", "absent.safetensors"):
        with pytest.raises(DataError, match=r"decoder|holds"):
            Federation.from_dataset("icd", out=str(tmp_path / "runs")).run(
                task="synthesis",
                model="medgan",
                synthesis={"options": f"decoder-file='{tmp_path / name}'"},
                privacy={"delta": 1e-6},
            )
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="features that are 0 or 1"):
        learn_decoder(dataset_named("digits").load(), dataset_named("digits").schema, tmp_path / "x")
