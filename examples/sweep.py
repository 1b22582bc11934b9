"""A sweep in Python: two samplers, two seeds, and the gap between them seed by seed.

From this folder: python sweep.py
"""

import tempfile
from pathlib import Path

import fedsift

settings = ["model=mlp", "alpha=0.1", "rounds=4", "sweep.seed=[0,1]"]
sweep = fedsift.sweeps.read("digits-fas", [*settings, "sweep.sampler=[none,mixed]"])
folder = Path(tempfile.mkdtemp())
group = fedsift.runs.Group({folder / name: cell for name, cell in sweep.cells.items()})
group.begin()
for run, outcome in group.run(fedsift.choose_engine()[0]):
    if isinstance(outcome, Exception):
        print(f"{run.folder.name} failed: {outcome}")

accuracy = {}
for cell in sorted(sweep.cells):
    history = fedsift.runs.load_run(folder / cell)
    experiment = history.experiment
    accuracy[experiment.algorithm.sampler, experiment.seed] = history.accuracies[-1]
    print(cell, round(history.accuracies[-1], 3), history.summary()["uplink_bytes"], "bytes")
for seed in (0, 1):
    print(f"seed {seed}: mixed - none = {accuracy['mixed', seed] - accuracy['none', seed]:+.3f}")
