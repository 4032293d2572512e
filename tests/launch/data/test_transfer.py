from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from launch.data import Transfer

META = torch.device("meta")  # a device that is not the CPU, on every machine
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str
    length: int = field(init=False, default=3)


class Movable:
    def __init__(self, device="cpu"):
        self.device = torch.device(device)

    def to(self, device):
        return Movable(device)


class Encoding(UserDict):
    """A mapping that moves itself and knows more than its items."""

    def __init__(self, data, more):
        super().__init__(data)
        self.more = more

    def to(self, device):
        return Encoding({k: v.to(device) for k, v in self.data.items()}, self.more)


def tensor():
    return torch.zeros(2)


CONTAINERS = [
    tensor(),
    [tensor(), [tensor()]],
    (tensor(), {"a": (tensor(),)}),
    {"a": tensor(), "b": [tensor()]},
    OrderedDict(a=tensor()),
    defaultdict(list, a=tensor()),
    UserDict(a=tensor()),
    MappingProxyType({"a": tensor()}),
    Pair(tensor(), [tensor()]),
    Sample(tensor(), "one"),
]


def tensors(value):
    """Return the tensors of a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Sample):
        return [value.x]
    parts = value.values() if hasattr(value, "values") else value
    return [t for part in parts for t in tensors(part)]


@pytest.mark.parametrize("batch", CONTAINERS, ids=lambda batch: type(batch).__name__)
def test_every_container_is_moved_and_keeps_its_type(batch):
    moved = Transfer(META)(batch)
    assert type(moved) is type(batch)
    assert len(tensors(moved)) == len(tensors(batch))
    assert all(t.device == META for t in tensors(moved))
    assert all(t.device.type == "cpu" for t in tensors(batch)), "the batch itself was changed"


def test_names_and_order_are_kept():
    moved = Transfer(META)({"b": Pair(1, tensor()), "a": Sample(tensor(), "one")})
    assert list(moved) == ["b", "a"]
    assert moved["b"].x == 1
    assert (moved["a"].name, moved["a"].length) == ("one", 3)


def test_what_can_move_itself_does():
    assert Transfer(META)([Movable()])[0].device == META
    moved = Transfer(META)(Encoding({"ids": tensor()}, "more"))
    assert moved["ids"].device == META
    assert moved.more == "more"


def test_a_packed_sequence_keeps_its_lengths_on_the_cpu():
    packed = pack_padded_sequence(torch.zeros(3, 2, 1), torch.tensor([3, 1]))
    moved = Transfer(META)(packed)
    assert isinstance(moved, PackedSequence)
    assert moved.data.device == META
    assert moved.batch_sizes.device.type == "cpu"
    assert Transfer(torch.device("cpu"), double=True)(packed).data.dtype == torch.float64


def test_a_defaultdict_keeps_its_default():
    assert Transfer(META)(defaultdict(list, a=tensor()))["b"] == []


@pytest.mark.parametrize("value", ["text", 3, None, {1, 2}, b"bytes"])
def test_what_cannot_be_moved_passes_through(value):
    assert Transfer(META)([value]) == [value]


def test_on_the_cpu_nothing_is_touched():
    batch = [tensor()]
    transfer = Transfer(torch.device("cpu"))
    assert transfer.is_identity
    assert transfer(batch) is batch


def test_double_is_for_floating_tensors_only():
    batch = {"x": tensor(), "half": tensor().half(), "ids": torch.arange(2), "is": tensor() > 0}
    moved = Transfer(torch.device("cpu"), double=True)(batch)
    kinds = {name: value.dtype for name, value in moved.items()}
    assert kinds == {
        "x": torch.float64,
        "half": torch.float64,
        "ids": torch.int64,
        "is": torch.bool,
    }
