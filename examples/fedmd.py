"""FedMD: fedsift run digits-fd algorithm=fedmd:FedMD "clients.models={cnn = 12, mlp = 8}"."""

import fedsift
from fedsift import Fit, Predict, Server, SoftLabels, seeding


class FedMD:  # Li and Wang 2019: clients keep their models and learn from all soft labels' mean
    codec = fedsift.CODECS["float16"]

    def __init__(self, budget, local, distill):  # public samples per round, and two recipes
        self.budget, self.local, self.distill = budget, local, distill

    def start(self, r):
        return Server({})

    def prepare_downloads(self, server, cohort, r):
        last = SoftLabels(**server.memory) if server.memory else None
        return {c.id: self.codec.encode(last, r.link(c.id)) if last else b"" for c in cohort}

    def client_turn(self, client, memory, download, r):
        model, weights = client.model, memory.get("model")
        weights = weights or fedsift.initial_state(model, r.seed)
        if download:  # digest the consensus of the last round
            labels = self.codec.decode(download, r.link(client.id)).on(r.public)
            weights = yield Fit(model, weights, labels, self.distill, r.key("digest", client.id))
        weights = yield Fit(model, weights, client.data, self.local, r.key("revisit", client.id))
        chosen = seeding.subset(r.draws(client.id).shared, len(r.public), self.budget)
        probs = fedsift.softmax((yield Predict(model, weights, r.public[chosen])), 1.0)
        return {"model": weights}, self.codec.encode(SoftLabels(chosen, probs), r.link(client.id))

    def check_upload(self, server, client, upload, r):
        return self.codec.decode(upload, r.link(client))

    def server_turn(self, server, uploads, r):
        yield from ()  # a turn is a generator, also where it has nothing to compute
        consensus = fedsift.mean(uploads, len(r.public), r.classes)
        return Server({}, {"index": consensus.index, "probs": consensus.probs})

    def models_to_evaluate(self, server, memories, r):
        return {f"client {i}": (r.model_of(i), m["model"]) for i, m in sorted(memories.items())}
