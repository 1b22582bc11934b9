"""An engine and turns for numbers, whose sums can be worked out by hand; turns answered by hand."""

import pytest


class Doubling:
    """An engine for numbers: the answer is twice the work. It notes what it was given at once."""

    def __init__(self):
        self.lists = []

    def run(self, jobs):
        self.lists.append(list(jobs))
        return [2 * job for job in jobs]

    def describe(self, model):
        return f"{model}: doubled"


def counting(start, steps):
    """Asks `steps` times; returns the sum of the answers."""
    total = 0
    for step in range(steps):
        total += yield start + step
    return total


def finish(turn, answer):
    """Send the last answer; what the turn returned."""
    with pytest.raises(StopIteration) as end:
        turn.send(answer)
    return end.value.value
