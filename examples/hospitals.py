"""Four hospitals, four kinds of model: two networks, a random forest and gradient boosting.

Nobody sends data or weights: they send soft labels on public samples, and learn from what comes
back. From this folder, with `pip install 'fedsift[sklearn]'`: python hospitals.py
"""

from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

import fedsift
from fedsift.baselines import baselines_turn
from fedsift.engines import choose_engine
from fedsift.federation import Federation
from fedsift.turns import run_turn

ROUNDS, HOSPITALS = 8, 4
data = fedsift.load_dataset("breast-cancer")
task = fedsift.split(data, private=120, public=240, seed=0)
models = {"mlp": 1, "mlp(width=0.5)": 1}
models |= {RandomForestClassifier(): 1, GradientBoostingClassifier(): 1}
clients = fedsift.make_clients(task.private, HOSPITALS, fedsift.Dirichlet(0.5), models, seed=0)
local, distill = fedsift.Recipe(lr=0.01), fedsift.Recipe()
algorithm = fedsift.fas(budget=100, download="soft-labels", local=local, distill=distill)

for record in fedsift.federate(algorithm, clients, task, rounds=ROUNDS, cohort=HOSPITALS):
    print(f"round {record.round + 1}: {record.accuracy:.3f}, {record.uplink_bytes} bytes up")

federation = Federation(algorithm, clients, task, HOSPITALS, 0)
engine, _ = choose_engine()
alone = run_turn(baselines_turn(federation, local, ROUNDS, federation.start()), engine)
for hospital, accuracy in alone.alone.items():
    print(f"hospital {hospital} alone, {clients[int(hospital)].model.name}: {accuracy:.3f}")
print(f"all data pooled: {alone.best_pooled:.3f}")
