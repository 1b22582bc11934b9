"""Replies over Flower's own grid: one at a time, bounded, and a bad one harms no other."""

from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedsift.flower import messages, postbox
from fedsift.flower.messages import Answer, Call
from fedsift.flower.transport import Limits, Transport

LIMITS = Limits(5.0, largest=50_000)


class Wire:
    """A SuperLink whose nodes answer at once: `answers[node](message)` is the reply."""

    def __init__(self, answers):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.answers = answers
        self.replies, self.objects, self.confirmed, self.pulled = [], {}, [], 0

    def PushMessages(self, request):
        (proto,) = request.messages_list
        asked = SimpleNamespace(metadata=proto.metadata)
        reply = self.answers[proto.metadata.dst_node_id](asked)
        self.replies.append((reply, proto.metadata.message_id))
        return PushAppMessagesResponse(message_ids=[proto.metadata.message_id])

    def PushObject(self, request):
        raise AssertionError("nothing was asked for")

    def PullMessages(self, request):
        protos, trees = [], []
        for reply, asked in self.replies:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            for id, thing in get_all_nested_objects(reply).items():
                self.objects.setdefault(id, thing.deflate())
            trees.append(get_object_tree(reply))
            bare = Message(RecordDict(), dst_node_id=1, message_type="train")
            proto = message_to_proto(bare)
            proto.metadata.message_id = reply.object_id
            proto.metadata.reply_to_message_id = asked
            protos.append(proto)
        self.replies = []
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def PullObject(self, request):
        content = self.objects[request.object_id]
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


def reply_with(payload, **more):
    def answer(asked):
        content = messages.write(Answer(3, False, payload))
        for name, record in more.items():
            content[name] = record
        reply = Message(content, dst_node_id=1, message_type="train")
        reply.metadata.__dict__["_reply_to_message_id"] = asked.metadata.message_id
        return reply

    return answer


def exchange(answers, limits=LIMITS):
    wire = Wire(answers)
    return ask(wire, limits), wire


def ask(wire, limits=LIMITS):
    grid: Any = HttpGrid(token="x")
    grid._run, grid._client = SimpleNamespace(run_id=1), wire
    out = {node: Call("ab" * 16, 3, -1, b"") for node in wire.answers}
    return Transport(grid, 0.001).exchange(messages.TURN, out, Answer, limits, "3")


def many_chunks(count):
    """A record of many arrays, each an object of its own."""
    return ArrayRecord({str(i): Array(np.full(100, i)) for i in range(count)})


def test_honest_replies_arrive_as_they_were_sent():
    answers, wire = exchange({7: reply_with(b"one"), 17: reply_with(b"two"), 27: reply_with(b"")})
    assert {n: a.payload for n, a in answers.messages.items()} == {7: b"one", 17: b"two", 27: b""}
    assert len(set(wire.confirmed)) == 3
    assert answers.seconds.keys() == {7, 17, 27}


@pytest.mark.parametrize("where", ["payload", "objects"])
def test_a_huge_reply_is_given_up_early_and_the_others_arrive(where):
    """Twenty arrays of 1 MB: after the first few it is clear; and a thousand tiny ones."""
    if where == "payload":
        record = ArrayRecord({str(i): Array(np.full(125_000, float(i))) for i in range(20)})
    else:
        record = many_chunks(1000)
    answers, wire = exchange(
        {7: reply_with(b"one"), 17: reply_with(b"x", more=record), 27: reply_with(b"two")}
    )
    assert answers.messages.keys() == {7, 27}
    assert answers.too_large == {17: "its reply has more than 50000 bytes"}
    assert wire.pulled < 4_000_000 and len(set(wire.confirmed)) == 3


def test_a_reply_that_cannot_be_put_together_costs_its_sender_alone():
    def broken(asked):
        reply = reply_with(b"x", more=ConfigRecord({"y": 1}))(asked)
        for id, thing in get_all_nested_objects(reply).items():
            content = thing.deflate()
            if content.startswith(b"ConfigRecord"):
                wire_objects[id] = content[:-4] + b"\xff\xff\xff\xff"
        return reply

    wire_objects: dict[str, bytes] = {}
    wire = Wire({7: reply_with(b"one"), 17: broken, 27: reply_with(b"two")})
    wire.objects = wire_objects
    answers = ask(wire)
    assert answers.messages.keys() == {7, 27}
    assert answers.refusals[17].why.startswith("its reply cannot be read: ")


def test_an_array_that_names_one_piece_a_thousand_times_is_given_up():
    """30 kB travel, and Flower would make 30 MB of them."""

    def swollen(asked):
        reply = reply_with(bytes(30_000))(asked)
        for id, thing in get_all_nested_objects(reply).items():
            often = b'"arraychunk_ids": [' + b"0, " * 999 + b"0]"
            wire.objects[id] = thing.deflate().replace(b'"arraychunk_ids": [0]', often)
        return reply

    wire = Wire({7: reply_with(b"one"), 17: swollen, 27: reply_with(b"two")})
    answers = ask(wire)
    assert answers.messages.keys() == {7, 27}
    assert answers.too_large == {17: "its reply has more than 50000 bytes"}


def test_an_honest_array_may_name_a_piece_twice():
    """Flower cuts 12 MB of zeros into pieces, of which all but the last are the same."""
    answers, wire = exchange({7: reply_with(bytes(12_000_000))}, Limits(60.0, largest=13_000_000))
    assert answers.messages[7].payload == bytes(12_000_000)
    assert wire.pulled < 12_000_000


def test_a_lost_connection_is_not_taken_for_a_bad_reply():
    def lost(request):
        raise httpx.ConnectError("gone")

    wire: Any = Wire({7: reply_with(b"one")})
    wire.PullObject = lost
    with pytest.raises(httpx.ConnectError):
        ask(wire)


def test_a_grid_without_a_connection_is_left_as_it_is():
    grid: Any = SimpleNamespace(pull_messages=lambda ids: ["a", "b"])
    assert [str(found) for found in postbox.pull(grid, ["1"], 10)] == ["a", "b"]
