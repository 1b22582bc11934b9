"""How well a network does at a contrastive task."""

import torch
import torch.nn.functional as F

from fedsift import pretexts


def find_partners(job, state):
    """The share of views whose nearest other view is of the same image, on the first batches."""
    drawn = pretexts.draw_steps(job)
    low, span = (torch.tensor([figure]) for figure in pretexts.measure_range(job.samples))
    net = job.model.build()
    net.load_state_dict(state)
    found = []
    for positions, dice in zip(drawn.positions[:4], drawn.dice[:4], strict=True):
        raw = job.samples.store.values[torch.from_numpy(job.samples.rows[positions])]
        views = pretexts.make_inputs(
            job.pretext, raw[None], torch.from_numpy(dice)[None], low, span
        )[0]
        with torch.no_grad():
            u = F.normalize(net.eval()(job.samples.store.normalise(views)), dim=1)
        likeness = (u @ u.T).fill_diagonal_(-2)
        found.append(likeness.argmax(1) == torch.arange(len(u)).roll(len(u) // 2))
    return torch.cat(found).float().mean().item()
