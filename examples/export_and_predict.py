"""Train, write the model to a file, and use it in plain PyTorch.

From this folder: python export_and_predict.py
"""

import tempfile
from pathlib import Path

import torch

import fedsift

data = fedsift.load_dataset("digits")
task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(1.0), "mlp", seed=0)
best = None
for record in fedsift.federate(fedsift.fas(60), clients, task, rounds=5, cohort=8, seed=0):
    if best is None or record.accuracy > best.accuracy:
        best = record  # for a paper, choose by validation samples: split(..., validation=100)

file = Path(tempfile.mkdtemp()) / "model.pt"
torch.save(best.network().state_dict(), file)

net = best.network()  # in a program of your own: the same nn.Module, made anew
net.load_state_dict(torch.load(file))
net.eval()
with torch.no_grad():
    logits = net(task.normalise(data.x[:5]))
print("predicted", logits.argmax(1).tolist(), "true", data.y[:5].tolist())
