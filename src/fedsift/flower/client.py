"""A node's side: say who you are, take your turn. Everything it needs beside the message lies on
the node itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedsift
from fedsift import evaluation
from fedsift.codecs import WireError
from fedsift.engines import choose_engine
from fedsift.federation import run_turn
from fedsift.flower import messages
from fedsift.flower.client_state import ClientState
from fedsift.flower.messages import Answer, Call, FedsiftMessage, Hello, Refusal
from fedsift.flower.settings import settings
from fedsift.flower.site import Site, make_site
from fedsift.types import Client, Engine, Predict, Tree, UserError

LOG = logging.getLogger("flwr")


def client_app(task: Any) -> ClientApp:
    """The ClientApp of a project whose `task` says what data there are."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _replied(message, lambda: greet(_site(task, context)))

    @app.train("turn")
    def turn(message: Message, context: Context) -> Message:
        return _replied(
            message,
            lambda: take_turn(_site(task, context), messages.read(message.content, Call), context),
        )

    return app


def greet(here: Site) -> Hello:
    client = here.client()
    return Hello(client.id, fedsift.__version__, here.digest, here.fingerprint, client.model.name)


def take_turn(here: Site, call: Call, context: Context) -> FedsiftMessage:
    if call.round >= here.experiment.rounds:
        raise WireError(f"round {call.round} of an experiment of {here.experiment.rounds}")
    client = here.client()
    client_state = ClientState.of(context, call.run, client.id)
    memory = client_state.load(call.last)
    if memory is None:
        return Refusal(f"client {client.id} has lost its memory of round {call.last}", lost=True)
    federation = here.federation(client.data)
    engine, _ = choose_engine(*here.experiment.where)
    turn = federation.algorithm.client_turn(
        client, memory, call.payload, federation.round(call.round)
    )
    memory, message = run_turn(turn, engine)
    client_state.save(call.round, call.last, memory)
    return Answer(call.round, bool(memory), message, own_accuracy(here, client, memory, engine))


def own_accuracy(here: Site, client: Client, memory: Tree, engine: Engine) -> float:
    """Of a model that never leaves the node; nan where the client keeps none."""
    if "model" not in memory:
        return float("nan")
    test = here.test()
    (logits,) = engine.run([Predict(client.model, memory["model"], test.samples)])
    return evaluation.accuracy(logits, test.labels)


def _site(task: Any, context: Context) -> Site:
    return make_site(task, settings(context.run_config), context.node_config)


def _replied(message: Message, answer: Callable[[], FedsiftMessage]) -> Message:
    """The answer, or a word on why there is none. Other errors' texts may quote private data: they
    stay in the node's log.
    """
    try:
        letter = answer()
    except (UserError, WireError) as error:
        letter = Refusal(messages.one_line(str(error)))
    except Exception as error:
        LOG.exception("fedsift: this turn failed")
        letter = Refusal(f"{type(error).__name__} on the node; its log has the details")
    return Message(messages.write(letter), reply_to=message)
