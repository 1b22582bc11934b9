"""A codec of your own: one byte per probability. From this folder: python own_codec.py

On the command line: fedsift run digits-fas codec=own_codec:Bytes8
"""

import numpy as np

import fedsift
from fedsift.codecs.values import on_grid


class Bytes8:
    """The bytes of a row sum to 255."""

    id = 40  # its number in the header; 32 to 63 are free

    def pack(self, probs, known=None):
        return on_grid(probs, 255).astype(np.uint8).tobytes()

    def unpack(self, code, rows, classes, known=None):
        values = np.frombuffer(code, np.uint8)
        if len(values) != rows * classes:
            raise fedsift.WireError(f"{len(values)} bytes instead of {rows * classes}")
        values = values.reshape(rows, classes)
        if (values.sum(1, dtype=np.int64) != 255).any():
            raise fedsift.WireError("a row of bytes that does not sum to 255")
        return (values / 255).astype(np.float32)

    def max_bytes(self, rows, classes):
        return rows * classes


if __name__ == "__main__":
    task = fedsift.split(fedsift.load_dataset("digits"), private=400, public=500, seed=0)
    clients = fedsift.make_clients(task.private, 10, fedsift.Dirichlet(1.0), "mlp", seed=0)
    for codec in ("float32", Bytes8()):
        algorithm = fedsift.fas(60, codec=codec)
        *_, last = fedsift.federate(algorithm, clients, task, rounds=3, cohort=5)
        name, size = type(codec).__name__, last.uplink_bytes // 5
        print(f"{name}: {last.accuracy:.3f}, {size} bytes per upload")
