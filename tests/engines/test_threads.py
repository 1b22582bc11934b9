"""What is set before each task: how many threads torch has, and which GPU is meant."""

import threading

import pytest
import torch

from fedsift.engines.threads import Workers


@pytest.mark.parametrize(
    ("device", "expected"), [("cuda:1", ["cuda:1"] * 2), ("cuda", []), ("cpu", [])]
)
def test_a_gpu_with_a_number_is_the_one_of_the_thread_that_computes(monkeypatch, device, expected):
    """A new thread of torch has the first one, and kernels are launched on the thread's own."""
    chosen = []

    def note(gpu):
        chosen.append((str(gpu), threading.current_thread()))

    monkeypatch.setattr(torch.cuda, "set_device", note)
    workers = Workers(torch.device(device), threads=1)
    (computing,) = set(workers.run([lambda stop: threading.current_thread()] * 2))
    assert chosen == [(name, computing) for name in expected]
    assert computing is not threading.current_thread()
