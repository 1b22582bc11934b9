"""A fifth of the clients lies. What does it cost, and does a rule that judges clients help?

From this folder: python hostile.py
"""

import fedsift

data = fedsift.load_dataset("digits")
task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(1.0), "mlp", seed=0)

for aggregator in ("mean", "trust"):
    for attack in (None, "wrong"):
        algorithm = fedsift.fas(budget=60, aggregator=aggregator)
        share = 0.2 if attack else None
        threat = {"attack": attack, "attackers": share}
        rounds = fedsift.federate(algorithm, clients, task, rounds=4, cohort=10, seed=0, **threat)
        *_, last = rounds
        print(f"{aggregator}, attack {attack}: {last.accuracy:.3f}")
