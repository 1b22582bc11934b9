"""Clients with different networks, none of which ever sends weights.

Soft labels travel both ways, and every client keeps its own network.
From this folder: python mixed_models.py
"""

import fedsift

data = fedsift.load_dataset("digits")
task = fedsift.split(data, private=600, public=500, seed=0, normalise="standard")
models = {"mlp": 8, "mlp(width=0.5)": 7}
clients = fedsift.make_clients(task.private, 15, fedsift.Dirichlet(0.5), models, seed=0)
algorithm = fedsift.ds_fl(budget=100)

for record in fedsift.federate(algorithm, clients, task, rounds=5, cohort=15, seed=0):
    print(f"round {record.round + 1}: clients' own models {record.client_accuracy:.3f}")
