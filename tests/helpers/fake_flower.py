"""A Flower grid in one process: nodes are called when their replies are pulled, and may be made to
misbehave.
"""

from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsift import runs
from fedsift.federation import FederationState
from fedsift.flower import client_app, messages, project
from fedsift.flower.server import serve
from fedsift.flower.settings import Settings

TINY = (
    "clients=4 cohort=3 data.private=60 data.public=30 local.epochs=1 "
    "distill.epochs=1 device=cpu model=mlp budget=6"
)
SYSTEMS = {
    "fd": "algorithm=fd",
    "fas": "algorithm=fas sampler=low-entropy codec=quantized(2)",
    "expertise votes": "algorithm=fas codec=quantized(2) algorithm.votes=expertise",
    "soft labels down": "algorithm=fas algorithm.download=soft-labels",
    "ds-fl": "algorithm=ds-fl",
    "cfd": "algorithm=cfd budget=20",
    "cfd, all that was missed": "algorithm=cfd budget=20 algorithm.absent=missed",
    "delta up, weights down": (
        "algorithm=fd sampler=low-entropy codec=delta(quantized(2)) budget=20"
    ),
    "self-supervised start": "algorithm=fas start=rotation(epochs=2)",
    "start, soft labels down": (
        'algorithm=cfd budget=20 start=simclr(epochs=2) clients.models={"mlp"=2,"cnn"=2}'
    ),
    "updates down": "algorithm=fas algorithm.down_codec=updates(1)",
    "trust, audits": "algorithm=fas aggregator=trust(memory(era(0.1))) algorithm.audit=8",
    "mixed models": 'algorithm=fas clients.models={"mlp"=2,"cnn"=2}',
    "forests": (
        "algorithm=fas algorithm.download=soft-labels"
        ' clients.models={"mlp"=2,"sklearn:RandomForestClassifier(n_estimators=4)"=2}'
    ),
    "fedavg": "algorithm=fedavg",
    "fedpaq": "algorithm=fedpaq",
    "updates up": "algorithm=fedavg algorithm.codec=updates(1)",
    "fedpaq, updates down": (
        "algorithm=fedpaq algorithm.down_codec=updates(2) start=rotation(epochs=2)"
    ),
    "feddf": "algorithm=feddf",
    "fd-jeong": "algorithm=fd-jeong",
    "mix2fld": "algorithm=mix2fld",
}
WITH_MEMORY = [
    "soft labels down",
    "forests",
    "ds-fl",
    "cfd",
    "cfd, all that was missed",
    "start, soft labels down",
    "delta up, weights down",
    "updates down",
    "fedpaq, updates down",
    "fd-jeong",
    "mix2fld",
]
ROUNDS = 4


def a_task(folder: Path):
    """The task of a freshly written project, loaded as Flower would load it."""
    project.create(folder)
    loader = SourceFileLoader("task", str(folder / "task.py"))
    task = ModuleType("task")
    task.__file__ = loader.path
    loader.exec_module(task)
    return task


class Node:
    """A SuperNode: its settings, its app, its state; `meddle(message, reply) -> reply` may
    change its reply.
    """

    def __init__(self, task, partition, run_config, **node_config):
        self.app = client_app(task)
        self.config = {"partition-id": partition, **node_config}
        self.context = Context(0, 0, self.config, RecordDict(), run_config)
        self.meddle = lambda message, reply: reply

    def restart(self):
        self.context.state = RecordDict()

    def __call__(self, message):
        try:
            reply = self.app(message, self.context)
        except Exception as error:  # as Flower does
            reply = Message(Error(2, str(error)), reply_to=message)
        return self.meddle(message, reply)


class FakeGrid(Grid):
    def __init__(self, nodes):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes = dict(nodes)
        self.mail = {}
        self.sent = []  # messages, in order
        self.extra = []  # replies nobody asked for

    def set_run(self, run): ...

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            id = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = id
            self.mail[id] = message
            self.sent.append(message)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids):
        replies = [
            self.nodes[self.mail[id].metadata.dst_node_id](self.mail[id]) for id in message_ids
        ]
        extra, self.extra = self.extra, []
        return [reply for reply in replies if reply is not None] + extra

    def uplinks(self):
        """Round and node of every turn asked for."""
        return [
            (int(m.metadata.group_id), m.metadata.dst_node_id)
            for m in self.sent
            if m.metadata.message_type == messages.TURN
        ]


def federation(task, overrides, count, folder, **how):
    """A grid of `count` nodes with odd ids, and the settings of a run in `folder`."""
    run_config = {"overrides": overrides}
    grid = FakeGrid({10 * p + 7: Node(task, p, run_config) for p in range(count)})
    quick = {"deadline": 0.2, "wait": 0.2, "poll": 0.001} | how
    return grid, Settings(overrides=overrides, folder=str(folder), **quick)


def play(task, grid, how, flower_run="1"):
    return serve(task, grid, how, {}, flower_run)


def overrides(system, rounds=ROUNDS):
    """Quoted as a shell would need it: values may hold quotes."""
    return " ".join(f"'{word}'" for word in f"{TINY} rounds={rounds} {SYSTEMS[system]}".split())


def same_server(one: FederationState, other: FederationState):
    """Students and memory, bit for bit."""
    return runs.to_bytes(FederationState(0, one.server)) == runs.to_bytes(
        FederationState(0, other.server)
    )
