"""What crosses a cut: tensors in tuples, lists and dicts, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from parallel.errors import UsageError

PLAIN = (type(None), bool, int, float, str)


def flatten(value: Any, giver: str = "a layer") -> tuple[list[Tensor], Any]:
    """Return the tensors of ``value``, and its form as JSON can hold it.

    The form of a tensor is {"tensor": [dtype, shape, requires_grad]}, of a tuple {"tuple": [...]},
    of a dict {"dict": [[key, form], ...]}; lists, None, numbers and text stand for themselves.
    Raises ``UsageError`` for what is none of these: what ``giver`` returned.
    """
    tensors: list[Tensor] = []
    try:
        return tensors, _form(value, tensors)
    except _UnknownError as error:
        raise UsageError(f"{giver} returned {error}") from None


class _UnknownError(Exception):
    """What cannot cross, and what could."""


def _form(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise _UnknownError(
                "a sparse tensor, which cannot go from one stage to the next; make it dense"
            )
        tensors.append(value)
        return {"tensor": [str(value.dtype)[6:], list(value.shape), value.requires_grad]}
    if type(value) is tuple:
        return {"tuple": [_form(each, tensors) for each in value]}
    if type(value) is list:
        return [_form(each, tensors) for each in value]
    if type(value) is dict and all(isinstance(key, PLAIN) for key in value):
        return {"dict": [[key, _form(each, tensors)] for key, each in value.items()]}
    if type(value) in PLAIN:
        return value
    raise _UnknownError(
        f"a {type(value).__name__}, which cannot go from one stage to the next; "
        "wanted tensors, None, numbers or text, in tuples, lists and dicts"
    )


def empty(form: Any, device: torch.device) -> list[Tensor]:
    """Return fresh memory for the tensors of ``form``."""
    return [
        torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        for dtype, shape, _ in described(form)
    ]


def described(form: Any) -> Iterator[tuple[str, list[int], bool]]:
    """Yield dtype, shape and whether it requires a gradient, of each tensor of ``form``."""
    if isinstance(form, list):
        for each in form:
            yield from described(each)
    elif isinstance(form, dict):
        [(kind, held)] = form.items()
        if kind == "tensor":
            yield held
        else:
            yield from described(held if kind == "tuple" else [each for _, each in held])


def unflatten(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value that ``flatten`` took apart, with ``tensors`` in the place of its own."""
    return _value(form, iter(tensors))


def _value(form: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(form, list):
        return [_value(each, tensors) for each in form]
    if not isinstance(form, dict):
        return form
    [(kind, held)] = form.items()
    if kind == "tensor":
        return next(tensors)
    if kind == "tuple":
        return tuple(_value(each, tensors) for each in held)
    return {key: _value(each, tensors) for key, each in held}
