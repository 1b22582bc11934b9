"""Jobs as one flat piece of memory and a short text: sizes by hand, and what comes out again."""

import gc

import numpy as np
import pytest
import torch

from fedsift.engines.spread.memory import Shared
from fedsift.engines.spread.parcels import Stores, pack, unpack
from fedsift.types import Fit, Recipe, Store, UserError
from tests.helpers import toys


def opened(parcel, stores=None, copy=False):
    return unpack(parcel.text, parcel.flat(), stores and stores.tensor, copy)


def test_arrays_lie_at_multiples_of_64_bytes_by_hand():
    # 3 floats are 12 bytes, so the second array begins at 64; 20 doubles are 160: 64 + 192 = 256.
    parcel = pack([torch.zeros(3), np.ones(20)])
    assert [begin for begin, _ in parcel.arrays] == [0, 64] and parcel.size == 256


def test_what_is_shared_travels_once_and_no_array_is_in_the_text():
    weights = {"w": torch.arange(10_000.0)}
    parcel = pack([weights, dict(weights), weights["w"]])
    assert parcel.size == 40_000 and len(parcel.text) < 300


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3),
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        np.arange(6, dtype=np.int16).reshape(3, 2).T,
        np.float32(0.5) * np.ones(()),
    ],
)
@pytest.mark.parametrize("copy", [False, True])
def test_every_kind_of_array_comes_out_as_it_went_in(value, copy):
    found = opened(pack({"x": value}), copy=copy)["x"]
    assert type(found) is type(value) and found.dtype == value.dtype
    assert found.shape == value.shape and (found == value).all()


def test_a_copy_does_not_change_with_the_memory():
    parcel = pack(torch.ones(2))
    memory = parcel.flat()
    view, copy = (unpack(parcel.text, memory, None, copied) for copied in (False, True))  # type: ignore[arg-type]
    memory[:] = 0
    assert view.tolist() == [0, 0] and copy.tolist() == [1, 1]


def a_job(values):
    store = Store(values, torch.zeros(1), torch.ones(1))
    data = toys.labelled([[1.0, 0.0]], [0])
    data = type(data)(type(data.samples)(store, np.arange(1)), data.targets)
    return Fit(toys.model(), {"1.weight": torch.zeros(2, 2)}, data, Recipe(), (0, "client", 3))


def test_the_values_of_a_store_are_named_by_number_and_not_sent():
    stores, values = Stores(), torch.ones(1000, 2)
    first, second = (pack([a_job(values)], stores) for _ in range(2))
    assert first.stores == second.stores == {0} and first.size < 1000
    (job,) = opened(first, stores)
    assert job.key == (0, "client", 3) and torch.equal(job.data.samples.store.values, values)
    assert pack([a_job(values + 1)], stores).stores == {1}


def test_a_store_is_forgotten_when_nobody_holds_it():
    stores, values = Stores(), torch.ones(10, 2)
    pack([a_job(values)], stores)
    assert set(stores.values) == {0}
    del values
    gc.collect()
    assert not stores.values
    assert pack([a_job(torch.zeros(10, 2))], stores).stores == {1}


def test_what_cannot_travel_is_told():
    with pytest.raises(UserError, match=r"put models .* into a module that can be imported"):
        pack(lambda: 0)
    here = type("Here", (), {"__module__": "__main__"})
    with pytest.raises(UserError, match="Here is defined in the script itself"):
        pack(here)


def test_two_views_of_shared_memory_show_the_same_bytes():
    memory = Shared.make(100_000)
    other = Shared(memory.file, memory.size)
    memory.array[99_999] = 7
    memory.close()
    assert other.array[99_999] == 7 and memory.file == -1
