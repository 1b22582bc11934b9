"""A round of random-forest clients in fedsift, beside the bare joblib loop over fit and
predict_proba.

    python benchmarks/estimators.py [--clients 100] [--samples 60] [--trees 100] [--repeats 3]

Both train the same forests on the same samples of the digits and predict the same 500 public
samples, on all cores; the pool of processes is started before. fedsift's part is what clients do in
a round: training and predictions by its engine. A whole round, with the choice of samples, codes
and the distillation at the server, is told beside it. Runs alternate, and the median is given with
the lowest and the highest: other work on the machine then meets both alike. Seconds of all
processors together are told, too (Linux).
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from statistics import median

from joblib import Parallel, delayed
from sklearn.ensemble import RandomForestClassifier

import fedsift
from fedsift.engines.threads import count_cores
from fedsift.types import Fit, Predict, Recipe


def fit_and_predict(x, y, public, trees, seed):
    return RandomForestClassifier(trees, random_state=seed).fit(x, y).predict_proba(public)


def loop(clients, public, trees):
    """What somebody without fedsift would write."""
    table = public.tensor().double().numpy().reshape(len(public), -1)
    jobs = [
        (c.data.samples.tensor().double().numpy().reshape(len(c.data), -1), c.data.labels, c.id)
        for c in clients
    ]
    run = Parallel(n_jobs=count_cores(), backend="loky", inner_max_num_threads=1)  # the same pool
    return run(delayed(fit_and_predict)(x, y, table, trees, seed) for x, y, seed in jobs)


def engine_alone(engine, clients, public):
    fits = [Fit(c.model, {}, c.data, Recipe(), ("bench", c.id)) for c in clients]
    trained = engine.run(fits)
    return engine.run([Predict(c.model, w, public) for c, w in zip(clients, trained, strict=True)])


def whole_round(engine, clients, task):
    """FAS with a small network at the server."""
    algorithm = fedsift.fas(60, distill=Recipe(epochs=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cohort = len(clients)
        (record,) = fedsift.federate(
            algorithm, clients, task, rounds=1, cohort=cohort, engine=engine
        )
    assert not record.bytes.missing


def timed(what):
    """Seconds, and seconds of all processors: the latter are the same on a busy machine."""
    begun, used = time.perf_counter(), measure_processors()
    what()
    return time.perf_counter() - begun, measure_processors() - used


def measure_processors():
    """Of this process and those it has started."""
    waiting, total = [os.getpid()], 0.0
    while waiting:
        pid = waiting.pop()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return total


def main():
    options = argparse.ArgumentParser()
    for name, usual in (("clients", 100), ("samples", 60), ("trees", 100), ("repeats", 3)):
        options.add_argument(f"--{name}", type=int, default=usual)
    asked = options.parse_args()
    task = fedsift.split(fedsift.load_dataset("digits"), private=1000, public=500)
    dealt = f"views({asked.samples})"  # clients may share samples
    forest = f"sklearn:RandomForestClassifier(n_estimators={asked.trees})"
    clients = fedsift.make_clients(task.private, asked.clients, dealt, forest)
    engine, _ = fedsift.choose_engine(device="cpu")
    ways = {
        "joblib loop": lambda: loop(clients, task.public, asked.trees),
        "fedsift, engine": lambda: engine_alone(engine, clients, task.public),
        "fedsift, whole round": lambda: whole_round(engine, clients, task),
    }
    for way in ways.values():
        way()  # pools are started
    seconds = {name: [] for name in ways}
    for _ in range(asked.repeats):
        for name, way in ways.items():
            seconds[name].append(timed(way))
            wall, used = seconds[name][-1]
            print(f"{name}: {wall:.1f} s, {used:.1f} s of processors", flush=True)
    base = [median(found) for found in zip(*seconds["joblib loop"], strict=True)]
    for name, found in seconds.items():
        walls, used = zip(*found, strict=True)
        row = {"median": median(walls), "lowest": min(walls), "highest": max(walls)}
        row |= {"processors": median(used), "times_the_loop": median(walls) / base[0]}
        row |= {"times_its_processors": median(used) / base[1]}
        print(json.dumps({"way": name} | {key: round(value, 2) for key, value in row.items()}))


if __name__ == "__main__":
    main()
