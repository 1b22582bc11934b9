"""What this federation learns from. Every machine has this file; private data stay where they are.

As it stands, the nodes share the digits that come with fedsift, so the project runs at once. Its
numbers are those of `fedsift run experiment.toml`. Put your own data into each function; plain
arrays will do:

    def private(experiment, node):
        file = np.load(node["data"])  # from --node-config 'partition-id=0 data="/srv/mine.npz"'
        return file["x"], file["y"]

A table is returned as a data set: fedsift.load_dataset("csv:/srv/mine.csv", target="outcome",
classes=CLASSES), with CLASSES = ("ill", "well"). What its columns become follows from the public
one (docs/your-own-data.md).
"""

from torch import nn

from fedsift import config

CLASSES = 10


def network(shape, classes):
    """The model that experiment.toml names as task:network; shape is (channels, height, width)."""
    pixels = shape[1] * shape[2] // 4
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * pixels, classes),
    )


def public(experiment, node):
    """The unlabelled samples all share, or an array x. A node with different ones is refused."""
    return config.build_task(experiment).public


def test(experiment, node):
    """Labelled samples that accuracy is measured on, or (x, y): the server's, and those of a node
    that keeps a model. Where experiment.data.validation is set, give training samples.
    """
    return config.build_task(experiment).held_out


def private(experiment, node):
    """The labelled samples of one node, which never leave it. Or (x, y)."""
    return config.build_clients(experiment)[node["partition-id"]].data
