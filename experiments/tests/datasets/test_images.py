"""Images as records: scikit-learn's digits, and MNIST from IDX files that the tests write."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.encoding import encode
from polyclinic.errors import DataError
from polyclinic.plugins import dataset_named
from polyclinic_studies.datasets import digits, mnist

DIGITS, MNIST = dataset_named("digits"), dataset_named("mnist")


def test_digits_are_the_images_row_by_row() -> None:
    from sklearn.datasets import load_digits

    table, bunch = DIGITS.load(), load_digits()
    assert table.loc[5, "p23"] == bunch.images[5, 2, 3] and table.loc[1796, "p70"] == bunch.images[1796, 7, 0]
    encoded = encode(table, DIGITS.schema)
    assert encoded.y is not None
    assert np.array_equal((encoded.x + 1.0) * 8.0, bunch.data) and np.array_equal(encoded.y, bunch.target)
    shards = load_shards(DIGITS, 0, "iid", 0, 1.0)
    assert len(shards) == 4 and sum(shard.patients for shard in shards) == 1797
    assert digits.SCHEMA.num_classes == 10


def idx(values: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes: magic number, sizes in big-endian order, values."""
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tiny files in MNIST's form: 30 images to train, 12 to test, some compressed."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for stem, rows in (("train", 30), ("t10k", 12)):
        images, labels = rng.integers(0, 256, (rows, 28, 28)), np.arange(rows) % 10
        images[:, 0, 0], images[:, 27, 26] = np.arange(rows), 255
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx(labels))
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    return folder


def test_mnist_is_read_where_its_files_are_given(given: Path) -> None:
    assert MNIST.available() and MNIST.fetch is None
    table = MNIST.load()
    assert table.groupby("split").size().to_dict() == {"test": 12, "train": 30} and table["patient"].nunique() == 42
    assert table["p0000"].tolist() == [*range(30), *range(12)] and (table["p2726"] == 255).all()
    assert table["digit"].tolist() == [str(row % 10) for row in (*range(30), *range(12))]
    encoded = encode(table, MNIST.schema)
    assert encoded.x.shape == (42, 784) and encoded.x.min() >= -1.0 and encoded.x.max() == 1.0
    assert sum(shard.patients for shard in load_shards(MNIST, 2, "iid", 0, 1.0)) == 42


def test_mnist_without_its_files_says_where_they_go(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (given / "t10k-labels-idx1-ubyte").unlink()
    assert not MNIST.available()
    with pytest.raises(
        DataError, match=r"subfolder mnist holds train-images-idx3-ubyte, .*, each as it is or with \.gz"
    ):
        MNIST.load()
    monkeypatch.delenv("POLYCLINIC_DATA")
    assert not MNIST.available()
    with pytest.raises(DataError, match="set POLYCLINIC_DATA"):
        load_shards(MNIST, 0, "iid", 0, 1.0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not a whole IDX file"),
        (idx(np.zeros(29)), "29 labels need"),
        (idx(np.zeros(30))[:-1], "not a whole IDX file"),
        (idx(np.zeros(30)) + b"\0", "not a whole IDX file"),
        (idx(np.zeros((30, 1))), "1 dimensions"),
        (idx(np.full(30, 10)), "a label above 9"),
    ],
    ids=["empty", "another number", "cut", "too long", "two dimensions", "label 10"],
)
def test_a_damaged_label_file_is_refused(given: Path, content: bytes, sentence: str) -> None:
    (given / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        MNIST.load()
    assert "mnist" in str(caught.value)


def test_damaged_or_other_images_are_refused(given: Path) -> None:
    file = given / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for content in (whole[:-20], b"text", whole[:60] + bytes(20) + whole[80:]):
        file.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            mnist.load()
    file.write_bytes(gzip.compress(idx(np.zeros((30, 32, 32)))))
    with pytest.raises(DataError, match=r"images of shape \(30, 32, 32\); 30 labels need \(30, 28, 28\)"):
        mnist.load()
