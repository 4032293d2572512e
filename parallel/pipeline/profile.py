"""What each layer of a model costs: seconds, arithmetic, and the bytes that training it keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from parallel.errors import UsageError, own_words
from parallel.imagined import copied
from parallel.pipeline.layers import Layers
from parallel.pipeline.rehearsal import Passed, ends, entry, forward, tensors
from parallel.pipeline.timing import seconds

MEASURES = ("time", "flops", "params")


@dataclass(frozen=True)
class LayerCost:
    """What one microbatch costs in one layer; what was not measured is 0.

    flops: of forward and backward. parameters, trained, saved, out: bytes; ``trained`` of the
    parameters that require a gradient, ``saved`` kept for the backward beside parameters and what
    the layer before keeps already, ``out`` of all tensors that the next layer is given.
    """

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    flops: int = 0
    parameters: int = 0
    trained: int = 0
    saved: int = 0
    out: int = 0


def profile(layers: Layers, example: Any, by: str, device: torch.device) -> list[LayerCost]:
    """Return what each layer costs in training on ``example``, one microbatch's input.

    example: a tensor, or tuples, lists and dicts of tensors; each later layer is given what the
        one before it returned. None: parameters alone are counted, whatever ``by``.
    by: ``time`` runs a copy of one layer at a time on ``device``, three times or more, with
        random weights where the layer is on the meta device; ``flops`` and ``params`` compute
        nothing and take no memory. Layers and random generators stay as they are.

    Raises ``UsageError`` naming the layer that fails on what it is given.
    """
    if by not in MEASURES:
        raise UsageError(f"strategy.balance={by} is not one of {', '.join(MEASURES)}")
    found = [_sizes(name, layer) for name, layer in layers]
    if example is None:
        return found
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), torch.enable_grad():
        run = _Timed(device) if by == "time" else _Counted(device)
        passed = Passed(tree_map_only(Tensor, run.tensor, example))
        for number, (name, layer) in enumerate(layers):
            try:
                found[number], after = run(found[number], layer, passed)
            except Exception as error:
                raise UsageError(_failed(name, layer, passed.tree, by, error)) from error
            passed = after
    return found


class _Timed:
    """Runs a copy of a layer on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(
        self, cost: LayerCost, layer: nn.Module, given: Passed
    ) -> tuple[LayerCost, Passed]:
        own = copied(layer, self.tensor)
        _initialise(layer, own)
        passed, saved = forward(own, given)
        forward_s, backward_s = seconds(own, given.tree, self.device)
        cost = replace(cost, forward_s=forward_s, backward_s=backward_s, saved=saved)
        return replace(cost, out=_bytes(tensors(passed.tree))), passed

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, or numbers of a layer's usual size for a meta tensor."""
        if not tensor.is_meta:
            return tensor.detach().to(self.device, copy=True)
        own = torch.zeros_like(tensor, device=self.device, requires_grad=False)
        inputs = tensor[0].numel() if tensor.dim() and tensor.numel() else 1
        return own.uniform_(-(inputs**-0.5), inputs**-0.5) if own.is_floating_point() else own


class _Counted:
    """Runs a copy of a layer on tensors without numbers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # what a layer holds beside its parameters and buffers is taken as it is
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def __call__(
        self, cost: LayerCost, layer: nn.Module, given: Passed
    ) -> tuple[LayerCost, Passed]:
        own = copied(layer, self.tensor)
        with _unlogged(), self.mode:
            passed, saved = forward(own, given)
            with FlopCounterMode(display=False) as counter, plain_kernels():
                outputs = ends(own(entry(given.tree)))
                if outputs:
                    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
        cost = replace(cost, flops=counter.get_total_flops(), saved=saved)
        return replace(cost, out=_bytes(tensors(passed.tree))), passed

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same shape, type and strides that holds no memory."""
        with self.mode:
            return torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.device
            )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep torch from logging the traceback of what is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Keep attention and recurrent layers to operations that torch's counter knows."""
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    before = [each.enabled for each in libraries]
    try:
        for each in libraries:
            each.enabled = False  # not by flags(): these set precisions too
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for each, enabled in zip(libraries, before, strict=True):
            each.enabled = enabled


def _initialise(layer: nn.Module, own: nn.Module) -> None:
    """Let modules that were on the meta device and know how fill their own numbers."""
    for original, module in zip(layer.modules(), own.modules(), strict=True):
        mine = [*original.parameters(recurse=False), *original.buffers(recurse=False)]
        reset = getattr(module, "reset_parameters", None)
        if reset is not None and mine and all(each.is_meta for each in mine):
            reset()


def _sizes(name: str, layer: nn.Module) -> LayerCost:
    parameters = list(layer.parameters())
    trained = _bytes(each for each in parameters if each.requires_grad)
    return LayerCost(name, parameters=_bytes(parameters), trained=trained)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _failed(name: str, layer: nn.Module, given: Any, by: str, error: Exception) -> str:
    met = f"{tree_map_only(Tensor, _described, given)}"[:300]  # sets are shown as they are
    numbers = "" if by == "time" else "; strategy.balance=time runs it on numbers"
    place = extract_tb(error.__traceback__)[-1]
    return (
        f"layer {name!r}, a {type(layer).__name__}, raises {type(error).__name__} on {met}: "
        f"{own_words(error)} ({place.filename}:{place.lineno}); layers run in order, each on what "
        f"the one before it returned{numbers}"
    )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
