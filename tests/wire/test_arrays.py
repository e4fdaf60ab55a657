"""Arrays that stay arrays in a process are Flower's own to everybody else."""

import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from polyclinic.wire.arrays import HeldArray, from_record, size_of, to_record

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3.5)}


def test_a_held_array_goes_over_the_wire_as_flowers_own() -> None:
    content = RecordDict({"arrays": to_record(ARRAYS)})
    objects = get_all_nested_objects(content)
    back = inflate_object_from_contents(content.object_id, {name: part.deflate() for name, part in objects.items()})
    assert isinstance(back, RecordDict) and type(back["arrays"]["w"]) is Array  # type: ignore[index]
    for name, value in from_record(back["arrays"]).items():  # type: ignore[arg-type]
        assert np.array_equal(value, ARRAYS[name]) and value.dtype == ARRAYS[name].dtype
    assert size_of(content) == size_of(back) == 6 * 4 + 8


def test_a_held_array_is_pickled_and_equals_flowers_bytes() -> None:
    held = HeldArray(ARRAYS["w"])
    again = pickle.loads(pickle.dumps(held))
    assert isinstance(again, HeldArray) and again.data == Array(ARRAYS["w"]).data == held.data
    held.numpy()[:] = 0
    assert np.array_equal(from_record(ArrayRecord({"w": held}))["w"], ARRAYS["w"])


def test_sizes_count_a_shared_record_once_and_every_message_whole() -> None:
    shared, counted = to_record(ARRAYS), {}
    for more in (1, 2):
        content = RecordDict(
            {"arrays": shared, "own": to_record({"w": np.zeros(more)}), "told": ConfigRecord({"a": 1})}
        )
        assert size_of(content, counted) == size_of(content) == 6 * 4 + 8 + 8 * more
    assert counted[id(shared)] == 6 * 4 + 8
