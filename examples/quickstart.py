"""Twenty clients learn to read digits together, and send soft labels alone.

From this folder: python quickstart.py
"""

import fedsift

data = fedsift.load_dataset("digits")
task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(0.1), model="mlp", seed=0)
algorithm = fedsift.sift(bytes=150)

for record in fedsift.federate(algorithm, clients, task, rounds=8, cohort=8, seed=0):
    print(f"round {record.round + 1}: {record.accuracy:.3f}, {record.uplink_bytes} bytes up")
