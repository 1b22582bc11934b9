"""An aggregator of your own: every client votes for one class, and the most votes win.

From this folder: python own_aggregator.py
On the command line: fedsift run digits-fas aggregator=own_aggregator:majority
"""

import numpy as np

import fedsift


def majority(uploads, samples, classes):
    """A sample's label is the share of the clients that call it so. Each client has one vote."""
    votes = np.zeros((samples, classes))
    for _, labels in uploads:
        votes[labels.index, labels.probs.argmax(1)] += 1
    seen = np.flatnonzero(votes.any(1))
    return fedsift.SoftLabels(seen, votes[seen] / votes[seen].sum(1, keepdims=True))


if __name__ == "__main__":
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(1.0), "mlp", seed=0)
    for aggregator in ("mean", majority):
        algorithm = fedsift.fas(budget=60, aggregator=aggregator)
        *_, last = fedsift.federate(algorithm, clients, task, rounds=4, cohort=8, seed=0)
        print(f"{getattr(aggregator, '__name__', aggregator)}: {last.accuracy:.3f}")
