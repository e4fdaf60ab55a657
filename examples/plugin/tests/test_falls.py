from pathlib import Path

import torch
from falls.dataset import FALLS, WARDS
from falls.model import wide_and_deep

from polyclinic import Federation, RunConfig
from polyclinic.toml import read_toml

HERE = Path(__file__).resolve().parent.parent


def test_the_records_are_what_the_dataset_says() -> None:
    records = FALLS.load()
    assert (len(records), records["patient"].nunique()) == (FALLS.rows, FALLS.patients)
    assert list(records) == [column.name for column in FALLS.schema.columns]
    assert records.equals(FALLS.load())


def test_no_row_sees_another() -> None:
    net, rows = wide_and_deep(4, 2, (8, 3)), torch.randn(5, 4)
    torch.testing.assert_close(net(rows)[:2], net(rows[:2]))


def test_the_three_train_together_with_privacy(tmp_path: Path) -> None:
    config = RunConfig.build(read_toml(HERE / "falls.toml", "configuration file"), {"out": str(tmp_path)})
    result = Federation.from_config(config).run()
    assert set(result.sites.index) == set(WARDS)
    assert 2.9 < result.privacy["epsilon"] <= 3 and result.pooled["auroc"] > 0.7
