"""Messages that are made without Flower's constructor are what it makes, and a request in a process is what its record says."""

import copy

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from polyclinic.errors import ConfigError
from polyclinic.wire.messages import RECORD, TrainRequest, answering, passed_on, read_request

REQUEST = TrainRequest(run="r", site=3, home="/h", round=2, public_patients=10.0, secure_signatures=[b"s"])


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0


def test_a_reply_and_a_message_passed_on_are_flowers_own() -> None:
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    message = Message(RecordDict(), 7, "train", ttl=60.0, group_id="2")
    message.metadata.__dict__["_message_id"] = "7.1"
    ours, flowers = answering(message, content), Message(content, reply_to=message)
    passed = passed_on(message, content, dst_node_id=9, group_id="5")
    for made, wanted, near in (
        (ours, flowers, 0.5),
        (passed, Message(content, 9, "train", ttl=60.0, group_id="5"), 0.5),
    ):
        said, by_flower = made.metadata.__dict__, wanted.metadata.__dict__ | {"_message_id": made.metadata.message_id}
        assert said.keys() == by_flower.keys() and made.__dict__.keys() == wanted.__dict__.keys()
        for name, value in by_flower.items():
            assert said[name] == (pytest.approx(value, abs=near) if isinstance(value, float) else value), name
        assert made.content is content and not made.has_error()
    assert message.metadata.dst_node_id == 7 and message.content == RecordDict()


def test_a_request_is_read_as_it_is_unless_somebody_changed_its_record() -> None:
    record = REQUEST.record()
    assert dict(record) == {key: value for key, value in REQUEST.model_dump().items() if value is not None}
    assert read_request(TrainRequest, RecordDict({RECORD: record})) is REQUEST
    assert read_request(TrainRequest, copy.deepcopy(RecordDict({RECORD: record}))) == REQUEST
    record["round"] = 3
    assert read_request(TrainRequest, RecordDict({RECORD: record})).round == 3
    record["round"] = 0
    with pytest.raises(ConfigError, match="'round'"):
        read_request(TrainRequest, RecordDict({RECORD: record}))
