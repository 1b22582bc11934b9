"""A sampler of your own beside two that come with fedsift.

From this folder: python own_sampler.py
On the command line: fedsift run digits-fas sampler=own_sampler:pick
"""

import numpy as np

import fedsift


def pick(probs, label_counts, budget, draws):
    """Of the classes this client has, the samples it is most sure of. probs: [N, C]."""
    known = label_counts[probs.argmax(1)] > 0
    order = np.argsort(fedsift.entropy(probs) + 10.0 * ~known)
    return order[:budget]


if __name__ == "__main__":
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(0.1), "mlp", seed=0)
    for sampler in ("none", "mixed", pick):
        algorithm = fedsift.fas(budget=60, sampler=sampler)
        *_, last = fedsift.federate(algorithm, clients, task, rounds=4, cohort=8, seed=0)
        name = getattr(sampler, "__name__", sampler)
        print(f"{name}: accuracy {last.accuracy:.3f}, labels {last.uploaded_labels.right:.3f}")
