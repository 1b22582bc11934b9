"""Replies one at a time and bounded: what Flower's grid itself does not do.

A grid pulls all replies that are there, each as a whole, before anybody can look at one. A huge
reply then fills the server's memory, and one that cannot be read loses the others with it. Here
the grid's connection is given a stand-in. Where a grid has no such connection (Flower's
simulation), replies are checked once they are here.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
from flwr.app import Array, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

TOO_LARGE = "fedsift: larger than any reply can be"
OBJECTS = 32  # that a reply consists of, at most; and one more for each MB


class Unreadable(Exception):
    """A reply that Flower could not put together."""

    def __init__(self, reply_to: str, error: Exception) -> None:
        super().__init__(f"its reply cannot be read: {type(error).__name__}")
        self.reply_to = reply_to


class Postbox:
    """In the place of the connection of a grid: hands out one reply per call, and counts it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.largest = 0
        self.waiting: list[tuple[Any, Any]] = []
        self.response: type = object  # in which replies come
        self.message = self.reply_to = ""  # the reply that is being pulled, and to what
        self.objects: dict[str, int] = {}  # id -> bytes; 0 until it is here
        self.pieces: Counter[str] = Counter()  # how often arrays name an object as a part of theirs
        self.bytes = 0
        self.lock = threading.Lock()  # the grid pulls with two threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        if not self.waiting:
            found = self.client.PullMessages(request)
            self.response = type(found)
            self.waiting = list(zip(found.messages_list, found.message_object_trees, strict=True))
        answer = self.response()
        self.reply_to = ""
        if self.waiting:
            message, tree = self.waiting.pop(0)
            with self.lock:
                self.objects, self.bytes = dict.fromkeys(_list_objects(tree), 0), 0
                self.pieces.clear()
            self.message = message.metadata.message_id
            self.reply_to = message.metadata.reply_to_message_id
            answer.messages_list.append(message)
            answer.message_object_trees.append(tree)
        return answer

    def PullObject(self, request: Any) -> Any:
        if len(self.objects) > OBJECTS + self.largest // 1_000_000:
            raise self._give_up(request)
        answer = self.client.PullObject(request)
        with self.lock:  # a thread may still be at the reply before
            if request.object_id in self.objects:
                self._count(request.object_id, answer.object_content)
            together = sum(self.objects.get(id, 0) * often for id, often in self.pieces.items())
        if max(self.bytes, together) > self.largest:
            raise self._give_up(request)
        return answer

    def _count(self, id: str, content: bytes) -> None:
        """An array may name the same piece a million times: what Flower makes of it counts, too."""
        self.bytes += len(content)
        self.objects[id] = len(content)
        self.pieces.update(_list_pieces(content))

    def _give_up(self, request: Any) -> Exception:
        """The SuperLink may forget this reply; the grid makes an error of it."""
        done = ConfirmMessageReceivedRequest(
            node=request.node, run_id=request.run_id, message_object_id=self.message
        )
        self.client.ConfirmMessageReceived(done)
        return ObjectPullError(request.object_id, TOO_LARGE)


def pull(grid: Grid, ids: Sequence[str], largest: int) -> list[Message]:
    """What has come; with a postbox, one reply at most. Raises `Unreadable`."""
    box = _find_box(grid)
    if box is None:
        return list(grid.pull_messages(ids))
    box.largest, box.reply_to = largest, ""
    try:
        return list(grid.pull_messages(ids))
    except httpx.HTTPError:  # the connection, not the reply
        raise
    except Exception as error:
        if not box.reply_to:
            raise
        raise Unreadable(box.reply_to, error) from None


def is_too_large(reply: Message) -> bool:
    return reply.has_error() and TOO_LARGE in str(reply.error.reason)


def _find_box(grid: Grid) -> Postbox | None:
    """The grid's postbox, put there at the first call."""
    client = getattr(grid, "_runtime_client", None)
    if client is None or not hasattr(client, "PullObject") or not hasattr(grid, "_client"):
        return None
    if not isinstance(client, Postbox):
        grid._client = client = Postbox(client)
    return client


def _list_pieces(content: bytes) -> list[str]:
    """What an array is put together from, read as Flower reads it."""
    try:
        kind, ids, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            return []
        return [ids[at] for at in json.loads(get_object_body(content, Array))["arraychunk_ids"]]
    except Exception:  # Flower cannot read it either, and says so
        return []


def _list_objects(tree: Any) -> list[str]:
    found, left = [], [tree]
    while left:
        tree = left.pop()
        found.append(str(tree.object_id))
        left += tree.children
    return found
