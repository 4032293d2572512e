"""What a constructor does to tensors, written down without doing it: no memory, no arithmetic.

    make() -> torch.empty, uniform_, mul_, ... -> Recorder -> Tape: steps over numbered storages

Tensors made inside have shapes only (meta device). Tensors of values that python gave
(``torch.tensor([0.5])``) stay real. ``parallel.pipeline.replay`` does the steps for real.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from parallel.errors import UsageError
from parallel.pipeline.witness import Witness

META, CPU = torch.device("meta"), torch.device("cpu")
EMPTY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
FILLS = {  # overwrite what they are given, whatever was in it
    *("fill_", "zero_", "copy_", "uniform_", "normal_", "random_", "exponential_", "bernoulli_"),
    *("log_normal_", "cauchy_", "geometric_"),
}
STATISTICS = ("running_mean", "running_var")  # batch norm writes there, though its schema is silent


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in which storage, and how."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, eq=False)
class Step:
    """One operation, its tensors replaced by their places.

    reads: storages whose values it needs. writes: those it changes or makes. settles: of these
    the ones in which nothing is left of what was there. made: the places of its new tensors.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: frozenset[int]
    writes: frozenset[int]
    settles: frozenset[int]
    made: tuple[Place | None, ...]
    is_random: bool


@dataclass(eq=False)
class Tape:
    """The steps in their order, and the bytes of each storage."""

    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Writes down each operation on tensors while it is the current mode.

    evaluate: returns the values of a place, for a constructor that looks at numbers.
    """

    def __init__(self, evaluate: Callable[[Tape, Place], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's, as the next
        self.tape = Tape()
        self._evaluate = evaluate
        self._numbers: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage] = []  # kept, so that no address comes twice
        self._seen: list[weakref.ref[Tensor]] = []
        self._generator = Witness()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch's
        self._generator.give_back(check=raised[0] is None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunction():
            return self._follow(func, args, kwargs)

    def place(self, tensor: Tensor) -> Place:
        """Return where a tensor without memory lies."""
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self._storages)
            self._storages.append(storage)
            self.tape.sizes.append(storage.nbytes())
        elif storage.nbytes() != self.tape.sizes[number]:
            raise UsageError("it changes the size of a tensor in place")
        size, stride = tuple(tensor.shape), tensor.stride()
        return Place(number, tensor.dtype, size, stride, int(tensor.storage_offset()))

    def values(self, tensor: Tensor) -> Tensor:
        """Return the numbers of a tensor without memory. Raises where chance decides them."""
        with _disable_current_modes():
            return self._evaluate(self.tape, self.place(tensor))

    def kept(self) -> list[Tensor]:
        """Return the tensors without memory that somebody holds."""
        return [tensor for seen in self._seen if (tensor := seen()) is not None]

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if tensors and not is_random and not any(tensor.is_meta for tensor in tensors):
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.values(args[0]).item()
        written = _written(func, args, kwargs)
        _refuse(tensors, written, kwargs)
        if is_random:
            self._generator.draw()
        known = {t.untyped_storage()._cdata for t in tensors if t.is_meta}
        places = [self.place(tensor) for tensor in written]
        outputs = _shapes(func, args, kwargs)
        made = [out for out in tree_leaves(outputs) if isinstance(out, Tensor)]
        self._seen += [weakref.ref(out) for out in made if out.is_meta]
        fresh = [None if _is_in(out, known) else self.place(out) for out in made]
        if func._schema.name.removeprefix("aten::") not in EMPTY and (
            is_random or any(fresh) or (written and torch.Tag.inplace_view not in func.tags)
        ):
            self._write_down(func, args, kwargs, (places, fresh), is_random)
        return outputs

    def _write_down(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: tuple[list[Place], list[Place | None]],
        is_random: bool,
    ) -> None:
        written, made = results
        args, kwargs = tree_map(self._frozen, (args, _at_home(func, kwargs, made)))
        fills = func._schema.name.removeprefix("aten::") in FILLS
        given = tree_leaves((args[1:] if fills else args, kwargs))
        reads = {leaf.storage for leaf in given if isinstance(leaf, Place)}
        new = {place.storage for place in made if place is not None}
        whole = {p.storage for p in written if fills and _covers(p, self.tape.sizes[p.storage])}
        self.tape.steps.append(
            Step(
                operation=func,
                args=args,
                kwargs=kwargs,
                reads=frozenset(reads),
                writes=frozenset({place.storage for place in written} | new),
                settles=frozenset((whole - reads) | new),
                made=tuple(made),
                is_random=is_random,
            )
        )

    def _frozen(self, leaf: Any) -> Any:
        """Return a tensor's place, or its values as they are now."""
        if not isinstance(leaf, Tensor):
            return leaf
        return self.place(leaf) if leaf.is_meta else leaf.detach().clone()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation changes."""
    found: list[Any] = []
    for at, argument in enumerate(func._schema.arguments):
        info = argument.alias_info
        hidden = "batch_norm" in func._schema.name and argument.name in STATISTICS
        if hidden or (info is not None and info.is_write):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            found += tree_leaves(value)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _refuse(tensors: Iterable[Tensor], written: Iterable[Tensor], kwargs: dict[str, Any]) -> None:
    """Raise where an operation cannot be put off until later."""
    if kwargs.get("generator") not in (None, torch.default_generator):
        raise UsageError("it draws from a random generator of its own")
    devices = {tensor.device.type for tensor in tensors}
    if kwargs.get("device") is not None:
        devices.add(torch.device(kwargs["device"]).type)
    if not devices <= {"cpu", "meta"}:
        raise UsageError("it makes tensors on a device of its own choice")
    if any(not tensor.is_meta for tensor in written):
        raise UsageError("it overwrites values that python gave, as torch.tensor([...]) does")
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        raise UsageError("it computes with conjugated tensors that share memory")


def _shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operation returns, without memory."""
    kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = META
        kwargs.pop("pin_memory", None)
    return func(*tree_map(_shell, args), **tree_map(_shell, kwargs))


def _shell(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.is_meta:
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=META)


def _at_home(func: Any, kwargs: dict[str, Any], made: list[Place | None]) -> dict[str, Any]:
    """Return ``kwargs`` as they are on the CPU, wherever and whenever the step is done."""
    own = {argument.name for argument in func._schema.arguments}
    kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    kwargs |= {"device": CPU} if "device" in own else {}
    is_factory = not any(str(a.type).startswith("Tensor") for a in func._schema.arguments)
    if is_factory and "dtype" in own and made and made[0] is not None:
        kwargs["dtype"] = made[0].dtype  # the default may be another by then
    return kwargs


def _is_in(tensor: Tensor, known: set[int]) -> bool:
    return not tensor.is_meta or tensor.untyped_storage()._cdata in known


def _covers(place: Place, nbytes: int) -> bool:
    """Return whether each byte of the storage belongs to just one number of the tensor."""
    expected = 1
    for stride, size in sorted(zip(place.stride, place.size, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return expected * place.dtype.itemsize == nbytes
