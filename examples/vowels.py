"""Who is speaking? Four phones learn nine voices from series of 12 figures and 29 steps.

640 real utterances of the vowels /ae/ (Kudo, Toyama and Shimbo 1999, UCI, CC BY 4.0). From this
folder: fedsift data get japanese-vowels, then python vowels.py
"""

import fedsift

ROUNDS, PHONES = 10, 4
data = fedsift.load_dataset("japanese-vowels")  # x [270, 29, 12], and an official test set
task = fedsift.split(data, public=90, seed=0)
clients = fedsift.make_clients(task.private, PHONES, fedsift.Dirichlet(1.0), "series-cnn", seed=0)
recipe = fedsift.Recipe(lr=0.01)  # chosen by validation utterances, not by the test
algorithm = fedsift.sift(bytes=600, mixup=0.0, local=recipe, distill=recipe)
for record in fedsift.federate(algorithm, clients, task, rounds=ROUNDS, cohort=PHONES):
    print(f"round {record.round + 1}: {record.accuracy:.3f}, {record.uplink_bytes} bytes up")
