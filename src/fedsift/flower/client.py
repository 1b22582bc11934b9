"""A node's side: it says who it is and takes its turn. It needs only the message and the node."""

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
from fedsift.flower import messages
from fedsift.flower.client_state import ClientState
from fedsift.flower.messages import Answer, Call, FedsiftMessage, Hello, Refusal
from fedsift.flower.settings import settings
from fedsift.flower.site import Site, make_site
from fedsift.memory import is_empty, model_in
from fedsift.turns import run_turn
from fedsift.types import Client, Engine, Predict, UserError

LOG = logging.getLogger("flwr")


def client_app(task: Any) -> ClientApp:
    """The ClientApp of a project whose `task` says what data there are."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _reply(message, lambda: greet(_site(task, context)))

    @app.train("turn")
    def turn(message: Message, context: Context) -> Message:
        return _reply(
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
    federation = here.federation(client.data)
    kind = getattr(federation.algorithm, "client_memory", dict)
    client_state = ClientState.of(context, call.run, client.id)
    memory = client_state.load(call.last, kind)
    if memory is None:
        return Refusal(f"client {client.id} has lost its memory of round {call.last}", lost=True)
    engine, _ = choose_engine(*here.experiment.where)
    r = federation.round(call.round)
    turn = federation.algorithm.client_turn(client, memory, call.payload, r)
    memory, upload = run_turn(turn, engine)
    client_state.save(call.round, call.last, memory)
    accuracy = measure_own_model(here, client, memory, engine)
    return Answer(call.round, not is_empty(memory), upload, accuracy)


def measure_own_model(here: Site, client: Client, memory: Any, engine: Engine) -> float:
    """The accuracy of a model that never leaves the node; nan where the client keeps none."""
    weights = model_in(memory)
    if weights is None:
        return float("nan")
    held_out = here.held_out()
    (logits,) = engine.run([Predict(client.model, weights, held_out.samples)])
    return evaluation.accuracy(logits, held_out.labels)


def _site(task: Any, context: Context) -> Site:
    return make_site(task, settings(context.run_config), context.node_config)


def _reply(message: Message, answer: Callable[[], FedsiftMessage]) -> Message:
    """The answer or a refusal. Other errors may quote private data: they stay in the node's log."""
    try:
        reply = answer()
    except (UserError, WireError) as error:
        reply = Refusal(messages.one_line(str(error)))
    except Exception as error:
        LOG.exception("fedsift: this turn failed")
        reply = Refusal(f"{type(error).__name__} on the node; its log has the details")
    return Message(messages.write(reply), reply_to=message)
