"""A network of your own, beside a built-in one in the same federation.

From this folder: python own_model.py
On the command line: fedsift run digits-fas "model=own_model:Net(hidden=32)"
"""

from torch import nn

import fedsift


class Net(nn.Module):
    """Two layers. It returns logits: no softmax at the end."""

    def __init__(self, shape, classes, hidden=64):  # shape: (channels, height, width)
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], hidden), nn.GELU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))


if __name__ == "__main__":
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
    clients = fedsift.make_clients(task.private, 20, model={Net: 10, "mlp": 10}, seed=0)
    for record in fedsift.federate(fedsift.fas(60), clients, task, rounds=4, cohort=8):
        print(record.round + 1, {name: round(a, 3) for name, a in record.accuracies.items()})
