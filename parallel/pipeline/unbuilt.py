"""Models built without memory: their shapes, and how their values will come about."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from parallel.errors import UsageError
from parallel.pipeline.layers import named_tensors
from parallel.pipeline.replay import evaluate, plan
from parallel.pipeline.tape import Place, Recorder, Tape

WHOLE = "use strategy.build=whole: each process builds the whole model first"
HIDDEN = ("data_ptr", "untyped_storage", "storage", "_typed_storage")  # memory, past the recorder
RECIPE = "_recipe"  # the model's attribute


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a model's tensors come about: the steps, and by name where each lies.

    dtypes: of all tensors, also of those that have their values already.
    """

    tape: Tape
    places: Mapping[str, Place]
    dtypes: Mapping[str, torch.dtype]

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        return self  # it never changes, and is long

    def empty(self, names: Collection[str]) -> list[str]:
        """Return those of ``names`` that the steps leave without values, or in part."""
        _, missing = plan(self.tape, {self.places[name].storage for name in names})
        if not missing:
            return []
        each = {name: plan(self.tape, {self.places[name].storage}, draws=False) for name in names}
        return [name for name, (_, lacks) in each.items() if lacks] or ["what a draw depends on"]


def unbuilt(make: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that ``make`` builds, without memory (meta device).

    Torch's generator is left as it was; python's and numpy's move as ``make`` moves them. Tensors
    whose values python gave have them already. Raises ``UsageError`` where ``make`` does what
    cannot be put off; whether all tensors will get values, ``why_not`` tells.
    """
    recorder = Recorder(evaluate)
    try:
        with recorder, _Answers(recorder):
            model = make()
    except Exception as error:
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"the model cannot be built without memory: {said}; {WHOLE}") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"the task's model() returned a {type(model).__name__}, wanted a Module")
    named = named_tensors(model)
    _refuse_lazy(named)
    _refuse_kept(model, recorder, named)
    places = {name: recorder.place(value) for name, value in named.items() if value.is_meta}
    dtypes = {name: value.dtype for name, value in named.items()}
    setattr(model, RECIPE, Recipe(recorder.tape, places, dtypes))
    return model


def recipe_of(model: nn.Module) -> Recipe | None:
    """Return what ``unbuilt`` left with the model; None for others."""
    found = getattr(model, RECIPE, None)
    return found if isinstance(found, Recipe) else None


def why_not(model: nn.Module) -> str:
    """Return which tensors without values will get none, "" where there are no such."""
    recipe = recipe_of(model)
    unset = [name for name, value in named_tensors(model).items() if value.is_meta]
    return "" if recipe is None or not unset else refusal(recipe.empty(unset))


def refusal(empty: Collection[str]) -> str:
    """Return why the tensors named cannot be made, and the ways to go on; "" for none."""
    if not empty:
        return ""
    more = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
    return (
        f"the model's constructor leaves {next(iter(empty))}{more} without values (torch.empty), "
        "or fills parts of it only, so that it cannot be built in parts; give its values by "
        f"checkpoint.init_from=PATH, or {WHOLE}"
    )


class _Answers(TorchFunctionMode):
    """Answers as real tensors would: some of torch's own functions do nothing on meta."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__ is Tensor.is_meta:
            return False
        with torch._C.DisableTorchFunction():
            on_meta = bool(args) and isinstance(args[0], Tensor) and args[0].is_meta
        if on_meta and name == "tolist":
            return self._recorder.values(args[0]).tolist()
        if name == "__deepcopy__" and not on_meta:  # copies memory, past the recorder
            with _disable_current_modes():
                return func(*args, **(kwargs or {}))
        if on_meta and name in HIDDEN:
            raise UsageError(f"it looks at a tensor's memory ({name})")
        return func(*args, **(kwargs or {}))


def _refuse_lazy(named: Mapping[str, Tensor]) -> None:
    for name, value in named.items():
        if is_lazy(value):
            raise UsageError(
                f"{name} takes its shape from the first batch (a lazy layer), and a model built "
                f"without memory must know it; give the layer its sizes, or {WHOLE}"
            )


def _refuse_kept(model: nn.Module, recorder: Recorder, named: Mapping[str, Tensor]) -> None:
    """Raise where a tensor is kept that would never get memory."""
    gc.collect()
    known = {id(each) for value in named.values() for each in (value, value._base)}
    kept = [tensor for tensor in recorder.kept() if id(tensor) not in known]
    if not kept:
        return
    holders = (
        f"{type(module).__name__}.{name}"
        for module in model.modules()
        for name, value in vars(module).items()
        if any(value is tensor for tensor in kept)
    )
    what = next(holders, f"a tensor of shape {list(kept[0].shape)}, somewhere,")
    raise UsageError(
        f"{what} is neither a parameter nor a buffer, and would not get memory; keep it by "
        f"self.register_buffer(NAME, TENSOR, persistent=False), or {WHOLE}"
    )
