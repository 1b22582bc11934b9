"""Small made-up data that come with fedsift: a table and a text to try things on. No person and no
clinic stands behind them.
"""

from __future__ import annotations

import numpy as np

from fedsift.data.dataset import Dataset
from fedsift.data.sources import load_tables
from fedsift.data.table import Columns, make_table, words

ROWS = 1200
CLINICS = ("north", "south", "east", "west", "harbour", "hill")
SMOKERS = ("never", "former", "daily")


def clinics() -> Dataset:
    """A made-up table: 1,200 patients of six clinics, numbers, words and missing values, three
    classes."""
    rng = np.random.default_rng(20)
    clinic = rng.integers(0, len(CLINICS), ROWS)
    age = rng.normal(45 + 4 * clinic, 12).clip(18, 95).round()
    smoker = rng.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    pressure = rng.normal(118 + 0.4 * (age - 50) + 6 * smoker, 9).round(1)
    marker = rng.lognormal(4 + 0.02 * (age - 50), 0.5).round(2)
    score = (age - 50) / 15 + (pressure - 120) / 12 + 0.9 * smoker + (np.log(marker) - 4)
    risk = np.digitize(score + rng.normal(0, 0.4, ROWS), [0.3, 2.2])
    pressure[rng.random(ROWS) < 0.05] = np.nan
    columns = {
        "clinic": words([CLINICS[i] for i in clinic]),
        "age": age,
        "smoker": words([SMOKERS[i] for i in smoker]),
        "pressure": pressure,
        "marker": marker,
        "risk": words([("low", "medium", "high")[i] for i in risk]),
    }
    table = make_table("clinics", columns)
    return load_tables(table, [], Columns(target="risk", client="clinic"))


TOPICS = {
    "food": "bread soup kitchen salt oven dinner recipe butter taste spoon onion lunch",
    "sport": "match team goal race coach ball score league win runner player stadium",
    "travel": "train hotel map ticket island beach airport luggage road bridge guide ferry",
    "weather": "rain snow cloud wind storm sunny frost thunder cold degrees fog forecast",
}
COMMON = "the a and we was very today then our with some of in it they had good new old about"


def messages() -> Dataset:
    """A made-up text: 1,200 messages about food, sport, travel or weather, four classes."""
    rng = np.random.default_rng(21)
    names = list(TOPICS)
    topic = rng.integers(0, len(names), ROWS)
    texts = [_write(rng, TOPICS[names[i]].split()) for i in topic]
    columns = {"text": words(texts), "topic": words([names[i] for i in topic])}
    table = make_table("messages", columns)
    return load_tables(table, [], Columns(target="topic", text="text", length=20))


def _write(rng: np.random.Generator, own: list[str]) -> str:
    """Some words of the topic, and more that are anybody's."""
    others = [word for topic in TOPICS.values() for word in topic.split()]
    chosen = [*rng.choice(own, 3), *rng.choice(others, 2), *rng.choice(COMMON.split(), 9)]
    return " ".join(rng.permutation(chosen)).capitalize() + "."
