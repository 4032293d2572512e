"""Which tensors are alive, in bytes, seen at every operation: of real tensors and of fake ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from parallel.kernels import oversize, workspace

NUMBER: Any = torch.ops.aten._local_scalar_dense.default  # what item(), float() and bool() call
EMPTY: Any = torch.ops.aten.empty.memory_format


@dataclass
class Block:
    """One storage: its bytes, and which of all births and deaths are its own."""

    size: int
    more: int = 0
    kind: str = ""
    born: int = 0
    died: int | None = None

    @property
    def nbytes(self) -> int:
        """All bytes that are counted."""
        return self.size + self.more


Known = tuple[weakref.ref[UntypedStorage], Block]


class Tracker(TorchDispatchMode):
    """Counts the bytes of all storages that operations return while it is entered.

    A storage counts once, however many tensors share it, until the last of them is gone. What a
    kernel takes and gives back within one operation is not seen: of fake tensors it is estimated.

    peak: most bytes alive after an operation. need: the same of fake tensors, with the operation's
    workspace, and without what is ``awaited``.
    is_imagined: tensors are fake; whoever asks for a number of theirs gets 1.
    """

    def __init__(self, device: torch.device, *, is_imagined: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.peak = self.need = self.live = 0
        self.parameters: list[Tensor] = []  # whose gradients are known as such
        self.awaited: Callable[[], int] = int  # bytes that are alive, and not written to
        self._type, self._is_imagined = device.type, is_imagined
        self._now = self._peak_at = 0
        self._is_backward = False
        self._blocks: list[Block] = []
        self._alive: dict[int, Known] = {}
        self._resized: dict[int, Known] = {}  # of these, what may be resized

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, and take in what it returns."""
        if self._is_imagined and func is NUMBER:
            return _one(args[0].dtype)
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward and not self._is_backward:
            self._begin_backward()
        self._is_backward = is_backward
        self._look_again()
        output = func(*args, **(kwargs or {}))
        if self._is_imagined:
            self.add(tree_leaves(output), more=oversize(func, args))
            used = self.live - self.awaited()
            self.need = max(self.need, used + workspace(func, args, output))
        else:
            self.add(tree_leaves(output))
        key = id(output.untyped_storage()) if func is EMPTY else None
        if key in self._alive:
            self._resized[key] = self._alive[key]
        return output

    def add(self, values: Iterable[Any], kind: str = "", more: int = 0) -> None:
        """Take in the tensors among ``values``; with a ``kind``, as being of it.

        more: bytes that a new storage has beside what it says.
        """
        for storage in self._storages(values):
            known = self._alive.get(id(storage))
            if known is not None and known[0]() is storage:
                if kind:
                    known[1].kind = kind
                if known[1].size == storage.nbytes():
                    continue
                self._forget(id(storage), known[0])  # it was resized
            self._begin(storage, Block(storage.nbytes(), more, kind))

    def at_peak(self) -> dict[str, int]:
        """Return the bytes of each kind that were alive at the peak; "" has what is of none."""
        found: dict[str, int] = {}
        for block in self._blocks:
            if block.born <= self._peak_at and (block.died is None or block.died > self._peak_at):
                found[block.kind] = found.get(block.kind, 0) + block.nbytes
        return found

    def _look_again(self) -> None:
        """See which empty storages changed their size, as ``fully_shard`` does beside torch."""
        for key, (known, block) in list(self._resized.items()):
            storage = known()
            if storage is None:
                del self._resized[key]
            elif storage.nbytes() != block.size:
                self._forget(key, known)
                self._begin(storage, Block(storage.nbytes(), kind=block.kind))
                self._resized[key] = self._alive[key]

    def _begin_backward(self) -> None:
        """Know apart what backward finds: gradients so far, and else what forward kept for it."""
        self.add((each.grad for each in self.parameters), "gradients")
        for _, block in self._alive.values():
            block.kind = block.kind or "activations"

    def _storages(self, values: Iterable[Any]) -> Iterable[UntypedStorage]:
        for value in values:
            if not isinstance(value, Tensor) or value.device.type != self._type:
                continue
            if isinstance(value, FakeTensor) and not self._is_imagined:  # takes nothing
                continue
            if is_traceable_wrapper_subclass(value):  # a DTensor, say
                names, _ = value.__tensor_flatten__()
                yield from self._storages(getattr(value, name) for name in names)
            elif value.layout == torch.strided:
                yield value.untyped_storage()
            elif value.layout == torch.sparse_coo:
                yield from self._storages((value._indices(), value._values()))

    def _begin(self, storage: UntypedStorage, block: Block) -> None:
        self._now += 1
        block.born = self._now
        key = id(storage)
        self._alive[key] = weakref.ref(storage, lambda gone: self._forget(key, gone)), block
        self._blocks.append(block)
        self.live += block.nbytes
        if self.live > self.peak:
            self.peak, self._peak_at = self.live, self._now

    def _forget(self, key: int, gone: weakref.ref[UntypedStorage]) -> None:
        known = self._alive.get(key)
        if known is not None and known[0] is gone:  # else another storage has its number by now
            del self._alive[key]
            self._now += 1
            known[1].died = self._now
            self.live -= known[1].nbytes


def _one(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype.is_complex or dtype.is_floating_point:
        return 1j if dtype.is_complex else 1.0
    return True if dtype == torch.bool else 1
