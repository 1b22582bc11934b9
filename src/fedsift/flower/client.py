"""A node's side: it says who it is and takes its turn. It needs only the message and the node."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedsift
from fedsift import evaluation
from fedsift.codecs import WireError
from fedsift.data.ranges import compare_inputs
from fedsift.engines import choose_engine
from fedsift.flower import logs, messages
from fedsift.flower.client_state import ClientState
from fedsift.flower.logs import complain, say, warn
from fedsift.flower.messages import (
    NEVER,
    PROTOCOL,
    Answer,
    Call,
    FedsiftMessage,
    Hello,
    Objection,
    Refusal,
)
from fedsift.flower.settings import settings
from fedsift.flower.site import Site, make_site
from fedsift.memory import is_empty, model_in
from fedsift.turns import run_turn
from fedsift.types import Client, Engine, ModelFailure, Predict, UserError


def client_app(task: Any) -> ClientApp:
    """The ClientApp of a project whose `task` says what data there are."""
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return _reply(task, message, context, lambda: greet(_site(task, context)))

    @app.train("turn")
    def turn(message: Message, context: Context) -> Message:
        return _reply(task, message, context, lambda: answer_call(task, message, context))

    @app.query("refused")
    def refused(message: Message, context: Context) -> Message:
        logs.start_logging(_form(context))
        objection = messages.read(message.content, Objection)
        complain(f"the server refuses this node: {objection.why}", client=_client_of(context))
        return Message(messages.nothing(), reply_to=message)

    return app


def greet(here: Site) -> Hello:
    client = here.client()
    say(
        f"client {client.id}: says hello, with {len(client.data)} private samples and model "
        f"{client.model.name}",
        client=client.id,
    )
    for odd in compare_inputs(client.data.samples, here.public):  # its figures stay here
        warn(f"client {client.id}: {odd}", client=client.id)
    return Hello(
        client.id,
        PROTOCOL,
        fedsift.__version__,
        here.digest,
        here.fingerprint,
        client.model.name,
    )


def answer_call(task: Any, message: Message, context: Context) -> FedsiftMessage:
    """A turn, and a line about it in the node's log."""
    begun = time.perf_counter()
    call = messages.read(message.content, Call)
    reply = take_turn(_site(task, context), call, context)
    if isinstance(reply, Answer):
        facts: dict[str, Any] = {"client": _client_of(context), "round": call.round}
        facts |= {"bytes_in": len(call.payload), "bytes_out": len(reply.payload)}
        facts |= {"seconds": round(time.perf_counter() - begun, 3)}
        say(
            f"client {facts['client']}, round {call.round}: {facts['bytes_in']} bytes in, "
            f"{facts['bytes_out']} bytes out, {facts['seconds']:.1f} s",
            **facts,
        )
    return reply


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
    if isinstance(logits, ModelFailure):
        warn(f"client {client.id}: its model cannot be tested: {logits}", client=client.id)
        return float("nan")
    return evaluation.accuracy(logits, held_out.labels)


def _site(task: Any, context: Context) -> Site:
    return make_site(task, settings(context.run_config), context.node_config)


def _form(context: Context) -> str:
    """Of log lines; settings are checked where errors can be told to the server."""
    return "json" if context.run_config.get("log") == "json" else "text"


def _client_of(context: Context) -> int:
    """Which client this node is by its settings."""
    id = context.node_config.get("partition-id")
    return id if type(id) is int else NEVER


def _reply(
    task: Any, message: Message, context: Context, answer: Callable[[], FedsiftMessage]
) -> Message:
    """The answer or a refusal. Other errors may quote private data: they stay in the node's log."""
    logs.start_logging(_form(context))
    client = _client_of(context)
    try:
        reply = answer()
    except (UserError, WireError) as error:
        reply = Refusal(messages.one_line(str(error)), client=client)
    except ModelFailure as error:  # its details may quote private data
        complain(f"client {client}: its model failed: {error}", client=client)
        reply = Refusal(messages.one_line(f"its model failed: {error.what}"), client=client)
    except Exception as error:
        logs.LOG.exception("this turn failed")
        why = f"{name_error(error)} {find_place(error, task)}; the node's log has the details"
        reply = Refusal(messages.one_line(why), client=client)
    if isinstance(reply, Refusal):
        complain(f"client {client}: told the server: {reply.why}", client=client)
    return Message(messages.write(reply), reply_to=message)


def name_error(error: Exception) -> str:
    """Its kind; of a full disk and the like also what it is, in the system's words alone."""
    name = type(error).__name__
    if type(error) is OSError and isinstance(error.errno, int):
        return f"{name} ({os.strerror(error.errno)})"
    return name


def find_place(error: Exception, task: Any) -> str:
    """Where it happened, without what was there: in the project's files if it passed them."""
    frames = traceback.extract_tb(error.__traceback__)
    folder = Path(task.__file__).parent
    own = [frame for frame in frames if Path(frame.filename).parent == folder]
    frame = (own or list(frames))[-1]
    return f"in {frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
