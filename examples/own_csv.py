"""A table of your own, in which a column says whose a row is.

From this folder: python own_csv.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedsift


def write_table(file):
    """Something to read: 600 made-up patients of three hospitals, some cells empty."""
    rng = np.random.default_rng(0)
    out = csv.writer(file)
    out.writerow(["hospital", "age", "smoker", "pressure", "outcome"])
    for _ in range(600):
        age, smoker = rng.integers(20, 90), rng.choice(["yes", "no"])
        pressure = round(rng.normal(100 + age / 2 + 10 * (smoker == "yes"), 8), 1)
        outcome = "ill" if pressure + rng.normal(0, 4) > 132 else "well"
        cell = "" if rng.random() < 0.1 else pressure
        out.writerow([rng.choice(["A", "B", "C"]), age, smoker, cell, outcome])


path = Path(tempfile.mkdtemp()) / "patients.csv"
with open(path, "w", newline="") as file:
    write_table(file)

data = fedsift.load_dataset(f"csv:{path}", target="outcome", client="hospital")
task = fedsift.split(data, seed=0)
print(*task.notes, sep="\n")
clients = fedsift.make_clients(task.private, len(task.given), task.given, model="mlp")
for record in fedsift.federate(fedsift.fas(budget=40), clients, task, rounds=4, cohort=3):
    print(f"round {record.round + 1}: {record.accuracy:.3f}")
