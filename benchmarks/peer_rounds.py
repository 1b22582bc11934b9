"""One federated round, the same work in every way: a plain loop, Flower's simulation, pfl-research,
BlazeFL, FedJAX, fedsift.

20 clients of 100 images, ResNet-8 with batch norm, one local epoch in batches of 8, Adam, then the
average of the weights; nobody evaluates. PEERS_MODEL=cnn makes it the small CNN on 8x8 images, and
PEERS_CLIENTS=100 makes it more clients. Batches are drawn by fedsift's names for all, so all must
end with the same weights. A way is a function (rounds, done) that calls `done(weights)` at the end
of every round; `weights` makes a state dict when called. A peer is imported only by the way that
needs it.
"""

import os
import sys
from functools import cache, partial

import numpy as np
import torch

from fedsift import seeding, training
from fedsift.algorithms import fedavg
from fedsift.data import Task
from fedsift.data.partition import iid
from fedsift.engines import choose_engine
from fedsift.federation import federate, make_clients
from fedsift.models import initial_state, make_model
from fedsift.types import Labelled, Recipe, Samples, Store

SHAPES = {"resnet8": (3, 32, 32), "cnn": (1, 8, 8)}
NAME, CLIENTS = os.environ.get("PEERS_MODEL", "resnet8"), int(os.environ.get("PEERS_CLIENTS", 20))
CORES, SAMPLES, CLASSES, SHAPE, SEED = 2, 100, 10, SHAPES[NAME], 0
RECIPE = Recipe(epochs=1, batch=8, lr=1e-3)
MODEL = make_model(NAME, SHAPE, CLASSES)


@cache
def task():
    """Random images and labels: time does not depend on what is seen. The test set is one image, as
    none is wanted.
    """
    generator = seeding.rng(SEED, "peers")
    count = CLIENTS * SAMPLES
    images = torch.from_numpy(generator.integers(0, 256, (count, *SHAPE), np.uint8))
    half = torch.full((SHAPE[0], 1, 1), 127.5)
    everything = Samples(Store(images, half, half), np.arange(count))
    private = Labelled(
        everything, torch.eye(CLASSES)[torch.from_numpy(generator.integers(0, CLASSES, count))]
    )
    return Task(private, everything[np.arange(1)], private[np.arange(1)])


@cache
def federation():
    dealt = make_clients(task().private, CLIENTS, iid, NAME, SEED)
    assert {len(client.data) for client in dealt} == {SAMPLES}
    return dealt


def start():
    return initial_state(MODEL, SEED)


def batches(client, number):
    """The batches fedsift's FedAvg draws for this client in this round."""
    (epoch,) = training.draw_batches(RECIPE, SAMPLES, (SEED, number, "local", client))
    return [torch.from_numpy(batch) for batch in epoch]


def trained(state, client, number, tuned=False):
    """A client's turn as everyone writes it. Tuned: channels-last and a fused optimiser, the two
    tricks to know.
    """
    layout = torch.channels_last if tuned else torch.contiguous_format
    net = MODEL.build().to(memory_format=layout)
    net.load_state_dict(state)
    data = federation()[client].data
    x, targets = data.samples.tensor().contiguous(memory_format=layout), data.targets
    optimizer = torch.optim.Adam(net.parameters(), RECIPE.lr, fused=tuned or None)
    for batch in batches(client, number):
        optimizer.zero_grad()
        training.loss(net(x[batch]), targets[batch]).backward()
        optimizer.step()
    return net.state_dict()


def plain_loop(rounds, done, threads):
    """Client after client in one process."""
    torch.set_num_threads(threads)
    state = start()
    for number in range(rounds):
        states = [trained(state, client, number) for client in range(CLIENTS)]
        state = {name: torch.stack([s[name] for s in states]).float().mean(0) for name in state}
        done(lambda state=state: state)


def fedsift(rounds, done, precision="float32", workers=None):
    """FedAvg as a user runs it: messages encoded, decoded and counted, on the engine `auto`
    picks.
    """
    algorithm = fedavg(local=RECIPE)
    engine = choose_engine("auto", "cpu", precision, workers=workers)[0]
    played = federate(
        algorithm, federation(), task(), rounds=rounds, cohort=CLIENTS, seed=SEED, engine=engine
    )
    for record in played:
        done(lambda record=record: record.models[NAME][1])


def flower_client(message, context):
    """The plain loop's client behind Flower's messages."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    config = message.content["config"]
    torch.set_num_threads(config["threads"])
    state = message.content["arrays"].to_torch_state_dict()
    state = trained(
        state, context.node_config["partition-id"], config["server-round"] - 1, config["tuned"]
    )
    reply = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(RecordDict(reply), reply_to=message)


def flower(rounds, done, actors, tuned=False):
    """Flower's own FedAvg in its simulation on Ray: `actors` processes share the cores."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, threads = ClientApp(), ServerApp(), CORES // actors
    client_app.train()(flower_client)

    def after_round(number, arrays):
        if number:  # it is also called before the first
            done(arrays.to_torch_state_dict)

    @server_app.main()
    def main(grid, context):
        strategy = FedAvg(1.0, 0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        config = ConfigRecord({"threads": threads, "tuned": tuned})
        strategy.start(
            grid, ArrayRecord(start()), rounds, train_config=config, evaluate_fn=after_round
        )

    loopback = {"num_cpus": CORES, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    loopback["_temp_dir"] = os.environ["FLWR_HOME"]
    resources = {"num_cpus": threads, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        CLIENTS,
        "ray",
        {"init_args": loopback, "client_resources": resources},
    )


def pfl(rounds, done, threads):
    """pfl's FederatedAveraging on its SimulatedBackend. Torch's launcher makes more processes of
    it, if asked.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    def user(turn):
        """pfl goes through a user's data in order: it is laid out in the order of this round's
        batches.
        """
        number, client = turn
        order, data = torch.cat(batches(client, number)), federation()[client].data
        return PyTorchTensorDataset((data.samples.tensor()[order], data.targets[order]))

    class EndOfRound(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            done(model.pytorch_model.state_dict)
            return False, Metrics()

    torch.set_num_threads(threads)
    net = MODEL.build()
    net.load_state_dict(start())
    net.loss, net.metrics = (
        (lambda x, targets: training.loss(net(x), targets)),
        (lambda x, targets: {}),
    )
    turns = [(number, client) for number in range(rounds) for client in range(CLIENTS)]
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", turns))
    FederatedAveraging().run(
        NNAlgorithmParams(
            rounds, evaluation_frequency=rounds + 1, train_cohort_size=CLIENTS, val_cohort_size=None
        ),
        SimulatedBackend(users, users),
        PyTorchModel(net, torch.optim.Adam, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=RECIPE.batch, local_num_epochs=1, local_learning_rate=RECIPE.lr
        ),
        callbacks=[EndOfRound()],
        send_metrics_to_platform=False,
    )


def fedjax(rounds, done):
    """FedJAX's federated averaging. Its clients have parameters only, so it has no batch norm."""
    if NAME != "cnn":
        sys.exit("FedJAX keeps no running figures of a batch norm: only the CNN is the same work")
    import fedjax as fj
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    places = ("NCHW", "OIHW", "NCHW")

    def logits(p, x):
        for layer in ("0", "3"):
            x = jax.lax.conv_general_dilated(
                x, p[f"{layer}.weight"], (1, 1), [(1, 1)] * 2, dimension_numbers=places
            )
            x = jax.nn.relu(x + p[f"{layer}.bias"][:, None, None])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.reshape(len(x), -1) @ p["7.weight"].T + p["7.bias"]

    def loss(p, batch):
        return -(batch["y"] * jax.nn.log_softmax(logits(p, batch["x"]))).sum(1).mean()

    def dataset(client, number):
        """In the order of this round's batches, as FedJAX is told not to shuffle."""
        order, data = torch.cat(batches(client, number)), federation()[client].data
        x, y = data.samples.tensor()[order], data.targets[order]
        return fj.ClientDataset({"x": x.numpy(), "y": y.numpy()})

    algorithm = fed_avg.federated_averaging(
        jax.grad(lambda p, batch, key: loss(p, batch)),
        fj.optimizers.adam(learning_rate=RECIPE.lr, b1=0.9, b2=0.999, eps=1e-8),
        fj.optimizers.sgd(learning_rate=1.0),
        fj.ShuffleRepeatBatchHParams(RECIPE.batch, num_epochs=1, skip_shuffle=True),
    )
    state = algorithm.init({name: jnp.asarray(value.numpy()) for name, value in start().items()})
    key = jax.random.PRNGKey(SEED)
    for number in range(rounds):
        clients = [(client, dataset(client, number), key) for client in range(CLIENTS)]
        state, _ = algorithm.apply(state, clients)
        params = jax.block_until_ready(state.params)
        done(lambda p=params: {name: torch.from_numpy(np.array(v)) for name, v in p.items()})


def blazefl_client(config, payload, device, stop_event, *, shm_buffer=None):
    """The plain loop's client in a process of BlazeFL's pool; its weights go back by the buffer."""
    from blazefl.core.utils import process_tensors_in_object

    client, number, threads = config
    torch.set_num_threads(threads)
    for name, value in trained(payload, client, number).items():
        shm_buffer[name].copy_(value)
    return process_tensors_in_object(shm_buffer, mode="replace")


def blazefl(rounds, done, processes):
    """BlazeFL's pool of processes with shared memory, forked: spawned ones import torch anew in
    every round.
    """
    from blazefl.core import IPCMode, ProcessPoolClientTrainer
    from torch.multiprocessing import Manager

    class Clients(ProcessPoolClientTrainer):
        worker = staticmethod(blazefl_client)

        def __init__(self, stop):
            self.num_parallels, self.device, self.device_count = processes, "cpu", 0
            self.ipc_mode, self.stop_event = IPCMode.SHARED_MEMORY, stop
            self.cache, self.number = [], 0

        def get_client_config(self, cid):
            return cid, self.number, CORES // processes

        def prepare_uplink_package_buffer(self):
            return {name: torch.empty_like(value) for name, value in start().items()}

    torch.set_num_threads(1)
    trained(start(), 0, 0)  # forked processes then have the data, and what torch imports late
    with Manager() as manager:
        clients, state = Clients(manager.Event()), start()
        for number in range(rounds):
            clients.number, clients.cache = number, []
            clients.local_process(state, list(range(CLIENTS)))
            state = {
                name: torch.stack([s[name] for s in clients.cache]).float().mean(0)
                for name in state
            }
            done(lambda state=state: state)


WAYS = {
    "fedsift": fedsift,
    "fedsift, bfloat16": partial(fedsift, precision="bfloat16"),
    "fedsift, workers=2": partial(fedsift, workers=2),
    "plain loop, 1 thread": partial(plain_loop, threads=1),
    "plain loop, 2 threads": partial(plain_loop, threads=2),
    "Flower, 2 actors of 1 thread": partial(flower, actors=2),
    "Flower, 1 actor of 2 threads": partial(flower, actors=1),
    "Flower, 2 actors, tuned client": partial(flower, actors=2, tuned=True),
    "pfl, 2 processes of 1 thread": partial(pfl, threads=1),
    "pfl, 1 process of 2 threads": partial(pfl, threads=2),
    "BlazeFL, 2 processes of 1 thread": partial(blazefl, processes=2),
    "FedJAX": fedjax,
}
PROCESSES = {"pfl, 2 processes of 1 thread": 2}  # started by torch's launcher
