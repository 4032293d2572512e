"""Weights under a model's own names, and what of them does not fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from launch.weights.errors import WeightsError, first
from launch.weights.wrappers import unwrap


@dataclass(frozen=True)
class Fitted:
    """Weights by the model's own names, and what is left, each with its shape for the reader.

    Values keep the file's dtype: they are converted one by one as they are copied into the model.
    """

    weights: Mapping[str, Tensor]
    own: int  # tensors that the model has
    missing: Sequence[str] = ()  # the model's names for which the file has nothing
    ignored: Sequence[str] = ()  # the file's names of which the model knows nothing
    differing: Sequence[str] = ()  # names in both, whose tensors cannot be the same

    @property
    def is_whole(self) -> bool:
        """Whether the model has what the file has, and nothing else."""
        return not (self.missing or self.ignored or self.differing)

    def remainder(self) -> str:
        """Return the first few names of each kind that is left, with shapes."""
        kinds = {
            "the model's own, not in the file": self.missing,
            "in the file, not in the model": self.ignored,
            "in both, but not alike": self.differing,
        }
        return "; ".join(f"{kind}: {first(names)}" for kind, names in kinds.items() if names)


def fit(weights: Mapping[str, Tensor], model: nn.Module, strict: bool = True) -> Fitted:
    """Return ``weights`` as the model names them; nothing is changed.

    Raises ``WeightsError`` if nothing fits, and if ``strict`` where anything does not.
    """
    own = _own(model)
    fitted = _compare(weights, own)
    if not fitted.weights:
        raise WeightsError(
            "nothing of it fits the model, it would train from random weights. "
            f"{fitted.remainder()}. Is it the file of another model?"
        )
    if strict and not fitted.is_whole:
        raise WeightsError(
            f"it does not fit the model. {fitted.remainder()}. To take what fits, "
            f"{len(fitted.weights)} of the model's {fitted.own} tensors, and leave the others as "
            "it made them: checkpoint.init_strict=false"
        )
    return fitted


def _own(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()  # ties stay one object
        if isinstance(value, Tensor)
    }


def _compare(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Fitted:
    names = unwrap(weights, own)
    fitting: dict[str, Tensor] = {}
    taken: dict[int, str] = {}  # which name came first, of each tensor of the model
    differing = []
    for theirs, name in names.items():
        value = _paired(weights[theirs], own[name])
        why = _difference(value, own[name])
        twin = taken.get(id(own[name]))
        if why is None and twin and not _same(value, fitting[twin], own[name].dtype):
            why = f"one tensor with {twin} in the model, another in the file"
        if why is None:
            fitting[name] = value
            taken.setdefault(id(own[name]), name)
        else:
            differing.append(f"{theirs}: {why}")
    for name, value in own.items():  # a tied tensor may be in the file under one of its names
        if name not in fitting and id(value) in taken:
            fitting[name] = fitting[taken[id(value)]]
    met = fitting.keys() | set(names.values())
    return Fitted(
        fitting,
        len(own),
        [f"{n} {_shape(v)}" for n, v in own.items() if n not in met and not _is_counter(n)],
        [f"{n} {_shape(v)}" for n, v in weights.items() if n not in names],
        differing,
    )


def _is_counter(name: str) -> bool:
    """Return whether torch does without it too: batch norm counts only since torch 0.4.1."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def _paired(value: Tensor, own: Tensor) -> Tensor:
    """Return a complex tensor where the file holds it as pairs, as our checkpoints do."""
    pairs = own.is_complex() and value.dtype in (torch.float16, torch.float32, torch.float64)
    if pairs and not is_lazy(own) and value.shape == (*own.shape, 2):
        return torch.view_as_complex(value.clone())  # a file need not align it for that
    return value


def _difference(value: Tensor, own: Tensor) -> str | None:
    if not is_lazy(own) and value.shape != own.shape:
        return f"{_shape(value)} in the file, {_shape(own)} in the model"
    if not torch.can_cast(value.dtype, own.dtype):
        return f"{value.dtype} in the file, {own.dtype} in the model".replace("torch.", "")
    return None


def _same(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    return one.data_ptr() == other.data_ptr() or torch.equal(one.to(dtype), other.to(dtype))


def _shape(value: Tensor) -> str:
    return "[not known yet]" if is_lazy(value) else str(list(value.shape))
