"""Is this mail spam? Six mailboxes learn together; no mail and no weights leave them.

6,046 real mails of the SpamAssassin project. Each mailbox sends soft labels on public mails, in
600 bytes a round. From this folder: fedsift data get spam-assassin, then python spam.py
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

import fedsift

ROUNDS, MAILBOXES = 5, 6
data = fedsift.load_dataset("spam-assassin", length=200)
task = fedsift.split(data, seed=0)  # a quarter is public, a quarter for the test
clients = fedsift.make_clients(task.private, MAILBOXES, fedsift.Dirichlet(1.0), "bag", seed=0)
recipe = fedsift.Recipe(lr=0.01)
algorithm = fedsift.sift(bytes=600, mixup=0.0, local=recipe, distill=recipe)
for record in fedsift.federate(algorithm, clients, task, rounds=ROUNDS, cohort=MAILBOXES):
    print(f"round {record.round + 1}: {record.accuracy:.3f}, {record.uplink_bytes} bytes up")


def count_words(samples):
    """Which words a mail has, [S, words]: the usual start of a linear model."""
    ids = samples.tensor().numpy()
    found = np.zeros((len(ids), samples.vocabulary), bool)
    found[np.arange(len(ids))[:, None], ids] = True
    return found


pooled = LogisticRegression(max_iter=300).fit(
    count_words(task.private.samples), task.private.labels
)
accuracy = pooled.score(count_words(task.test.samples), task.test.labels)
print(f"a linear model with all private mails in one place: {accuracy:.3f}")
